"""The server's side of a whole run, with clients that are lost at places other than a step."""

from __future__ import annotations

from remote_run import CLIENTS, Serve, Server

from fedstrata.engine.serving import Serving
from fedstrata.record.log import read_events

ONE_ROUND = ("training.batch_size=8", "data.synthetic.notes=12", "federation.rounds=1")


def serving(server: Server) -> Serving:
    """Returns the server's side, which writes a run directory."""
    folder = server.folder / "run"
    folder.mkdir()
    return Serving(
        server.experiment, CLIENTS, folder, lambda event, facts: server.events.append((event, facts))
    )


def test_a_round_is_kept_whoever_scores_it(serve: Serve) -> None:
    """One leaves once it has delivered, one says scores that are none: the third has all that is needed."""
    server = serve("method={name: fl_llama}", *ONE_ROUND, "federation.min_clients=3")
    for client, behaviour in zip(CLIENTS, ("leaves", "scores", "good"), strict=True):
        server.start(client, behaviour)
    run = serving(server)
    summary = run.execute(server.hub, patience=600.0)
    assert (run.committed, summary["rounds"]) == (1, 1)
    assert summary["failures"] == {"clients": {}, "abandoned_rounds": 0}, "all three have delivered"
    scores = summary["metrics"]["clients"]
    assert [scores[client] is None for client in CLIENTS] == [True, True, False]
    assert summary["metrics"]["global"] == scores["site-3"]
    lost = [event for event in read_events(run.folder / "record.jsonl") if event["event"] == "client_failed"]
    assert {(event["client"], event["part"]) for event in lost} == {
        (client, part) for client in CLIENTS[:2] for part in ("validation", "test")
    }
    told = {event["client"]: event["message"] for event in lost}
    assert told["site-1"] == "client 'site-1' is not connected"
    assert told["site-2"] == "scores came that are no numbers, or of 1 documents"

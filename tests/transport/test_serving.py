"""The server's side of a whole run, with clients that are lost at places other than a step."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from remote_run import CLIENTS, Clients, Serve, Server, served
from support import TINY, RunTiny, files_of, problems_of, refused
from typer.testing import CliRunner

from fedstrata.adapters.attach import plain_tensors
from fedstrata.cli.main import app
from fedstrata.client.turn import Order
from fedstrata.core.errors import ConfigurationError, DataError, FedstrataError, FrameError
from fedstrata.core.files import TEMPORARY
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Update
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.engine.check import check_settings
from fedstrata.engine.facts import OTHER
from fedstrata.engine.prepare import prepare_server
from fedstrata.engine.remote.engine import RemoteEngine
from fedstrata.engine.run import Run
from fedstrata.engine.run_folder import write_settings
from fedstrata.record.history import read_history
from fedstrata.record.log import read_events
from fedstrata.results.export import export
from fedstrata.results.result import open_result, open_task

ONE_ROUND = ("training.batch_size=8", "data.synthetic.notes=12", "federation.rounds=1")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, clients: Clients) -> Path:
    """What site-1 has kept of a served run; nobody changes it."""
    folder = tmp_path_factory.mktemp("once") / "served"
    served(folder, clients, "method={name: fedavg}", *ONE_ROUND, "federation.floors=false", names=CLIENTS[:1])
    (found,) = folder.glob("home of site-1/run-*/clients/site-1")
    return found


def serving(server: Server, patience: float = 600.0) -> Run[RemoteEngine]:
    """Returns the run, which writes a run directory, or goes on with it."""
    folder = server.folder / "run"
    folder.mkdir(exist_ok=True)
    write_settings(server.experiment.settings, folder / "config.yaml")  # as the command does
    run = Run(
        server.experiment,
        folder,
        lambda event, facts: server.events.append((event, facts)),
        partial(RemoteEngine, names=CLIENTS, cache_bytes=2**30, patience=patience),
    )
    run.engine.connect(server.hub)
    return run


@pytest.mark.slow
@pytest.mark.claim("processes#claims-more")
def test_what_a_client_does_without_end_costs_it_the_turn(serve: Serve) -> None:
    """Each of its steps, or of its questions, is in order; there are more than its examples make."""
    server = serve("method={name: fl_llama, mode: client_batch}", *ONE_ROUND, "federation.min_clients=2")
    for client, behaviour in zip(CLIENTS, ("endless", "asks", "good"), strict=True):
        server.start(client, behaviour)
    run = serving(server)
    summary = run.execute()
    lost = [event for event in read_events(run.folder / "record.jsonl") if event["event"] == "client_failed"]
    told = {event["client"]: (event.get("part"), event["message"]) for event in lost}
    part, message = told["site-1"]
    assert part is None, "it is lost to the round"
    assert re.search(r" 0 batches of step \d+; .* \d+ steps ", message)
    part, message = told["site-2"]
    assert part == "test", "it has trained"
    assert re.search(r"'site-2' .* \d+ questions", message)
    assert summary["failures"]["clients"] == {"site-1": 1}
    assert [client for client, scores in summary["metrics"]["clients"].items() if not scores] == ["site-2"]


@pytest.mark.slow
@pytest.mark.usefixtures("reports")
@pytest.mark.claim("processes#absent-client")
def test_a_client_that_comes_later_is_scored_and_one_that_is_given_up_is_not_waited_for(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve("method={name: fl_llama}", *ONE_ROUND, "federation.rounds=3", "federation.min_clients=2")
    hub, waited = server.hub, list[list[str]]()
    wait_for = hub.wait_for

    def wait_a_little(clients: Collection[str], seconds: float) -> None:
        waited.append([*clients])
        wait_for(clients, seconds)

    for client in CLIENTS[:2]:
        server.start(client)
    wait_for(CLIENTS[:2], 600)
    monkeypatch.setattr(hub, "wait_for", wait_a_little)
    run = serving(server, patience=0.0)
    listen = run._listen

    def come_after_the_second(event: str, facts: Mapping[str, Any]) -> None:
        listen(event, facts)
        if event == "round" and facts["round"] == 2:
            server.start("site-3")
            wait_for(["site-3"], 600)

    run._listen = come_after_the_second
    summary = run.execute()
    alone, everybody = [*CLIENTS[:2]], [*CLIENTS]
    assert waited == [everybody, alone, alone, everybody], "before the run, and before each round"
    assert summary["metrics"]["clients"].keys() == {*CLIENTS}
    assert summary["metrics"]["clients"]["site-3"]
    history = read_history(run.folder)
    assert {*history.start["clients"]} == {*CLIENTS}
    assert history.start["clients"]["site-3"].keys() == {"train", "validation", "test"}
    assert len(open_result(run.folder).start["clients"]) == 3
    assert (run.folder / "report.html").read_text().count("site-3")
    for event in history.rounds:
        layout = server.experiment.model.layout
        assert event["groups_up"].keys() >= {layout.group_of(name) for name in layout.head} | {OTHER}


@pytest.mark.slow
def test_what_a_client_is_told_is_of_the_round_that_the_server_goes_on_with(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest checkpoint is damaged; who was lost to its round has kept what counts of the one before."""
    server = serve("method={name: fl_llama}", *ONE_ROUND, "federation.rounds=2", "federation.min_clients=2")
    check = RemoteEngine._check

    def refuse(engine: RemoteEngine, order: Order, update: Update) -> None:
        if (order.client, order.round, order.handler) == ("site-2", 2, "train"):
            raise FrameError("of no use")
        check(engine, order, update)

    monkeypatch.setattr(RemoteEngine, "_check", refuse)
    for client in CLIENTS:
        server.start(client)
    run = serving(server)
    run.execute()
    checkpoints = run.folder / "checkpoints"

    def told(client: str, counted: int) -> None:
        again = serving(server)
        again.load()
        again._log.close()
        expected = {"run": run.engine.id, "counted": counted, "delivered": None}
        welcome = again.engine.welcome(client)
        assert {key: welcome[key] for key in expected} == expected
        assert server.events[-1] == ("joined", {"client": client})

    told("site-1", 2)
    told("site-2", 1)
    (checkpoints / "round-00002.safetensors").write_bytes(b"torn")
    half = checkpoints / f".round-00003.safetensors{TEMPORARY}"
    half.write_bytes(b"half")
    told("site-1", 1)
    told("site-2", 1)
    assert not half.exists()
    federation = server.experiment.settings.federation.model_copy(update={"rounds": 1})
    settings = server.experiment.settings.model_copy(update={"federation": federation})
    server.experiment = replace(server.experiment, settings=settings)
    with refused(ConfigurationError, "out_of_range", at="federation.rounds", values=[" 2,"]):
        serving(server).load()


def resumed(verb: str, folder: Path, *more: str) -> ConfigurationError:
    """Returns how a command refuses to go on with a run, of which it changes nothing."""
    guests = ["--insecure", "--clients", ",".join(CLIENTS), "--listen", "127.0.0.1:0"]
    options = ["--resume", "--out", str(folder), *(guests if verb == "serve" else [])]
    before = files_of(folder)
    found = CliRunner().invoke(app, [verb, *options, *more]).exception
    assert isinstance(found, ConfigurationError)
    assert files_of(folder) == before
    return found


def wrong_command(error: ConfigurationError, right: str) -> bool:
    """Whether an error says which command goes on with the run, and nothing else."""
    return problems_of(error) == [("--out", "wrong_command")] and str(error).count(right) == 1


def test_a_run_goes_on_with_the_command_that_began_it(tmp_path: Path, run_once: RunTiny) -> None:
    """Whether it has come to its record, or was stopped before."""
    begun = run_once("method={name: fl_llama}", *ONE_ROUND).folder
    ours, theirs = (shutil.copytree(begun, tmp_path / name) for name in ("ours", "theirs"))
    told = f"fedstrata run --resume --out {ours}"
    assert wrong_command(resumed("serve", ours), told)
    (ours / "record.jsonl").write_bytes(b"")
    assert wrong_command(resumed("serve", ours), told)
    run, *rest = map(json.loads, (theirs / "record.jsonl").read_text().splitlines())
    kept = [{**run, "id": "0123", "data": None, "ends": {}}, *rest]
    (theirs / "record.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in kept) + '{"event')
    told = f"fedstrata serve --resume --out {theirs}"
    assert wrong_command(resumed("run", theirs), told)
    (theirs / "documents.json").unlink()  # which a server has not
    (theirs / "record.jsonl").write_bytes(b"")
    assert wrong_command(resumed("run", theirs), told)
    kept.pop()
    (theirs / "record.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in kept))
    with refused(ConfigurationError, "not_finished", values=[told]):
        open_result(theirs)


def test_what_a_run_cannot_go_on_with_is_refused_before_anything_is_written(
    tmp_path: Path, run_once: RunTiny
) -> None:
    begun = run_once("method={name: fl_llama}", *ONE_ROUND).folder
    ours, theirs = (shutil.copytree(begun, tmp_path / name) for name in ("ours", "theirs"))
    for folder, changed in ((ours, {"data": "0123"}), (theirs, {"id": "0123", "data": None, "ends": {}})):
        run, *rest = (folder / "record.jsonl").read_text().splitlines()
        lines = [json.dumps(json.loads(run) | changed), *rest, '{"event": "half']  # of a killed one
        (folder / "record.jsonl").write_text("\n".join(lines))
    assert problems_of(resumed("run", ours, "report_to=[tensorboard]")) == [("data", "changed")]
    for verb, folder in (("serve", theirs), ("run", shutil.copytree(begun, tmp_path / "fewer"))):
        error = resumed(verb, folder, "federation.rounds=0", "report_to=[tensorboard]")
        assert problems_of(error) == [("federation.rounds", "out_of_range")]
        assert " 1," in str(error) and " 0 " in str(error)


def test_a_message_that_is_too_small_for_a_run_to_go_on_with_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    """Of a run that was stopped before its record began; with it or without, what is there stays."""
    wide = [text.replace("hidden_size: 32", "hidden_size: 256") for text in TINY]
    settings = check_settings(read_source(None, [*wide, "method={name: fedavg}"])).settings
    write_settings(settings, tmp_path / "config.yaml")
    error = resumed("serve", tmp_path, "--megabytes", "1", "federation.rounds=7")
    assert problems_of(error) == [("--megabytes", "out_of_range")]


def test_what_a_client_keeps_of_a_run_is_no_run_to_go_on_with(kept: Path) -> None:
    for verb in ("run", "serve"):
        error = resumed(verb, kept)
        assert wrong_command(error, "fedstrata predict, score --as")
        assert str(kept) in str(error) and "'site-1'" in str(error)


def test_a_model_that_is_damaged_is_saved_again_by_the_commands_that_are_named(
    kept: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(kept.parents[3], tmp_path / "served")
    own, run = copy / kept.relative_to(kept.parents[3]), copy / "run"
    serve = "fedstrata serve --resume"
    for folder, command in ((run, [f"{serve} --out {run}"]), (own, ["fedstrata join", serve])):
        (weights,) = folder.glob("model/*.safetensors")
        weights.write_bytes(weights.read_bytes()[:-1])
        with refused(DataError, "damaged", at=weights.name, values=command):
            open_result(folder)


def test_a_client_scores_its_test_part_with_what_it_keeps(kept: Path, tmp_path: Path) -> None:
    own = json.loads((kept / "documents.json").read_text())
    assert [*own] == ["site-1"]
    told = (kept.parents[3] / "site-1.txt").read_text().replace("client_progress", "").split()
    assert told == ["joined", "turn", "scoring", "scoring", "kept"], (
        "validation after the round, test at the end"
    )
    notes = generate(seed=0, sites=3, notes=12)
    write(notes, tmp_path / "gold", "jsonl")
    options = ["--as", str(kept), "--part", "test", "--json", str(tmp_path / "scores.json")]
    done = CliRunner().invoke(app, ["score", str(tmp_path / "gold"), str(tmp_path / "gold"), *options])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "scores.json").read_text())
    assert found["documents"] == len(own["site-1"]["test"])


def test_settings_that_only_a_simulation_follows_are_refused_all_at_once() -> None:
    asked = {
        "federation.bootstrap": "{}",
        "federation.score_clients": "true",
        "federation.score_everywhere": "true",
        "data.split.test_sites": "[site-1]",
        "data.external": "{other: {format: synthetic, types: [problem, test, treatment, drug]}}",
        "training.cache": "on",
        "federation.dropout": "0.1",
        "devices": "{}",
    }
    given = [f"{path}={value}" for path, value in asked.items()]
    with pytest.raises(ConfigurationError) as found:
        method = ("method={name: fl_llama}", "adapter={kind: lora, rank: 2}")
        prepare_server(read_source(None, [*TINY, *method, *given]), CLIENTS)
    assert {problem.path for problem in found.value.problems} == {*asked}


@pytest.mark.slow
def test_the_model_of_a_served_run_is_put_together_from_what_it_began_with_and_what_was_learnt(
    serve: Serve, run_tiny: RunTiny, tmp_path: Path
) -> None:
    """No side has all of it; a simulation saves it."""
    overrides = ("method={name: fl_llama, full: [back]}", "adapter={kind: lora, rank: 4}", *ONE_ROUND)
    simulation = run_tiny(*overrides, out="simulated")
    simulated = open_result(simulation.folder)
    server = serve(*overrides)
    for client in CLIENTS:
        server.start(client)
    run = serving(server)
    summary = run.execute()
    for scores in ("global", "clients", "mean_client"):
        assert summary["metrics"][scores] == simulation.summary["metrics"][scores]
    asked = read_source(None, [*TINY, *overrides])
    write_settings(check_settings(asked).settings, run.folder / "config.yaml")  # as the command does
    found = open_result(run.folder)
    assert found.task.classes == simulated.task.classes
    plain = plain_tensors(found.model)
    for name, tensor in simulated.model.tensors(simulated.model.layout.all).items():
        torch.testing.assert_close(plain[name], tensor, rtol=1e-3, atol=1e-4)
    assert open_task(run.folder, "--as")[1].classes == simulated.task.classes
    export(found, tmp_path / "x", licence=None, language=None, with_names=False)
    assert "synthetic" not in (tmp_path / "x" / "README.md").read_text()
    assert "data" not in json.loads((tmp_path / "x" / "fedstrata.json").read_text())["settings"]
    kept = read_source(None, [*TINY, *overrides, "method.average_ends=never"])
    write_settings(check_settings(kept).settings, run.folder / "config.yaml")
    with refused(ConfigurationError, "not_supported", at="RUN", values=["fedstrata split answer"]):
        open_result(run.folder)
    other = read_source(None, [*TINY, *overrides, "seed=1"])  # random weights of another seed
    write_settings(check_settings(other).settings, run.folder / "config.yaml")
    for merged in (False, True):
        with refused(ConfigurationError, "changed", at="model.name", values=[".embed_tokens"]):
            open_result(run.folder, dequantized=merged)
    write_settings(check_settings(asked).settings, run.folder / "config.yaml")
    (run.folder / "checkpoints" / "round-00001.safetensors").write_bytes(b"torn")
    with refused(FedstrataError, "unreadable", values=[" 1:"]):
        open_result(run.folder)


LANGUAGE = ("task={name: lm, max_length: 32}", "data.types=null", "method={name: fl_llama}")


def test_a_cut_of_a_client_that_may_not_join_is_told() -> None:
    settings = (*LANGUAGE, "method.cuts={a: {front: 0, back: 1}}")
    with refused(ConfigurationError, "unknown_name", at="method.cuts.a", values=["'a'", "site-1, site-2"]):
        prepare_server(read_source(None, [*TINY, *settings]), CLIENTS)


def test_more_clients_than_take_part_cannot_be_needed() -> None:
    """The server counts those who may join: it has no documents by which to know them."""
    settings = (*LANGUAGE, "federation.sample=0.5", "federation.min_clients=3")
    with refused(ConfigurationError, "out_of_range", at="federation.min_clients", values=[" 2,", "(3 "]):
        prepare_server(read_source(None, [*TINY, *settings]), CLIENTS)

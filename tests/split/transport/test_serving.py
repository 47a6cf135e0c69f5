"""The server's side of a whole run, with clients that are lost at places other than a step."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from remote_run import CLIENTS, Serve, Server
from support import TINY, RunTiny

from fedstrata.adapters.attach import plain_tensors
from fedstrata.core.errors import ConfigurationError, FedstrataError
from fedstrata.core.settings.source import read_source
from fedstrata.engine.check import check_settings
from fedstrata.engine.prepare import prepare_server
from fedstrata.engine.remote import RemoteEngine
from fedstrata.engine.run import Run
from fedstrata.engine.run_folder import write_settings
from fedstrata.record.log import read_events
from fedstrata.results.export import export
from fedstrata.results.result import open_result, open_task

ONE_ROUND = ("training.batch_size=8", "data.synthetic.notes=12", "federation.rounds=1")


def serving(server: Server, cache_bytes: int = 2**30) -> Run[RemoteEngine]:
    """Returns the run, which writes a run directory."""
    folder = server.folder / "run"
    folder.mkdir()
    run = Run(
        server.experiment,
        folder,
        lambda event, facts: server.events.append((event, facts)),
        partial(RemoteEngine, names=CLIENTS, cache_bytes=cache_bytes, patience=600.0),
    )
    run.engine.connect(server.hub)
    return run


def test_a_round_is_kept_whoever_scores_it(serve: Serve) -> None:
    """One leaves once it has delivered, one says scores that are none: the third has all that is needed."""
    server = serve("method={name: fl_llama}", *ONE_ROUND, "federation.min_clients=3")
    for client, behaviour in zip(CLIENTS, ("leaves", "scores", "good"), strict=True):
        server.start(client, behaviour)
    run = serving(server)
    summary = run.execute()
    assert (run.committed, summary["rounds"]) == (1, 1)
    assert summary["trainable_parameters"] == summary["model"]["parameters"], "the middle trains as well"
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


def test_the_model_of_a_served_run_is_put_together_from_what_it_began_with_and_what_was_learnt(
    serve: Serve, run_tiny: RunTiny, tmp_path: Path
) -> None:
    """No side has all of it; a simulation saves it."""
    overrides = ("method={name: fl_llama, full: [back]}", "adapter={kind: lora, rank: 4}", *ONE_ROUND)
    simulated = open_result(run_tiny(*overrides, out="simulated").folder)
    server = serve(*overrides)
    for client in CLIENTS:
        server.start(client)
    run = serving(server)
    run.execute()
    asked = read_source(None, [*TINY, *overrides])
    write_settings(check_settings(asked).settings, run.folder / "config.yaml")  # as the command does
    found = open_result(run.folder)
    assert found.task.classes == simulated.task.classes
    plain = plain_tensors(found.model)
    for name, tensor in simulated.model.tensors(simulated.model.layout.all).items():
        torch.testing.assert_close(plain[name], tensor, rtol=1e-3, atol=1e-4)
    assert open_task(run.folder, "--as")[1].classes == simulated.task.classes
    export(found, tmp_path / "x", licence=None, language=None, with_names=False)
    card = (tmp_path / "x" / "README.md").read_text()
    assert "Documents of the clients, which only they have seen. Clients were processes of their own." in card
    assert "Scores are means over the clients" in card and "synthetic" not in card
    assert "data" not in json.loads((tmp_path / "x" / "fedstrata.json").read_text())["settings"]
    kept = read_source(None, [*TINY, *overrides, "method.average_ends=never"])
    write_settings(check_settings(kept).settings, run.folder / "config.yaml")
    with pytest.raises(ConfigurationError, match=r"RUN: its clients keep the ends .*fedstrata split answer"):
        open_result(run.folder)
    other = read_source(None, [*TINY, *overrides, "seed=1"])  # random weights of another seed
    write_settings(check_settings(other).settings, run.folder / "config.yaml")
    for merged in (False, True):
        with pytest.raises(ConfigurationError, match=r"model.name: .* no longer the model .*\.embed_tokens"):
            open_result(run.folder, dequantized=merged)
    write_settings(check_settings(asked).settings, run.folder / "config.yaml")
    (run.folder / "checkpoints" / "round-00001.safetensors").write_bytes(b"torn")
    with pytest.raises(FedstrataError, match="cannot go on from any round up to 1"):
        open_result(run.folder)


def test_too_little_memory_for_keys_and_values_costs_scores_and_names_the_option(serve: Serve) -> None:
    task = "task={name: extract, templates: short, max_length: 320, tasks: [ner], mentions: [problem, test]}"
    server = serve("method={name: fl_llama}", task, *ONE_ROUND, "federation.min_clients=1")
    for client in CLIENTS:
        server.start(client)
    run = serving(server, cache_bytes=1000)
    summary = run.execute()
    assert summary["metrics"]["global"] is None
    lost = [event for event in read_events(run.folder / "record.jsonl") if event["event"] == "client_failed"]
    assert {event["client"] for event in lost} == set(CLIENTS)
    told = r"session site-\d/\S+ has \d+ bytes of keys and values, and all sessions together may have 1000; "
    assert all(re.search(f"{told}.*--cache-megabytes", event["message"]) for event in lost)


def test_a_cut_of_a_client_that_may_not_join_is_told() -> None:
    language = ("task={name: lm, max_length: 32}", "data.types=null")
    settings = (*language, "method={name: fl_llama, cuts: {a: {front: 0, back: 1}}}")
    with pytest.raises(
        ConfigurationError, match=r"method\.cuts\.a: there is no client 'a'; .*site-1, site-2"
    ):
        prepare_server(read_source(None, [*TINY, *settings]), CLIENTS)


def test_more_clients_than_take_part_cannot_be_needed() -> None:
    """The server counts those who may join: it has no documents by which to know them."""
    language = ("task={name: lm, max_length: 32}", "data.types=null", "method={name: fl_llama}")
    settings = (*language, "federation.sample=0.5", "federation.min_clients=3")
    with pytest.raises(ConfigurationError, match=r"min_clients: must be at most 2, .*\(3 clients, of which"):
        prepare_server(read_source(None, [*TINY, *settings]), CLIENTS)

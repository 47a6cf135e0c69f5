"""Floors beside the scores of runs: the same wherever sites are, and nothing that may not leave a site."""

from __future__ import annotations

from pathlib import Path

import pytest
from remote_run import Clients, served
from support import TINY, RunTiny, assert_same_tensors

from fedstrata.client.turn import Done, Order
from fedstrata.core.handlers import SCORE
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import JSON, Plan, Update
from fedstrata.data.divide import divide
from fedstrata.engine.check import check_settings
from fedstrata.engine.prepare import prepare_client
from fedstrata.engine.remote.joining import RemoteClient
from fedstrata.privacy.ledger_verification import LEDGER, read_ledger
from fedstrata.wire import frame

ENOUGH = ("data.synthetic.notes=60", "data.split={train: 0.5, validation: 0.0, test: 0.5}")
"""Documents of each site to train on, and to score, from 5 on."""
ONE_ROUND = ("federation.rounds=1", "training.epochs=1")


def test_floors_are_those_of_each_site_by_its_own_documents_added_up(run_tiny: RunTiny) -> None:
    run = run_tiny(*ENOUGH, *ONE_ROUND)
    checked = check_settings(read_source(run.folder / "config.yaml", []))
    sites = divide(checked.settings, checked.task).clients
    task = checked.task.fitted(sites)
    every, counts = [], []
    for own in sites.values():
        assert min(len(own.train), len(own.test)) >= 5
        answers = task.floors(own.train, own.test, None)["look-up table"]
        every += [(document, answer) for document, answer in zip(own.test, answers, strict=True)]
        counts.append(task.score(own.test, answers)["f1"])
    (final,) = run.of("final")
    documents, found = zip(*every, strict=True)
    assert final["floors"]["look-up table"] == {
        "global": task.score(documents, found)["f1"],
        "mean_client": pytest.approx(sum(counts) / len(counts)),
        "documents": len(documents),
    }
    assert run.summary["floors"]["look-up table"] == final["floors"]["look-up table"]["global"]


@pytest.mark.parametrize("method", ["layer_skipping", "local_only"])
def test_the_untrained_model_is_what_a_run_without_rounds_scores_and_changes_nothing(
    run_tiny: RunTiny, method: str
) -> None:
    settings = (f"method={{name: {method}}}", *ENOUGH)
    run, without = (
        run_tiny(*settings, *ONE_ROUND, f"federation.floors={floors}", out=floors)
        for floors in ("true", "false")
    )
    assert_same_tensors(run.state.tensors, without.state.tensors)
    assert run.summary["metrics"] == without.summary["metrics"]
    assert without.summary["floors"] == {}
    assert without.summary["floor"] is None
    before = run_tiny(*settings, "federation.rounds=0", out="before")
    untrained = (before.summary["metrics"]["global"] or before.summary["metrics"]["mean_client"])["f1"]
    assert run.summary["floors"]["untrained model"] == pytest.approx(untrained)
    assert "untrained model" not in before.summary["floors"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("task={name: classify, max_length: 64}", "data.types=null"),
        ("task={name: lm, max_length: 48}", "data.types=null"),
        ("task.types=[drug, problem, test, treatment]", "method={name: local_only}"),
    ],
    ids=["ner", "classify", "lm", "own models"],
)
def test_a_served_federation_has_the_floors_of_the_simulation(
    tmp_path: Path, run_tiny: RunTiny, clients: Clients, overrides: tuple[str, ...]
) -> None:
    simulated = run_tiny(*ENOUGH, *ONE_ROUND, *overrides)
    run = served(tmp_path / "served", clients, *ENOUGH, *ONE_ROUND, *overrides)
    expected = simulated.of("final")[0]["floors"]
    (final,) = run.of("final")
    assert final["floors"].keys() == expected.keys() >= {"untrained model"}
    for name, floor in final["floors"].items():
        # In a simulation all sites' texts are packed as one, which changes windows a little.
        assert floor == pytest.approx(expected[name], rel=1e-3)


def told(tmp_path: Path, *overrides: str) -> dict[str, JSON]:
    """What a site says when it is asked for its test scores and for floors, all of it in its ledger."""
    experiment = prepare_client(read_source(None, [*TINY, *overrides]), "site-1")
    remote = RemoteClient(experiment, "site-1", tmp_path, lambda event, facts: None)
    plan = frame.encode(Plan({}, {"part": "test", "final": False, "floors": True}))
    order = Order("site-1", 1, SCORE, 1, plan)
    done = remote._workplace.compute(order, remote._site, None, remote._scoring.score)
    assert isinstance(done, Done), done
    lines = list(read_ledger(remote._workplace.folder / "clients" / "site-1" / LEDGER))
    assert lines[-1]["handler"] == SCORE
    assert lines[-1]["bytes"] == done.update.nbytes
    return dict(frame.decode(done.update, Update).values)


def test_a_site_tells_what_its_floors_count_to_and_nothing_else(tmp_path: Path) -> None:
    said = told(tmp_path, *ENOUGH)
    assert said.keys() == {"tally", "apart", "floors"}
    floors = said["floors"]
    assert isinstance(floors, dict)
    assert floors.keys() == {"look-up table", "untrained model"}
    tally = said["tally"]
    assert isinstance(tally, dict)
    assert all(isinstance(own, dict) and own.keys() == tally.keys() for own in floors.values())


@pytest.mark.parametrize(
    "overrides",
    [
        ("data.synthetic.notes=24", "data.split={train: 0.8, validation: 0.0, test: 0.2}"),
        ("data.synthetic.notes=24", "data.split={train: 0.2, validation: 0.0, test: 0.8}"),
        (*ENOUGH, "federation.floors=false"),
        (
            *ENOUGH,
            "privacy={mechanism: central, sigma: 1.0, delta: 0.00001, clip: 1.0}",
            "federation.min_clients=1",
        ),
    ],
    ids=["few test documents", "few training documents", "not wanted", "differential privacy"],
)
def test_a_site_tells_no_floors_of_few_documents_nor_where_training_is_protected(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    said = told(tmp_path, *overrides)
    assert said.keys() == {"tally", "apart"}

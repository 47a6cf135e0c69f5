"""Floors beside the scores of runs: the same wherever sites are, and nothing that may not leave a site."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from remote_run import Clients, served
from support import TINY, RunTiny, assert_same_tensors

from fedstrata.client.turn import Done, Order
from fedstrata.core.documents import Document
from fedstrata.core.handlers import SCORE
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import JSON, Plan, Update
from fedstrata.engine.floors import leaving
from fedstrata.engine.prepare import prepare, prepare_client
from fedstrata.engine.remote.joining import RemoteClient
from fedstrata.metrics.labels import tally_of
from fedstrata.privacy.ledger_verification import LEDGER, read_ledger
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.wire import frame

ENOUGH = (
    "federation.floors=true",
    "data.synthetic.notes=48",
    "data.split={train: 0.5, validation: 0.0, test: 0.5}",
)
"""Floors, and documents of each site to train on, and to score, from 5 on."""
CENTRAL = "privacy={mechanism: central, sigma: 1.0, delta: 0.00001, clip: 1.0}"
ONE_ROUND = ("federation.rounds=1", "training.epochs=1")


def test_floors_are_those_of_each_site_by_its_own_documents_added_up(run_once: RunTiny) -> None:
    run = run_once("method={name: layer_skipping}", *ENOUGH, *ONE_ROUND)
    experiment = prepare(read_source(run.folder / "config.yaml", []))
    task = experiment.task
    every, counts = [], []
    for own in experiment.clients.values():
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


@pytest.mark.parametrize("method", ["layer_skipping", pytest.param("local_only", marks=pytest.mark.slow)])
def test_the_untrained_model_is_what_a_run_without_rounds_scores_and_changes_nothing(
    run_once: RunTiny, method: str
) -> None:
    settings = (f"method={{name: {method}}}", *ENOUGH)
    run, without = (
        run_once(*settings, *ONE_ROUND, f"federation.floors={floors}") for floors in ("true", "false")
    )
    assert_same_tensors(run.state.tensors, without.state.tensors)
    assert run.summary["metrics"] == without.summary["metrics"]
    assert without.summary["floors"] == {}
    assert without.summary["floor"] is None
    before = run_once(*settings, "federation.rounds=0")
    untrained = (before.summary["metrics"]["global"] or before.summary["metrics"]["mean_client"])["f1"]
    assert run.summary["floors"]["untrained model"] == pytest.approx(untrained)
    assert "untrained model" not in before.summary["floors"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "small"),
    [
        ((), set()),
        (("task={name: classify, max_length: 64}", "data.types=null"), {"majority class", "untrained model"}),
        (("task={name: lm, max_length: 48}", "data.types=null"), set()),
        (("task.types=[drug, problem, test, treatment]", "method={name: local_only}"), set()),
    ],
    ids=["ner", "classify", "lm", "own models"],
)
def test_a_served_federation_has_the_floors_of_the_simulation(
    tmp_path: Path, run_tiny: RunTiny, clients: Clients, overrides: tuple[str, ...], small: set[str]
) -> None:
    """But for those of which a site has a small count."""
    simulated = run_tiny(*ENOUGH, *ONE_ROUND, *overrides)
    run = served(tmp_path / "served", clients, *ENOUGH, *ONE_ROUND, *overrides)
    expected = simulated.of("final")[0]["floors"]
    (final,) = run.of("final")
    assert expected.keys() >= {"untrained model"}
    assert {*final.get("floors_withheld", [])} == small
    assert final.get("floors", {}).keys() == expected.keys() - small
    for name, floor in final.get("floors", {}).items():
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
    for own in floors.values():
        assert isinstance(own, dict)
        assert own.keys() == {"gold", "predicted", "correct"}, "what the score is made of, and no type's own"


NER = NamedEntityRecognition().of_types(["drug", "problem"])
LABELS = DocumentClassification(problem_type="single_label").of_labels(["no", "yes"])


def mentions(correct: int, of_drugs: int) -> dict[str, float]:
    """What a floor counts to: half as many of drugs alone as of all."""
    every = {"gold": 40.0, "predicted": 30.0, "correct": float(correct)}
    drugs = {"gold/drug": 3.0, "predicted/drug": 2.0, "correct/drug": float(of_drugs)}
    return {**every, **drugs, **{f"lenient_{name}": 4.0 for name in every}}


def test_what_leaves_a_site_is_what_the_score_is_made_of() -> None:
    kept = leaving(NER, "f1", mentions(correct=10, of_drugs=1))
    assert kept == {"gold": 40.0, "predicted": 30.0, "correct": 10.0}
    assert NER.scored(kept, {})["f1"] == NER.scored(mentions(correct=10, of_drugs=1), {})["f1"]
    assert leaving(NER, "f1/drug", {"gold/drug": 9.0, "predicted/drug": 8.0, "correct/drug": 7.0}) is not None


def test_a_floor_that_needs_a_small_count_does_not_leave() -> None:
    for correct in range(1, 5):
        assert leaving(NER, "f1", mentions(correct=correct, of_drugs=0)) is None
    assert leaving(NER, "f1", mentions(correct=0, of_drugs=0)) is not None
    assert leaving(NER, "f1/drug", mentions(correct=10, of_drugs=1)) is None


def label_tally(documents: list[Document], no: int) -> dict[str, float]:
    """What answers count to of which so many are no."""
    gold = np.array([[label in document.labels for label in LABELS.classes] for document in documents])
    given = np.array([[number < no, number >= no] for number in range(len(documents))])
    return tally_of(gold, given, given.astype(float), LABELS.classes)


def test_a_score_over_labels_leaves_with_the_counts_of_each_or_not_at_all() -> None:
    documents = [Document(str(n), "text", labels=("no",) if n < 10 else ("yes",)) for n in range(20)]
    tally = label_tally(documents, 12)
    kept = leaving(LABELS, "macro_f1", tally)
    assert kept is not None
    assert any("/" in name for name in kept)
    assert LABELS.scored(kept, {})["macro_f1"] == LABELS.scored(tally, {})["macro_f1"]
    assert leaving(LABELS, "accuracy", tally) == {"documents": 20, "right": 18}
    assert leaving(LABELS, "macro_f1", label_tally(documents, 3)) is None
    assert leaving(LABELS, "macro_auc", tally) is None, "it does not add up"


@pytest.mark.parametrize(
    "overrides",
    [
        ("data.synthetic.notes=24", "data.split={train: 0.8, validation: 0.0, test: 0.2}"),
        ("data.synthetic.notes=24", "data.split={train: 0.2, validation: 0.0, test: 0.8}"),
        (*ENOUGH, "federation.floors=false"),
        (
            *ENOUGH,
            "privacy={mechanism: central, sigma: 1, delta: 0.00001, clip: 1}",
            "federation.min_clients=1",
        ),
    ],
    ids=["few test documents", "few training documents", "not wanted", "differential privacy"],
)
def test_a_site_tells_no_floors_of_few_documents_nor_where_training_is_protected(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    assert told(tmp_path, *overrides).keys() == {"tally", "apart"}

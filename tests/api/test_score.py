"""What `fs.score` comes to; tests/cli/test_score.py has what the command shows of it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scored import ASPIRIN, FOUND, GOLD, MILLIGRAMS, OTHER, PAIN, TEXT
from support import Finished, RunTiny, refused

import fedstrata as fs
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.metrics.relations import match_relations, triples_of
from fedstrata.metrics.spans import match_spans, scores_of

NAMES = ("problem", "test", "treatment", "drug")


def scored(gold: Any, found: Any, against: Any = None, **options: Any) -> dict[str, Any]:
    """Everything about one system or two."""
    content: dict[str, Any] = json.loads(json.dumps(fs.score(gold, found, against, **options).as_json()))
    return content


def half(notes: Sequence[fs.Document]) -> list[fs.Document]:
    """Notes of which every second mention was found."""
    return [replace(note, spans=note.spans[::2], relations=()) for note in notes]


def test_mentions_relations_types_and_errors() -> None:
    (system,) = scored([GOLD, OTHER], [FOUND, OTHER])["systems"]
    types = ["drug", "problem", "severity", "strength", "treatment"]
    spans = [[document.spans for document in own] for own in ([GOLD, OTHER], [FOUND, OTHER])]
    assert system["mentions"]["scores"] == scores_of(match_spans(*spans), types)
    triples = [[triples_of(document) for document in own] for own in ([GOLD, OTHER], [FOUND, OTHER])]
    assert system["relations"]["scores"] == scores_of(
        match_relations(*triples), ["dosage", "severity", "strength"]
    )
    assert system["mentions"]["counts"]["lenient_f1"] == {"gold": 5, "predicted": 5, "correct": 4}
    assert system["error_counts"]["boundary"] == {"errors": 1, "gold": 1, "predicted": 1}
    assert system["errors"][1] == {
        "category": "type confusion",
        "document": "note",
        "gold": [{"pieces": [[43, 50]], "type": "drug"}],
        "predicted": [{"pieces": [[43, 50]], "type": "treatment"}],
    }
    assert scored([OTHER], [OTHER])["systems"][0]["relations"] is None


def test_documents_in_which_nobody_looked_for_relations_are_not_scored_for_them() -> None:
    """As in a run: whatever relations a system finds there, and a site without any is one of them."""
    lacking = replace(GOLD, id="lacking", relations=(), lacks_relations=True)
    found = [GOLD, replace(GOLD, id="lacking")]
    content = scored([GOLD, lacking], found, [GOLD, lacking])
    one, other = content["systems"]
    assert one["relations"] == other["relations"]
    assert one["mentions"]["counts"]["f1"]["gold"] == 8
    north, south = replace(GOLD, site="north"), replace(GOLD, site="south", relations=())
    (by_site,) = scored([north, south], [north, replace(GOLD, site="south")])["systems"]
    for system in (one, by_site):
        assert system["relations"]["counts"]["f1"] == {"gold": 2, "predicted": 2, "correct": 2}
        assert system["documents_without_relations"] == 1


def test_two_systems() -> None:
    notes = generate(seed=0, sites=1, notes=40)
    worse, better = half(notes), [replace(note, spans=note.spans[:-1], relations=()) for note in notes]
    content = scored(notes, worse, better)
    found = content["differences"]["mentions"]["f1"]
    assert (found["first"], found["second"]) == tuple(
        system["mentions"]["scores"]["f1"] for system in content["systems"]
    )
    assert found["paired_p"] == 1e-4
    assert found["interval"]["low"] < found["first"] - found["second"] < found["interval"]["high"] < 0
    assert found["rank_sum_p"] < 1e-6
    assert content["bootstrap"] == {"instances": 40, "resamples": 2000, "level": 0.95, "seed": 0}
    same = scored(notes, worse, worse, resamples=100)["differences"]["mentions"]["lenient_f1"]
    assert (same["first"] - same["second"], same["paired_p"]) == (0.0, 1.0)
    assert same["interval"] == {"low": 0.0, "high": 0.0}  # draws of the same documents for both


def test_the_same_seed_gives_the_same_numbers() -> None:
    notes = generate(seed=0, sites=1, notes=30)
    first, again, other = (
        scored(notes, half(notes), seed=seed, resamples=200)["systems"][0]["mentions"] for seed in (0, 0, 1)
    )
    assert first == again
    assert first["intervals"] != other["intervals"]
    assert first["scores"] == other["scores"]


def test_types_are_kept_and_renamed_as_a_run_does() -> None:
    """Predictions have the new names already, as those of a run have."""
    medication = replace(ASPIRIN, label="Medication")
    gold = [fs.Document("note", TEXT, (replace(PAIN, label="Sign_symptom"), medication))]
    found = [fs.Document("note", TEXT, (PAIN, medication, MILLIGRAMS))]
    (system,) = scored(gold, found, types={"Sign_symptom": "problem", "Medication": "drug"})["systems"]
    assert system["mentions"]["types"] == {
        "drug": {"gold": 1, "predicted": 1, "correct": 1},
        "problem": {"gold": 1, "predicted": 1, "correct": 1},
    }
    (system,) = scored(gold, found, types=["Medication", "strength"])["systems"]
    assert system["mentions"]["counts"]["f1"] == {"gold": 1, "predicted": 2, "correct": 1}


def test_files_of_one_format_of_two_and_single_ones(tmp_path: Path) -> None:
    """An id holds the site in one format, and not in the other."""
    concepts = [replace(note, relations=()) for note in (GOLD, OTHER)]
    for folder, own in (("concepts", concepts), ("predicted", [replace(FOUND, relations=()), OTHER])):
        write(own, tmp_path / folder, "i2b2")
    (system,) = scored(tmp_path / "concepts", tmp_path / "predicted")["systems"]
    assert system["mentions"]["counts"]["lenient_f1"] == {"gold": 3, "predicted": 3, "correct": 2}
    notes = generate(seed=0, sites=2, notes=6)
    write(notes, tmp_path / "gold", "brat")
    write(notes, tmp_path / "found", "jsonl")
    (system,) = scored(tmp_path / "gold", tmp_path / "found")["systems"]
    assert system["mentions"]["scores"]["f1"] == system["relations"]["scores"]["f1"] == 1.0
    write([GOLD], tmp_path / "one", "brat")
    (tmp_path / "one.jsonl").write_text(json.dumps({"id": "note", "text": TEXT, "spans": []}) + "\n")
    (system,) = scored(tmp_path / "one" / "note.txt", tmp_path / "one.jsonl")["systems"]
    assert system["error_counts"]["false negative"] == {"errors": 4, "gold": 4, "predicted": 0}


def test_files_whose_format_cannot_be_told(tmp_path: Path) -> None:
    write([GOLD], tmp_path / "gold", "brat")
    (tmp_path / "gold" / "more.jsonl").write_text("{}\n")
    with refused(fs.DataError, "ambiguous", at="gold", values=["brat and jsonl"]):
        fs.score(tmp_path / "gold", tmp_path / "gold")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "note.txt").write_text(TEXT)
    with refused(fs.DataError, "unknown_name", at="texts", values=["*.ann, *.con, *.jsonl"]):
        fs.score(tmp_path / "texts", tmp_path / "gold")
    with refused(fs.DataError, "not_found", at="absent"):
        fs.score(tmp_path / "absent", tmp_path / "gold")


MANY = [replace(OTHER, id=f"n{number}") for number in range(9)]
EMPTY = replace(OTHER, spans=())


@pytest.mark.parametrize(
    ("gold", "found", "path", "code", "values"),
    [
        ([GOLD, OTHER], [FOUND], "predicted", "missing", ["gold", "'other'"]),
        (MANY, MANY[:1], "predicted", "missing", ["'n1', 'n2', 'n3', 'n4', 'n5' and 3 more"]),
        ([OTHER], [OTHER, replace(OTHER, id="third")], "predicted", "unknown_name", ["gold", "'third'"]),
        (
            [OTHER],
            [replace(OTHER, text="No high fever.")],
            "predicted",
            "conflict",
            ["'other'", "gold", "character 3", "9 and 14"],
        ),
        ([EMPTY], [EMPTY], None, "not_enough_data", []),
        ([replace(EMPTY, labels=("a",))], [EMPTY], None, "not_enough_data", ["labels"]),
    ],
)
def test_sides_that_do_not_fit_are_refused(
    gold: list[fs.Document], found: list[fs.Document], path: str | None, code: str, values: list[str]
) -> None:
    with refused(fs.ConfigurationError, code, at=path, values=values):
        fs.score(gold, found)


@pytest.fixture
def run(run_once: RunTiny) -> Finished:
    """A finished run whose model, hardly trained, finds a mention in every other word."""
    return run_once("federation.rounds=1", "training.learning_rate=1e-9")


def of_test_part(run: Finished, notes: Sequence[fs.Document]) -> list[fs.Document]:
    """The notes that a run is tested on."""
    clients = json.loads((run.folder / "documents.json").read_text()).values()
    names = {name for own in clients for name in own["test"]}
    return [note for note in notes if note.id in names]


@pytest.mark.parametrize(
    "annotates",
    [
        (),
        pytest.param(
            ("data.annotates={site-1: [problem], site-2: [drug, test]}",), marks=pytest.mark.slow, id="partly"
        ),
    ],
)
def test_the_numbers_are_those_of_the_run_that_predicted(
    run_once: RunTiny, annotates: tuple[str, ...]
) -> None:
    """Of one whose settings say what is annotated where, too."""
    run = run_once("federation.rounds=1", "training.learning_rate=1e-9", *annotates)
    notes = generate(seed=0, sites=3, notes=12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fs.TrainedOnWarning)
        found = fs.load(run.folder).annotate(notes)
    every: list[tuple[Any, Any, dict[str, Any]]] = [(notes, found, {"run": run.folder, "part": "test"})]
    if not annotates:
        test = (of_test_part(run, notes), of_test_part(run, found))
        every += [(*test, {"types": NAMES}), (*test, {"run": run.folder})]
    for gold, own, options in every:
        (system,) = scored(gold, own, resamples=10, **options)["systems"]
        assert system["mentions"]["scores"] == run.summary["metrics"]["global"]
        assert system["mentions"]["scores"]["lenient_f1"] > 0.0


def test_a_run_and_a_part_that_cannot_be_used_are_refused(run: Finished, tmp_path: Path) -> None:
    gold = of_test_part(run, generate(seed=0, sites=3, notes=12))
    wrong: list[tuple[dict[str, Any], str, str, list[object]]] = [
        ({"run": run.folder, "part": "train"}, "part", "missing", ["train", run.folder, "'site-"]),
        ({"part": "test"}, "part", "no_effect", []),
        ({"run": run.folder, "part": "all"}, "part", "unknown_name", ["train, validation, test", "'all'"]),
        ({"run": tmp_path}, "run", "not_found", [tmp_path]),
    ]
    for options, path, code, values in wrong:
        with refused(fs.ConfigurationError, code, at=path, values=values):
            fs.score(gold, gold, **options)

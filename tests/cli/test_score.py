"""`fedstrata score` as a user calls it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support import TINY, Finished, RunTiny
from told import assert_refused
from typer.testing import CliRunner

from fedstrata.cli.main import app
from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import ConfigurationError, DataError
from fedstrata.core.settings.source import read_source
from fedstrata.data.divide import divide
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.engine.check import check_settings
from fedstrata.metrics.relations import match_relations, triples_of
from fedstrata.metrics.spans import match_spans, scores_of

QUOTED = "Zebrafinch"
TEXT = f"{QUOTED} has severe chest pain and takes aspirin, 81 mg."
SEVERE, PAIN = Span(15, 21, "severity"), Span(22, 32, "problem")
ASPIRIN, MILLIGRAMS = Span(43, 50, "drug"), Span(52, 57, "strength")
GOLD = Document(
    "note",
    TEXT,
    (SEVERE, PAIN, ASPIRIN, MILLIGRAMS),
    (Relation(1, 0, "severity"), Relation(2, 3, "strength")),
)
FOUND = Document(
    "note",
    TEXT,
    (SEVERE, replace(PAIN, start=28), replace(ASPIRIN, label="treatment"), MILLIGRAMS),
    (Relation(1, 0, "severity"), Relation(2, 3, "dosage")),
)
OTHER = Document("other", "No fever.", (Span(3, 8, "problem"),))


def score(*arguments: object) -> Result:
    shown = CliRunner().invoke(app, ["score", *map(str, arguments)])
    assert QUOTED not in shown.output
    assert QUOTED not in str(shown.exception)
    return shown


def scored(*arguments: object, folder: Path) -> dict[str, Any]:
    """What the verb writes as JSON."""
    shown = score(*arguments, "--json", folder / "scores.json")
    assert shown.exit_code == 0, shown.output
    assert f"{folder / 'scores.json'}" in shown.output.replace("\n", "")
    text = (folder / "scores.json").read_text()
    assert QUOTED not in text
    content: dict[str, Any] = json.loads(text)
    return content


def sides(folder: Path, form: str, *documents: Sequence[Document]) -> list[Path]:
    names = ["gold", "found", "second"]
    for name, own in zip(names, documents, strict=False):
        write(own, folder / name, form)
    return [folder / name for name in names[: len(documents)]]


@pytest.mark.parametrize("form", ["brat", "jsonl"])
def test_mentions_relations_types_and_errors(tmp_path: Path, form: str) -> None:
    gold, found = sides(tmp_path, form, [GOLD, OTHER], [FOUND, OTHER])
    (system,) = scored(gold, found, folder=tmp_path)["systems"]
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


def test_what_is_shown(tmp_path: Path) -> None:
    gold, found = sides(tmp_path, "brat", [GOLD, OTHER], [FOUND, OTHER])
    shown = score(gold, found, "--resamples", 50, "--level", 0.9)
    assert shown.exit_code == 0, shown.output
    for row in (
        r"mentions: 5 gold, 5 predicted",
        r"│ strict +│ +0\.600 │ +0\.600 │ 0\.600 │ 0\.500 to 1\.000 │",
        r"│ untyped, lenient │ +1\.000 │ +1\.000 │ 1\.000 │ 1\.000 to 1\.000 │",
        r"│ problem +│ +2 │ +2 │ +0\.500 │ +0\.500 │ 0\.500 │ +1\.000 │",
        r"relations: 2 gold, 2 predicted",
        r"│ lenient +│ +0\.500 │ +0\.500 │ 0\.500 │",
        r"│ dosage +│ +0 │ +1 │",
        r"│ type confusion +│ +1 │ +1 │ +1 │",
        r"hold 90 % of 50 draws of 2 of 2 documents",
    ):
        assert re.search(row, shown.output), row
    assert "PRED2" not in shown.output


def test_without_relations_there_is_no_table_of_them(tmp_path: Path) -> None:
    gold, found = sides(tmp_path, "brat", [OTHER], [OTHER])
    assert "relations" not in score(gold, found).output
    assert scored(gold, found, folder=tmp_path)["systems"][0]["relations"] is None


def test_documents_in_which_nobody_looked_for_relations_are_not_scored_for_them(tmp_path: Path) -> None:
    """As in a run; whatever relations a system finds there."""
    lacking = replace(GOLD, id="lacking", relations=(), lacks_relations=True)
    found = [GOLD, replace(GOLD, id="lacking")]
    gold, first, second = sides(tmp_path, "jsonl", [GOLD, lacking], found, [GOLD, lacking])
    content = scored(gold, first, "--against", second, folder=tmp_path)
    one, other = content["systems"]
    assert one["relations"] == other["relations"]
    assert one["relations"]["counts"]["f1"] == {"gold": 2, "predicted": 2, "correct": 2}
    assert one["mentions"]["counts"]["f1"]["gold"] == 8
    assert one["documents_without_relations"] == 1
    shown = " ".join(score(gold, first).output.split())
    assert "leave out 1 document" in shown


def test_a_site_without_any_relation_is_one_where_nobody_looked_for_them(tmp_path: Path) -> None:
    """As in a run: BRAT cannot say so of a document."""
    north, south = replace(GOLD, site="north"), replace(GOLD, site="south", relations=())
    gold, found = sides(tmp_path, "brat", [north, south], [north, replace(GOLD, site="south")])
    (system,) = scored(gold, found, folder=tmp_path)["systems"]
    assert system["relations"]["counts"]["f1"] == {"gold": 2, "predicted": 2, "correct": 2}
    assert system["documents_without_relations"] == 1


def test_two_systems(tmp_path: Path) -> None:
    notes = generate(seed=0, sites=1, notes=40)
    half = [replace(note, spans=note.spans[::2], relations=()) for note in notes]
    most = [replace(note, spans=note.spans[:-1], relations=()) for note in notes]
    gold, worse, better = sides(tmp_path, "jsonl", notes, half, most)
    content = scored(gold, worse, "--against", better, folder=tmp_path)
    assert [Path(system["path"]).name for system in content["systems"]] == ["found", "second"]
    found = content["differences"]["mentions"]["f1"]
    assert (found["first"], found["second"]) == tuple(
        system["mentions"]["scores"]["f1"] for system in content["systems"]
    )
    assert found["paired_p"] == 1e-4
    assert found["interval"]["low"] < found["first"] - found["second"] < found["interval"]["high"] < 0
    assert found["rank_sum_p"] < 1e-6
    assert content["bootstrap"] == {"instances": 40, "resamples": 2000, "level": 0.95, "seed": 0}
    shown = score(gold, worse, "--against", better)
    assert re.search(r"│ strict +│ [\d.]+ │ [\d.]+ │ +-0\.\d+ │ -0\.\d+ to -0\.\d+ │ 0\.0001 │", shown.output)
    same = scored(gold, worse, "--against", worse, folder=tmp_path)["differences"]["mentions"]["lenient_f1"]
    assert (same["first"] - same["second"], same["paired_p"]) == (0.0, 1.0)
    assert same["interval"] == {"low": 0.0, "high": 0.0}  # draws of the same documents for both


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    notes = generate(seed=0, sites=1, notes=30)
    gold, found = sides(
        tmp_path, "jsonl", notes, [replace(note, spans=note.spans[::2], relations=()) for note in notes]
    )
    first, again, other = (
        scored(gold, found, "--instances", 0, "--seed", seed, folder=tmp_path)["systems"][0]["mentions"]
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first["intervals"] != other["intervals"]
    assert first["scores"] == other["scores"]


def test_types_are_kept_and_renamed_as_a_run_does(tmp_path: Path) -> None:
    """Predictions have the new names already, as those of a run have."""
    gold = [
        Document("note", TEXT, (replace(PAIN, label="Sign_symptom"), replace(ASPIRIN, label="Medication")))
    ]
    found = [Document("note", TEXT, (PAIN, replace(ASPIRIN, label="Medication"), MILLIGRAMS))]
    paths = sides(tmp_path, "brat", gold, found)
    renamed = "{Sign_symptom: problem, Medication: drug}"
    (system,) = scored(*paths, "--types", renamed, folder=tmp_path)["systems"]
    assert system["mentions"]["types"] == {
        "drug": {"gold": 1, "predicted": 1, "correct": 1},
        "problem": {"gold": 1, "predicted": 1, "correct": 1},
    }
    (system,) = scored(*paths, "--types", "Medication,strength", folder=tmp_path)["systems"]
    assert system["mentions"]["counts"]["f1"] == {"gold": 1, "predicted": 2, "correct": 1}


def test_i2b2_against_i2b2(tmp_path: Path) -> None:
    concepts = [replace(note, relations=()) for note in (GOLD, OTHER)]
    gold, found = sides(tmp_path, "i2b2", concepts, [replace(FOUND, relations=()), OTHER])
    (system,) = scored(gold, found, folder=tmp_path)["systems"]
    assert system["mentions"]["counts"]["lenient_f1"] == {"gold": 3, "predicted": 3, "correct": 2}


def test_one_corpus_in_two_formats(tmp_path: Path) -> None:
    """An id holds the site in one format, and not in the other."""
    notes = generate(seed=0, sites=2, notes=6)
    write(notes, tmp_path / "gold", "brat")
    write(notes, tmp_path / "found", "jsonl")
    (system,) = scored(tmp_path / "gold", tmp_path / "found", folder=tmp_path)["systems"]
    assert system["mentions"]["scores"]["f1"] == system["relations"]["scores"]["f1"] == 1.0


def test_single_files(tmp_path: Path) -> None:
    write([GOLD], tmp_path / "gold", "brat")
    (tmp_path / "found.jsonl").write_text(json.dumps({"id": "note", "text": TEXT, "spans": []}) + "\n")
    (system,) = scored(tmp_path / "gold" / "note.txt", tmp_path / "found.jsonl", folder=tmp_path)["systems"]
    assert system["error_counts"]["false negative"] == {"errors": 4, "gold": 4, "predicted": 0}


@pytest.mark.parametrize(
    ("found", "options", "path", "code", "values"),
    [
        ([FOUND], (), "PRED", "missing", ["GOLD", "'other'"]),
        ([FOUND, OTHER, replace(OTHER, id="third")], (), "PRED", "unknown_name", ["GOLD", "'third'"]),
        (
            [FOUND, replace(OTHER, text="No high fever.")],
            (),
            "PRED",
            "conflict",
            ["'other'", "GOLD", "character 3", "9 and 14"],
        ),
        ([FOUND, OTHER], ("--format", "word"), "--format", "unknown_name", ["text, i2b2"]),
        ([FOUND, OTHER], ("--pred-format", "word"), "--pred-format", "unknown_name", ["text, i2b2"]),
        ([FOUND, OTHER], ("--gold-format", "i2b2"), "gold", "not_annotated", ["*.con"]),
        ([FOUND, OTHER], ("--types", "fever"), "--types", "not_found", ["'fever'"]),
        ([FOUND, OTHER], ("--types", "[[drug]]"), "--types", "wrong_type", []),
        (
            [FOUND, OTHER],
            ("--types", "{drug: problem, problem: test}"),
            "--types",
            "conflict",
            ["'problem'"],
        ),
        ([FOUND, OTHER], ("--types", "{drug"), "--types", "not_yaml", []),
    ],
)
def test_bad_input_is_one_message(
    tmp_path: Path,
    found: Sequence[Document],
    options: tuple[str, ...],
    path: str,
    code: str,
    values: list[str],
) -> None:
    paths = sides(tmp_path, "brat", [GOLD, OTHER], found)
    shown = score(*paths, *options)
    assert_refused(shown.exception, (ConfigurationError, DataError), code, at=path, values=values)
    assert isinstance(shown.exception, ConfigurationError | DataError)
    assert shown.exception.exit_status == 2


def test_many_missing_documents_are_counted(tmp_path: Path) -> None:
    notes = [replace(OTHER, id=f"n{number}") for number in range(9)]
    paths = sides(tmp_path, "brat", notes, notes[:1])
    values = ["'n1', 'n2', 'n3', 'n4', 'n5' and 3 more"]
    error = score(*paths).exception
    assert_refused(error, ConfigurationError, "missing", at="PRED", values=values)


def test_files_whose_format_cannot_be_told(tmp_path: Path) -> None:
    (gold,) = sides(tmp_path, "brat", [GOLD])
    (gold / "more.jsonl").write_text("{}\n")
    values = ["brat and jsonl", "--gold-format"]
    assert_refused(score(gold, gold).exception, DataError, "ambiguous", at="gold", values=values)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "note.txt").write_text(TEXT)
    error = score(tmp_path / "texts", gold).exception
    assert_refused(error, DataError, "unknown_name", at="texts", values=["*.ann, *.con, *.jsonl"])
    assert_refused(score(tmp_path / "absent", gold).exception, DataError, "not_found", at="absent")


def test_nothing_to_score(tmp_path: Path) -> None:
    empty = replace(OTHER, spans=())
    paths = sides(tmp_path, "brat", [empty], [empty])
    assert_refused(score(*paths).exception, ConfigurationError, "not_enough_data")
    assert "labels" not in str(score(*paths).exception)
    paths = sides(tmp_path / "labelled", "jsonl", [replace(empty, labels=("a",))], [empty])
    values = ["labels", "`fedstrata predict`"]
    assert_refused(score(*paths).exception, ConfigurationError, "not_enough_data", values=values)


def test_the_tables_fit_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = [replace(GOLD, spans=(replace(SEVERE, label="reference range"), *GOLD.spans[1:]))]
    gold, found, second = sides(tmp_path, "brat", long, [FOUND], [FOUND])
    shown = score(gold, found, "--against", second).output
    assert max(len(line) for line in shown.splitlines() if line[:1] in "┏┃┡│└") <= 80
    assert "reference range" in shown
    assert "untyped, lenient" in shown
    assert "…" not in shown


@pytest.fixture
def run(run_once: RunTiny) -> Finished:
    """A finished run whose model, hardly trained, finds a mention in every other word."""
    return run_once("federation.rounds=1", "training.learning_rate=1e-9")


@pytest.mark.parametrize("form", [pytest.param("brat", marks=pytest.mark.slow), "jsonl"])
def test_the_numbers_are_those_of_the_run_that_predicted(run: Finished, tmp_path: Path, form: str) -> None:
    checked = check_settings(read_source(None, [*TINY]))
    assert not checked.problems
    clients = divide(checked.settings, checked.task).clients.values()
    tested = {document.id for own in clients for document in own.test}
    notes = generate(seed=checked.settings.seed, sites=3, notes=24)
    write([note for note in notes if note.id in tested], tmp_path / "gold", form)
    command = ["predict", str(run.folder), str(tmp_path / "gold"), "--input-format", form, "--format", form]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "found")])
    assert done.exit_code == 0, done.output
    names = "problem, test, treatment, drug"
    content = scored(tmp_path / "gold", tmp_path / "found", "--types", names, folder=tmp_path)
    expected = run.summary["metrics"]["global"]
    assert expected["lenient_f1"] > 0.0
    assert content["systems"][0]["mentions"]["scores"] == expected
    content = scored(tmp_path / "gold", tmp_path / "found", "--as", run.folder, folder=tmp_path)
    assert content["systems"][0]["mentions"]["scores"] == expected
    if form == "jsonl":  # where ids are the run's own
        write(notes, tmp_path / "every", form)
        part = "--as", run.folder, "--part", "test"
        content = scored(tmp_path / "every", tmp_path / "found", *part, folder=tmp_path)
        assert content["systems"][0]["mentions"]["scores"] == expected
        shown = score(tmp_path / "gold", tmp_path / "found", *part[:-1], "train")
        values = ["GOLD", "train", run.folder, "'site-"]
        assert_refused(shown.exception, ConfigurationError, "missing", at="--part", values=values)
    shown = score(tmp_path / "gold", tmp_path / "found", "--part", "test")
    assert_refused(shown.exception, ConfigurationError, "no_effect", at="--part", values=["--as"])
    shown = score(tmp_path / "gold", tmp_path / "found", "--as", run.folder, "--part", "all")
    values = ["train, validation, test", "'all'"]
    assert_refused(shown.exception, ConfigurationError, "unknown_name", at="--part", values=values)
    shown = score(tmp_path / "gold", tmp_path / "found", "--as", run.folder, "--types", names)
    assert_refused(shown.exception, ConfigurationError, "no_effect", at="--types", values=["--as"])
    shown = score(tmp_path / "gold", tmp_path / "found", "--as", tmp_path)
    assert_refused(shown.exception, ConfigurationError, "not_found", at="--as", values=[tmp_path])


def test_the_numbers_are_those_of_a_run_whose_settings_say_what_is_annotated_where(
    run_once: RunTiny, tmp_path: Path
) -> None:
    annotates = "data.annotates={site-1: [problem], site-2: [drug, test]}"
    partial = run_once("federation.rounds=1", "training.learning_rate=1e-9", annotates)
    notes = generate(seed=0, sites=3, notes=24)
    write(notes, tmp_path / "every", "jsonl")
    command = ["predict", str(partial.folder), str(tmp_path / "every"), "--out", str(tmp_path / "found")]
    done = CliRunner().invoke(app, [*command, "--input-format", "jsonl", "--format", "jsonl"])
    assert done.exit_code == 0, done.output
    part = "--as", partial.folder, "--part", "test"
    content = scored(tmp_path / "every", tmp_path / "found", *part, folder=tmp_path)
    assert content["systems"][0]["mentions"]["scores"] == partial.summary["metrics"]["global"]

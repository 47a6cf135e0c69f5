"""`fedstrata score` as a user calls it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from scored import FOUND, GOLD, OTHER, QUOTED, SEVERE
from support import RunTiny
from told import assert_refused
from typer.testing import CliRunner

from fedstrata.cli.main import app
from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, DataError
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write


def score(*arguments: object) -> Result:
    shown = CliRunner().invoke(app, ["score", *map(str, arguments)])
    assert QUOTED not in shown.output
    assert QUOTED not in str(shown.exception)
    return shown


def sides(folder: Path, form: str, *documents: Sequence[Document]) -> list[Path]:
    names = ["gold", "found", "second"]
    for name, own in zip(names, documents, strict=False):
        write(own, folder / name, form)
    return [folder / name for name in names[: len(documents)]]


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
    shown = score(gold, found, "--against", gold, "--resamples", 50, "--seed", 3)
    assert re.search(r"│ strict +│ 0\.600 │ 1\.000 │ +-0\.400 │ -0\.\d+ to [+-]0\.\d+ │", shown.output)
    assert "(seed 3)" in shown.output
    lacking = replace(GOLD, id="lacking", relations=(), lacks_relations=True)
    gold, found = sides(tmp_path / "lacking", "jsonl", [GOLD, lacking], [GOLD, lacking])
    assert "leave out 1 document" in " ".join(score(gold, found, "--resamples", 50).output.split())
    gold, found = sides(tmp_path / "other", "jsonl", [OTHER], [OTHER])
    assert "relations" not in score(gold, found, "--resamples", 50).output


@pytest.mark.parametrize(
    ("options", "path", "code", "values"),
    [
        ((), "PRED", "missing", ["GOLD", "'other'"]),
        (("--format", "word"), "--format", "unknown_name", ["text, i2b2"]),
        (("--pred-format", "word"), "--pred-format", "unknown_name", ["text, i2b2"]),
        (("--gold-format", "i2b2"), "gold", "not_annotated", ["*.con"]),
        (("--types", "fever"), "--types", "not_found", ["'fever'"]),
        (("--types", "[[drug]]"), "--types", "wrong_type", []),
        (("--types", "{drug: problem, problem: test}"), "--types", "conflict", ["'problem'"]),
        (("--types", "{drug"), "--types", "not_yaml", []),
    ],
)
def test_bad_input_is_one_message(
    tmp_path: Path, options: tuple[str, ...], path: str, code: str, values: list[str]
) -> None:
    paths = sides(tmp_path, "brat", [GOLD, OTHER], [FOUND, *([OTHER] if options else [])])
    shown = score(*paths, *options)
    assert_refused(shown.exception, (ConfigurationError, DataError), code, at=path, values=values)
    assert isinstance(shown.exception, ConfigurationError | DataError)
    assert shown.exception.exit_status == 2


def test_the_tables_fit_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = [replace(GOLD, spans=(replace(SEVERE, label="reference range"), *GOLD.spans[1:]))]
    gold, found, second = sides(tmp_path, "brat", long, [FOUND], [FOUND])
    shown = score(gold, found, "--against", second).output
    assert max(len(line) for line in shown.splitlines() if line[:1] in "┏┃┡│└") <= 80
    assert "reference range" in shown
    assert "untyped, lenient" in shown
    assert "…" not in shown


def test_a_run_and_a_part_reach_the_scores_and_everything_is_written(
    run_once: RunTiny, tmp_path: Path
) -> None:
    run = run_once("federation.rounds=1", "training.learning_rate=1e-9")
    notes = generate(seed=0, sites=3, notes=12)
    write(notes, tmp_path / "gold", "jsonl")
    options = ("--input-format", "jsonl", "--format", "jsonl", "--out", str(tmp_path / "found"))
    predicted = CliRunner().invoke(app, ["predict", str(run.folder), str(tmp_path / "gold"), *options])
    assert predicted.exit_code == 0, predicted.output
    sides, file = (tmp_path / "gold", tmp_path / "found"), tmp_path / "scores.json"
    shown = score(*sides, "--as", run.folder, "--part", "test", "--instances", 2, "--json", file)
    assert shown.exit_code == 0, shown.output
    assert str(file) in shown.output.replace("\n", "")
    content = json.loads(file.read_text())
    assert content["systems"][0]["mentions"]["scores"] == run.summary["metrics"]["global"]
    assert content["bootstrap"]["instances"] == 2
    wrong: list[tuple[tuple[object, ...], str, str]] = [
        (("--part", "test"), "--part", "no_effect"),
        (("--as", run.folder, "--types", "drug"), "--types", "no_effect"),
        (("--as", tmp_path), "--as", "not_found"),
    ]
    for more, path, code in wrong:
        assert_refused(score(*sides, *more).exception, ConfigurationError, code, at=path)

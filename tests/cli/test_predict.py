"""`fedstrata predict` as a user calls it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import Result
from scored import QUOTED
from support import RunTiny
from told import assert_refused
from typer.testing import CliRunner

from fedstrata.cli.main import app
from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.readers import read
from fedstrata.data.writers import write

UNTRAINED = ("federation.rounds=1", "training.learning_rate=1e-9")


@pytest.fixture
def untrained(run_once: RunTiny) -> Path:
    """A finished run whose model finds a mention in every other word."""
    return run_once(*UNTRAINED).folder


def predict(*arguments: object) -> Result:
    shown = CliRunner().invoke(app, ["predict", *map(str, arguments)])
    assert QUOTED not in shown.output
    return shown


def test_a_file_to_brat_into_a_numbered_folder(
    untrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("note.txt").write_text(f"{QUOTED} has chest pain and takes 81 mg of aspirin.\n")
    Path("predictions").mkdir()
    shown = predict(untrained, "note.txt", "training.eval_batch_size=4", "device=cpu")
    assert shown.exit_code == 0, shown.output
    pattern = r"1 documents, \d+ annotations; [\d.,]+ documents a second; in predictions-2 \(brat\)"
    assert re.search(pattern, shown.output)
    (document,) = read(tmp_path / "predictions-2", "brat")
    assert document.spans


def test_an_annotated_corpus_is_scored(untrained: Path, tmp_path: Path) -> None:
    spans = (Span(4, 14, "problem"), Span(16, 23, "severity"))
    write([Document("note", "Has chest pain, severely.", spans)], tmp_path / "in", "jsonl")
    options = ("--input-format", "jsonl", "--format", "i2b2", "--out", tmp_path / "out")
    shown = predict(untrained, tmp_path / "in", *options)
    assert shown.exit_code == 0, shown.output
    for part in ("annotations", "f1", "precision", "recall", "problem"):
        assert part in shown.output
    assert "scored: severity" in shown.output


def test_codes_are_scored_as_the_run_shortened_them(run_once: RunTiny, tmp_path: Path) -> None:
    codes = ("task.name=classify", "data.types=null", "task.max_windows=1", "data.labels.digits=3")
    done = run_once(*UNTRAINED, *codes)
    code = next(name.removeprefix("f1/") for name in done.summary["metrics"]["global"] if "f1/" in name)
    labels = (f"{code}.9", "no code")
    write([Document("note", "chest pain", labels=labels)], tmp_path / "in", "jsonl")
    shown = predict(done.folder, tmp_path / "in", "--input-format", "jsonl", "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.output
    assert f"│ {code} " in shown.output
    assert re.search(r"1 types .* scored: no code", shown.output)


def test_documents_without_a_label_that_is_known_are_not_in_the_scores(
    run_tiny: RunTiny, tmp_path: Path
) -> None:
    labels = ("cardiac", "renal")
    train = [
        Document(f"n{number}", f"Note {number}.", labels=(labels[number % 2],), site="north")
        for number in range(8)
    ]
    write(train, tmp_path / "train", "jsonl")
    data = f"data={{format: jsonl, path: {tmp_path / 'train'}}}"
    done = run_tiny(*UNTRAINED, "task.name=classify", "data.types=null", data)
    options = ("--input-format", "jsonl", "--out")
    note = Document("note", "chest pain")
    write([note], tmp_path / "in", "jsonl")
    assert predict(done.folder, tmp_path / "in", *options, tmp_path / "first").exit_code == 0
    (right,) = read(tmp_path / "first", "jsonl")[0].labels
    given = {"right": (right,), "without": (), "unknown": ("neural",), "both": labels}
    corpus = [Document(name, note.text, labels=own) for name, own in given.items()]
    write(corpus, tmp_path / "more", "jsonl")
    shown = predict(done.folder, tmp_path / "more", *options, tmp_path / "second")
    assert shown.exit_code == 0, shown.output
    assert re.search(r"│ accuracy +│ 1\.000 │", shown.output)
    assert re.search(r"1 types .* scored: neural", shown.output)
    assert "3 of 4 documents" in shown.output
    assert len(read(tmp_path / "second", "jsonl")) == 4


def test_the_model_of_a_client(run_once: RunTiny, tmp_path: Path) -> None:
    done = run_once("federation.rounds=1", "method={name: local_only}")
    (tmp_path / "note.txt").write_text("chest pain")
    arguments = (done.folder, tmp_path / "note.txt", "--out", tmp_path / "out")
    shown = predict(*arguments)
    values = ["site-1, site-2, site-3"]
    assert_refused(shown.exception, ConfigurationError, "missing", at="--client", values=values)
    assert not (tmp_path / "out").exists()
    assert predict(*arguments, "--client", "site-2").exit_code == 0


def test_bad_input_is_one_message_and_nothing_is_written(
    untrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong: list[tuple[bytes, tuple[str, ...], str, str, list[str]]] = [
        (b"na\xefve", (), "INPUT", "not_utf8", ["note.txt, line 1", "byte 2"]),
        (b"x", ("--input-format", "word"), "--input-format", "unknown_name", ["text"]),
        (b"x", ("task.stride=4",), "task.stride", "changed", ["4", "8"]),
        (b"x", ("--out", "."), "", "exists", []),
    ]
    for content, options, path, code, values in wrong:
        Path("note.txt").write_bytes(content)
        error = predict(untrained, "note.txt", *options).exception
        assert_refused(error, ConfigurationError, code, at=path, values=values)
        assert isinstance(error, ConfigurationError)
        assert error.exit_status == 2
        assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]

"""A use of a run counts the documents that the run was trained on, and quotes none of them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support import RunTiny
from typer.testing import CliRunner

import fedstrata as fs
from fedstrata.cli.main import app
from fedstrata.data.writers import write
from fedstrata.results.trained import TrainedTexts

SHORT = ("federation.rounds=1",)


@pytest.fixture
def run(run_once: RunTiny) -> Path:
    """A finished run of twelve made-up notes."""
    return run_once(*SHORT).folder


@pytest.fixture(scope="module")
def notes() -> list[fs.Document]:
    """The notes of that run."""
    return [note for own in fs.synth(sites=3, notes=12).values() for note in own]


def ids(run: Path, *parts: str) -> set[str]:
    """The documents of parts of a run's split."""
    clients = json.loads((run / "documents.json").read_text()).values()
    return {name for own in clients for part in parts for name in own[part]}


def called(*arguments: object) -> str:
    """What a command prints, in one line."""
    shown = CliRunner().invoke(app, [*map(str, arguments)])
    assert shown.exit_code == 0, shown.output
    return " ".join(shown.output.split())


def new(notes: Sequence[fs.Document]) -> list[fs.Document]:
    """Other documents of the same names: a name is not what a run was trained on."""
    return [replace(note, text=f"{note.text} seen again", spans=(), relations=()) for note in notes]


def test_a_text_is_known_again_whatever_its_name_case_and_blanks(run: Path, notes: list[fs.Document]) -> None:
    trained = ids(run, "train")
    assert 0 < len(trained) < len(notes)
    assert TrainedTexts(run).count(notes) == len(trained)
    changed = [fs.Document(str(n), note.text.upper().replace(" ", "\n")) for n, note in enumerate(notes)]
    assert TrainedTexts(run).count(changed) == len(trained)
    assert TrainedTexts(run).count(new(notes)) == 0
    assert TrainedTexts(run).count([fs.Document("blank", " ")]) == 0
    assert TrainedTexts(run, ["site-1"]).count(notes) == len([name for name in trained if "site-1" in name])
    assert TrainedTexts(run / "clients").count(notes) == 0, "a folder that does not know"


def test_what_a_run_keeps_of_its_texts_cannot_be_linked(run_once: RunTiny, run: Path) -> None:
    """Hashes have a key of their own in each run, and no text is in them."""
    other = run_once(*SHORT, "training.learning_rate=1e-9").folder
    one, two = (
        json.loads((own / "documents.json").read_text())["site-1"]["trained_on"] for own in (run, other)
    )
    assert len(one["texts"]) == len(two["texts"]) > 0
    assert not {*one["texts"]} & {*two["texts"]}


def test_predict_warns_of_documents_that_were_trained_on(
    run: Path, notes: list[fs.Document], tmp_path: Path
) -> None:
    trained = [note for note in notes if note.id in ids(run, "train")]
    for name, own, count in (("all", notes, len(trained)), ("new", new(notes), 0)):
        write(own, tmp_path / name, "jsonl")
        arguments = (tmp_path / name, "--input-format", "jsonl", "--format", "jsonl")
        shown = called("predict", run, *arguments, "--out", tmp_path / f"{name}-found")
        assert ("warning:" in shown) == bool(count)
        assert f" {count} of these {len(own)} " in shown or not count
        assert not any(note.text[:30] in shown for note in own)


def test_python_warns_as_the_commands_do(run: Path, notes: list[fs.Document], tmp_path: Path) -> None:
    write(notes, tmp_path / "notes", "jsonl")
    result = fs.load(run)
    asked = {
        "annotate": lambda: result.annotate(notes),
        "texts": lambda: result.predict([note.text for note in notes]),
        "files": lambda: result.predict(tmp_path / "notes", input_format="jsonl", out=tmp_path / "found"),
        "score": lambda: fs.score(notes, notes, run=run, resamples=10),
    }
    for name, ask in asked.items():
        with pytest.warns(fs.TrainedOnWarning) as warned:
            ask()
        (own,) = warned.list
        assert own.filename == __file__, name
        assert f" {len(ids(run, 'train'))} of these {len(notes)} " in str(own.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fs.TrainedOnWarning)
        result.predict([note.text for note in new(notes)])
        known = fs.score(notes, notes, run=run, part="test", resamples=10).as_json()
        unknown = fs.score(notes, notes, resamples=10).as_json()
    assert (known["trained_on"], "trained_on" in unknown) == (0, False)


def test_a_model_of_one_clients_own_was_trained_on_its_documents_alone(
    run_once: RunTiny, notes: list[fs.Document]
) -> None:
    alone = run_once(*SHORT, "method={name: local_only}").folder
    there, elsewhere = (
        [note for note in notes if (note.site == "site-1") == own and note.id in ids(alone, "train")]
        for own in (True, False)
    )
    result = fs.load(alone, client="site-1")
    with pytest.warns(fs.TrainedOnWarning, match=f" {len(there)} of these {len(there)} "):
        result.annotate(there)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fs.TrainedOnWarning)
        result.annotate(elsewhere)

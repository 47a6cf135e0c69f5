"""Comparing, scoring, reading and making notes from Python give what the command line gives."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from support import Call, problems_of, refused

import fedstrata as fs
from fedstrata.api.corpora import READ_SETTINGS
from fedstrata.core.settings.data import CorpusSettings
from fedstrata.data.writers import write


@pytest.mark.slow
def test_a_comparison_is_a_frame_with_means_intervals_and_tests(tmp_path: Path) -> None:
    """Over the same figures that its runs have."""
    compared = fs.compare(
        methods=[fs.methods.FedAvg(), fs.methods.LayerSkipping(top=1)],
        seeds=(0, 1),
        baseline="fedavg",
        p_values=True,
        data=fs.synth(sites=2, notes=24),
        task=fs.tasks.NamedEntityRecognition(max_length=64),
        rounds=2,
        settings={"data.types": ["drug", "problem"], "training.learning_rate": 2e-3},
        out=tmp_path / "compared",
        jobs=2,
        progress=False,
    )
    assert compared.finished
    table, rows = compared.table, list(compared.table.index)
    assert len(rows) == 2
    for row in rows:
        scores = [compared.result(row, seed).metrics["f1"] for seed in (0, 1)]
        assert table.loc[row, ("f1", "mean")] == pytest.approx(statistics.mean(scores))
        assert table.loc[row, ("f1", "sd")] == pytest.approx(statistics.stdev(scores))
        half = 12.706204736432095 * statistics.stdev(scores) / 2**0.5  # t of one degree of freedom, 97.5 %
        assert table.loc[row, ("f1", "high")] == pytest.approx(statistics.mean(scores) + half)
    assert len(compared.cells) == 4
    other = table.loc[rows[1]]
    assert other["f1", "difference"] == pytest.approx(
        other["f1", "mean"] - table.loc["fedavg", ("f1", "mean")]
    )
    assert other["f1", "difference_low"] <= other["f1", "difference"] <= other["f1", "difference_high"]
    assert table["f1", "p"].isna()["fedavg"]
    assert rows[0] in compared._repr_html_()
    with refused(fs.ConfigurationError, "not_found", at="row", values=["seed 7"]):
        compared.result(rows[0], 7)
    compared.plot()


def test_methods_and_rows_are_one_or_the_other() -> None:
    with refused(fs.ConfigurationError, "conflict", at="rows", values=["methods"]):
        fs.compare(methods=["fedavg"], rows={"a": {}}, progress=False)


def moved(document: fs.Document) -> fs.Document:
    """A document whose first mention was found one character too long."""
    first, *others = document.spans
    return replace(document, spans=(replace(first, end=first.end + 1), *others), relations=())


@pytest.mark.parametrize(
    "setting", [*sorted({*CorpusSettings.model_fields} - READ_SETTINGS - {"format", "path"}), "colums"]
)
def test_a_setting_that_reading_does_not_use_is_refused_by_name(tmp_path: Path, setting: str) -> None:
    write(
        [document for own in fs.synth(sites=1, notes=2).values() for document in own], tmp_path / "a", "jsonl"
    )
    for format in (None, Lines()):
        with pytest.raises(fs.ConfigurationError) as error:
            fs.read(tmp_path / "a", format, **{setting: None})
        code = "unknown_key" if setting == "colums" else "no_effect"
        expected = "no_effect" if format is not None else code
        assert problems_of(error.value) == [(setting, expected)]


def test_scores_are_those_of_the_command_line(tmp_path: Path, call: Call) -> None:
    gold = [replace(each, relations=()) for own in fs.synth(sites=2, notes=8).values() for each in own]
    found = [moved(document) for document in gold]
    write(gold, tmp_path / "gold", "jsonl")
    write(found, tmp_path / "found", "jsonl")
    assert call("score", "gold", "found", "--against", "gold", "--json", "scores.json").status == 0
    told = json.loads(Path("scores.json").read_text())
    of_files = fs.score("gold", "found", "gold")
    assert json.loads(json.dumps(of_files.as_json())) == told
    own = fs.score(gold, found, gold)
    assert own.table.equals(of_files.table)
    strict = own.table.loc[(0, "mentions", "strict", "all")]
    count = sum(len(document.spans) for document in gold)
    assert strict["precision"] == pytest.approx((count - len(gold)) / count)
    assert list(own.differences["delta"] <= 0) == [True] * len(own.differences)


def test_notes_are_those_that_the_command_line_writes(tmp_path: Path, call: Call) -> None:
    sizes = ("--sites", "2", "--notes", "6", "--format", "jsonl")
    assert call("synth", "--out", tmp_path / "told", *sizes).status == 0
    made = fs.synth(sites=2, notes=6, out=tmp_path / "own", format="jsonl")
    files = [sorted((tmp_path / folder).rglob("*.jsonl")) for folder in ("told", "own")]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
    again = fs.read(tmp_path / "own")
    assert {document.text for own in made.values() for document in own} == {each.text for each in again}


class Lines(fs.Reader):
    """A file with a note a line, after its label and a bar."""

    suffixes: ClassVar[tuple[str, ...]] = (".notes",)
    bar: str = "|"

    def read(self, path: Path, annotations: Path | None) -> list[fs.Document]:
        """Reads one file."""
        rows = (line.split(self.bar, 1) for line in path.read_text(encoding="utf-8-sig").splitlines())
        return [
            fs.Document(f"{path.stem}-{n}", text, labels=(label,)) for n, (label, text) in enumerate(rows)
        ]


def test_a_reader_of_ones_own_reads_and_quotes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.notes"
    file.write_text("cold;Some cough.\nwell;No complaints.\n")
    assert [each.labels for each in fs.read(file, Lines(bar=";"))] == [("cold",), ("well",)]
    assert fs.testing.check_reader(Lines(bar=";"), file)
    file.write_text("a secret text without a bar\n")
    with refused(fs.DataError, "failed", at="a.notes", values=[file]) as caught:
        fs.read(file, Lines())
    assert "secret" not in str(caught.value)

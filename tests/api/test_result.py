"""What a run leaves, as Python has it: scores, frames, figures, the model, predictions, files."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from support import OF_DOCUMENTS, Call, refused
from transformers import AutoModelForTokenClassification, AutoTokenizer

import fedstrata as fs
from fedstrata.data.writers import write

TEXTS = ["The patient has chest pain and takes aspirin.", "No complaints."]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> fs.Result:
    """A finished run, which no test changes."""
    return fs.run(
        data=fs.synth(sites=3, notes=12),
        task="ner",
        method=fs.methods.LayerSkipping(top=1),
        rounds=2,
        # Hardly trained, it finds a mention in every other word.
        settings={**OF_DOCUMENTS, "training.learning_rate": 1e-9},
        out=tmp_path_factory.mktemp("result") / "run",
        progress=False,
    )


def test_metrics_are_those_of_the_summary(result: fs.Result) -> None:
    summary = json.loads((result.folder / "summary.json").read_text())
    assert result.metrics == summary["metrics"]["global"]
    assert result.summary == summary
    with pytest.raises(KeyError):
        result.metrics["micro_f1"]
    own = fs.load(result.folder, client="site-1")
    assert own.metrics == summary["metrics"]["clients"]["site-1"]


def test_history_has_a_row_a_round_and_clients_a_row_each(result: fs.Result) -> None:
    assert list(result.history.index) == [1, 2]
    assert {"loss", "global", "mean"} <= set(result.history.columns)
    assert result.history["loss"].notna().all()
    assert list(result.clients.index) == ["site-1", "site-2", "site-3"]
    assert int(result.clients[["train", "validation", "test"]].to_numpy().sum()) == 12


def test_predictions_are_a_row_a_mention(result: fs.Result) -> None:
    annotated = result.annotate(TEXTS)
    frame = result.predict(TEXTS)
    assert list(frame.columns) == ["document", "start", "end", "label", "text"]
    assert len(frame) == sum(len(document.spans) for document in annotated) > 0
    for row in frame.itertuples():
        assert TEXTS[int(row.document)][row.start : row.end] == row.text


def test_a_text_alone_and_a_document_are_read_too(result: fs.Result) -> None:
    document = fs.Document("mine", TEXTS[0])
    (alone,), (named,) = result.annotate([TEXTS[0]]), result.annotate(document)
    assert alone.spans == named.spans
    assert named.id == "mine"
    with refused(fs.ConfigurationError, "wrong_type", at="texts", values=["number 1", "int"]):
        result.predict([3])  # type: ignore[list-item]


def test_files_are_predicted_as_the_command_line_predicts_them(
    result: fs.Result, tmp_path: Path, call: Call
) -> None:
    write([fs.Document(str(number), text) for number, text in enumerate(TEXTS)], tmp_path / "in", "jsonl")
    options = ("--input-format", "jsonl", "--format", "jsonl", "--out", "told")
    assert call("predict", result.folder, tmp_path / "in", *options).status == 0
    scores = result.predict(tmp_path / "in", out=tmp_path / "own", input_format="jsonl", format="jsonl")
    assert isinstance(scores, pd.DataFrame)
    files = [sorted((tmp_path / folder).rglob("*.jsonl")) for folder in ("told", "own")]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
    assert files[0]


def test_the_model_is_the_one_that_was_exported(result: fs.Result, tmp_path: Path) -> None:
    folder = result.export(tmp_path / "exported")
    loaded = AutoModelForTokenClassification.from_pretrained(folder)
    for name, tensor in loaded.state_dict().items():
        assert tensor.equal(result.model.state_dict()[name]), name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer(TEXTS[0])["input_ids"] == result.tokenizer(TEXTS[0])["input_ids"]
    with refused(fs.ConfigurationError, "exists", values=[folder]):
        result.export(folder)


def test_a_report_and_a_figure_are_made(result: fs.Result, tmp_path: Path) -> None:
    file = result.report(tmp_path / "report.html")
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    figure = result.plot()
    assert isinstance(figure, Figure)
    (axes,) = figure.axes
    assert list(axes.lines[0].get_ydata()) == list(result.history["global"])
    assert axes.lines[0].get_color() != axes.lines[1].get_color()

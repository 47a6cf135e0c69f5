"""Types and labels that the task names: what documents have then decides nothing."""

from __future__ import annotations

from pathlib import Path

from support import TINY, write_lines

from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import Experiment, prepare

BARE = [item for item in TINY if not item.startswith("data.types")]


def prepared(*overrides: str) -> Experiment:
    return prepare(read_source(None, [*BARE, *overrides]))


def test_types_that_are_named_are_learnt_in_the_order_of_the_alphabet() -> None:
    named = ("data.types=[test, problem, drug]", "task.types=[test, problem, drug]")
    assert prepared(*named).task.classes == prepared(named[0]).task.classes


def test_another_corpus_keeps_the_types_that_the_task_names(tmp_path: Path) -> None:
    """Of which the run's own documents may lack some, where other sites have them."""
    note = {"id": "1", "text": "Fever. ECG.", "spans": [{"start": 7, "end": 10, "label": "test"}]}
    write_lines(tmp_path / "notes.jsonl", [note])
    spans = [{"start": 0, "end": 5, "label": "problem"}]
    own = {"site": "here", "text": "Fever today.", "spans": spans}
    write_lines(tmp_path / "own.jsonl", ({**own, "id": f"{n}"} for n in range(12)))
    other = f"{{format: jsonl, path: {tmp_path}/notes.jsonl}}"
    data = f"data={{format: jsonl, path: {tmp_path}/own.jsonl, external: {{other: {other}}}}}"
    source = read_source(None, [*BARE, data, "task.types=[problem, test]"])
    (document,) = prepare(source, apart=True).clients["other"].test
    assert [span.label for span in document.spans] == ["test"]

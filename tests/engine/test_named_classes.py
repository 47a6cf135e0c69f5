"""Types that the task names, whatever documents have, and sites that annotate different types."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from support import TINY, write_lines

from fedstrata.core.settings.source import read_source
from fedstrata.data.divide import divide
from fedstrata.engine.check import check_settings
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.record.report import report_page

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


def test_a_run_learns_what_is_annotated_where(run_tiny: Any) -> None:
    def divided(*overrides: str) -> dict[str, Any]:
        checked = check_settings(read_source(None, ["data.synthetic={sites: 2, notes: 12}", *overrides]))
        return dict(divide(checked.settings, checked.task).clients)

    names = list(divided())
    told = f"data.annotates={{{names[0]}: [problem], {names[1]}: [drug, test]}}"
    mine = divided(told)
    kinds = [{span.label for part in own.train for span in part.spans} for own in mine.values()]
    assert kinds[0] == {"problem"}
    assert kinds[1] <= {"drug", "test"}
    absent = divided(told, "data.not_annotated=absent")
    assert all(document.annotates is None for own in absent.values() for document in own.train)
    assert all(document.annotates is not None for own in absent.values() for document in own.test)
    finished = run_tiny("data.synthetic={sites: 2, notes: 12}", told, "federation.rounds=1")
    assert finished.summary["metrics"]["global"]["recall"] >= 0.0
    page = report_page([finished.folder]).partition("What is annotated where")[2].partition("</table>")[0]
    cells = [re.findall("<td>(.*?)</td>", row) for row in page.split("<tr>")[2:]]
    assert cells == [["no", "yes", "no"], ["yes", "no", "yes"]], "of drug, problem and test"


def test_a_client_of_which_nothing_can_be_scored_has_no_score(run_once: Any) -> None:
    strange = "data.annotates={site-1: ['401.9'], site-2: [drug, problem, test]}"
    finished = run_once("data.synthetic={sites: 2, notes: 12}", "federation.rounds=1", strange)
    metrics = finished.summary["metrics"]
    assert not metrics["clients"]["site-1"]
    assert metrics["mean_client"] == metrics["clients"]["site-2"]

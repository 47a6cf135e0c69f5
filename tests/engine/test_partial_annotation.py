"""Sites that annotate different types, in whole runs."""

from __future__ import annotations

import re
from typing import Any

from fedstrata.core.settings.source import read_source
from fedstrata.data.divide import divide
from fedstrata.engine.check import check_settings
from fedstrata.record.report import report_page


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

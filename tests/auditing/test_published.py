"""What an attack on a run has found is in its folder, its report and its statement of privacy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from figures import draw_only
from private_client import PRIVATE
from support import TINY, Call, RunTiny
from told import assert_told

from fedstrata.core.settings.source import read_source
from fedstrata.engine.check import check_settings
from fedstrata.record.findings import (
    Finding,
    FindingTable,
    Reading,
    read_findings,
    what_was_attacked,
    write_finding,
)
from fedstrata.record.report.attacks import marked

FEDAVG = ("method={name: fedavg}", "federation.rounds=1")
SETTINGS = (*TINY, *FEDAVG)
TRAINING = "training={optimizer: adamw, learning_rate: 0.001}"


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch)


@pytest.mark.usefixtures("reports", "without_figures")
def test_an_attack_on_a_run_goes_into_its_report_and_its_statement(call: Call, tmp_path: Path) -> None:
    assert call("run", *SETTINGS, *PRIVATE, TRAINING, "name=audited").status == 0
    run = next((tmp_path / "runs").iterdir())
    assert "Attacks that were tried" not in (run / "privacy.md").read_text()
    before = (run / "report.html").read_text()
    assert "Attack:" not in before
    assert call("attack", "invert", str(run), "training.optimizer=sgd").status == 0
    assert not (run / "audits").exists(), "other settings than a run's are not its findings"
    assert (tmp_path / "audits" / "invert.json").is_file()
    assert (run / "report.html").read_text() == before
    done = call("attack", "invert", str(run))
    assert done.status == 0, done.err
    assert [own.attack for own in read_findings(run)] == ["invert"]
    assert "## Attacks that were tried" in (run / "privacy.md").read_text()
    before = (run / "report.html").read_text()
    assert "<h2>Attack: invert</h2>" in before
    assert call("report", str(run)).status == 0
    assert (run / "report.html").read_text() == before


def test_what_is_written_is_read_again_and_a_broken_file_is_passed_over(tmp_path: Path) -> None:
    finding = Finding(
        "span",
        [FindingTable("a title", ["a", "b"], [["1", "x|y"]])],
        ["said"],
        {"n": 1},
        [Reading("site", "text", "read")],
        {"of_each": [1, 2]},
    )
    write_finding(finding, tmp_path / "audits")
    for attack, wrong in (
        ("hidden", "{"),
        ("hidden", '{"tables": [], "says": null}'),
        ("invert", '{"tables": [{}]}'),
        ("invert", '{"tables": [], "says": [], "readings": [{"seen": 1, "text": 2, "read": 3}]}'),
        ("membership", '{"tables": [{"title": "t", "columns": null, "rows": [1, 2]}], "says": []}'),
    ):
        (tmp_path / "audits" / f"{attack}.json").write_text(wrong)
        (own,) = read_findings(tmp_path)
    assert (own.tables, own.says, own.facts["n"]) == (finding.tables, ["said"], 1)
    assert own.facts["of_each"] == [1, 2]
    assert "of_each" not in finding.as_json()
    assert own.readings == [Reading("site", "text", "read")]
    told = (tmp_path / "audits" / "span.md").read_text()
    assert "| 1 | x\\|y |" in told
    assert "text" not in told
    json.loads((tmp_path / "audits" / "span.json").read_text())


def test_what_is_not_of_a_run_is_refused_before_anything_is_attacked(
    call: Call, run_once: RunTiny, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(run_once(*FEDAVG).folder, tmp_path / "run"))
    done = call("attack", "invert", *SETTINGS, "--out", str(run / "audits"))
    assert done.status == 2
    assert_told(done.err, "conflict", values=[run / "audits", "--out"])
    assert not (run / "audits").exists()
    (tmp_path / "file").write_text("")
    done = call("attack", "invert", str(run), "--out", str(tmp_path / "file"))
    assert done.status == 2
    assert_told(done.err, "unwritable", values=[tmp_path / "file"])
    (run / "record.jsonl").rename(run / "gone")
    done = call("attack", "invert", str(run))
    assert done.status == 2
    assert_told(done.err, "not_found", values=["record.jsonl"])


def test_a_finding_names_the_usual_method_where_a_configuration_names_none() -> None:
    source = read_source(None, ["method.top=1", "seed=7"])
    told = what_was_attacked(check_settings(source).settings)
    assert (told["method"], told["model"], told["seed"]) == ("layer_skipping", "mini", 7)


def test_words_are_marked_that_were_read_in_their_order() -> None:
    own = marked(Reading("site", "No fever or chills overnight", "No chills or fever"))
    assert [words for words, same in own.text if same] == [words for words, same in own.read if same]
    assert " ".join(words for words, _ in own.text) == "No fever or chills overnight"
    assert marked(Reading("site", "a b", "")).read == []

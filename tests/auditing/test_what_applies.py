"""An attack is made on what a run sends: another one is refused, or marked wherever it is shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from figures import draw_only
from private_client import PRIVATE
from support import TINY, Call, RunTiny, files_of

from fedstrata.auditing.hidden_states import applicable, own_cuts, why_none
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import prepare
from fedstrata.record.findings import ATTACKS, read_findings

OPTIONS = ("--front", "1", "--noise", "0", "--texts", "2", "--epochs", "1", "--searched", "4")
SHORT = (*TINY, "task={name: ner, types: [problem, test, treatment, drug], max_length: 16, stride: 4}")
FEDAVG = "method={name: fedavg}"
SUMMED = "privacy={secure_aggregation: true}"
MARKED = ("audits/hidden.md", "report.html", "privacy.md")


@pytest.mark.parametrize(
    ("settings", "fitting"),
    [
        (("method={name: fedavg}",), {"invert", "membership", "span"}),
        (("method={name: layer_skipping, top: 1}",), {"invert", "membership", "span"}),
        (("method={name: fedavg}", SUMMED), {"invert", "span"}),
        (("method={name: fl_llama}",), {"hidden"}),
        (("method={name: centralized}",), {"membership"}),
        (("method={name: local_only}",), set()),
    ],
    ids=lambda own: " ".join(own) if isinstance(own, tuple) else "",
)
def test_each_attack_fits_what_a_run_sends(settings: tuple[str, ...], fitting: set[str]) -> None:
    """By what the method answers of the model that is divided, of what stays, and of what is summed."""
    experiment = prepare(read_source(None, [*TINY, *settings]))
    assert set(applicable(experiment)) == fitting <= set(ATTACKS)
    assert bool(why_none(experiment)) == ("hidden" not in fitting)
    assert bool(own_cuts(experiment)) == ("hidden" in fitting)


@pytest.mark.parametrize(
    "arguments", [(), ("foo",), ("run.yaml",), ("--front", "1"), ("federation.rounds=1",)], ids=str
)
def test_no_attack_is_made_that_is_not_named(call: Call, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "run.yaml").write_text("name: run\n")
    done = call("attack", *arguments)
    assert done.status == 2
    assert all(attack in done.err for attack in ATTACKS)
    assert not (tmp_path / "audits").exists()


def test_an_attack_on_what_is_never_sent_is_refused(call: Call, run_once: RunTiny, tmp_path: Path) -> None:
    run = Path(
        shutil.copytree(run_once("method={name: fedavg}", "federation.rounds=1").folder, tmp_path / "run")
    )
    before = files_of(run)
    for out in ((), ("--out", "elsewhere")):
        done = call("attack", "hidden", str(run), *OPTIONS, *out)
        assert done.status == 2
        assert "fedavg" in done.err and "--what-if" in done.err
        assert not [*tmp_path.rglob("hidden.*")]
    assert files_of(run) == before


@pytest.mark.slow
@pytest.mark.usefixtures("reports")
def test_hidden_states_that_are_never_sent_are_no_finding(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_only(monkeypatch)
    run = tmp_path / "run"
    settings = (*TINY, *PRIVATE, "training={optimizer: adamw, learning_rate: 0.001}", FEDAVG)
    brief = ("federation.rounds=1", "task.max_length=16", "task.stride=4")
    assert call("run", *settings, *brief, "--out", str(run)).status == 0
    done = call("attack", "hidden", str(run), *OPTIONS, "--what-if")
    assert done.status == 0, done.err
    (finding,) = read_findings(run)
    for text in (finding.says[0], *((run / file).read_text() for file in MARKED)):
        assert finding.what_if and finding.what_if in text
    assert "Attack: hidden" not in (run / "report.html").read_text()
    assert "Attacks that were tried" not in (run / "privacy.md").read_text()
    printed = call("attack", "hidden", str(run), *OPTIONS, "--what-if", "--json")
    assert json.loads(printed.out)["what_if"] == finding.what_if
    assert call("export", str(run), "--out", "handed-on").status == 0
    assert "hidden state" not in (tmp_path / "handed-on" / "README.md").read_text()


def test_what_if_is_for_methods_that_send_no_hidden_states(call: Call, tmp_path: Path) -> None:
    done = call("attack", "hidden", *SHORT, "method={name: fl_llama}", *OPTIONS, "--what-if")
    assert done.status == 2 and "--what-if" in done.err
    assert not (tmp_path / "audits").exists()

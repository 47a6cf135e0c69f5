"""The table at the end of a run."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from figures import draw_only
from rich.console import Console
from support import RunTiny

from fedstrata.display.run import Display, without_scores
from fedstrata.metrics.spans import OVERALL

NAMES = ["micro_f1", "macro_f1", "micro_auc", "macro_auc", "precision_at_5", "precision_at_8"]
NAMES += ["micro_precision", "micro_recall", "macro_precision", "macro_recall", "auc_labels_left_out"]


Clients = dict[str, dict[str, float] | None]


def console_of(width: int, **more: Any) -> Console:
    return Console(file=io.StringIO(), width=width, **more)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(
    names: list[str], width: int, clients: Clients | None = None, privacy: dict[str, Any] | None = None
) -> list[str]:
    scores = dict.fromkeys(names, 0.12345) | {"f1/401.9": 0.5}
    summary = {
        "method": "fedavg",
        "task": "classify",
        "model": {"name": "mini", "parameters": 100},
        "metrics": {
            "global": scores,
            "mean_client": scores,
            "clients": clients or {"site-1": scores, "site-2": None},
            "external": None,
        },
        "rounds": 1,
        "convergence": {"metric": names[0]},
        "trainable_parameters": 50,
        "communication": {"bytes_up": None},
        "failures": {"clients": None, "abandoned_rounds": None},
        "time": {"total_seconds": 2.0, "train_seconds": 3.0, "serve_seconds": 0.5},
        "memory": {"peak_rss_bytes": 1, "peak_gpu_bytes": None},
        "privacy": privacy,
    }
    console = console_of(width)
    Display(console).show(summary, Path("runs/x"), personal=False)
    return text_of(console).splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_table_fits_and_the_scores_it_has_no_room_for_are_named(width: int) -> None:
    lines = shown(NAMES, width)
    table = [line for line in lines if line[:1] in "┏┃┡│└"]
    assert max(map(len, table)) <= width
    assert any(re.fullmatch(r"took 2\.0 s; .* 3\.0 s, .* 0\.5 s", line) for line in lines)
    assert not any("…" in line for line in lines)
    columns = next(line for line in lines if "site-1" in line).count("0.1")
    assert columns >= (3 if width < 100 else 8)
    rest = [line[line.index(":") :] for line in lines if "summary.json" in line]
    assert rest == ([] if columns >= len(NAMES) else [f": {', '.join(NAMES[columns:])}"])


def test_few_scores_are_all_shown() -> None:
    lines = shown(["f1", "precision", "recall"], 60)
    assert any("f1" in line and "precision" in line and "recall" in line for line in lines)
    assert not any("as well" in line or "401.9" in line for line in lines)


def test_of_mentions_the_strict_scores_and_lenient_f1_have_the_room() -> None:
    lines = shown(list(OVERALL), 80)
    assert next(line for line in lines if "site-1" in line).count("0.1") == 4
    (rest,) = [line for line in lines if "summary.json" in line]
    assert rest.endswith(": lenient_precision, lenient_recall, untyped_f1, untyped_lenient_f1")


def test_a_run_without_test_documents_says_so_and_reports_the_validation_split(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_only(monkeypatch)
    run = run_tiny("data.split={train: 0.9, validation: 0.1, test: 0.0}", "federation.rounds=1", report=True)
    console = console_of(100)
    Display(console).show(run.summary, run.folder, personal=False)
    told = text_of(console)
    assert told.startswith("no test documents")
    assert "test split" not in told
    assert re.search("validation split .*round 1", (run.folder / "report.html").read_text())


def test_of_many_clients_the_lowest_and_the_highest_are_shown() -> None:
    clients: Clients = {f"site-{number:03d}": {"f1": (number * 37 % 100) / 100} for number in range(100)}
    clients["site-none"] = None
    lines = shown(["f1"], 100, clients)
    rows = [line.split()[1] for line in lines if line.startswith("│ site-")]
    scored = sorted((row["f1"], name) for name, row in clients.items() if row)
    assert rows == [name for _, name in (*scored[:5], *scored[-5:])]
    assert any(re.match(r".*\b5\b.*\b5\b.*\b101 ", line) for line in lines)


def test_a_client_that_fails_to_score_is_told_and_is_none_of_those_that_train() -> None:
    console = console_of(200)
    display = Display(console)
    display("run", {"metric": "f1", "pooled": False, "rounds": 1})
    display("round_started", {"round": 1, "clients": 2})
    failed = {"round": 1, "client": "north", "error": "FrameError", "message": "no scores", "bytes_down": 10}
    for facts in ({**failed, "part": "validation"}, failed):
        display("client_failed", facts)
    first, second = text_of(console).splitlines()
    assert ("validation" in first, "validation" in second) == (True, False)
    for line in (first, second):
        assert line.startswith("round 1: north ") and line.endswith(": FrameError: no scores")
    (clients,) = (task for task in display._progress.tasks if task.description == "clients")
    assert (clients.completed, display._down) == (1, 10)


def last_frame(console: Console) -> str:
    """Returns what a terminal shows in the end of what goes on, without its control codes."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text_of(console).rpartition("\r")[2])


ROUND: dict[str, Any] = {"loss": 0.827, "failed": [], "abandoned": False, "exchanges": {}, "clients": {}}


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_of_a_long_line_of_progress_is_cut(width: int) -> None:
    console = console_of(width, force_terminal=True, color_system=None)
    with Display(console) as display:
        display("run", {"metric": "lenient_f1", "pooled": False, "rounds": 20})
        display("round_started", {"round": 1, "clients": 4})
        spent = {"clients": {"a": {"turns": 1, "epsilon": 3.7031}}, "clipped": {}}
        scores = {"global": {"lenient_f1": 0.5}, "mean_client": {}}
        display("round", {**ROUND, **scores, "round": 1, "privacy": spent})
    shown = last_frame(console)
    assert max(map(len, shown.splitlines())) <= width
    assert re.search(r"^rounds [━ ]+ 1/20 .* 0:00:00 *$", shown, re.MULTILINE)
    assert re.search(r"^clients +0/4 .* 0:00:00 *$", shown, re.MULTILINE)
    words = " ".join(re.sub(r"\d:\d\d:\d\d|━+", "", shown).split())
    for part in ("loss 0.827", "lenient_f1 0.500", "0 bytes up", "0 bytes down", "epsilon 3.71"):
        assert part in words


def test_what_is_over_is_no_longer_said_to_go_on() -> None:
    console = console_of(80, force_terminal=True, color_system=None)
    with Display(console) as display:
        display("finishing", {})
        display("final", {})
    assert "test split" not in last_frame(console)


@pytest.mark.parametrize("noise", ["secure", "seeded"])
def test_the_line_of_a_round_has_the_largest_epsilon_so_far(noise: str) -> None:
    console = console_of(200)
    display = Display(console)
    facts = {"metric": "f1", "pooled": False, "rounds": 2, "privacy": {"noise": noise}}
    clients = {"a": {"turns": 1, "epsilon": 1.2345}, "b": {"turns": 1, "epsilon": 0.5}}
    with display:
        display("run", facts)
        display("round", {**ROUND, "round": 1, "privacy": {"clients": clients, "clipped": {}}})
        display("round", {**ROUND, "round": 2, "privacy": {"clients": {"a": {"epsilon": None}}}})
    told = text_of(console)
    assert "epsilon 1.24" in told
    assert re.search(r"^round 2: .*epsilon infinite", told, re.MULTILINE)
    assert ("no protection" in told) == ("an experiment" in told) == (noise == "seeded")


PRIVACY = {"mechanism": "local", "unit": "patient", "adjacency": "zero-out", "delta": 1e-5, "sigma": 0.75}


def test_the_last_lines_say_what_was_spent_and_what_it_does_not_cover() -> None:
    spent = {**PRIVACY, "clip": 1.0, "noise": "secure", "epsilon": 3.7031, "clients": {"a": 3.7031}}
    lines = shown(["f1"], 200, privacy=spent)
    said = r"local .* by patient, zero-out .*: epsilon 3\.71 at delta 1e-05, .* \(sigma 0\.75, clip 1\)"
    assert any(re.fullmatch(said, line) for line in lines)
    assert any(line.startswith("scores are not part") for line in lines)
    assert not any(line.startswith("warning: the noise") for line in lines)
    seeded = shown(["f1"], 200, privacy=spent | {"noise": "seeded"})
    assert any(re.match("warning: the noise .* seed", line) for line in seeded)
    nothing = shown(["f1"], 200, privacy=spent | {"sigma": 0.0, "epsilon": None})
    assert any("nothing is protected" in line for line in nothing)
    assert not any("psilon" in line for line in shown(["f1"], 200))


@pytest.mark.parametrize("mechanism", [None, "local"])
def test_scores_that_sites_keep_to_themselves_are_not_said_to_lack_documents(mechanism: str | None) -> None:
    secure = None if mechanism else {"range": 1.0}
    for own, kept in (({"mechanism": mechanism}, secure), ({"mechanism": None}, None)):
        said = without_scores({"privacy": own, "secure_aggregation": kept})
        assert ("privacy.scores: none" in said) == bool(own["mechanism"] or kept)


@pytest.mark.parametrize(("cap", "over"), [(8.0, False), (4.0, True)])
def test_a_budget_that_was_lowered_below_what_is_spent_says_so(cap: float, over: bool) -> None:
    console = console_of(200)
    spent = {name: {"spent": own, "left": max(0.0, cap - own)} for name, own in (("a", 4.5), ("b", 6.0))}
    Display(console)("privacy", {"budget": {"epsilon": cap, "delta": 0.001, "clients": spent}})
    told = text_of(console)
    assert re.search(rf"b: .* epsilon 6\.00 of {cap:g} ", told)
    assert ("over the budget" in told) == over

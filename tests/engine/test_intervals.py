"""Intervals around the test scores of a run, from draws of its documents."""

from __future__ import annotations

from typing import Any

import pytest

from fedstrata.record.score_columns import CLIENT, EXTERNAL, column_names, is_of_one, score_groups, score_of

MORE = "data.synthetic.notes=24"
"""Documents enough that draws of them differ."""


def interval_of(summary: Any, column: str) -> tuple[float, float]:
    low, high = (score_of(summary, f"{end}.{column}") for end in ("low", "high"))
    assert low is not None and high is not None
    return low, high


def test_intervals_hold_their_scores_and_change_nothing_else(run_tiny: Any, run_once: Any) -> None:
    plain = run_once("federation.rounds=0")  # untrained, it finds a little by chance
    draws = "federation.bootstrap={instances: null, resamples: 20}"
    drawn = run_tiny("federation.rounds=0", draws, report=True)
    again = run_once("federation.rounds=0", draws)
    metrics = drawn.summary["metrics"]
    intervals = metrics["intervals"]
    assert intervals == again.summary["metrics"]["intervals"]
    without = dict.fromkeys(("intervals", "mean_client_intervals", "external_intervals"))
    assert plain.summary["metrics"] == {**metrics, **without}
    assert {"f1", "precision", "recall"} <= intervals.keys()
    for name in ("f1", "precision", "recall"):
        low, high = intervals[name]
        assert 0.0 <= low <= metrics["global"][name] <= high <= 1.0
    assert intervals["f1"][0] < intervals["f1"][1]
    assert '<th scope="row">interval</th>' in (drawn.folder / "report.html").read_text(encoding="utf-8")


def test_ends_of_intervals_and_held_out_sites_are_columns(run_once: Any) -> None:
    draws = "federation.bootstrap={resamples: 100}"
    summary = run_once("federation.rounds=0", draws, "data.split.test_sites=[site-2]", MORE).summary
    for column in ("mean_client.f1", "external.site-2.f1"):
        low, high = interval_of(summary, column)
        assert 0.0 <= low < high <= 1.0
    metrics = summary["metrics"]
    assert score_of(summary, "low.f1") == metrics["intervals"]["f1"][0]
    assert score_of(summary, "high.f1") == metrics["intervals"]["f1"][1]
    assert score_of(summary, "external.site-2.f1") == metrics["external"]["site-2"]["f1"]
    assert score_of(summary, "f1") == metrics["global"]["f1"]
    assert score_of(summary, "client.site-1.f1") == metrics["clients"]["site-1"]["f1"]
    assert {"", "client.site-1.", "low.", "high.", "external.site-2."} <= score_groups([summary]).keys()
    assert {"low.f1", "high.f1", "low.mean_client.f1"} <= set(column_names(["f1"]))
    assert is_of_one("external.site-2.f1", ["f1"], EXTERNAL) and not is_of_one("client.f1", ["f1"], CLIENT)


@pytest.mark.parametrize("everywhere", [pytest.param(True, marks=pytest.mark.slow), False])
def test_models_of_their_own_have_intervals_too(run_once: Any, everywhere: bool) -> None:
    """Around the scores that a comparison shows: means over models, of documents that are drawn for each."""
    settings = (
        "method={name: fedsa_lora}",
        "adapter={kind: lora, rank: 2}",
        "federation.rounds=1",
        "training.learning_rate=1e-9",  # untrained, it finds a little by chance
        "federation.bootstrap={instances: null, resamples: 20}",
        "data.split.test_sites=[site-2]",
        MORE,
        f"federation.score_everywhere={everywhere}",
    )
    summary = run_once(*settings).summary
    shown = ["mean_client.f1", *(["f1", "external.site-2.f1"] if everywhere else [])]
    for column in shown:
        low, high = interval_of(summary, column)
        assert low <= score_of(summary, column) <= high
        assert low < high
    assert bool(summary["metrics"]["intervals"]) == everywhere

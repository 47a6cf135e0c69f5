from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.record.log import RecordLog, committed_rounds, read_events
from fedstrata.record.summary import headline, mean_scores, summarise


def test_events_are_on_disk_as_they_happen(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "record.jsonl")
    log.append("round", {"round": 1})
    assert [event["round"] for event in read_events(tmp_path / "record.jsonl")] == [1]


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "record.jsonl")
    with refused(ConfigurationError, "in_use", values=[tmp_path]):
        RecordLog(tmp_path / "record.jsonl")
    log.close()
    RecordLog(tmp_path / "record.jsonl").close()


def test_a_torn_line_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text('{"event": "round", "round": 1}\n{"event": "rou')
    RecordLog(path).append("round", {"round": 2})
    assert [event["round"] for event in read_events(path)] == [1, 2]


@pytest.mark.parametrize(
    "line", ['{"event": "round", "round": [2]}', '{"event": ["round"]}', "[" * 100_000, '"event"', "\0"]
)
def test_a_damaged_line_spoils_no_other(tmp_path: Path, line: str) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text(f'{{"event": "round", "round": 1}}\n{line}\n{{"event": "round", "round": 3}}\n')
    assert [event["round"] for event in committed_rounds(read_events(path))] == [1, 3]


def test_what_is_not_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        RecordLog(tmp_path / "record.jsonl").append("round", {"loss": math.nan})


def test_the_later_event_of_a_repeated_round_counts() -> None:
    events = [{"event": "round", "round": number, "try": index} for index, number in enumerate((1, 2, 2, 3))]
    assert [event["try"] for event in committed_rounds(events)] == [0, 2, 3]


def test_means_leave_out_clients_without_a_score_and_may_be_weighted() -> None:
    scores = [{"f1": 0.5}, None, {"f1": 1.0, "auc": 0.7}]
    assert mean_scores(scores) == {"f1": 0.75, "auc": 0.7}
    assert mean_scores(scores, [3.0, 5.0, 1.0]) == {"f1": 0.625, "auc": 0.7}
    assert mean_scores([None]) is None


def test_the_headline_is_the_clients_mean_where_nothing_is_global() -> None:
    assert headline({"global": {"f1": 0.4}, "mean_client": {"f1": 0.6}}, "f1") == 0.4
    assert headline({"global": None, "mean_client": {"f1": 0.6}}, "f1") == 0.6
    assert headline({}, "f1") is None


def summary_of(
    scores: Sequence[float], metric: str = "f1", peaks: Sequence[int | None] = (), **start: Any
) -> dict[str, Any]:
    """The summary of a run whose rounds had these scores, and these peaks of memory."""
    begun = {
        "event": "run", "metric": metric, "method": "m", "task": "ner", "seed": 0, "pooled": False,
        "model": {"name": "x", "parameters": 1, "blocks": 1, "bytes": 100},
        "clients": {"a": {}}, "trainable_parameters": 1,
    }  # fmt: skip
    rounds = [
        {
            "event": "round", "round": number, "global": {metric: score}, "seconds": 3.0,
            "train_seconds": 2.0, "evaluate_seconds": 0.5,
            "exchanges": {"a": {"bytes_up": 50, "bytes_down": 70}},
            "trainable_parameters": 1, "state": {"top": 3},
        } | ({"peak_rss_bytes": peaks[number - 1]} if peaks else {})
        for number, score in enumerate(scores, start=1)
    ]  # fmt: skip
    final = {
        "event": "final", "global": {metric: scores[-1]}, "clients": {"a": {metric: scores[-1]}},
        "seconds": 1.0, "peak_rss_bytes": 1, "peak_gpu_bytes": None,
    }  # fmt: skip
    return summarise([begun | start, *rounds, final])


def test_the_peak_of_memory_is_that_of_all_processes_that_a_run_went_through() -> None:
    assert summary_of((0.1, 0.2), peaks=(7, 3))["memory"]["peak_rss_bytes"] == 7
    assert summary_of((0.1, 0.2), peaks=(None, 0))["memory"]["peak_rss_bytes"] == 1  # the last event's
    assert summary_of((0.1,))["memory"]["peak_gpu_bytes"] is None


@pytest.mark.parametrize(
    ("scores", "best", "reached"),
    [
        ((40.0, 22.3, 20.0, 21.0), {"perplexity": 20.0, "round": 3}, 3),  # 20 / 0.9 is 22.22
        ((40.0, 22.2, 20.0, 20.0), {"perplexity": 20.0, "round": 3}, 2),
        ((9.0,), {"perplexity": 9.0, "round": 1}, 1),
    ],
)
def test_of_a_falling_score_the_lowest_is_best(
    scores: tuple[float, ...], best: dict[str, float], reached: int
) -> None:
    summary = summary_of(scores, "perplexity", lower_is_better=["loss", "perplexity"])
    assert summary["metrics"]["best"] == best
    assert summary["convergence"] == {"metric": "perplexity", "rounds_to_90_percent": reached}


def test_convergence_is_the_first_round_with_90_percent_of_the_best() -> None:
    summary = summary_of((0.2, 0.73, 0.8, 0.7))
    assert summary["convergence"] == {"metric": "f1", "rounds_to_90_percent": 2}
    assert summary["metrics"]["best"] == {"f1": 0.8, "round": 3}
    assert summary["communication"] == {
        "bytes_up": 200, "bytes_down": 280, "bytes_up_per_client_round": 50.0, "percent_of_full_model": 50.0,
    }  # fmt: skip
    assert (summary["trainable_parameters"], summary["state"]) == (1, {"top": 3})
    assert summary["time"]["engine_overhead_seconds"] == pytest.approx(2.0)
    assert summary["time"]["total_seconds"] == pytest.approx(13.0)

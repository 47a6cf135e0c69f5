from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.record.history import (
    bytes_sent,
    client_scores,
    extremes,
    group_bytes,
    lost_clients,
    read_history,
    start_of,
    time_parts,
)

TIME = "2026-01-01T10:00:00.000+00:00"
FAILED = {"event": "failed", "error": "TrainingError", "message": "m"}

few_names = st.sampled_from(["", "a", "b", "site-1", "é/\n"])  # so that rounds have some in common
exchanges = st.lists(
    st.dictionaries(few_names, st.tuples(st.integers(0, 9**9), st.integers(0, 9**9)), max_size=3), max_size=4
)


@given(exchanges)
def test_bytes_sent_is_the_sum_of_everything_up_to_a_round(rounds: list[dict[str, tuple[int, int]]]) -> None:
    events = [
        {"exchanges": {name: {"bytes_up": up, "bytes_down": down} for name, (up, down) in one.items()}}
        for one in rounds
    ]
    expected = [
        tuple(sum(client[way] for one in rounds[:count] for client in one.values()) for way in (0, 1))
        for count in range(1, len(rounds) + 1)
    ]
    assert bytes_sent(events) == expected


@given(st.dictionaries(few_names, st.floats(-5, 5)))
def test_extremes_are_the_lowest_and_the_highest(scores: dict[str, float]) -> None:
    ends = extremes(scores)
    if ends is None:
        assert len(set(scores.values())) <= 1
        return
    ordered = sorted(scores.values())
    assert (scores[ends[0]], scores[ends[1]]) == (ordered[0], ordered[-1])
    assert list(scores.values()).index(ordered[0]) == list(scores).index(ends[0])
    assert extremes(scores, falling=True) == ends[::-1]


@given(st.lists(st.dictionaries(few_names, st.integers(0, 9**9), max_size=3), max_size=4))
def test_group_bytes_add_up_over_rounds(rounds: list[dict[str, int]]) -> None:
    totals = group_bytes([{"groups_up": groups} for groups in rounds] + [{}])
    assert totals == {
        name: sum(groups.get(name, 0) for groups in rounds) for name in {n for g in rounds for n in g}
    }


def test_clients_without_the_score_have_none() -> None:
    assert client_scores({"clients": {"a": {"f1": 0.5}, "b": None, "c": {"auc": 0.7}}}, "f1") == {"a": 0.5}


def test_the_parts_of_the_time_add_up_to_the_total(write_run: Any, events: Any) -> None:
    history = read_history(write_run(events(rounds=3)))
    parts = time_parts(history)
    assert sum(parts.values()) == pytest.approx(history.summary["time"]["total_seconds"])
    assert parts["engine"] == pytest.approx(1.5)
    assert len(parts) == 4


def test_the_server_s_part_of_a_divided_model_is_told_apart(write_run: Any, events: Any) -> None:
    served = [event | ({"serve_seconds": 0.25} if event["event"] == "round" else {}) for event in events()]
    history = read_history(write_run(served))
    parts = time_parts(history)
    assert sum(parts.values()) == pytest.approx(history.summary["time"]["total_seconds"])
    assert (list(parts.values())[-1], parts["engine"]) == pytest.approx((0.75, 0.75))
    time = history.summary["time"]
    assert (time["serve_seconds"], time["engine_overhead_seconds"]) == pytest.approx((0.75, 0.75))


@pytest.mark.parametrize("told", [{}, {"engine_overhead_seconds": 0.5}])
def test_the_times_of_clients_that_work_at_once_add_up_to_that_of_all(
    write_run: Any, events: Any, told: dict[str, float]
) -> None:
    """A record from before it was measured leaves no time below nothing."""
    at_once = {"train_seconds": 9.0, "evaluate_seconds": 1.0} | told
    history = read_history(
        write_run([event | (at_once if event["event"] == "round" else {}) for event in events()])
    )
    time, parts = history.summary["time"], time_parts(history)
    assert sum(parts.values()) == pytest.approx(time["total_seconds"])
    assert parts["engine"] == time["engine_overhead_seconds"] == len(history.rounds) * sum(told.values())
    assert parts["training"] == pytest.approx(9 * parts["scoring the validation split"])


@pytest.mark.parametrize(
    ("ending", "state"),
    [
        ([], "unfinished"),
        ([FAILED], "failed"),
        ([{"event": "failed", "error": "KeyboardInterrupt", "message": None}], "interrupted"),
        ([FAILED, {"event": "resumed", "rounds": 9, "metric": "f1"}], "unfinished"),
    ],
)
def test_a_run_without_an_end_has_a_state_and_a_summary_of_what_there_is(
    write_run: Any, events: Any, ending: list[dict[str, Any]], state: str
) -> None:
    stamped = [{"time": TIME, **event} for event in ending]
    history = read_history(write_run([*events(rounds=2, final=False), *stamped]))
    assert history.state == state
    assert history.final is None
    assert history.summary["rounds"] == 2
    assert history.summary["communication"]["bytes_up"] == 2 * 2 * 80
    assert history.summary["metrics"]["global"] is None
    assert history.start["rounds"] == (9 if state == "unfinished" and ending else 3)


def test_a_final_event_before_a_resumption_does_not_count(write_run: Any, events: Any) -> None:
    resumed = {"event": "resumed", "time": TIME, "round": 3, "rounds": 5, "metric": "f1"}
    history = read_history(write_run([*events(rounds=3), resumed]))
    assert (history.state, history.final) == ("unfinished", None)


def test_a_run_that_failed_before_it_began_has_no_summary(write_run: Any) -> None:
    failed = {"event": "failed", "time": TIME, "error": "MemoryError", "message": None}
    history = read_history(write_run([failed]))
    assert (history.state, history.start, history.summary) == ("failed", None, None)


@pytest.mark.parametrize("missing", ["config.yaml", "record.jsonl"])
def test_a_folder_without_a_run_is_refused(write_run: Any, missing: str) -> None:
    folder = write_run([])
    (folder / missing).unlink()
    with refused(ConfigurationError, "not_found", at="", values=[missing]):
        read_history(folder)


def test_who_fails_to_score_was_not_lost_to_the_round(write_run: Any, events: Any) -> None:
    failed = {"event": "client_failed", "time": TIME, "round": 1, "client": "a", "bytes_down": 0}
    trained = {**failed, "error": "TrainingError", "message": "diverged"}
    scored = [
        {**failed, "client": client, "error": "LineError", "message": "m", "part": "test"} for client in "ab"
    ]
    history = read_history(write_run([*events(rounds=1), trained, *scored]))
    assert lost_clients(history.losses) == {"a": {"TrainingError: diverged": [1]}}


def test_a_client_that_joined_later_is_among_the_clients(write_run: Any, events: Any) -> None:
    begun, *rest = events(rounds=2)
    joined = {"event": "client_joined", "time": TIME, "client": "z", "documents": {"test": 1}}
    whole = start_of([begun, joined])  # of a model that is not divided
    assert whole is not None
    assert list(whole["clients"]) == [*begun["clients"], "z"]
    joined["ends"] = {"x": "1"}
    start = read_history(write_run([{**begun, "ends": {"w": "0"}}, joined, *rest])).start
    assert list(start["clients"]) == [*begun["clients"], "z"]
    assert start["ends"] == {"w": "0", "x": "1"}

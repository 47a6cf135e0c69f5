"""A comparison's numbers against the statistics module, and its three forms against each other."""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.record.history import round_rows
from fedstrata.record.score_columns import column_names
from fedstrata.record.table import CellResult, RowResult, Trial, Tuning, score_column, tabulate
from fedstrata.record.table_text import OTHER_DATA, csv_text, grid, markdown, notes, write_table

MACHINE = {"cores": 2, "processor": "a processor", "system": "an operating system", "jobs": 1}


def cell(
    seed: int, f1: float | None, *, sent: int | None = 5_000_000, data: str = "d", threads: int = 1
) -> CellResult:
    """A finished run with this score, or a failed one."""
    if f1 is None:
        return CellResult(seed, f"row/seed-{seed}", message="the loss\nbecame nan")
    summary = {
        "metrics": {"global": {"f1": f1, "f1/drug": f1 / 2}, "mean_client": {"f1": f1 / 4}, "clients": {}},
        "communication": {"bytes_up": sent, "bytes_down": sent, "percent_of_full_model": sent and 21.1},
        "time": {"train_seconds": 30.0, "serve_seconds": 5.0, "total_seconds": 40.0},
        "rounds": 10,
        "convergence": {"metric": "f1", "rounds_to_90_percent": 3},
        "memory": {"peak_rss_bytes": 500_000_000, "peak_gpu_bytes": None},
        "trainable_parameters": 7,
    }
    run = {"metric": "f1", "data": f"{data}{seed}", "threads": threads, "device": "cpu", "versions": {}}
    return CellResult(seed, f"row/seed-{seed}", summary, run)


def row(name: str, scores: Sequence[float | None], **facts: Any) -> RowResult:
    return RowResult(name, tuple(cell(seed, score, **facts) for seed, score in enumerate(scores)))


def table_of(*rows: RowResult, **options: Any) -> dict[str, Any]:
    return tabulate(rows, name="test", machine=MACHINE, **options)


def values(table: Mapping[str, Any], name: str, key: str) -> Any:
    return next(item for item in table["rows"] if item["name"] == name)["values"][key]


def from_markdown(text: str) -> list[dict[str, str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [dict(zip(cells[0], own, strict=True)) for own in cells[2:]]


def test_mean_and_spread_are_those_of_the_statistics_module() -> None:
    scores = [0.813, 0.901, 0.777]
    table = table_of(row("a", scores), row("b", [0.5, 0.6, 0.7]))
    got = values(table, "a", "f1")
    assert got["by_seed"] == {"0": 0.813, "1": 0.901, "2": 0.777}
    assert got["mean"] == statistics.fmean(scores)
    assert got["standard_deviation"] == statistics.stdev(scores)
    assert (got["minimum"], got["maximum"], got["n"]) == (0.777, 0.901, 3)
    assert values(table, "a", "mean_client.f1")["mean"] == pytest.approx(statistics.fmean(scores) / 4)
    costs = {
        **{"megabytes_sent": 10.0, "megabytes_up": 5.0, "megabytes_down": 5.0},
        **{"train_seconds_per_round": 3.0, "serve_seconds_per_round": 0.5, "peak_memory_megabytes": 500.0},
    }
    assert {name: values(table, "a", name)["mean"] for name in costs} == costs


BASE, WORSE, BEST = [0.9, 0.7, 0.8], [0.8, 0.75, 0.79], [0.95, 0.77, 0.89]
ROWS = row("other", WORSE), row("base", BASE), row("best", BEST)


def test_differences_to_the_named_baseline_are_paired_by_seed() -> None:
    table = table_of(*ROWS, row("elsewhere", BEST, data="e"), baseline="base")
    assert values(table, "base", "f1")["difference"] is None
    assert values(table, "elsewhere", "f1")["difference"] is None  # not the same documents
    differences = [one - two for one, two in zip(WORSE, BASE, strict=True)]
    found = values(table, "other", "f1")["difference"]
    assert (found["n"], found["p"]) == (3, None)
    expected = scipy.stats.ttest_rel(WORSE, BASE)
    interval = expected.confidence_interval(0.95)
    assert found["mean"] == pytest.approx(statistics.fmean(differences))
    assert (found["low"], found["high"]) == (pytest.approx(interval.low), pytest.approx(interval.high))
    read = {item[""]: item["f1 - baseline"] for item in from_markdown(markdown(table))}
    shown = {"other": "-2.0 (-20.8 to 16.8)", "base": "-", "best": "7.0 (2.0 to 12.0)", "elsewhere †": "-"}
    assert read == shown


def test_without_a_baseline_nothing_is_compared_and_p_is_given_on_request_alone() -> None:
    plain = table_of(*ROWS)
    assert "f1 - baseline" not in grid(plain)[0]
    assert all(each["values"]["f1"]["difference"] is None for each in plain["rows"])
    table = table_of(*ROWS, baseline="base", p_values=True)
    found = {name: values(table, name, "f1")["difference"]["p"] for name in ("other", "best")}
    worse, best = (float(scipy.stats.ttest_rel(own, BASE).pvalue) for own in (WORSE, BEST))
    assert found == {"other": pytest.approx(worse), "best": pytest.approx(2 * best)}
    assert values(table, "best", "mean_client.f1")["difference"]["p"] is None  # no test of each figure
    read = {item[""]: item["f1 - baseline"] for item in from_markdown(markdown(table))}
    assert read["best"] == f"7.0 (2.0 to 12.0), p {found['best']:.3f}"


def test_one_seed_has_a_difference_and_no_interval() -> None:
    table = table_of(row("base", [0.5]), row("other", [0.6]), baseline="base")
    assert {item[""]: item["f1 - baseline"] for item in from_markdown(markdown(table))}["other"] == "10.0"


@given(st.lists(st.lists(st.none() | st.floats(0, 1), min_size=2, max_size=2), min_size=1, max_size=6))
def test_bold_is_exactly_the_best_printed_means_of_rows_without_failures(
    scores: list[list[float | None]],
) -> None:
    table = table_of(*(row(f"row {index}", own) for index, own in enumerate(scores)))
    whole = [(f"row {index}", own) for index, own in enumerate(scores) if None not in own]
    complete = {name: f"{100 * statistics.fmean(own):.1f}" for name, own in whole}
    top = max(complete.values(), key=float, default=None)
    expected = {name for name, mean in complete.items() if mean == top and len({*complete.values()}) > 1}
    titles, rows = grid(table)
    if "f1" in titles:
        assert {cells[0][0] for cells in rows if cells[titles.index("f1")][1]} == expected
    else:
        assert not any(any(score is not None for score in own) for own in scores)


def test_less_is_better_for_what_a_run_costs() -> None:
    table = table_of(row("much", [0.5, 0.5]), row("little", [0.5, 0.5], sent=1_000_000))
    assert values(table, "little", "megabytes_sent")["best"]
    assert not values(table, "much", "megabytes_sent")["best"]
    assert not any(values(table, name, "f1")["best"] for name in ("much", "little"))  # all equal
    assert not any(values(table, name, "trainable_parameters")["best"] for name in ("much", "little"))


def test_what_does_not_apply_is_a_dash_and_never_the_best() -> None:
    table = table_of(row("federated", [0.5, 0.6]), row("centralised", [0.6, 0.7], sent=None))
    assert values(table, "centralised", "megabytes_sent") is None
    read = {item[""]: item for item in from_markdown(markdown(table))}
    assert read["centralised"]["sent up, MB"] == read["centralised"]["sent down, MB"] == "-"
    assert read["federated"]["sent up, MB"] == read["federated"]["sent down, MB"] == "5.0"  # alone: no mark
    assert read["centralised"]["f1"].startswith("**65.0 ± ")


def test_a_failed_run_is_named_and_its_row_is_never_the_best() -> None:
    table = table_of(row("broken", [0.99, None]), row("sound", [0.5, 0.6]), row("other", [0.4, 0.4]))
    text = markdown(table)
    read = {item[""]: item for item in from_markdown(text)}
    assert read["broken (failed: seed 1)"]["f1"] == "99.0 (n=1)"
    assert read["sound"]["f1"].startswith("**55.0")
    assert "broken, seed 1 failed: " in text
    assert not table["rows"][0]["competes"]


def test_nothing_that_ran_is_still_a_table() -> None:
    table = table_of(row("broken", [None, None]))
    assert from_markdown(markdown(table))[0][""] == "broken (failed: seed 0, 1)"
    assert json.loads(json.dumps(table, allow_nan=False)) == table


def test_rows_on_other_documents_are_marked_and_never_the_best() -> None:
    rows = row("first", [0.5, 0.6]), row("same", [0.4, 0.4]), row("other", [0.9, 0.9], data="e")
    table = table_of(*rows)
    assert [item["same_data"] for item in table["rows"]] == [True, True, False]
    assert values(table, "first", "f1")["best"]
    assert "other †" in markdown(table)
    assert any(note.startswith(OTHER_DATA) and "first" in note for note in notes(table))
    assert values(table_of(*rows, different_data=True), "other", "f1")["best"]


def test_that_threads_differ_is_noted() -> None:
    rows = row("one", [0.5, 0.6]), row("two", [0.5, 0.6], threads=2)
    assert len(notes(table_of(*rows))) == len(notes(table_of(rows[0]))) + 1


def test_the_columns_asked_for_are_shown_in_order_and_the_files_hold_all() -> None:
    table = table_of(row("a", [0.5, 0.6]), columns=["rounds_to_90_percent", "f1/drug", "nowhere"])
    assert list(from_markdown(markdown(table))[0]) == ["", "rounds to 90 %", "f1/drug"]
    assert "No run has nowhere." in notes(table)
    assert "f1" in table["columns"]
    assert "f1_mean" in csv_text(table)
    assert column_names(["f1"])[:2] == ["f1", "mean_client.f1"]


def test_the_best_round_is_a_column_of_the_score_that_runs_are_judged_by() -> None:
    one = cell(0, 0.5)
    assert one.summary is not None
    one.summary["metrics"]["best"] = {"f1": 0.7, "round": 3}
    table = table_of(RowResult("one", (one,)), columns=["f1", "best.f1"])
    (found,) = from_markdown(markdown(table))
    assert (found["f1"], found["f1, best round, validation"]) == ("50.0", "70.0")
    assert "best.f1/drug" not in table["columns"] and "best.round" not in table["columns"]
    assert "best.f1" in column_names(["f1"])


def test_scores_that_there_is_no_room_for_are_in_the_files_alone() -> None:
    one = cell(0, 0.5)
    assert one.summary is not None
    one.summary["metrics"]["global"] |= {"lenient_f1": 0.75, "lenient_recall": 0.7, "untyped_f1": 0.6}
    table = table_of(RowResult("one", (one,)))
    assert table["shown"][:3] == ["f1", "lenient_f1", "mean_client.f1"]
    assert "untyped_f1_mean" in csv_text(table)


@pytest.mark.parametrize(
    ("name", "better", "text"),
    [("f1", "higher", "50.0"), ("perplexity", "lower", "0.500"), ("auc_labels_left_out", None, "0.5")],
)
def test_scores_are_points_where_they_are_fractions(name: str, better: str | None, text: str) -> None:
    column = score_column(name, name, falling={"perplexity"})
    assert (column.better, column.text(0.5)) == (better, text)


def test_of_falling_scores_the_lowest_is_best_and_no_points(tmp_path: Path) -> None:
    def falling(name: str, scores: Sequence[float]) -> RowResult:
        cells = []
        for item in row(name, scores).cells:
            assert item.summary is not None
            assert item.run is not None
            (own,) = {item.summary["metrics"]["global"]["f1"]}
            scored = {"global": {"perplexity": own}, "mean_client": {"perplexity": own}}
            trained = {"mean": {"perplexity": own + 1}, "clients": {}, "best": None}
            summary = {**item.summary, "metrics": {**scored, "clients": {}, "trained": trained}}
            run = {**item.run, "metric": "perplexity", "lower_is_better": ["perplexity"]}
            cells.append(CellResult(item.seed, item.folder, summary, run))
        return RowResult(name, tuple(cells))

    table = table_of(falling("good", [20.0, 21.0]), falling("bad", [30.5, 20.5]), baseline="good")
    found = {line[""]: line for line in from_markdown(markdown(table))}
    assert found["good"]["perplexity"].startswith("**20.500 ± ")
    assert found["bad"]["perplexity - baseline"].startswith("5.000 (")
    assert found["good"]["perplexity, clients' own models"].startswith("**21.500")
    assert "points" not in " ".join(notes(table))
    assert column_names(["loss"])[:3] == ["loss", "mean_client.loss", "trained.loss"]


def test_the_three_files_hold_the_same_numbers(tmp_path: Path) -> None:
    tuning = Tuning("training.learning_rate", 0.1, "f1", 0, [Trial(0.1, 0.51), Trial(0.2, None, "nan")])
    awkward = RowResult('a|b, "c"', row("", [0.123456789, 0.2]).cells, tuning)
    table = table_of(awkward, row("plain", [0.3, 0.4]))
    write_table(table, tmp_path)
    assert json.loads((tmp_path / "table.json").read_text(encoding="utf-8")) == table
    text = (tmp_path / "table.csv").read_text(encoding="utf-8")
    read = {line["row"]: line for line in csv.DictReader(io.StringIO(text))}
    for item in table["rows"]:
        for key, cell_values in item["values"].items():
            for suffix, name in (("mean", "mean"), ("sd", "standard_deviation"), ("n", "n")):
                written = read[item["name"]][f"{key}_{suffix}"]
                assert written == "" if cell_values is None else float(written) == cell_values[name]
    assert read['a|b, "c"']["tuned"] == "0.1"
    marked = from_markdown((tmp_path / "table.md").read_text(encoding="utf-8"))
    assert marked[0][""] == 'a\\|b, "c"'
    shown = [float(part) for part in marked[0]["f1"].split(" ± ")]
    found = values(table, awkward.name, "f1")
    assert shown == pytest.approx([100 * found["mean"], 100 * found["standard_deviation"]], abs=0.05)
    assert any("training.learning_rate 0.1 " in note and "0.2: failed" in note for note in notes(table))


def emulated(seed: int, curve: Sequence[float], seconds: float | None) -> CellResult:
    """A finished run with these validation scores, whose rounds take so many seconds each."""
    plain = cell(seed, curve[-1])
    taken = None if seconds is None else seconds * len(curve)
    summary = {**plain.summary, "energy_joules": taken and 5.0 * taken}
    summary["time"] = {**summary["time"], "simulated_seconds": taken}
    exchanges = {"a": {"bytes_up": 2_000_000, "bytes_down": 1_000_000}}
    common = {"loss": 1.0, "seconds": 0.1, "simulated_seconds": seconds, "exchanges": exchanges}
    rounds = [
        {**common, "round": number, "global": {"f1": score}} for number, score in enumerate(curve, start=1)
    ]
    return replace(plain, summary=summary, curve=round_rows(rounds, "f1"))


def test_time_to_accuracy_is_that_to_the_best_score_that_all_runs_reach() -> None:
    table = table_of(
        RowResult("slow", (emulated(0, [0.2, 0.4, 0.6], 3600.0), emulated(1, [0.3, 0.5, 0.55], 3600.0))),
        RowResult("fast", (emulated(0, [0.5, 0.7, 0.8], 600.0), emulated(1, [0.6, 0.7, 0.9], 600.0))),
    )
    assert table["target"] == {"of": "global", "falling": False, "by_seed": {"0": 0.6, "1": 0.55}}
    assert values(table, "slow", "seconds_to_target")["by_seed"] == {"0": 10800.0, "1": 10800.0}
    assert values(table, "fast", "seconds_to_target")["by_seed"] == {"0": 1200.0, "1": 600.0}
    assert values(table, "fast", "rounds_to_target")["by_seed"] == {"0": 2, "1": 1}
    assert values(table, "fast", "megabytes_to_target")["by_seed"] == {"0": 6.0, "1": 3.0}
    assert values(table, "fast", "seconds_to_target")["best"]
    shown = {row[""]: row for row in from_markdown(markdown(table))}
    assert shown["slow"]["time to target"] == "3 h 0 min"
    assert shown["fast"]["time to target"] == "**15 min 0 s ± 7 min 4 s**"
    assert shown["slow"]["simulated time"] == "3 h 0 min"
    assert shown["fast"]["energy, kJ"] == "**9.0**"
    assert any("f1 60.0 (seed 0), 55.0 (seed 1)" in note for note in notes(table))


def test_a_failed_run_and_other_documents_have_no_part_in_the_target() -> None:
    weak = emulated(0, [0.1, 0.2], 60.0)
    other = replace(weak, run={**weak.run, "data": "other"})
    table = table_of(
        RowResult("first", (emulated(0, [0.3, 0.7], 60.0), CellResult(1, "", message="failed"))),
        RowResult("elsewhere", (other, CellResult(1, "", message="failed"))),
    )
    assert table["target"]["by_seed"] == {"0": 0.7}
    assert values(table, "elsewhere", "seconds_to_target") is None


def test_a_floor_is_never_the_best_and_makes_no_target_easier() -> None:
    floor = emulated(0, [0.1, 0.2], 60.0)
    sent = {**floor.summary["communication"], "bytes_up": 0, "bytes_down": 0}
    floor = replace(floor, summary={**floor.summary, "communication": sent})
    rows = [RowResult("method", (emulated(0, [0.3, 0.7], 60.0),)), RowResult("alone", (floor,))]
    table = table_of(*rows, floors=["alone"])
    assert table["target"]["by_seed"] == {"0": 0.7}
    assert values(table, "alone", "seconds_to_target") is None
    assert values(table, "alone", "megabytes_sent")["mean"] == 0.0
    assert not values(table, "alone", "megabytes_sent")["best"]
    assert values(table_of(*rows), "alone", "seconds_to_target") is not None


def test_who_sends_nothing_is_not_the_best_at_sending_little() -> None:
    little, alone = row("little", [0.5, 0.7], sent=2_000_000), row("alone", [0.4, 0.5], sent=0)
    rows = [row("much", [0.5, 0.6]), little, alone]
    for key in ("megabytes_sent", "megabytes_up", "megabytes_down"):
        best = [values(table_of(*rows), each.name, key)["best"] for each in rows]
        assert best == [False, True, False]
        assert not values(table_of(rows[0], rows[2]), "alone", key)["best"]
    assert "**0.0**" not in markdown(table_of(*rows))


def test_pooled_training_sends_no_megabytes_to_a_target() -> None:
    pooled = emulated(0, [0.3, 0.7], None)
    sent = dict.fromkeys(pooled.summary["communication"])
    pooled = replace(pooled, summary={**pooled.summary, "communication": sent})
    table = table_of(RowResult("pooled", (pooled,)))
    assert values(table, "pooled", "rounds_to_target")["mean"] == 2
    assert values(table, "pooled", "megabytes_to_target") is None


def test_without_emulated_devices_their_columns_are_not_shown() -> None:
    table = table_of(RowResult("plain", (emulated(0, [0.3, 0.7], None),)))
    of_devices = {"simulated_seconds", "energy_joules", "seconds_to_target", "rounds_to_target"}
    assert not of_devices & set(table["shown"])
    assert values(table, "plain", "rounds_to_target")["mean"] == 2
    assert values(table, "plain", "seconds_to_target") is None

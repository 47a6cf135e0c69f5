"""Comparisons without a process: every run here was 'finished before', by files that were written by hand."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import refused

from fedstrata.comparing.check import check_comparison
from fedstrata.comparing.compare import Comparison, choose, shares_of_cores
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.settings.source import read_source
from fedstrata.core.settings.sweep import read_sweep
from fedstrata.engine.check import check_settings
from fedstrata.engine.run_folder import write_settings
from fedstrata.record.log import RecordLog
from fedstrata.record.table import Trial

BASE = """name: small
data: {types: [problem], synthetic: {sites: 2, notes: 16}}
federation: {rounds: 2}
"""
TUNED = (
    BASE
    + """sweep:
  seeds: [0, 1]
  rows: {a: {}, b: {method: {name: fedavg}}}
  tune: {setting: training.learning_rate, values: [1e-4, 1e-3, 1e-2]}
"""
)


class Watch:
    """Takes down what a comparison tells."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Mapping[str, Any]]] = []

    def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        self.told.append((event, facts))


def checked(
    tmp_path: Path, text: str, *overrides: str, jobs: int = 1, watch: Watch | None = None
) -> Comparison:
    file = tmp_path / "sweep.yaml"
    file.write_text(text)
    sweep = read_sweep([file], overrides)
    return check_comparison(sweep, tmp_path / "out", jobs=jobs, listen=watch or Watch())


def finish(
    folder: Path,
    *overrides: str,
    validation: float = 0.5,
    test: float = 0.5,
    data: str = "d",
    summary: bool = True,
    rounds: int = 2,
) -> None:
    """Writes what a finished run of `BASE` leaves, as far as a comparison looks at it."""
    folder.mkdir(parents=True)
    (folder.parents[2] / "base.yaml").write_text(BASE)
    checked = check_settings(read_source(folder.parents[2] / "base.yaml", overrides))
    assert not checked.problems
    write_settings(checked.settings, folder / "config.yaml")
    log = RecordLog(folder / "record.jsonl")
    log.append("run", {"metric": "f1", "data": data, "threads": 1, "device": "cpu", "versions": {}})
    for number in range(1, rounds + 1):
        score = validation if number == rounds else 1.0  # only the round whose model is kept may count
        scores = {"global": {"f1": score}, "mean_client": {"f1": score}}
        log.append("round", {"round": number, "loss": 1.0, "seconds": 0.1, **scores, "exchanges": {}})
    log.close()
    facts = {
        "rounds": rounds,
        "metrics": {"global": {"f1": test}, "mean_client": {"f1": test}},
        "communication": {"bytes_up": 1, "bytes_down": 1, "percent_of_full_model": 1.0},
        "convergence": {"metric": "f1", "rounds_to_90_percent": 1},
        "time": {"train_seconds": 1.0, "total_seconds": 1.0},
        "memory": {"peak_rss_bytes": 1, "peak_gpu_bytes": None},
        "trainable_parameters": 1,
    }
    if summary:
        (folder / "summary.json").write_text(json.dumps(facts))


def lock(tmp_path: Path) -> None:
    """Marks the folder as a comparison's."""
    (tmp_path / "out" / ".lock").touch()


def test_a_setting_is_tuned_on_validation_whatever_the_test_split_says(tmp_path: Path) -> None:
    scores = {"a": {1e-4: 0.3, 1e-3: 0.6, 1e-2: 0.2}, "b": {1e-4: 0.7, 1e-3: 0.1, 1e-2: 0.7}}
    for row, tried in scores.items():
        method = ("method={name: fedavg}",) if row == "b" else ()
        for rate, score in tried.items():
            for seed in (0, 1):
                folder = tmp_path / "out" / row / f"learning_rate={rate}" / f"seed-{seed}"
                settings = [*method, f"training.learning_rate={rate}", f"seed={seed}"]
                # the test split would have it the other way round, and so would the other seed
                finish(folder, *settings, validation=score if seed == 0 else 1 - score, test=1 - score)
    lock(tmp_path)
    watch = Watch()
    a, b = checked(tmp_path, TUNED, watch=watch).execute()
    assert a.tuning is not None
    assert b.tuning is not None
    assert (a.tuning.chosen, b.tuning.chosen) == (1e-3, 1e-4)  # the first of equals
    assert [trial.validation for trial in a.tuning.tried] == [0.3, 0.6, 0.2]
    assert [cell.folder for cell in a.cells] == [f"a/learning_rate=0.001/seed-{seed}" for seed in (0, 1)]
    assert all(cell.summary and cell.summary["metrics"]["global"]["f1"] == 0.4 for cell in a.cells)
    kept = [facts["cell"] for event, facts in watch.told if event == "cell_finished"]
    (count,) = [facts["cells"] for event, facts in watch.told if event == "comparison"]
    assert len(kept) == len(set(kept)) == count == 8  # three trials a row, and one more seed of the chosen


@pytest.mark.parametrize(
    ("scores", "falling", "expected"),
    [
        ([0.1, 0.3, 0.2], False, 1),
        ([0.1, 0.3, 0.2], True, 0),
        ([0.3, 0.3], False, 0),
        ([None, 0.0], False, 1),
        ([None, None], False, None),
    ],
)
def test_the_best_value_is_chosen(scores: list[float | None], falling: bool, expected: int | None) -> None:
    trials = tuple(Trial(index, score) for index, score in enumerate(scores))
    assert choose(trials, falling=falling) == expected


def test_other_documents_show_in_the_results(tmp_path: Path) -> None:
    for row in ("a", "b"):
        method = ("method={name: fedavg}",) if row == "b" else ()
        finish(tmp_path / "out" / row / "seed-0", *method, data=row)
    lock(tmp_path)
    text = BASE + "sweep: {seeds: [0], rows: {a: {}, b: {method: {name: fedavg}}}}\n"
    rows = checked(tmp_path, text).execute()
    assert [row.cells[0].run["data"] for row in rows if row.cells[0].run] == ["a", "b"]


def refusals(tmp_path: Path, text: str, *overrides: str) -> list[Problem]:
    with pytest.raises(ConfigurationError) as caught:
        checked(tmp_path, text, *overrides)
    return [*caught.value.problems]


def assert_told(found: list[Problem], expected: Mapping[tuple[str, str], Sequence[str]]) -> None:
    """Holds that there are problems of these paths and codes, each with the values that its message has."""
    told = {(problem.path, problem.code): problem.message for problem in found}
    assert told.keys() == expected.keys()
    for key, values in expected.items():
        for value in values:
            assert value in told[key]


def test_problems_of_every_row_come_at_once_and_say_which_row(tmp_path: Path) -> None:
    text = BASE + (
        "training: {epochs: 0}\n"
        "sweep:\n"
        "  tune: {setting: training.batch_size, values: [4, 8], metric: f2}\n"
        "  rows:\n"
        "    a: {data: {synthetic: {notes: 20}}}\n"
        "    b: {method: {name: fedavg, top: 2}}\n"
        "    c: {method: {name: layer_skipping, top: 12}}\n"
    )
    found = refusals(tmp_path, text)
    expected: dict[tuple[str, str], list[str]] = {
        ("training.epochs", "out_of_range"): ["not 0"],
        ("b: method.top", "unknown_key"): [],
        ("c: method.top", "out_of_range"): ["8", "not 12"],
        ("sweep.tune.metric", "unknown_name"): ["f1, precision, recall, lenient_f1"],
        ("b: data.synthetic.notes", "conflict"): ["16", "'a'", "20"],
        ("c: data.synthetic.notes", "conflict"): ["16", "'a'", "20"],
    }
    assert_told(found, expected)
    (epochs,) = [problem for problem in found if problem.path == "training.epochs"]
    assert epochs.origin == "sweep.yaml, line 4"
    assert not (tmp_path / "out").exists()


def test_a_row_with_wrong_documents_hides_nothing_of_the_others(tmp_path: Path) -> None:
    text = BASE + (
        "sweep:\n"
        "  columns: [f2]\n"
        "  rows:\n"
        "    a: {data: {synthetic: {notes: 0}}}\n"
        "    b: {method: {name: fedavg}}\n"
        "    c: {data: {synthetic: {notes: 20}}}\n"
    )
    assert_told(
        refusals(tmp_path, text),
        {
            ("a: data.synthetic.notes", "out_of_range"): ["1", "not 0"],
            ("c: data.synthetic.notes", "conflict"): ["20", "'b'", "16"],
            ("sweep.columns", "unknown_name"): ["'f2'"],
        },
    )


def test_scores_devices_and_trackers_are_checked_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstrata.record.trackers.find_spec", lambda name: None)
    text = BASE + (
        "sweep:\n"
        "  allow_different_data: true\n"
        "  rows:\n"
        "    a: {device: 'cuda:7'}\n"
        "    b: {task: {name: lm}, data: {types: null}, federation: {metric: f1}}\n"
        "    c: {federation: {metric: recal}}\n"
    )
    assert_told(
        refusals(tmp_path, text, "report_to=[wandb]"),
        {
            ("report_to", "not_installed"): ["wandb"],
            ("a: device", "not_found"): ["'cuda:7'"],
            ("b: federation.metric", "unknown_name"): ["'f1'"],
            ("c: federation.metric", "unknown_name"): ["'recal'", "'recall'"],
        },
    )
    again = refusals(tmp_path, BASE, "federation.metric=f2", "partition={by: iid, clients: 100}")[1:]
    assert_told(again, {("federation.metric", "unknown_name"): ["'f2'"]})


def test_a_finished_comparison_needs_neither_device_nor_trackers(tmp_path: Path) -> None:
    finish(tmp_path / "out" / "small" / "seed-0")
    lock(tmp_path)
    (row,) = checked(tmp_path, BASE, "sweep.seeds=[0]", "device=cuda:7").execute()
    assert row.cells[0].summary


def test_rows_may_differ_in_their_data_when_the_sweep_says_so(tmp_path: Path) -> None:
    text = BASE + "sweep: {allow_different_data: true, grid: {data.synthetic.notes: [16, 20]}}\n"
    checked(tmp_path, text)
    found = refusals(tmp_path, text, "sweep.allow_different_data=false")[0]
    assert (found.path.rpartition(": ")[2], found.code) == ("data.synthetic.notes", "conflict")


def test_documents_are_divided_as_every_seed_will_divide_them(tmp_path: Path) -> None:
    """A type of mentions must be in a note that is trained on; with seed 3 neither of two such notes is."""
    labels = ["common"] * 16 + ["rare"] * 2
    spans = ([{"start": 0, "end": 4, "label": label}] for label in labels)
    lines = [json.dumps({"text": f"note {number}", "spans": own}) for number, own in enumerate(spans)]
    (tmp_path / "notes.jsonl").write_text("\n".join(lines))
    text = (
        f"name: small\ndata: {{format: jsonl, path: {tmp_path / 'notes.jsonl'}}}\n"
        "partition: {by: iid, clients: 2}\nfederation: {rounds: 2}\n"
        "sweep: {columns: [f2], rows: {a: {}, b: {method: {name: fedavg}}}}\n"
    )
    of_columns = {("sweep.columns", "unknown_name"): ["'f2'"]}
    for seeds in ("0,1,2,3,4", "3,0"):  # the first one or another
        found = refusals(tmp_path, text, f"sweep.seeds=[{seeds}]")
        assert_told(found, {("a, seed 3: data.types", "unknown_name"): ["'rare'"], **of_columns})
    assert_told(refusals(tmp_path, text, "sweep.seeds=[3]"), {("data.types", "unknown_name"): ["'rare'"]})


def test_what_is_wrong_with_the_documents_of_a_row_is_said_once_for_all_seeds_before_anything_starts(
    tmp_path: Path,
) -> None:
    text = BASE + (
        "sweep:\n  allow_different_data: true\n  seeds: [0, 1, 2]\n"
        "  rows:\n    a: {}\n    b: {partition: {by: iid, clients: 100}}\n    c: {}\n"
    )
    (found,) = refusals(tmp_path, text)
    assert (found.path, found.origin) == ("b, seed 0 and 2 more: partition.clients", "sweep.yaml, line 9")
    assert not (tmp_path / "out").exists()


def test_what_methods_need_is_looked_at_before_other_rows_have_run(tmp_path: Path) -> None:
    text = BASE + (
        "sweep:\n"
        "  columns: [f2]\n"
        "  rows:\n"
        "    a: {method: {name: fedavg}}\n"
        "    b: {method: {name: fedavg, aggregation: median}}\n"
        "    c: {method: {name: fedmedlora_plus}}\n"
    )
    found = refusals(tmp_path, text)
    expected = {
        ("b: method.aggregation", "not_enough_data"): ["median", "3"],
        ("c: data.split.server", "out_of_range"): ["1", "fedmedlora_plus"],
        ("sweep.columns", "unknown_name"): ["'f2'"],
    }
    assert_told(found, expected)
    (median,) = [problem for problem in found if problem.code == "not_enough_data"]
    assert median.origin == "sweep.yaml, line 8"


@pytest.mark.parametrize("finished", [False, True])
def test_a_column_must_be_one_that_runs_can_have(tmp_path: Path, finished: bool) -> None:
    if finished:  # then the documents need not be read again
        finish(tmp_path / "out" / "small" / "seed-0")
        lock(tmp_path)
    checked(tmp_path, BASE, "sweep.seeds=[0]", "sweep.columns=[f1,mean_client.f1,total_seconds]")
    unknown = {"f1,f2": ["'f2'", " f1"], "total_second": ["'total_second'", "'total_seconds'"]}
    for columns, values in unknown.items():
        found = refusals(tmp_path, BASE, "sweep.seeds=[0]", f"sweep.columns=[{columns}]")
        assert_told(found, {("sweep.columns", "unknown_name"): values})


def test_a_folder_with_runs_of_other_settings_is_refused(tmp_path: Path) -> None:
    finish(tmp_path / "out" / "small" / "seed-0")
    lock(tmp_path)
    found = refusals(tmp_path, BASE, "sweep.seeds=[0]", "training.epochs=2")
    assert_told(found, {("small, seed 0: training.epochs", "changed"): ["2", "1"]})
    found = refusals(tmp_path, BASE, "sweep.seeds=[0]", "federation.rounds=1")
    assert_told(found, {("small, seed 0: federation.rounds", "out_of_range"): ["2"]})


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    assert_told(refusals(tmp_path, BASE), {("--out", "exists"): ["out"]})


def test_two_comparisons_in_one_folder_are_refused(tmp_path: Path) -> None:
    finish(tmp_path / "out" / "small" / "seed-0")
    lock(tmp_path)
    comparison = checked(tmp_path, BASE, "sweep.seeds=[0]")
    with (tmp_path / "out" / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with refused(ConfigurationError, "in_use", at="--out", values=[tmp_path / "out"]):
            comparison.execute()
    assert len(comparison.execute()) == 1


def test_what_has_not_finished_all_its_rounds_is_not_taken_as_finished(tmp_path: Path) -> None:
    for seed, (summary, rounds) in enumerate(((False, 2), (True, 1))):
        folder = tmp_path / "out" / "small" / f"seed-{seed}"
        finish(folder, f"seed={seed}", summary=summary, rounds=rounds)
    lock(tmp_path)
    ((trials,),) = [row.trials.values() for row in checked(tmp_path, BASE, "sweep.seeds=[0,1]")._rows]
    assert [(trial.begun, trial.summary()) for trial in trials.values()] == [(True, None)] * 2


def test_runs_side_by_side_share_the_cores_and_change_no_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums depend on threads, so that a table would depend on `--jobs`."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {*range(8)}, raising=False)
    assert shares_of_cores(1) == []
    assert shares_of_cores(3) == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert shares_of_cores(16) == []
    for jobs in (1, 3):
        (row,) = checked(tmp_path, BASE, "sweep.seeds=[0]", jobs=jobs)._rows
        assert row.trials[None][0].checked.settings.threads is None

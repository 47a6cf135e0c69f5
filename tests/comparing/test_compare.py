"""Comparisons without a process: every run here was 'finished before', by files that were written by hand."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedstrata.comparing.check import check_comparison
from fedstrata.comparing.compare import Comparison, choose, shares_of_cores
from fedstrata.core.errors import ConfigurationError
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
    validation: float,
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
        finish(tmp_path / "out" / row / "seed-0", *method, validation=0.5, data=row)
    lock(tmp_path)
    text = BASE + "sweep: {seeds: [0], rows: {a: {}, b: {method: {name: fedavg}}}}\n"
    rows = checked(tmp_path, text).execute()
    assert [row.cells[0].run["data"] for row in rows if row.cells[0].run] == ["a", "b"]


def refusals(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        checked(tmp_path, text, *overrides)
    return [str(problem) for problem in caught.value.problems]


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
    assert len(found) == 6
    assert "training.epochs: must be greater than or equal to 1, not 0  [from sweep.yaml, line 4]" in found
    for part in (
        "b: method.top: unknown key",
        "c: method.top: must be at most 8, the number of blocks of the model, not 12",
        "sweep.tune.metric: must be one of f1, precision, recall, lenient_f1",
        "b: data.synthetic.notes: is 16, in row 'a' 20; rows are compared on the same data",
    ):
        assert any(item.startswith(part) or part in item for item in found), part
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
    found = refusals(tmp_path, text)
    assert len(found) == 3
    for part in (
        "a: data.synthetic.notes: must be greater than or equal to 1, not 0",
        "c: data.synthetic.notes: is 20, in row 'b' 16; rows are compared on the same data",
        "sweep.columns: there is no column 'f2'",
    ):
        assert any(item.startswith(part) for item in found), part


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
    found = refusals(tmp_path, text, "report_to=[wandb]")
    assert len(found) == 4
    for part in (
        "report_to: wandb is not installed",
        "a: device: 'cuda:7' is not available",
        "b: federation.metric: 'f1' is no score of this task",
        "c: federation.metric: 'recal' is no score of this task; did you mean 'recall'?",
    ):
        assert any(item.startswith(part) for item in found), (part, found)
    (again,) = refusals(tmp_path, BASE, "federation.metric=f2", "partition={by: iid, clients: 100}")[1:]
    assert again.startswith("federation.metric: 'f2' is no score of this task")


def test_a_finished_comparison_needs_neither_device_nor_trackers(tmp_path: Path) -> None:
    finish(tmp_path / "out" / "small" / "seed-0", validation=0.5)
    lock(tmp_path)
    (row,) = checked(tmp_path, BASE, "sweep.seeds=[0]", "device=cuda:7").execute()
    assert row.cells[0].summary


def test_rows_may_differ_in_their_data_when_the_sweep_says_so(tmp_path: Path) -> None:
    text = BASE + "sweep: {allow_different_data: true, grid: {data.synthetic.notes: [16, 20]}}\n"
    checked(tmp_path, text)
    assert "data.synthetic.notes" in refusals(tmp_path, text, "sweep.allow_different_data=false")[0]


def test_documents_are_read_and_divided_before_anything_starts(tmp_path: Path) -> None:
    text = BASE + "partition: {by: iid, clients: 100}\nsweep: {grid: {training.epochs: [1, 2]}}\n"
    (found,) = refusals(tmp_path, text)
    assert found.startswith("partition.clients")
    assert "[from sweep.yaml, line 4]" in found


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
    for seeds in ("0,1,2,3,4", "3,0"):  # the first one or another
        refused, column = refusals(tmp_path, text, f"sweep.seeds=[{seeds}]")
        assert re.match(r"a, seed 3: data\.types: mention type 'rare' .*no training", refused)
        assert column.startswith("sweep.columns: there is no column 'f2'")
    (refused,) = refusals(tmp_path, text, "sweep.seeds=[3]")
    assert refused.startswith("data.types: mention type 'rare'")


def test_what_is_wrong_with_the_documents_of_a_row_is_said_once_for_all_seeds(tmp_path: Path) -> None:
    text = BASE + (
        "sweep:\n  allow_different_data: true\n  seeds: [0, 1, 2]\n"
        "  rows:\n    a: {}\n    b: {partition: {by: iid, clients: 100}}\n    c: {}\n"
    )
    (found,) = refusals(tmp_path, text)
    assert found.startswith("b, seed 0 and 2 more: partition.clients")


def test_a_rule_that_needs_more_clients_is_refused_before_other_rows_have_run(tmp_path: Path) -> None:
    text = BASE + (
        "sweep:\n"
        "  columns: [f2]\n"
        "  rows:\n"
        "    a: {method: {name: fedavg}}\n"
        "    b: {method: {name: fedavg, aggregation: median}}\n"
    )
    found = refusals(tmp_path, text)
    assert len(found) == 2
    assert found[0].startswith("b: method.aggregation: median needs 3 updates a round (at least 3")
    assert found[0].endswith("[from sweep.yaml, line 8]")
    assert "sweep.columns" in found[1]


def test_a_row_that_needs_documents_of_the_server_s_is_refused_before_others_have_run(tmp_path: Path) -> None:
    text = BASE + (
        "sweep:\n  rows:\n    a: {method: {name: fedlora}}\n    b: {method: {name: fedmedlora_plus}}\n"
    )
    (found,) = refusals(tmp_path, text)
    assert found.startswith("b: data.split.server: must be 1 or more with fedmedlora_plus")


@pytest.mark.parametrize("finished", [False, True])
def test_a_column_must_be_one_that_runs_can_have(tmp_path: Path, finished: bool) -> None:
    if finished:  # then the documents need not be read again
        finish(tmp_path / "out" / "small" / "seed-0", validation=0.5)
        lock(tmp_path)
    checked(tmp_path, BASE, "sweep.seeds=[0]", "sweep.columns=[f1,mean_client.f1,total_seconds]")
    (found,) = refusals(tmp_path, BASE, "sweep.seeds=[0]", "sweep.columns=[f1,f2]")
    assert found.startswith("sweep.columns: there is no column 'f2'; there are f1")
    (found,) = refusals(tmp_path, BASE, "sweep.seeds=[0]", "sweep.columns=[total_second]")
    assert found.startswith("sweep.columns: there is no column 'total_second'; did you mean 'total_seconds'?")


def test_a_score_to_tune_by_must_exist(tmp_path: Path) -> None:
    (found,) = refusals(tmp_path, TUNED, "sweep.tune.metric=accuracy")
    assert found.startswith("sweep.tune.metric: must be one of f1, precision, recall, lenient_f1")
    assert "not 'accuracy'" in found


def test_a_folder_with_runs_of_other_settings_is_refused(tmp_path: Path) -> None:
    finish(tmp_path / "out" / "small" / "seed-0", validation=0.5)
    lock(tmp_path)
    (found,) = refusals(tmp_path, BASE, "sweep.seeds=[0]", "training.epochs=2")
    assert "small, seed 0: training.epochs: is 2, the run has 1; it cannot change" in found
    (found,) = refusals(tmp_path, BASE, "sweep.seeds=[0]", "federation.rounds=1")
    assert "federation.rounds: must be at least 2" in found


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    assert "holds something other than a comparison" in refusals(tmp_path, BASE)[0]


def test_two_comparisons_in_one_folder_are_refused(tmp_path: Path) -> None:
    finish(tmp_path / "out" / "small" / "seed-0", validation=0.5)
    lock(tmp_path)
    comparison = checked(tmp_path, BASE, "sweep.seeds=[0]")
    with (tmp_path / "out" / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="another comparison is under way"):
            comparison.execute()
    assert len(comparison.execute()) == 1


@pytest.mark.parametrize(("summary", "rounds"), [(False, 2), (True, 1)])
def test_what_has_not_finished_all_its_rounds_is_not_taken_as_finished(
    tmp_path: Path, summary: bool, rounds: int
) -> None:
    finish(tmp_path / "out" / "small" / "seed-0", validation=0.5, summary=summary, rounds=rounds)
    lock(tmp_path)
    ((trial,),) = [row.trials.values() for row in checked(tmp_path, BASE, "sweep.seeds=[0]")._rows]
    assert trial[0].begun
    assert trial[0].summary() is None


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

"""Rows of a sweep: what is laid over what, and where every value is said to come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import problems_of, refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.sweep import Sweep, folder_name, read_sweep

BASE = """name: base
method: {name: fedprox, mu: 0.1}
training: {epochs: 2, learning_rate: 1e-3}
"""


@pytest.fixture
def read(tmp_path: Path):
    def reader(text: str, *overrides: str) -> Sweep:
        file = tmp_path / "sweep.yaml"
        file.write_text(text)
        return read_sweep([file], overrides)

    return reader


def test_a_section_with_a_name_is_replaced_and_any_other_is_merged(read) -> None:
    text = BASE + "sweep: {rows: {new: {method: {name: fedavg}, training: {epochs: 3}}, old: }}\n"
    new, old = read(text).rows
    assert new.source.values["method"] == {"name": "fedavg"}
    assert new.source.values["training"] == {"epochs": 3, "learning_rate": 1e-3}
    assert old.source.values["method"] == {"name": "fedprox", "mu": 0.1}
    assert "sweep" not in old.source.values


def test_a_method_without_a_name_is_merged(read) -> None:
    (row,) = read(BASE + "sweep: {rows: {strong: {method: {mu: 1.0}}}}\n").rows
    assert row.source.values["method"] == {"name": "fedprox", "mu": 1.0}


def test_every_value_keeps_the_place_it_was_set(read) -> None:
    text = (
        BASE + "sweep:\n  rows:\n    v1.5:\n      training:\n        epochs: 3\n  grid: {method.mu: [0.5]}\n"
    )
    (row,) = read(text, "training.batch_size=2").rows
    assert row.name == "v1.5, mu=0.5"
    assert row.source.origin("training.epochs") == "sweep.yaml, line 8"
    assert row.source.origin("training.learning_rate") == "sweep.yaml, line 3"
    assert row.source.origin("method.mu") == "sweep.yaml, line 9"
    assert row.source.origin("training.batch_size") == "the command line"


def test_a_grid_is_every_combination_with_dots_or_nested(read) -> None:
    dotted = read(BASE + "sweep: {grid: {method.mu: [0.1, 1], training.epochs: [1, 2]}}\n")
    nested = read(BASE + "sweep: {grid: {method: {mu: [0.1, 1]}, training: {epochs: [1, 2]}}}\n")
    assert [row.name for row in dotted.rows] == [
        "mu=0.1, epochs=1", "mu=0.1, epochs=2", "mu=1, epochs=1", "mu=1, epochs=2",
    ]  # fmt: skip
    assert [row.source.values for row in dotted.rows] == [row.source.values for row in nested.rows]


@pytest.mark.parametrize(
    ("text", "overrides", "names"),
    [
        ("", ["sweep.grid.method.mu=[0.1,1]", "sweep.seeds=[7]"], ["mu=0.1", "mu=1"]),
        (
            "sweep: {grid: {method: [{name: fedavg}, {name: layer_skipping, top: 2}]}}\n",
            [],
            ["fedavg", "layer_skipping top=2"],
        ),
        ("sweep: {grid: {privacy.epsilon: [2, 8]}}\n", [], ["epsilon=2", "epsilon=8"]),
    ],
    ids=["from the command line", "whole methods", "epsilon"],
)
def test_rows_are_called_by_what_a_grid_gives_them(
    read, text: str, overrides: list[str], names: list[str]
) -> None:
    sweep = read(BASE + text, *overrides)
    assert [row.name for row in sweep.rows] == names
    assert sweep.settings.seeds == ([7] if overrides else [0, 1, 2])


def test_the_command_line_wins_over_rows_and_grid(read) -> None:
    text = BASE + "sweep: {rows: {a: {training: {epochs: 3}}}, grid: {method.mu: [0.5]}}\n"
    (row,) = read(text, "training.epochs=9", "method.mu=2.0").rows
    assert row.source.values["training"]["epochs"] == 9
    assert row.source.values["method"]["mu"] == 2.0


def test_several_files_are_a_row_each(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text("name: first\nseed: 5\n" if name == "one" else "seed: 6\n")
    sweep = read_sweep([tmp_path / "one.yaml", tmp_path / "two.yaml"], ["sweep.seeds=[0]"])
    assert [row.name for row in sweep.rows] == ["first", "two"]
    assert sweep.name == "first-two"


def test_several_files_of_several_runs_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text("sweep: {seeds: [0]}\n")
    with pytest.raises(ConfigurationError) as caught:
        read_sweep([tmp_path / "one.yaml", tmp_path / "two.yaml"], [])
    assert len(problems_of(caught.value)) == 2


def test_all_problems_of_a_section_come_at_once_with_their_lines(read) -> None:
    text = BASE + "sweep:\n  seeds: [0, 0]\n  row: {}\n  tune:\n    values: [1]\n  columns: []\n"
    for path, code, value in (
        ("seeds", "duplicate", "from sweep.yaml, line 5"),
        ("row", "unknown_key", "'rows'"),
        ("tune.setting", "missing", ""),
        ("tune.values", "out_of_range", "from sweep.yaml, line 8"),
        ("columns", "missing", ""),
    ):
        with refused(ConfigurationError, code, at=f"sweep.{path}", values=[value]):
            read(text)


def test_a_part_of_the_rows_is_compared_with_a_baseline_and_floors_among_them_alone(read) -> None:
    text = BASE + "sweep: {rows: {a: {}, b: {}, c: {}}, baseline: a, floors: [b], p_values: true}\n"
    both = read(text, "sweep.only=[a,b]")
    assert [row.name for row in both.rows] == ["a", "b"]
    assert (both.settings.baseline, both.settings.floors, both.settings.p_values) == ("a", ["b"], True)
    one = read(text, "sweep.only=[b]")
    assert [row.name for row in one.rows] == ["b"]
    assert (one.settings.baseline, one.settings.floors, one.settings.p_values) == (None, [], False)


@pytest.mark.parametrize(
    ("section", "path", "code", "values"),
    [
        ("grid: {training.epochs: 3}", "sweep.grid.training.epochs", "wrong_type", ["3"]),
        ("grid: {seed: [1, 2]}", "sweep.grid.seed", "conflict", ["sweep.seeds"]),
        ("rows: {a: {seed: 1}}", "sweep.rows.a.seed", "conflict", ["sweep.seeds"]),
        ("tune: {setting: seed, values: [1, 2]}", "sweep.tune.setting", "conflict", ["sweep.seeds"]),
        ("tune: {setting: x, values: [a b, a-b]}", "sweep.tune.values", "duplicate", ["'a-b'"]),
        ('rows: {"top 2": {}, "top-2": {}}', "sweep.rows.top-2", "duplicate", ["'top 2'"]),
        ("rows: {a: {}, b: {}}\n  floors: [c]", "sweep.floors", "unknown_name", ["'c'", "'a', 'b'"]),
        ("rows: {a: {}, b: {}}\n  floors: [a, b]", "sweep.floors", "conflict", []),
        ("rows: {a: {}, b: {}}\n  only: [c]", "sweep.only", "unknown_name", ["'c'", "'a', 'b'"]),
        ("rows: {a: {}, b: {}}\n  floors: [a, a]", "sweep.floors", "duplicate", ["'a'"]),
        ('rows: {"??": {}}', "sweep.rows.??", "wrong_form", []),
        ("grid: {name.x: [1]}", "name.x", "wrong_type", ["name"]),
    ],
)
def test_what_is_refused(read, section: str, path: str, code: str, values: list[str]) -> None:
    with refused(ConfigurationError, code, at=path, values=values):
        read(BASE + f"sweep:\n  {section}\n")


def test_an_override_that_cannot_be_is_one_problem_however_many_rows(read) -> None:
    text = BASE + "sweep: {grid: {method.mu: [0.1, 1]}}\n"
    for override, path, code in (("name.x=3", "name.x", "wrong_type"), ("seed=3", "seed", "conflict")):
        with refused(ConfigurationError, code, at=path) as caught:
            read(text, override)
        assert len(problems_of(caught.value)) == 1


@pytest.mark.parametrize("name", ["../../etc", ".hidden", "a/b", "-", "Größe 3", "rate=1e+38"])
def test_a_name_is_one_folder_below(name: str) -> None:
    folder = folder_name(name)
    assert "/" not in folder
    assert not folder.startswith((".", "-"))


PRIVATE = BASE + (
    "privacy: {mechanism: local, units: {a: 100}, epsilon: 8, delta: 1.0e-3, expected_batch: 8, steps: 2}\n"
)


def test_a_row_with_a_mechanism_has_its_section_anew(read) -> None:
    """So that one without privacy need not take every setting of it back."""
    rows = "{none: {privacy: {mechanism: none}}, less: {privacy: {epsilon: 2}}}"
    none, less = read(PRIVATE + f"sweep: {{rows: {rows}}}\n").rows
    assert none.source.values["privacy"] == {"mechanism": "none"}
    assert less.source.values["privacy"]["epsilon"] == 2
    assert less.source.values["privacy"]["mechanism"] == "local"

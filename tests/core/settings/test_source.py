from __future__ import annotations

from pathlib import Path

import pytest
from support import refused

from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import read_source, validate
from fedstrata.engine.check import check_settings
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.ner import NamedEntityRecognition

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
"""Two to the fortieth values, of 40 lines."""


def problems_of(tmp_path: Path, text: str, *overrides: str) -> dict[str, Problem]:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    problems = check_settings(read_source(file, overrides)).problems
    return {problem.path: problem for problem in problems}


def test_numbers_are_read_as_yaml_1_2(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("training:\n  learning_rate: 2e-5\nname: off\n")
    settings, problems = validate(
        RunSettings, read_source(file, ["training.batch_size=3", "model.revision=2020-01-31"])
    )
    assert not problems
    assert settings is not None
    assert settings.training.learning_rate == 2e-5
    assert settings.training.batch_size == 3
    assert settings.name == "off"
    assert settings.model.revision == "2020-01-31"


def test_every_problem_is_reported_with_its_place(tmp_path: Path) -> None:
    text = "seed: x\ntraining:\n  epochs: 0\n  learning_rte: 0.1\nmodel:\n  dtype: float8\n"
    found = problems_of(tmp_path, text, "federation.rounds=many")
    assert {path: (problem.code, problem.origin) for path, problem in found.items()} == {
        "seed": ("wrong_type", "site.yaml, line 1"),
        "training.epochs": ("out_of_range", "site.yaml, line 3"),
        "training.learning_rte": ("unknown_key", "site.yaml, line 4"),
        "model.dtype": ("unknown_name", "site.yaml, line 6"),
        "federation.rounds": ("wrong_type", "the command line"),
    }
    assert "not 0" in found["training.epochs"].message
    assert "'learning_rate'" in found["training.learning_rte"].message
    assert "float32" in found["model.dtype"].message


def test_nothing_is_coerced(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "training:\n  epochs: '3'\n  batch_size: 2.0\n").keys() == {
        "training.epochs",
        "training.batch_size",
    }


def test_an_unknown_section_says_who_named_it(tmp_path: Path) -> None:
    text = "trainin:\n  epochs: 2\ntraining: {epochs: 2}\n"
    found = problems_of(tmp_path, text, "methd.top=2", "training.epochs=-1")
    assert found["methd"].origin == found["training.epochs"].origin == "the command line"
    assert found["trainin"].origin == "site.yaml, line 1"


def test_kinds_are_named_in_plain_words(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "data: {types: problem}\nseed: x\n")
    assert found["data.types"].code == found["seed"].code == "wrong_type"
    for word in ("mapping", "list", "'problem'"):
        assert word in found["data.types"].message
    for word in ("whole number", "'x'"):
        assert word in found["seed"].message


def test_conditions_between_settings_are_checked(tmp_path: Path) -> None:
    for text, path, code, value in (
        ("data:\n  format: brat\n", "data", "missing", "path"),
        ("data:\n  split: {train: 0.5}\n", "data.split", "conflict", "not 0.8"),
        ("partition: {by: iid}\n", "partition", "missing", "clients"),
        ("data: {synthetic: {notes: 2}}\n", "data.synthetic", "out_of_range", "not 2"),
        ("task: {max_length: 16, stride: 9}\n", "task", "out_of_range", "not 9"),
        ("task: {types: []}\n", "task.types", "out_of_range", "at least 1"),
        ("privacy: {budget: {path: '', epsilon: 1}}\n", "privacy.budget.path", "out_of_range", "not ''"),
        ("adapter: {rank: 4}\n", "adapter.kind", "missing", "'lora', 'bottleneck', 'prefix'"),
    ):
        problem = problems_of(tmp_path, text)[path]
        assert problem.code == code
        assert value in problem.message


@pytest.mark.parametrize(
    ("task", "path", "code", "values"),
    [
        (
            "{name: translate}", "task.name", "unknown_name",
            ["ner, classify, lm,", "summarize", "'translate'"],
        ),
        (
            "{name: lm, stride: 8}", "task.stride", "unknown_key",
            ["ner or classify", "extra_metrics, max_length, name"],
        ),
        ("{name: null}", "task.name", "unknown_name", ["null"]),
        ("{name: [ner]}", "task.name", "unknown_name", ["['ner']"]),
        ("classify", "task", "wrong_type", ["mapping", "'classify'"]),
        ("{max_length: 7}", "task.max_length", "out_of_range", ["8", "not 7"]),
        ("{name: classify, pooling: sum}", "task.pooling", "unknown_name", ["'mean'", "'max'", "'sum'"]),
        ("{name: classify, thresold: 0.1}", "task.thresold", "unknown_key", ["'threshold'", "max_windows"]),
        ("{ner: {max_length: 9}}", "task.ner", "unknown_key", ["extra_metrics, max_length, name, stride"]),
        ("{ner: 1, name: ner}", "task.ner", "unknown_key", []),
        ("{classify: 1, name: classify, stride: x}", "task.stride", "wrong_type", ["whole number", "'x'"]),
        ("{threshold: 0.1}", "task.threshold", "unknown_key", ["classify", "extra_metrics"]),
        ("{name: classify, max_length: 16, stride: 9}", "task", "out_of_range", ["16", "not 9"]),
        (
            "{name: classify, problem_type: single_label, threshold: 0.1}", "task", "no_effect",
            ["threshold=0.1"],
        ),
    ],
)  # fmt: skip
def test_problems_of_a_task_are_told_in_its_own_terms(
    tmp_path: Path, task: str, path: str, code: str, values: list[str]
) -> None:
    found = problems_of(tmp_path, f"seed: 1\ntask: {task}\n")
    assert (found[path].code, found[path].origin) == (code, "site.yaml, line 2")
    for value in values:
        assert value in found[path].message
    assert set(found) <= {path, "task.classify"}


def test_a_section_s_problem_is_where_the_setting_that_it_names_was_set(tmp_path: Path) -> None:
    text = "data:\n  format: brat\n  path: notes\n"
    (told,) = problems_of(tmp_path, text, "data.synthetic.notes=100").values()
    assert (told.code, told.origin) == ("no_effect", "the command line")
    assert "data.synthetic" in told.message


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", NamedEntityRecognition),
        ("task: {max_length: 64}", NamedEntityRecognition),
        ("task: {name: ner}", NamedEntityRecognition),
        ("task: {name: classify, max_length: 64}", DocumentClassification),
    ],
)
def test_the_task_is_ner_unless_it_is_named(tmp_path: Path, text: str, kind: type) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    checked = check_settings(read_source(file, []))
    assert not checked.problems
    assert type(checked.task) is kind
    again = RunSettings.model_validate(checked.settings.model_dump(mode="json"))
    assert again == checked.settings


OPEN = "[{" * 300


@pytest.mark.parametrize("text", [f"name: 'a{OPEN}'\n", f"name: |-\n  a{OPEN}\n"])
def test_brackets_in_texts_and_remarks_are_no_lists(tmp_path: Path, text: str) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(f"# {OPEN}\n{text}")
    assert read_source(file, []).values == {"name": f"a{OPEN}"}


@pytest.mark.parametrize(
    ("text", "overrides", "path", "code", "values"),
    [
        (None, [], "", "not_found", ["site.yaml"]),
        ("a: [1", [], "", "not_yaml", ["site.yaml"]),
        ("a: 1\na: 2\n", [], "", "not_yaml", ["site.yaml", "line 2", '"a"']),
        ("a: 1\nb: caf\xe9\n", [], "", "not_utf8", ["site.yaml", "line 2"]),
        ("- 1\n- 2\n", [], "", "wrong_type", ["key: value"]),
        ("seed: 1", ["seed"], "", "wrong_form", ["key.path=value", "'seed'"]),
        ("seed: 1", ["seed.deeper=1"], "seed.deeper", "wrong_type", ["seed"]),
        ("seed: 1", ["=1"], "", "wrong_form", ["key.path=value", "'=1'"]),
        ("seed: 1", ["seed=[1"], "seed", "not_yaml", ["'[1'"]),
        ("a: 1\nb: !!int x\n", [], "", "not_yaml", ["line 2", "'x'", "whole number"]),
        (f"a: {'9' * 6000}\n", [], "", "not_yaml", ["line 1", f"'{'9' * 96}...", "whole number"]),
        ("a: !new 1\n", [], "", "not_yaml", ["line 1", "'!new'"]),
        (f"a: {'[' * 300}{']' * 300}\n", [], "", "not_yaml", ["more than 32"]),
        (f"a: {'[b, ' * 300}{']' * 300}\n", [], "", "not_yaml", ["line 1", "more than 32"]),
        ("[" * 100_000, [], "", "not_yaml", ["line 1", "more than 32"]),
        ("a:\n" + " [ # a remark\n" * 300, [], "", "not_yaml", ["line 33", "more than 32"]),
        (LAUGHS, [], "", "not_yaml", ["more than 50000"]),
        ("a: &a 1\nb: [" + "*a, " * 300 + "]\n", [], "", "not_yaml", ["more than 200"]),
        (f"a: {'x' * 2**20}\n", [], "", "not_yaml", ["1048576"]),
        ("seed: 1", ["seed=!!int x"], "seed", "not_yaml", ["'!!int x'", "'x'"]),
        ("seed: 1", [f"name={'x' * 10**7}"], "name", "not_yaml", [f"'{'x' * 96}...", "1048576"]),
        ("seed: 1", ["seed=&a [*a]"], "seed", "not_yaml", ["more than 32"]),
        ("seed: 1", [f"seed={'[' * 300}"], "seed", "not_yaml", ["more than 32"]),
        ("seed: 1", [f"model.config{'.a' * 300}=1"], "", "wrong_form", ["key.path=value", "'model.config"]),
        ("- 1\n", ["seed=1"], "", "wrong_type", ["key: value"]),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, text: str | None, overrides: list[str], path: str, code: str, values: list[str]
) -> None:
    file = tmp_path / "site.yaml"
    if text is not None:
        file.write_text(text, encoding="latin-1")
    with refused(ConfigurationError, code, at=path, values=values):
        read_source(file, overrides)


def test_of_two_values_on_the_command_line_the_last_holds() -> None:
    assert read_source(None, ["run.seed=1", "run.seed=2"]).values == {"run": {"seed": 2}}

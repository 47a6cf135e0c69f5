from __future__ import annotations

from pathlib import Path

import pytest

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import read_source, validate
from fedstrata.engine.check import check_settings
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.ner import NamedEntityRecognition

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
"""Two to the fortieth values, of 40 lines."""


def problems_of(tmp_path: Path, text: str, *overrides: str) -> dict[str, str]:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    problems = check_settings(read_source(file, overrides)).problems
    return {problem.path: str(problem) for problem in problems}


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
    assert found.keys() == {
        "seed",
        "training.epochs",
        "training.learning_rte",
        "model.dtype",
        "federation.rounds",
    }
    assert "site.yaml, line 1" in found["seed"]
    assert "not 0" in found["training.epochs"]
    assert "site.yaml, line 3" in found["training.epochs"]
    assert "did you mean 'learning_rate'?" in found["training.learning_rte"]
    assert "float32" in found["model.dtype"]
    assert "the command line" in found["federation.rounds"]


def test_nothing_is_coerced(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "training:\n  epochs: '3'\n  batch_size: 2.0\n").keys() == {
        "training.epochs",
        "training.batch_size",
    }


def test_an_override_wins_and_takes_the_blame(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "training:\n  epochs: 2\n", "training.epochs=-1")
    assert "the command line" in found["training.epochs"]


def test_an_unknown_section_says_who_named_it(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "trainin:\n  epochs: 2\n", "methd.top=2")
    assert "the command line" in found["methd"]
    assert "site.yaml, line 1" in found["trainin"]


def test_kinds_are_named_in_plain_words(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "data: {types: problem}\nseed: x\n")
    assert "must be a mapping or a list, not 'problem'" in found["data.types"]
    assert "must be a whole number, not 'x'" in found["seed"]


def test_conditions_between_settings_are_checked(tmp_path: Path) -> None:
    assert "path" in problems_of(tmp_path, "data:\n  format: brat\n")["data"]
    assert "must be 1" in problems_of(tmp_path, "data:\n  split: {train: 0.5}\n")["data.split"]
    assert "clients" in problems_of(tmp_path, "partition: {by: iid}\n")["partition"]
    assert "not 2" in problems_of(tmp_path, "data: {synthetic: {notes: 2}}\n")["data.synthetic"]
    assert "half" in problems_of(tmp_path, "task: {max_length: 16, stride: 9}\n")["task"]
    assert (
        "must be a list of at least 1 item or" in problems_of(tmp_path, "task: {types: []}\n")["task.types"]
    )
    empty = problems_of(tmp_path, "privacy: {budget: {path: '', epsilon: 1, delta: 0.1}}\n")
    assert "must be text of at least 1 character, not ''" in empty["privacy.budget.path"]
    allowed = "must be set, to one of 'lora', 'bottleneck', 'prefix'"
    assert allowed in problems_of(tmp_path, "adapter: {rank: 4}\n")["adapter.kind"]


@pytest.mark.parametrize(
    ("task", "path", "parts"),
    [
        (
            "{name: translate}",
            "task.name",
            ["must be one of ner, classify, lm,", "summarize, or package.module:Class, not 'translate'"],
        ),
        (
            "{name: lm, stride: 8}",
            "task.stride",
            ["it belongs to name: ner or classify. Allowed here: extra_metrics, max_length, name"],
        ),
        ("{name: null}", "task.name", ["package.module:Class, not null"]),
        ("{name: [ner]}", "task.name", ["package.module:Class, not ['ner']"]),
        ("classify", "task", ["must be a mapping, not 'classify'"]),
        ("{max_length: 7}", "task.max_length", ["greater than or equal to 8", "not 7"]),
        ("{name: classify, pooling: sum}", "task.pooling", ["'mean' or 'max'", "not 'sum'"]),
        ("{name: classify, thresold: 0.1}", "task.thresold", ["did you mean 'threshold'?", "max_windows"]),
        (
            "{ner: {max_length: 9}}",
            "task.ner",
            ["unknown key", "extra_metrics, max_length, name, stride"],
        ),
        ("{ner: 1, name: ner}", "task.ner", ["unknown key"]),
        ("{classify: 1, name: classify, stride: x}", "task.stride", ["a whole number, not 'x'"]),
        (
            "{threshold: 0.1}",
            "task.threshold",
            ["it belongs to name: classify. Allowed here: extra_metrics"],
        ),
        ("{name: classify, max_length: 16, stride: 9}", "task", ["at most half of max_length (16), not 9"]),
        ("{name: classify, problem_type: single_label, threshold: 0.1}", "task", ["threshold=0.1 has no"]),
    ],
)
def test_problems_of_a_task_are_told_in_its_own_terms(
    tmp_path: Path, task: str, path: str, parts: list[str]
) -> None:
    found = problems_of(tmp_path, f"seed: 1\ntask: {task}\n")
    assert path in found
    for part in [*parts, "[from site.yaml, line 2]"]:
        assert part in found[path]
    assert set(found) <= {path, "task.classify"}


def test_a_section_s_problem_is_where_the_setting_that_it_names_was_set(tmp_path: Path) -> None:
    text = "data:\n  format: brat\n  path: notes\n"
    (told,) = problems_of(tmp_path, text, "data.synthetic.notes=100").values()
    assert "data.synthetic belongs to data.format 'synthetic'" in told
    assert told.endswith("[from the command line]")


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
    ("text", "overrides", "message"),
    [
        (None, [], "cannot read the configuration"),
        ("a: [1", [], "not valid YAML"),
        ("a: 1\na: 2\n", [], r'site.yaml is not valid YAML: line 2: found duplicate key "a"'),
        ("a: 1\nb: caf\xe9\n", [], "site.yaml is no text in UTF-8: line 2 holds other bytes"),
        ("- 1\n- 2\n", [], "key: value"),
        ("seed: 1", ["seed"], "key.path=value"),
        ("seed: 1", ["seed.deeper=1"], "single value"),
        ("seed: 1", ["=1"], "key.path=value"),
        ("seed: 1", ["seed=[1"], "not a YAML value"),
        ("a: 1\nb: !!int x\n", [], "line 2: 'x' cannot be read as a whole number"),
        (f"a: {'9' * 6000}\n", [], r"line 1: '9{96}\.\.\. cannot be read as a whole number"),
        ("a: !new 1\n", [], "line 1: the tag '!new' is not known"),
        (f"a: {'[' * 300}{']' * 300}\n", [], "more than 32 sections or lists"),
        (f"a: {'[b, ' * 300}{']' * 300}\n", [], "line 1: more than 32 sections or lists"),
        ("[" * 100_000, [], "line 1: more than 32 sections or lists"),
        ("a:\n" + " [ # a remark\n" * 300, [], "line 33: more than 32 sections or lists"),
        (LAUGHS, [], "more than 50000 values, those included that aliases repeat"),
        ("a: &a 1\nb: [" + "*a, " * 300 + "]\n", [], "more than 200 aliases"),
        (f"a: {'x' * 2**20}\n", [], "larger than 1048576 bytes"),
        ("seed: 1", ["seed=!!int x"], "seed: '!!int x' is not a YAML value: 'x' cannot be read"),
        ("seed: 1", [f"name={'x' * 10**7}"], r"name: 'x{96}\.\.\. is not a YAML value: it is larger"),
        ("seed: 1", ["seed=&a [*a]"], "more than 32 sections or lists"),
        ("seed: 1", [f"seed={'[' * 300}"], "more than 32 sections or lists"),
        ("seed: 1", [f"model.config{'.a' * 300}=1"], "key.path=value"),
        ("- 1\n", ["seed=1"], "key: value"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, text: str | None, overrides: list[str], message: str
) -> None:
    file = tmp_path / "site.yaml"
    if text is not None:
        file.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigurationError, match=message):
        read_source(file, overrides)


def test_an_empty_file_means_all_defaults(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "") == {}


def test_of_two_values_on_the_command_line_the_last_holds() -> None:
    assert read_source(None, ["run.seed=1", "run.seed=2"]).values == {"run": {"seed": 2}}

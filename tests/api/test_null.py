"""None is a value: from every side it sets a setting to null, and what is left out keeps what it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from support import TINY_SETTINGS, RunTiny

import fedstrata as fs
from fedstrata.api.options import Options, source_of
from fedstrata.api.running import with_objects
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import Source, read_source, validate, variants
from fedstrata.core.settings.sweep import sweep_of
from fedstrata.core.settings.yaml import as_document
from fedstrata.engine.check import check_settings
from fedstrata.methods import METHODS
from fedstrata.tasks import TASKS

CLIP = "training.clip_norm"
OTHER = {"of no setting": 1}
"""A value that no setting takes: a setting that still holds it was not set to null."""


def nullable(
    model: type[BaseModel], within: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields every setting that may be null, with what must stand in the sections around it."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        if type(None) in get_args(field.annotation):
            yield path, within
        for section in variants(field):
            own = {
                f"{path}.{key}": inner.default
                for key, inner in section.model_fields.items()
                if key == field.discriminator
            }
            yield from nullable(section, {**within, **own}, f"{path}.")


SETTINGS = [*nullable(RunSettings, {})]
PLUGINS = [
    (section, name, key)
    for section, registry in (("method", METHODS), ("task", TASKS))
    for name, kind in registry.own.items()
    for key, field in kind.model_fields.items()
    if type(None) in get_args(field.annotation)
]


def nested(path: str, value: Any) -> dict[str, Any]:
    """Returns a value within its sections."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value  # type: ignore[no-any-return]


def at(values: Any, path: str) -> Any:
    """Returns what stands at a path; a KeyError where nothing does."""
    for name in path.split("."):
        values = values[name]
    return values


def sources(path: str, base: Mapping[str, Any], folder: Path) -> Iterator[Source]:
    """Yields what comes of a null in every place where a person can write one."""
    section, _, rest = path.partition(".")
    null, other = folder / "null.yaml", folder / "other.yaml"
    null.write_bytes(as_document(nested(path, None)))
    other.write_bytes(as_document(base))
    yield read_source(null, [])
    yield source_of(null, {})
    yield source_of(nested(path, None), {})
    yield read_source(other, [f"{path}=null"])
    yield source_of(other, {"settings": {path: None}})
    yield source_of(base, {"settings": {path: None}})
    yield source_of(base, {"settings": {section: nested(rest, None) if rest else None}})
    source = source_of(base, options := {section: nested(rest, None) if rest else None})
    with_objects(source, options, folder)
    yield source
    for sweep in ({"rows": {"row": nested(path, None)}}, {"grid": {path: [None]}}):
        yield sweep_of({"base": source_of(base, {"settings": {"sweep": sweep}})}).rows[0].source


def test_null_is_null_in_every_place_where_it_is_written(tmp_path: Path) -> None:
    """And a setting that is left out keeps what it was."""
    assert len(SETTINGS) > 20
    for path, within in SETTINGS:
        base = source_of({}, {"settings": {**within, path: OTHER}}).values
        for source in sources(path, base, tmp_path):
            assert at(source.values, path) is None, path
            settings, problems = validate(RunSettings, source_of(source.values, {"settings": within}))
            assert not [problem for problem in problems if problem.path == path]
            if settings is not None:
                assert at(settings.model_dump(), path) is None, path
        assert at(source_of(base, {"seed": 3, "settings": {}}).values, path) == OTHER, path
        assert at(source_of(base, {"settings": None}).values, path) == OTHER, path


def test_null_is_null_in_methods_and_tasks() -> None:
    for section, name, key in PLUGINS:
        own = {"name": name, key: OTHER}
        for options in (
            {section: {"name": name, key: None}},
            {"settings": {section: {"name": name, key: None}}},
            {"settings": {f"{section}.{key}": None}},
        ):
            assert source_of({section: own}, options).values[section] == {"name": name, key: None}
        kind: Any = (METHODS if section == "method" else TASKS).own[name]
        made = kind.model_construct(**{"name": name, key: None})
        assert source_of({section: own}, {section: made}).values[section][key] is None, (name, key)


def test_an_argument_that_may_not_be_null_is_refused(tmp_path: Path) -> None:
    """It is not taken for one that is left out, which would train on other data than were meant."""
    wanted = {path for path, _ in SETTINGS}
    for name in sorted(Options.__annotations__.keys() - {"settings", "tokenizer"}):
        if name in wanted:
            assert getattr(check_settings(source_of(None, {name: None})).settings, name) is None
            continue
        null: Any = {name: None}
        with pytest.raises(fs.ConfigurationError) as refused:
            fs.run(None, out=tmp_path / "run", progress=False, **null)
        assert {problem.path.rpartition(".")[2] for problem in refused.value.problems} == {name}
        assert not (tmp_path / "run").exists()


def test_a_run_that_is_given_none_clips_nothing(run_once: RunTiny, tmp_path: Path) -> None:
    """And a use of the run may set null too."""
    given = fs.run(
        {}, out=tmp_path / "null", settings={**TINY_SETTINGS, CLIP: None}, rounds=1, progress=False
    )
    usual = run_once("federation.rounds=1").folder
    kept = [read_source(own / "config.yaml", []).values for own in (given.folder, usual)]
    assert [at(values, CLIP) for values in kept] == [None, 1.0]
    assert given.history.loss.tolist() != fs.load(usual).history.loss.tolist()
    assert fs.load(given.folder, settings={"threads": None}).annotate(["A note."])


@pytest.mark.slow  # a run is a process of its own
def test_a_comparison_that_is_given_none_clips_nothing(tmp_path: Path) -> None:
    grid = {CLIP: [None, 1.0]}
    compared = fs.compare(
        grid=grid, seeds=[0], rounds=1, out=tmp_path / "table", settings=TINY_SETTINGS, progress=False
    )
    kept = [read_source(Path(own) / "config.yaml", []).values for own in compared.cells["folder"]]
    assert [at(values, CLIP) for values in kept] == [None, 1.0]

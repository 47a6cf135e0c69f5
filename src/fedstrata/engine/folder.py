"""Run directories: making one, and going on with one."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.files import write_atomically
from fedstrata.core.sources import Source, read_source
from fedstrata.engine.rounds import Run
from fedstrata.engine.setup import check_settings, prepare
from fedstrata.engine.simulate import Listener

MAY_CHANGE = frozenset(
    {"name", "federation.rounds", "federation.min_clients", "federation.metric", "threads", "device"}
)
"""Settings a resumed run may change: they do not change the numbers of the rounds that were committed.

`federation.min_clients` decides whether a round goes on at all; those that are committed stay as they are.
"""

RESOLVED = frozenset({"task.problem_type"})
"""Settings whose `auto` a run replaces by what it found in its data, which a resumed run cannot change."""


def open_run(source: Source, folder: Path | None, listen: Listener, *, resume: bool) -> Run:
    """Prepares an experiment and its run directory.

    Args:
        source: The configuration.
        folder: The run directory; `runs/NAME`, numbered if taken, when none.
        listen: Told of every event.
        resume: Whether the directory holds a run to go on with.

    Raises:
        ConfigurationError: The configuration is wrong, or the directory holds something already.
    """
    if (
        folder is not None
        and not resume
        and folder.exists()
        and (not folder.is_dir() or any(folder.iterdir()))
    ):
        raise ConfigurationError(
            [
                Problem(
                    "--out", f"{folder} holds something already; name another folder, or go on with --resume"
                )
            ]
        )
    experiment = prepare(source)
    if folder is None:
        folder = free_folder(Path("runs"), experiment.settings.name)
    folder.mkdir(parents=True, exist_ok=True)
    _write_yaml(experiment.settings.model_dump(mode="json"), folder / "config.yaml")
    return Run(experiment, folder, listen)


def resumable(
    folder: Path,
    file: Path | None,
    overrides: Sequence[str],
    *,
    may_change: frozenset[str] = MAY_CHANGE,
    named_by: str = "--out",
) -> Source:
    """Returns the configuration to go on with: the run's own, or a given one that agrees with it.

    Args:
        folder: The run directory.
        file: A configuration to take in place of the run's own.
        overrides: Settings that override it.
        may_change: The settings that may differ.
        named_by: What the user named the directory with, for messages.

    Raises:
        ConfigurationError: The directory holds no run, or a setting differs that may not.
    """
    stored = folder / "config.yaml"
    if not stored.is_file():
        message = f"{folder} holds no run: there is no config.yaml in it"
        raise ConfigurationError([Problem(named_by, message)])
    before, _, broken = check_settings(read_source(stored, []))
    source = read_source(file or stored, overrides)
    now, _, problems = check_settings(source)
    old, new = dict(_flat(before.model_dump(mode="json"))), dict(_flat(now.model_dump(mode="json")))
    changed = sorted(
        path
        for path in old.keys() | new.keys()
        if old.get(path) != new.get(path)
        and path not in may_change
        and not (path in RESOLVED and new.get(path) == "auto")
    )
    for path in [] if problems or broken else changed:
        problems.append(
            source.problem(
                path,
                f"is {new.get(path)!r}, the run has {old.get(path)!r}; it cannot change, unlike: "
                f"{', '.join(sorted(may_change))}",
            )
        )
    if problems or broken:
        raise ConfigurationError([*broken, *problems])
    return source


def free_folder(parent: Path, name: str) -> Path:
    """Returns the first of NAME, NAME-2, NAME-3 ... that is not taken."""
    number, folder = 1, parent / name
    while folder.exists():
        number += 1
        folder = parent / f"{name}-{number}"
    return folder


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}.")
        else:
            yield path, value


def _write_yaml(settings: Mapping[str, Any], path: Path) -> None:
    text = io.StringIO()
    YAML(typ="safe", pure=True).dump(dict(settings), text)
    write_atomically(path, [text.getvalue().encode()])

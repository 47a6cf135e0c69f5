"""What a server says of the run to those who join it, and what a site's own configuration may still say.

From the server come the method, the model, the task, how clients train and the federation; from the site its
documents, its device, and where it keeps what.
"""

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from importlib.metadata import version
from typing import Any

from fedstrata.core.errors import ConfigurationError, FrameError, Problem, RefusedError, printable, refuse
from fedstrata.core.plugins import is_reference
from fedstrata.core.settings.source import Source, assign, differing
from fedstrata.core.settings.yaml import as_yaml
from fedstrata.engine.agreed import OWN, SHARED
from fedstrata.engine.check import check_settings, sections_of, unservable
from fedstrata.engine.prepare import Experiment

_MODEL = ("model", "name")
_NAMES_OF_CODE = (("method", "name"), ("task", "name"), ("task", "extra_metrics"), _MODEL)
THERE = "the server"
"""The origin of what the server has said."""


def shared_settings(experiment: Experiment) -> dict[str, Any]:
    """Returns what the server says of the run: its version, and all settings of `SHARED`, resolved.

    Of a task without classes that stays open which is found in documents: each side finds it in its own.
    """
    settings = experiment.settings
    if experiment.task.kind == "causal-lm" and experiment.asked is not None:
        settings = settings.model_copy(update={"task": experiment.asked})
    every = settings.model_dump(mode="json")
    return {"fedstrata": version("fedstrata"), "settings": {section: every[section] for section in SHARED}}


def with_shared(source: Source, told: Mapping[str, Any], trusted: Collection[str] = ()) -> Source:
    """Returns a site's configuration with what the server has said of the run.

    Args:
        source: The site's own.
        told: What the server says (`shared_settings`).
        trusted: References (`package.module:Class`) that the site's policy allows.

    Raises:
        ConfigurationError: The site's own says something else where that is not its to say, or is wrong in
            itself; or the server names code that the site has not named. All such problems at once.
        RefusedError: The server is of another version, or serves no run.
        FrameError: The server's is no configuration.
    """
    there, here = told.get("fedstrata"), version("fedstrata")
    said = told.get("settings")
    if not isinstance(said, dict):
        raise RefusedError("the server trains nothing: it holds a model that answers")
    if there != here:
        raise RefusedError(f"the server has fedstrata {there!s:.20}, and this is {here}")
    if not set(said) <= set(SHARED):
        raise FrameError(
            f"the server says {sorted(set(said) - set(SHARED))[0]!r:.40}, which is a site's to say"
        )
    if isinstance(privacy := said.get("privacy"), dict) and privacy.get("budget") is not None:
        raise FrameError("the server says privacy.budget, which is a site's to say")
    refuse(list(_unnamed(said, source.values, trusted)))
    shared = Source(deepcopy(dict(said)), dict.fromkeys(said, THERE))
    theirs = check_settings(shared)
    if theirs.problems:
        raise ConfigurationError(theirs.problems)
    problems = []
    for section, value in source.values.items():
        if (wrong := _other(section, value, said)) is not None:
            problems.append(source.problem(*wrong))
        else:
            _lay(shared, section, value, source)
    checked = check_settings(shared)
    broken = sections_of(checked.problems)
    problems += [*checked.problems, *shared.located(unservable(checked.settings, checked.method, joins=True))]
    wrong_already = tuple(problem.path for problem in problems if problem.path)
    own, others = (each.settings.model_dump(mode="json") for each in (checked, theirs))
    for path, mine, other in differing(own, others):
        section = path.partition(".")[0]
        if section not in said or section in broken or path.startswith((*OWN, *wrong_already)):
            continue
        problems.append(shared.problem(path, _servers(mine, other) + "; leave it out here"))
    if problems:
        raise ConfigurationError(problems)
    return shared


def _unnamed(said: Mapping[str, Any], own: Mapping[str, Any], trusted: Collection[str]) -> Iterator[Problem]:
    """Yields a problem for all code that the server names and the site does not, before any is imported.

    What is plugged in by an installed package has a name, and to have installed it is to have agreed to it.
    """
    for path in _NAMES_OF_CODE:
        theirs, mine = _at(said, path), _at(own, path)
        if theirs == mine or (path == _MODEL and mine is not None):
            continue
        for name in theirs if isinstance(theirs, list) else [theirs]:
            named = name.get("name") if isinstance(name, dict) else name
            if not isinstance(named, str) or named in trusted or ":" not in named:
                continue
            if is_reference(named) and not named.startswith("package:"):
                message = (
                    f"the server names {printable(named)}, code that this site has not agreed to run: "
                    "install it here as a package with entry points, or name it in this site's configuration"
                )
                yield Problem(".".join(path), message)


def _at(values: Mapping[str, Any], path: tuple[str, str]) -> Any:
    section = values.get(path[0])
    return section.get(path[1]) if isinstance(section, dict) else None


def _other(section: str, value: Any, said: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns where a site names another method, task or adapter than the server, whose settings differ."""
    theirs = said.get(section)
    for key in ("name", "kind") if section in {"method", "task", "adapter"} else ():
        mine = value.get(key) if isinstance(value, dict) else None
        other = theirs.get(key) if isinstance(theirs, dict) else None
        if mine is not None and mine != other:
            return f"{section}.{key}", _servers(mine, other)
    return None


def _servers(mine: Any, other: Any) -> str:
    return f"is the server's to say, which has {as_yaml(other)}, not {as_yaml(mine)}"


def _lay(over: Source, path: str, value: Any, own: Source) -> None:
    """Lays what a site says over what the server has said, leaf by leaf."""
    section = over.values
    for key in path.split(".")[:-1]:
        section = section[key]
    there = section.get(path.rpartition(".")[2])
    if isinstance(value, dict) and isinstance(there, dict) and path != "model.tokenizer":
        for key, inner in value.items():
            _lay(over, f"{path}.{key}", inner, own)
    else:
        assign(over, path, value, own.origin(path) or path)
        inside = f"{path}."
        over.origins |= {known: place for known, place in own.origins.items() if known.startswith(inside)}

"""What a server says of the run to those who join it, and what a site's own configuration may still say.

From the server come the method, the model, the task, how clients train and the federation; from the site its
documents, its device, and where it keeps what.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedstrata.core.errors import (
    ConfigurationError,
    FrameError,
    Problem,
    RefusedError,
    printable,
    refuse_by_policy,
)
from fedstrata.core.plugins import is_reference
from fedstrata.core.settings.source import Source, assign, differing, flatten
from fedstrata.core.settings.yaml import as_yaml
from fedstrata.core.types import JSON
from fedstrata.engine.agreed import OWN, SHARED
from fedstrata.engine.check import check_settings, sections_of, unservable
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.run_folder import MAY_CHANGE_ON_RESUME
from fedstrata.models.given import MODELS
from fedstrata.models.locate import PACKAGE_PREFIX, SHIPPED
from fedstrata.tasks import TASKS
from fedstrata.tasks.instruction.prompts import holds_template, read_template
from fedstrata.transport.agreement import Agreement

if TYPE_CHECKING:
    from fedstrata.engine.remote.site_policy import PolicyGuard

_MODEL = ("model", "name")
_NAMES_OF_CODE = (("method", "name"), ("task", "name"), ("task", "extra_metrics"), _MODEL)
_OWN_CODE = (*_NAMES_OF_CODE, ("data", "format"))
"""Where a site's own configuration may name code."""
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
    for place, key in _templates(every["task"]):  # a path is one of this machine: its text is what is shared
        place[key] = read_template(place[key], experiment.task.template_field, f"task.{key}")
    return {"fedstrata": version("fedstrata"), "settings": {section: every[section] for section in SHARED}}


def lasting_settings(experiment: Experiment, agreement: Agreement, weights: JSON) -> dict[str, str]:
    """Returns hashes of what must stay the same while a run lasts, by setting.

    These are the server's settings, but for those that a server which resumes a run may change and those that
    are a site's own. Labels, tokenizer and weights stand for the model, whose place may change.

    Args:
        experiment: What is run.
        agreement: What the client holds as agreed.
        weights: Hashes of the weights that the client begins with.
    """
    may_change = MAY_CHANGE_ON_RESUME - ({"federation.metric"} if experiment.method.validates else set())
    every = dict(flatten(shared_settings(experiment)["settings"]))
    lasting = {path: value for path, value in every.items() if not path.startswith(OWN)}
    lasting = {path: value for path, value in lasting.items() if path not in may_change}
    lasting |= {name: agreement.facts[name] for name in ("labels", "tokenizer")}
    # Of an epsilon the noise is for as many rounds as the run began with.
    lasting |= {"weights": weights, "privacy.sigma": experiment.privacy.sigma}
    texts = {path: json.dumps(value, sort_keys=True) for path, value in lasting.items()}
    return {path: hashlib.sha256(text.encode()).hexdigest() for path, text in texts.items()}


def with_shared(source: Source, told: Mapping[str, Any], guard: PolicyGuard | None = None) -> Source:
    """Returns a site's configuration with what the server has said of the run.

    Nothing that the server names is imported, opened or called before it is known to be allowed.

    Args:
        source: The site's own.
        told: What the server says (`shared_settings`).
        guard: The site's policy; the defaults if none.

    Raises:
        PolicyError: The server names a method that the policy does not allow, or code or a model that the
            site has not named, or noise that protects nothing. All such problems at once.
        ConfigurationError: The site's own says something else where that is not its to say, or is wrong in
            itself. All such problems at once.
        RefusedError: The server is of another version, or serves no run.
        FrameError: The server's is no configuration.
    """
    there, here = told.get("fedstrata"), version("fedstrata")
    said = told.get("settings")
    if not isinstance(said, dict):
        message = "the server trains nothing: it holds a model that answers"
        raise RefusedError(message, code="not_supported")
    if there != here:
        message = f"the server has fedstrata {there!s:.20}, and this is {here}"
        raise RefusedError(message, code="other_version")
    if not set(said) <= set(SHARED):
        raise FrameError(
            f"the server says {sorted(set(said) - set(SHARED))[0]!r:.40}, which is a site's to say",
            code="site_decides",
        )
    if isinstance(privacy := said.get("privacy"), dict) and privacy.get("budget") is not None:
        message = "the server says privacy.budget, which is a site's to say"
        raise FrameError(message, code="site_decides")
    if guard is not None:
        guard.require_method(said)
    methods, models = (guard.policy.methods, guard.policy.model_names) if guard is not None else (None, None)
    refuse_by_policy(
        [
            *_unnamed_code(said, source.values, methods or (), models or ()),
            *_unnamed_models(said, source.values, models or ()),
            *_unnamed_templates(said, source.values),
            *_repeatable_noise(said, source.values),
        ]
    )
    shared = Source(deepcopy(dict(said)), dict.fromkeys(said, THERE))
    theirs = check_settings(shared)
    if theirs.problems:
        raise ConfigurationError(theirs.problems)
    problems = []
    for section, value in source.values.items():
        if (wrong := _other(section, value, said)) is not None:
            problems.append(source.problem(*wrong, "server_decides"))
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
        message = _servers(mine, other) + "; leave it out here"
        problems.append(shared.problem(path, message, "server_decides"))
    if problems:
        raise ConfigurationError(problems)
    return shared


def names_code(values: Mapping[str, Any], guard: PolicyGuard | None) -> bool:
    """Whether a site's own configuration or policy names code, which may lie in its working folder.

    Args:
        values: The site's own configuration.
        guard: Its policy, if it has one.
    """
    policy = [] if guard is None else [*(guard.policy.methods or ()), *(guard.policy.model_names or ())]
    own = [name for path in _OWN_CODE for name in _names_in(_at(values, path))]
    return any(_is_code(name) for name in [*policy, *own])


def _unnamed_code(
    said: Mapping[str, Any], own: Mapping[str, Any], methods: Collection[str], models: Collection[str]
) -> Iterator[Problem]:
    """Yields a problem for all code that the server names and the site does not, before any is imported.

    What is plugged in by an installed package has a name, and to have installed it is to have agreed to it.

    Args:
        said: The server's settings.
        own: The site's own settings.
        methods: Methods that the site's policy names.
        models: Models that it names.
    """
    for path in _NAMES_OF_CODE:
        theirs, mine = _at(said, path), _at(own, path)
        if theirs == mine or (path == _MODEL and mine is not None):
            continue
        trusted = models if path == _MODEL else methods
        for name in _names_in(theirs):
            packaged = path == _MODEL and name.startswith(PACKAGE_PREFIX)  # which is read and not imported
            if name not in trusted and is_reference(name) and not packaged:
                message = (
                    f"the server names {printable(name)}, code that this site has not agreed to run: "
                    "install it here as a package with entry points, or name it in this site's configuration"
                )
                yield Problem(".".join(path), message, code="not_named_here")


def _unnamed_models(
    said: Mapping[str, Any], own: Mapping[str, Any], allowed: Collection[str]
) -> Iterator[Problem]:
    """Yields a problem for all that the server would have read of this machine or of the hub, unnamed here.

    Args:
        said: The server's settings.
        own: The site's own settings; where they say what is read, the server's are not used.
        allowed: Models that the site's policy names.
    """
    theirs, mine = (each.get("model") for each in (said, own))
    theirs, mine = (each if isinstance(each, dict) else {} for each in (theirs, mine))
    read = {**theirs, **mine}
    config = read.get("config")
    drawn = read.get("init") == "random" and isinstance(config, dict) and "model_type" in config
    used = dict.fromkeys(("tokenizer", "weights", "vocabulary"), True)
    used["name"] = not drawn or read.get("tokenizer") is None
    known = {SHIPPED, *MODELS.installed, *allowed, *(each for each in mine.values() if isinstance(each, str))}
    for key, is_read in used.items():
        name = read.get(key)
        code = key == "name" and _is_code(name)  # refused as such
        if is_read and isinstance(name, str) and name not in known and not code:
            message = (
                f"the server names {printable(name)}, which this site has not agreed to read: name it in "
                f"this site's configuration (model.{key}), or in its policy (model_names)"
            )
            yield Problem(f"model.{key}", message, code="not_named_here")


def _unnamed_templates(said: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields a problem for each template that the server gives as the path of a file to train on."""
    theirs, mine = (list(_templates(each.get("task"))) for each in (said, own))
    named = [place[key] for place, key in mine]
    task = said.get("task")
    kind = TASKS.own.get(task.get("name", "")) if isinstance(task, dict) else None
    mark = "" if kind is None else kind.template_field
    for place, key in theirs:
        if not (mark and holds_template(place[key], mark)) and place[key] not in named:
            message = (
                f"the server names the file {printable(place[key])} of this machine, which this site has not "
                "agreed to read: a server gives the text of a template"
            )
            yield Problem(f"task.{key}", message, code="not_named_here")


def _templates(task: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields where a task's section has templates: the mapping, and the key in it."""
    section = task if isinstance(task, dict) else {}
    each = section.get("templates")
    if isinstance(section.get("template"), str):
        yield section, "template"
    if isinstance(each, dict):
        yield from ((each, kind) for kind, given in each.items() if isinstance(given, str))


def _repeatable_noise(said: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields a problem for noise that the server can draw again, unless the site's own file asks for it."""
    path = ("privacy", "noise")
    if _at(said, path) == "seeded" != _at(own, path):
        message = (
            "the server has seeded, noise that it can draw again and subtract, which protects nothing; for "
            "an experiment this site's configuration must have it too (privacy: {noise: seeded})"
        )
        yield Problem("privacy.noise", message, code="not_named_here")


def _names_in(value: Any) -> list[str]:
    """Returns the names that a setting holds: itself, those of a list, or those of sections in one."""
    every = value if isinstance(value, list) else [value]
    names = (each.get("name") if isinstance(each, dict) else each for each in every)
    return [name for name in names if isinstance(name, str)]


def _is_code(name: Any) -> bool:
    """Whether a model or another part is named by a reference, which is imported."""
    return isinstance(name, str) and is_reference(name) and not name.startswith(PACKAGE_PREFIX)


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

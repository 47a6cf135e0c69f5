"""What a server says of the run to those who join it, and what a site's own configuration may still say.

From the server come the method, the model, the task, how clients train and the federation; from the site its
documents, its device, and where it keeps what.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from fedstrata.core.errors import ConfigurationError, FrameError
from fedstrata.core.settings.source import Source, assign, flatten
from fedstrata.engine.check import check_settings, sections_of, unservable
from fedstrata.engine.prepare import Experiment

SHARED = ("name", "seed", "model", "adapter", "task", "method", "training", "federation")
"""The sections that come from the server."""
OWN = ("training.cache", "training.cache_gigabytes", "model.name", "model.revision", "model.tokenizer")
"""Of these what a site may say otherwise: places and memory."""
THERE = "the server"
"""The origin of what the server has said."""


def shared_settings(experiment: Experiment) -> dict[str, Any]:
    """Returns what the server says of the run: every setting of the sections in `SHARED`, resolved.

    Of a task without classes that stays open which is found in documents: each side finds it in its own.
    """
    settings = experiment.settings
    if experiment.task.kind == "causal-lm" and experiment.asked is not None:
        settings = settings.model_copy(update={"task": experiment.asked})
    every = settings.model_dump(mode="json")
    return {section: every[section] for section in SHARED}


def with_shared(source: Source, said: Mapping[str, Any]) -> Source:
    """Returns a site's configuration with what the server has said of the run.

    Args:
        source: The site's own.
        said: What the server says (`shared_settings`).

    Raises:
        ConfigurationError: The site's own says something else where that is not its to say, or is wrong in
            itself; all such problems at once.
        FrameError: The server's is no configuration.
    """
    if not set(said) <= set(SHARED):
        raise FrameError(
            f"the server says {sorted(set(said) - set(SHARED))[0]!r:.40}, which is a site's to say"
        )
    shared = Source(deepcopy(dict(said)), dict.fromkeys(said, THERE))
    theirs = check_settings(shared)
    if theirs.problems:
        raise ConfigurationError(theirs.problems)
    for section, value in source.values.items():
        _lay(shared, section, value, source)
    checked = check_settings(shared)
    broken = sections_of(checked.problems)
    here, there = (dict(flatten(each.settings.model_dump(mode="json"))) for each in (checked, theirs))
    problems = [*checked.problems, *shared.located(unservable(checked.settings, checked.method, joins=True))]
    for path in sorted({*here, *there}):
        section = path.partition(".")[0]
        if section not in said or section in broken or path.startswith(OWN):
            continue
        if (mine := here.get(path)) != (other := there.get(path)):
            message = f"is the server's to say, which has {other!r:.80}, not {mine!r:.80}; leave it out here"
            problems.append(shared.problem(path, message))
    if problems:
        raise ConfigurationError(problems)
    return shared


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

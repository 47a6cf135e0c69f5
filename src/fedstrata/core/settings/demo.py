"""The configuration that is used where none is named, from the command line and from Python: the demo's."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import as_file, files

from fedstrata.core.settings.run import USUAL_TASK
from fedstrata.core.settings.source import Source, read_source

DEMO = "demo.yaml"


def read_demo(overrides: Sequence[str] = ()) -> Source:
    """Returns the demo's configuration with `key.path=value` overrides.

    Raises:
        ConfigurationError: An override is malformed.
    """
    with as_file(files("fedstrata.core.settings") / DEMO) as demo:
        return read_source(demo, overrides)


def without_demo_notes(source: Source, *, own_data: bool = False) -> Source:
    """Removes what the demo says of its own notes where others are named, or another task.

    Args:
        source: The demo's configuration, over which others were laid.
        own_data: Whether documents are given as objects, of which a configuration says nothing.
    """
    data, task = source.values["data"], source.values["task"]
    if not isinstance(data, dict) or not isinstance(task, dict):
        return source  # wrong, which is told when it is checked
    others = own_data or data.get("format") != "synthetic"
    idle = {"synthetic": others, "types": others or task.get("name", USUAL_TASK) != USUAL_TASK}
    given = [f"{path}." for path, origin in source.origins.items() if not origin.startswith(f"{DEMO},")]
    for name in [name for name in idle if idle[name]]:
        section = f"data.{name}."  # set itself, in part, or with a whole that it is part of
        if not any(path.startswith(section) or section.startswith(path) for path in given):
            data.pop(name, None)
    return source

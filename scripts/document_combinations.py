"""Writes docs/combinations.md: what can be combined, by asking the code what it refuses.

    python scripts/document_combinations.py

Every pair of choices is put into one configuration, which is checked as a run is before it starts; nothing of
the page is known here but the choices themselves. A test holds the file equal to what this prints.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from fedstrata.core.preflight import Facts
from fedstrata.core.settings.run import USUAL_METHOD, USUAL_TASK
from fedstrata.core.settings.source import Source
from fedstrata.engine.check import check_settings, unfit_participants, unservable
from fedstrata.engine.model import check_model, refusals
from fedstrata.engine.privacy import count_problems
from fedstrata.engine.processors import idle_workers
from fedstrata.methods import METHODS
from fedstrata.tasks import TASKS

DOCUMENT = Path(__file__).parents[1] / "docs" / "combinations.md"

SITES = tuple(f"site-{number}" for number in range(1, 9))
BASE = {
    "task": {"types": ["problem", "test", "treatment", "drug"]},
    "model": {"config": {"num_hidden_layers": 4}},
}
"""Beside what is usual: types by name, since private runs read none from documents; and a lower model."""
OF_MODEL = {"method", "task", "adapter", "training", "model"}
"""Sections that the check of a model looks at."""
BY_UNIT = {"units": dict.fromkeys(SITES, 200), "expected_batch": 16, "delta": 1e-5, "sigma": 1.0}
SUMMED = {"secure_aggregation": True}
AT_SERVER = {"mechanism": "central", "delta": 1e-3, "sigma": 1.0}
AT_CLIENTS = {"mechanism": "local", "steps": 10, **BY_UNIT}


class Choice(NamedTuple):
    """Something that a configuration can ask for.

    Attributes:
        title: What it is.
        settings: What asks for it.
        served: Whether it is that sites are processes of their own, for which no setting asks.
    """

    title: str
    settings: Mapping[str, Any]
    served: bool = False


KINDS = ("lora", "bottleneck", "prefix")
METHOD_CHOICES = [Choice(f"`{name}`", {"method": {"name": name}}) for name in METHODS.own]
CHOICES = {
    "Tasks": [Choice(f"`{name}`", {"task": {"name": name}}) for name in TASKS.own],
    "Adapters": [Choice(f"`{kind}`", {"adapter": {"kind": kind}}) for kind in KINDS],
    "Privacy": [
        Choice("noise at clients (`local`)", {"privacy": AT_CLIENTS}),
        Choice("noise at the server (`central`)", {"privacy": AT_SERVER}),
        Choice("noise in the sum (`joint`)", {"privacy": {"mechanism": "joint", **SUMMED, **BY_UNIT}}),
        Choice("secure aggregation", {"privacy": SUMMED}),
        Choice("secure aggregation, noise at clients", {"privacy": {**SUMMED, **AT_CLIENTS}}),
        Choice("`privacy.scores: summed`", {"privacy": {**SUMMED, "scores": "summed"}}),
    ],
    "Runs": [
        Choice("sites apart (`serve`, `join`)", {}, served=True),
        Choice("`workers: 2`", {"workers": 2}),
        Choice("prefix cache (`training.cache: on`)", {"training": {"cache": "on"}}),
        Choice("`training.checkpointing`", {"training": {"checkpointing": True}}),
        Choice("4 bits (`model.quantization: nf4`)", {"model": {"quantization": "nf4"}}),
        Choice("robust rule (`aggregation: median`)", {"method": {"aggregation": "median"}}),
        Choice("emulated `devices`", {"devices": {}}),
        Choice("corrupt clients", {"federation": {"corrupt": {"share": 0.25}}}),
        Choice("half of the clients a round", {"federation": {"sample": 0.5}}),
        Choice("`federation.score_clients`", {"federation": {"score_clients": True}}),
    ],
}  # fmt: skip
"""Each a value that stands for its kind: any other robust rule is asked about in the same place."""

HEAD = f"""# What can be combined

Every pair below was put into one configuration, which was checked as a run is before it starts; **no** leads
to the reason in the program's own words. Everything else is that of a run without a configuration, such as
the task `{USUAL_TASK}`, with {len(SITES)} clients and documents of the server's own. Where a method needs an
[adapter](adapters.md) and none is named it has its usual one.

A pair that goes together can still be refused in company, or for its data: `fedstrata plan` lists all
problems of a configuration at once. What the methods do is in [their list](methods.md), all settings are in
[the reference](configuration.md).

This page is written by `python scripts/document_combinations.py`.
"""


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Returns both as one mapping; where they say different things the second wins."""
    inner = {
        key: merged(one[key], value)
        for key, value in other.items()
        if isinstance(value, Mapping) and key in one
    }
    return {**one, **other, **inner}


def refused(*choices: Choice) -> list[str]:
    """Returns why these choices do not go together, in the words of the code; empty if they do.

    The check of the model takes a tenth of a second, and is asked where two choices may meet in it.
    """
    values: dict[str, Any] = {}
    for choice in choices:
        values = merged(values, choice.settings)
    values = merged(BASE, values) if values.get("task", {}).get("name", USUAL_TASK) == USUAL_TASK else values
    checked = check_settings(Source(values))
    settings, method, problems = checked.settings, checked.method, list(checked.problems)
    if method is not None:
        problems += unfit_participants(settings.federation, method, SITES)
        problems += method.problems(Facts(server_documents=len(SITES), devices=settings.devices))
        problems += count_problems(settings, method, len(SITES))
        problems += idle_workers(settings, method)
        if sum(bool(OF_MODEL & choice.settings.keys()) for choice in choices) > 1:
            problems += refusals(lambda: check_model(settings, checked.task, method))
    if any(choice.served for choice in choices):
        problems += unservable(settings, method)
    name = METHODS[settings.method["name"]].model_fields["name"].default
    return [f"`{problem.path}`: {anonymous(problem.message, name)}" for problem in problems]


def anonymous(message: str, method: str) -> str:
    """Returns a message without the method's name, so that the same reason is the same text."""
    if message.startswith("unknown key"):
        return "this method has no such setting"
    return re.sub(rf"(?:\bmethod )?\b{method}\b", "this method", message)


def table(title: str, columns: Sequence[Choice]) -> Iterator[str]:
    """Yields the lines of a table of all methods with some choices, and of its reasons."""
    reasons: dict[str, int] = {}
    yield from ["", f"## Methods and {title.lower()}", ""]
    yield from [f"| | {' | '.join(column.title for column in columns)} |", "|---" * (1 + len(columns)) + "|"]
    for method in METHOD_CHOICES:
        cells = []
        for column in columns:
            found = refused(method, column)
            numbers = [reasons.setdefault(reason, len(reasons) + 1) for reason in found]
            links = ", ".join(f"[{number}](#{title.lower()}-{number})" for number in numbers)
            cells.append(f"**no** {links}" if found else "yes")
        yield f"| {method.title} | {' | '.join(cells)} |"
    if reasons:
        yield from ["", '<details markdown="1"><summary>Why not</summary>', "", "| | |", "|---|---|"]
        yield from (
            f'| <a id="{title.lower()}-{number}"></a>{number} | {cell(reason)} |'
            for reason, number in reasons.items()
        )
        yield from ["", "</details>"]


def cell(text: str) -> str:
    """Returns a message as a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def variants(name: str) -> Iterator[tuple[str, Choice]]:
    """Yields the method with each other value of a setting of its own that has names for values."""
    for key, field in METHODS[name].model_fields.items():
        for value in named_values(field.annotation):
            if key not in {"name", "aggregation"} and value != field.default:
                shown = str(value).lower() if isinstance(value, bool) else value
                yield f"`{key}: {shown}`", Choice("", {"method": {"name": name, key: value}})


def named_values(annotation: Any) -> Iterator[Any]:
    """Yields the values that a type names."""
    if annotation is bool:
        yield from (True, False)
    for part in get_args(annotation):
        if get_origin(annotation) is Literal:
            yield part
        else:
            yield from named_values(part)


def own_settings() -> Iterator[str]:
    """Yields the lines of the table of methods' settings that change what they go with."""
    others = [choice for group in ("Privacy", "Runs") for choice in CHOICES[group]]
    yield from ["", "## Settings of methods that change this", ""]
    yield from ["| method | with | goes no longer with | goes then with |", "|---|---|---|---|"]
    for method, name in zip(METHOD_CHOICES, METHODS.own, strict=True):
        usual = {other.title for other in others if refused(method, other)}
        for setting, variant in variants(name):
            now = {other.title for other in others if refused(variant, other)}
            if usual != now and not refused(variant):
                lost, won = ("; ".join(sorted(titles)) for titles in (now - usual, usual - now))
                yield f"| {method.title} | {setting} | {lost} | {won} |"


def among_themselves() -> Iterator[str]:
    """Yields the lines of the table of other choices that are refused with the usual method."""
    usual = Choice("", {"method": {"name": USUAL_METHOD}})
    choices = [(group, choice) for group, members in CHOICES.items() for choice in members]
    alone = {choice.title: refused(usual, choice) for _, choice in choices}
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for title, reasons in alone.items():
        for reason in reasons:
            found[title, reason].append("nothing else")
    for (group, one), (its, other) in combinations(choices, 2):
        for reason in refused(one, other) if group != its or its == "Runs" else ():
            if reason not in {*alone[one.title], *alone[other.title]}:
                found[one.title, reason].append(other.title)
    yield from ["", "## Tasks, adapters, privacy and runs with each other", ""]
    yield f"With the usual method, `{USUAL_METHOD}`. Every pair of which nothing is said here goes together."
    yield from ["", "| | with | why not |", "|---|---|---|"]
    for (title, reason), others in found.items():
        yield f"| {title} | {'; '.join(others)} | {cell(reason)} |"


def document() -> str:
    """Returns the whole page."""
    lines: list[str] = [HEAD.rstrip()]
    parts: Iterable[Iterator[str]] = (table(group, columns) for group, columns in CHOICES.items())
    for part in (*parts, own_settings(), among_themselves()):
        lines += part
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")

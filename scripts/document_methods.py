"""Writes docs/methods.md: every method as its card has it, its equation, and what was measured.

    python scripts/document_methods.py

What is said of a method is the docstring of its file; tables are those of benchmarks/. A test holds the file
equal to what this prints.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from fedstrata.core.method import Method
from fedstrata.methods import METHODS

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "methods.md"

HEAD = """# Methods

A method is a file of the package, and what this page says of it is what that file begins with: paper and
equations, what travels, what server and client do, what it reduces to (held by a test), and where it departs
from its paper. `fedstrata methods` lists them too. They go together with tasks, adapters and privacy as
[What can be combined](combinations.md) has it, and [one of your own](adding_a_method.md) is used like these.

In the equations k is a client of the round, n its number of training examples, p its share of those of all
clients of the round, t the round, w what travels, and F a client's loss.

This page is written by `python scripts/document_methods.py`.
"""


class Card(NamedTuple):
    """What a method's file begins with: its name, what it is in a sentence, and its fields by their names."""

    name: str
    summary: str
    fields: Mapping[str, str]


def card_of(method: type[Method]) -> Card:
    """Reads the docstring of a method's file."""
    first, _, rest = (sys.modules[method.__module__].__doc__ or "").partition("\n\n")
    name, _, summary = first.partition(": ")
    parts = re.split(r"^(\w[\w ]*): ", rest, flags=re.MULTILINE)[1:]
    texts = (" ".join(text.split()) for text in parts[1::2])
    return Card(name, summary, dict(zip(parts[::2], texts, strict=True)))


def paper(card: Card) -> str:
    """Returns the paper without the places in it."""
    return re.split(r", (?:sections?|equations?|Algorithms?|figure|Table) |;|\.$", card.fields["Source"])[0]


def row(name: str, method: type[Method]) -> str:
    """Returns the line of the table of all methods."""
    card = card_of(method)
    adapter = " or ".join(f"`{kind}`" for kind in method.adapters) or "any or none"
    said = f"{card.name}: {card.summary}"
    return f"| [`{name}`](#{name}) | {said} | {paper(card)} | {method.travels} | {adapter} |"


def anchor(heading: str) -> str:
    """Returns what a link to a heading ends with.

    >>> anchor("Table II: two `seeds`, 4 clients")
    'table-ii-two-seeds-4-clients'
    """
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


def measured(of: str, table: str, rows: str) -> Iterator[str]:
    """Yields some rows of the first table below a heading.

    Args:
        of: The folder of benchmarks/ whose README has it.
        table: The heading.
        rows: A pattern that their first cells begin with.

    Raises:
        ValueError: There is no such heading.
    """
    readme = f"benchmarks/{of}/README.md"
    _, heading, below = (ROOT / readme).read_text(encoding="utf-8").partition(f"\n## {table}\n")
    if not heading:
        raise ValueError(f"{readme} has no heading {table!r}")
    head, line, *body = re.findall(r"^\|.*\|$", below, flags=re.MULTILINE)
    body = body[: next((index for index, each in enumerate(body) if each.startswith("|---")), len(body))]
    yield from ["", f"Measured, from [{table}](../{readme}#{anchor(table)}), which says how:", "", head, line]
    yield from (each for each in body if re.match(rf"\| (?:{rows})", each.replace(" |", "\n"), re.MULTILINE))


def section(name: str, method: type[Method], place: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines about one method."""
    card = card_of(method)
    yield from ["", f"## {name}", "", f"**{card.name}**: {card.summary}", ""]
    yield from ["```math", place["equation"].rstrip(), "```", ""]
    yield from (f"- **{key}**: {text}" for key, text in card.fields.items())
    settings = f"[its settings](configuration.md#method-with-name-{name})"
    page = place["page"]
    title = (DOCUMENT.parent / page).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    yield f"- **More**: [{title}]({page}), and {settings}; `fs.methods.{method.__name__}` in Python."
    for table in place.get("measured", ()):
        yield from measured(**table)
    if "measured" not in place:
        yield from ["", "Not measured by us yet."]


def document() -> str:
    """Returns the whole page."""
    places = YAML(typ="safe").load(Path(__file__).with_name("method_places.yaml"))
    lines = [HEAD, "| method | | paper | travels | adapter |", "|---|---|---|---|---|"]
    lines += [row(name, method) for name, method in METHODS.own.items()]
    for name, method in METHODS.own.items():
        lines += section(name, method, places[name])
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")

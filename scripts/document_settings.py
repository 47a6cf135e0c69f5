"""Writes docs/configuration.md from the settings themselves.

    python scripts/document_settings.py

A test holds the file equal to what this prints, so the document cannot fall behind the code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import fedstrata as fs
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import variants
from fedstrata.methods import METHODS
from fedstrata.methods.averaging import Averaging
from fedstrata.tasks import TASKS

DOCUMENT = Path(__file__).parents[1] / "docs" / "configuration.md"

HEAD = """# Configuration

A configuration is a YAML file (YAML 1.2) plus `key.path=value` overrides on the command line, which win.
Every setting has a default; unknown keys and values of the wrong type are refused, all problems at once. A
run writes the resolved configuration to its `config.yaml`, which is itself a configuration.

This page is written by `python scripts/document_settings.py`.
"""


def allowed(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Says in words which values a JSON schema allows."""
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(allowed(option, definitions) for option in schema[several])
    if "$ref" in schema:
        inner = definitions[schema["$ref"].rpartition("/")[2]]
        return f"mapping of {', '.join(f'`{name}`' for name in inner['properties'])}"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "items" in schema and "enum" in schema["items"]:
        return f"list of {allowed(schema['items'], definitions)}"
    bounds = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    limits = [f"{words} {schema[key]:g}" for key, words in bounds.items() if key in schema]
    words = {"integer": "whole number", "object": "mapping", "array": "list", "string": "text"}
    words |= {"boolean": "true or false"}
    name = words.get(schema.get("type", ""), schema.get("type", "any"))
    return " ".join([name, ", ".join(limits)]).strip()


def cell(value: object) -> str:
    """Returns a default as YAML would have it."""
    if value is PydanticUndefined:
        return "must be set"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "{}" if value == {} else str(value)


def is_section(field: FieldInfo) -> bool:
    """Whether a setting holds only settings of its own; one that may also be a plain value has a row."""
    plain = set(get_args(field.annotation)) - {type(None), *variants(field)}
    return bool(variants(field)) and (field.annotation in variants(field) or not plain)


def rows(model: type[BaseModel]) -> Iterator[str]:
    """Yields a table row for every plain setting of a section."""
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        if is_section(field) and field.default is not None:
            continue  # one that may be left out has a row that says so
        values = allowed(schema["properties"][name], schema.get("$defs", {}))
        default = cell(field.get_default(call_default_factory=True))
        yield f"| `{name}` | {default} | {values} | {field.description or ''} |"


def in_python(model: type[BaseModel]) -> Iterator[str]:
    """Yields which class of the Python interface a section is, if it is one."""
    for name in ("methods", "tasks", "settings"):
        if getattr(getattr(fs, name), model.__name__, None) is model:
            yield f"In Python: `fs.{name}.{model.__name__}`."


def sections(model: type[BaseModel], path: str = "", named: str = "") -> Iterator[str]:
    """Yields the lines of a section and of those within it.

    Args:
        model: The settings of the section.
        path: Its place in the configuration.
        named: The `key: value` in it that chooses it, where there is a choice.
    """
    left_out = (f"| `{named.partition(':')[0]}`",) if named else () if path else ("| `method`", "| `task`")
    body = [row for row in rows(model) if not row.startswith(left_out)]
    if body:
        about = " ".join([(model.__doc__ or "").partition("\n")[0], *in_python(model)]).strip()
        title = f"{path}, with `{named}`" if named else path or "Top level"
        yield from ["", f"## {title}", "", about, ""]
        yield from ["| setting | default | allowed | |", "|---|---|---|---|", *body]
    for name, field in model.model_fields.items():
        inner = f"{path}.{name}" if path else name
        yield from choices(field, inner)
        for task in TASKS.own if inner == "task" else ():
            yield from sections(TASKS[task], "task", f"name: {task}")


def choices(field: FieldInfo, path: str) -> Iterator[str]:
    """Yields the lines of every section that a setting can hold."""
    key = field.discriminator
    for variant in variants(field) if is_section(field) else ():
        yield from sections(variant, path, f"{key}: {variant.model_fields[key].default}" if key else "")


def document() -> str:
    """Returns the whole page."""
    lines = [HEAD.rstrip(), *sections(RunSettings)]
    for name, card in METHODS.own.items():
        body = [row for row in rows(card) if not row.startswith("| `name`")]
        lines += [
            "",
            f"## method, with `name: {name}`",
            "",
            f"Travels: {card.travels}. {' '.join(in_python(card))}",
            "",
        ]
        lines += (
            ["| setting | default | allowed | |", "|---|---|---|---|", *body]
            if body
            else ["No settings of its own."]
        )
        if issubclass(card, Averaging):
            rules = "`mean` (default) or one of the rules below, by name or as a mapping"
            lines += ["", f"And `aggregation`: how updates become one, {rules}."]
        for key, field in card.model_fields.items():
            for variant in variants(field) if key != "aggregation" else ():
                lines += sections(variant, f"method.{key} of {name}, as a mapping")
    lines += choices(Averaging.model_fields["aggregation"], "method.aggregation")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")

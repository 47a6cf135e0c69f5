"""Reads a configuration (`yaml.py`) and remembers where every value was set."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from ruamel.yaml.error import YAMLError

from fedstrata.core.error_codes import code_of_reading, code_of_validation
from fedstrata.core.errors import Problem, SettingErrors, did_you_mean, refuse
from fedstrata.core.settings.yaml import DEEPEST, LARGEST, plain_values, shortened, told

SettingsType = TypeVar("SettingsType", bound=BaseModel)

COMMAND_LINE = "the command line"
"""The origin of an override."""
LONGEST_SHOWN = 100
"""Characters of a value that a message quotes."""
_PLAIN = {"integer": "a whole number", "number": "a number", "list": "a list", "string": "a text"}
"""What pydantic calls a valid one, as people say it."""


@dataclass(slots=True)
class Source:
    """Raw settings with the place each one came from.

    Attributes:
        values: Nested settings as read.
        origins: Dotted path to a place such as `demo.yaml, line 12` or `the command line`.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def origin(self, path: str) -> str:
        """Returns where a setting was set: itself, else the first in it, else the nearest section around it.

        Empty for a default.
        """
        inside = next((known for known in self.origins if known.startswith(f"{path}.")), None)
        if path not in self.origins and inside is not None:
            return self.origins[inside]
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path.rpartition(".")[0]
        return ""

    def problem(self, path: str, message: str, code: str) -> Problem:
        """Returns a problem with this setting that says where it was set."""
        return Problem(path, message, self.origin(path), code=code)

    def located(self, problems: Iterable[Problem]) -> list[Problem]:
        """Returns problems found elsewhere, each with the place its setting was set."""
        return [self.problem(problem.path, problem.message, problem.code) for problem in problems]


def read_source(file: Path | None, overrides: Sequence[str]) -> Source:
    """Reads a YAML file and `key.path=value` overrides, which win.

    Raises:
        ConfigurationError: The file cannot be read or an override is not of that form; all such problems at
            once.
    """
    source, problems = Source(), []
    if file is not None:
        try:
            with file.open("rb") as opened:
                values = plain_values(opened.read(LARGEST + 1), file.name, source.origins)
            if values is not None and not isinstance(values, dict):
                problems.append(Problem("", f"{file} must hold settings as `key: value`", code="wrong_type"))
            source.values = values if isinstance(values, dict) else {}
        except IsADirectoryError:
            kit = (
                "; a federation's kit is for fedstrata serve or join" if (file / "kit.yaml").exists() else ""
            )
            problems.append(
                Problem(
                    "",
                    f"{file} is a folder and no configuration{kit}",
                    code="wrong_kit" if kit else "unreadable",
                )
            )
        except OSError as error:
            problems.append(
                Problem(
                    "",
                    f"cannot read the configuration {file}: {error.strerror}",
                    code=code_of_reading(error),
                )
            )
        except UnicodeDecodeError as error:
            line = 1 + error.object.count(b"\n", 0, error.start)
            problems.append(
                Problem("", f"{file} is no text in UTF-8: line {line} holds other bytes", code="not_utf8")
            )
        except YAMLError as error:
            problems.append(Problem("", f"{file} is not valid YAML: {told(error)}", code="not_yaml"))
    for override in overrides:
        problem = apply_override(override, source)
        if problem:
            problems.append(problem)
    refuse(problems)
    return source


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted path and the value of every setting; an empty mapping is a value."""
    for key, value in settings.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{path}.")
        else:
            yield path, value


def differing(
    one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yields the dotted path of every setting in which two configurations differ, and its value in each.

    A section that one of them does not have is one setting.
    """
    for key in sorted(one.keys() | other.keys()):
        mine, its, path = one.get(key), other.get(key), f"{prefix}{key}"
        if mine and its and isinstance(mine, Mapping) and isinstance(its, Mapping):
            yield from differing(mine, its, f"{path}.")
        elif mine != its:
            yield path, mine, its


def apply_override(override: str, source: Source) -> Problem | None:
    """Writes one `key.path=value` into the source; returns what is wrong with it, if anything."""
    path, equals, text = override.partition("=")
    if not equals or not path or any(not part for part in path.split(".")) or path.count(".") > DEEPEST:
        message = f"an override must look like key.path=value, not {shortened(override)}"
        return Problem("", message, COMMAND_LINE, code="wrong_form")
    try:
        value = plain_values(text)
    except YAMLError as error:
        why = told(error).removeprefix("line 1: ")
        return Problem(path, f"{shortened(text)} is not a YAML value: {why}", COMMAND_LINE, code="not_yaml")
    return assign(source, path, value, COMMAND_LINE)


def assign(source: Source, path: str, value: Any, origin: str) -> Problem | None:
    """Sets one value, making the sections around it; returns what is wrong with the path, if anything.

    Args:
        source: Where to set it.
        path: Its dotted path.
        value: The value, which replaces a whole section where there was one.
        origin: Where the value was set.
    """
    *sections, key = path.split(".")
    node = source.values
    for depth, section in enumerate(sections):
        inner = node.setdefault(section, {})
        if not isinstance(inner, dict):
            here = ".".join(sections[: depth + 1])
            return Problem(
                path, f"{here} is a single value and has no settings in it", origin, code="wrong_type"
            )
        node = inner
    node[key] = value
    for known in [known for known in source.origins if known.startswith(f"{path}.")]:
        del source.origins[known]
    source.origins[path] = origin
    return None


def validate(
    model: type[SettingsType], source: Source, *, section: str = ""
) -> tuple[SettingsType | None, list[Problem]]:
    """Checks raw settings against a model.

    Args:
        model: The settings model.
        source: Where the values came from.
        section: Dotted path of the part of `source.values` to check; all of it when empty.

    Returns:
        The settings (none when there are problems) and every problem.
    """
    values: Any = source.values
    for part in filter(None, section.split(".")):
        values = values.get(part, {}) if isinstance(values, Mapping) else values
    try:
        return model.model_validate(values), []
    except ValidationError as error:
        return None, _problems(model, error.errors(), source, section, values)


def variants(field_info: FieldInfo | None) -> tuple[type[BaseModel], ...]:
    """Returns the sections a setting can hold: none, one, or several that a key in them tells apart."""
    annotation = field_info.annotation if field_info else None
    union = get_origin(annotation) in (Union, UnionType)
    options = get_args(annotation) if union else (annotation,)
    return tuple(kind for kind in options if isinstance(kind, type) and issubclass(kind, BaseModel))


def _problems(
    model: type[BaseModel], errors: Sequence[Mapping[str, Any]], source: Source, section: str, values: Any
) -> list[Problem]:
    """Turns pydantic's errors into ours: one a setting, however many alternatives its type has."""
    found: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for item in errors:
        found.setdefault(_names(model, item, values), []).append(item)
    problems = []
    for names, items in found.items():
        if any(other[: len(names)] == names and len(other) > len(names) for other in found):
            continue  # another alternative of the type came further and says more
        path = ".".join([*filter(None, [section]), *names])
        ordered = sorted(items, key=lambda item: item["type"] != "value_error")  # it says the most
        error = ordered[0].get("ctx", {}).get("error")
        if isinstance(error, SettingErrors):
            messages = {str(each): each.code for each in error.errors}
        else:
            messages = {_message(model, names, ordered, values): code_of_validation(ordered[0], "invalid")}
        problems += [
            Problem(path, message, _origin(source, path, message), code=code)
            for message, code in messages.items()
        ]
    return problems


def _origin(source: Source, path: str, message: str) -> str:
    """Returns where a setting was set; of a section, the first of its settings that a message names."""
    words = re.findall(rf"(?:\b{re.escape(path)}\.)?(\w+(?:\.\w+)*)", message) if path else []
    named = (f"{path}.{word}" for word in words)
    known = (each for each in named if any(f"{own}.".startswith(f"{each}.") for own in source.origins))
    return source.origin(next(known, path))


def _names(model: type[BaseModel], item: Mapping[str, Any], values: Any) -> tuple[str, ...]:
    """Returns the path of an error without pydantic's names for the alternatives of a type."""
    names, node = [], values
    section: type[BaseModel] | None = model
    parts = iter(item["loc"])
    for part in parts:
        if (isinstance(node, Mapping) and part in node) or (isinstance(node, list) and isinstance(part, int)):
            node = node[part]
        elif item["type"] != "missing" or part != item["loc"][-1]:
            continue
        names.append(str(part))
        field_info = section.model_fields.get(str(part)) if section else None
        section = _chosen(field_info, node)
        if field_info and field_info.discriminator:
            next(parts, None)  # which of the sections it is, which is no key
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        names.append(item["ctx"]["discriminator"].strip("'"))
    return tuple(names)


def _message(
    model: type[BaseModel], names: Sequence[str], items: Sequence[Mapping[str, Any]], values: Any
) -> str:
    """Says what is wrong with one setting and what is allowed."""
    kind = items[0]["type"]
    if kind == "extra_forbidden":
        return _unknown_key(model, names, values)
    if kind == "missing":
        return "must be set"
    if kind == "union_tag_not_found":
        field_info, _ = _place(model, names[:-1], values)
        allowed = (repr(other.model_fields[names[-1]].default) for other in variants(field_info))
        return f"must be set, to one of {', '.join(allowed)}"
    if kind == "union_tag_invalid":
        return (
            f"must be one of {items[0]['ctx']['expected_tags']}, not {_given(items[0]['input'][names[-1]])}"
        )
    if kind == "value_error":
        return str(items[0]["msg"]).removeprefix("Value error, ")
    wanted = " or ".join(dict.fromkeys(item["msg"].removeprefix("Input should be ") for item in items))
    wanted = re.sub(
        r"a valid dictionary( or (instance of \w+|object to extract fields from))?", "a mapping", wanted
    )
    wanted = re.sub(r" after validation, not \d+", "", wanted)
    wanted = wanted.replace("String should match pattern", "text of the form")
    wanted = wanted.replace("String should have", "text of").replace("List should have", "a list of")
    for name, plain in _PLAIN.items():
        wanted = wanted.replace(f"a valid {name}", plain)
    return f"must be {wanted}, not {_given(items[0]['input'])}"


def _given(value: object) -> str:
    """Returns a value as a message shows it; of what may be the text of a note only how much it is."""
    shown = "null" if value is None else repr(value)
    if len(shown) <= LONGEST_SHOWN and "\\n" not in shown:
        return shown
    if isinstance(value, str):
        return f"a text of {len(value)} characters"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, Sized) else "")


def _unknown_key(model: type[BaseModel], names: Sequence[str], values: Any) -> str:
    """Says which keys are allowed in the place of an unknown one, and which one may be meant."""
    field_info, section = _place(model, names[:-1], values)
    if section is None:
        return "unknown key"
    key, allowed = names[-1], list(section.model_fields)
    meant = did_you_mean(key, allowed)
    hint = f"{meant} " if meant else ""
    tag = field_info.discriminator if field_info else None
    owners = [other for other in variants(field_info) if isinstance(tag, str) and key in other.model_fields]
    if owners and tag is not None:
        names = " or ".join(str(other.model_fields[str(tag)].default) for other in owners)
        hint = f"it belongs to {tag}: {names}. "
    return f"unknown key; {hint}Allowed here: {', '.join(sorted(allowed))}"


def _place(
    model: type[BaseModel], names: Sequence[str], values: Any
) -> tuple[FieldInfo | None, type[BaseModel] | None]:
    """Returns the setting of a path, none for the whole, and the section that stands there, if one does."""
    field_info, section = None, model
    for name in names:
        field_info = section.model_fields.get(name)
        values = values.get(name) if isinstance(values, Mapping) else None
        inner = _chosen(field_info, values)
        if inner is None:
            return field_info, None
        section = inner
    return field_info, section


def _chosen(field_info: FieldInfo | None, value: Any) -> type[BaseModel] | None:
    """Returns the section that a value is meant for; the first one if it does not say."""
    options = variants(field_info)
    key = field_info.discriminator if field_info else None
    if isinstance(key, str) and isinstance(value, Mapping):
        named = value.get(key)
        options = tuple(kind for kind in options if kind.model_fields[key].default == named) or options
    return options[0] if options else None

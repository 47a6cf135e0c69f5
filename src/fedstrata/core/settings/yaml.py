"""YAML as configurations have it: version 1.2, in which `2e-5` is a number, `off` and `2020-01-31` are words.

What no person writes, and would take long to read, is refused: endless, deeply nested, or made of aliases.
"""

import io
import sys
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.composer import Composer, MaxDepthExceededError
from ruamel.yaml.constructor import ConstructorError, RoundTripConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarbool import ScalarBoolean
from ruamel.yaml.scanner import RoundTripScanner, ScannerError

LARGEST = 2**20
"""Bytes of a configuration, or characters of an override; the largest there are name some thousand labels."""
DEEPEST = 32
"""How many sections and lists may lie within each other."""
MOST_VALUES = 50_000
"""How many values there may be, those included that aliases repeat."""
MOST_ALIASES = 200
"""How often something may be repeated by an alias; each may hold others."""
_TOO_DEEP = f"more than {DEEPEST} sections or lists lie within each other"
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
"""What YAML's tags mean."""


def plain_values(text: str | bytes, file: str = "", origins: dict[str, str] | None = None) -> Any:
    """Returns the values of a text: mappings, lists, and what stands in them.

    Args:
        text: The text, or its bytes in UTF-8.
        file: The name of the file that it is from.
        origins: Takes up, for the dotted path of every key, the file and the line.

    Raises:
        YAMLError: It is no YAML, or more than a person writes.
        UnicodeDecodeError: The bytes are no UTF-8.
    """
    if len(text) > LARGEST:
        raise YAMLError(f"it is larger than {LARGEST} bytes, the most that is read")
    text = text if isinstance(text, str) else text.decode()
    yaml = YAML(typ="rt")
    yaml.Scanner, yaml.Composer, yaml.Constructor = _Scanner, _Composer, _Constructor
    yaml.max_depth = DEEPEST
    try:
        return _Plain(file, {} if origins is None else origins).of(yaml.load(text))
    except MaxDepthExceededError as error:
        raise ConstructorError(None, None, _TOO_DEEP, error.problem_mark) from None


def told(error: YAMLError) -> str:
    """Returns what is wrong and where, without what the library says of itself."""
    if not isinstance(error, MarkedYAMLError) or error.problem is None:
        return " ".join(str(error).split())
    where = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
    return f"{where}{' '.join(error.problem.split())}"


def shortened(value: object) -> str:
    """Returns a value as a message shows it."""
    return _short(repr(value))


def as_yaml(value: object) -> str:
    """Returns the value of a setting as a message shows it: as YAML has it, on one line."""
    writer, text = YAML(typ="safe", pure=True), io.StringIO()
    writer.default_flow_style, writer.width = True, sys.maxsize
    writer.dump([value], text)  # in a list, since a value by itself would end with the end of a document
    return _short(text.getvalue().strip()[1:-1])


def as_document(values: object) -> bytes:
    """Returns a whole configuration as a file has it."""
    writer, text = YAML(typ="safe", pure=True), io.StringIO()
    writer.default_flow_style = False
    writer.dump(values, text)
    return text.getvalue().encode()


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


class _Scanner(RoundTripScanner):
    """Finds YAML's tokens, with no more brackets open than values may lie within each other.

    It looks far ahead of each of them: what many take is seconds, before a composer has any node to count.
    """

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803 - ruamel's name
        """Takes up a bracket."""
        if self.flow_level >= DEEPEST:
            raise ScannerError(None, None, _TOO_DEEP, self.reader.get_mark())
        super().fetch_flow_collection_start(TokenClass, to_push)


class _Composer(Composer):
    """Puts YAML's nodes together, with no more aliases than a person writes."""

    _aliases = 0

    def return_alias(self, a: Any) -> Any:
        """Returns the node that an alias stands for."""
        self._aliases += 1
        if self._aliases > MOST_ALIASES:
            raise YAMLError(f"it holds more than {MOST_ALIASES} aliases, the most that are read")
        return a


class _Constructor(RoundTripConstructor):
    """Makes values of YAML's nodes; each that cannot be made is an error that names it."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Returns the value of a node."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError):  # Python's own, of a value that its tag does not fit
            kind = str(node.tag).rpartition(":")[2]
            message = f"{shortened(node.value)} cannot be read as {_KINDS.get(kind, kind)}"
            raise ConstructorError(None, None, message, node.start_mark) from None

    def refuse(self, node: Any) -> Any:
        """Refuses a tag that stands for no value of a setting."""
        message = f"the tag {shortened(str(node.tag))} is not known"
        raise ConstructorError(None, None, message, node.start_mark)


_Constructor.add_constructor(None, _Constructor.refuse)
_Constructor.add_constructor("tag:yaml.org,2002:timestamp", _Constructor.construct_yaml_str)


@dataclass(slots=True)
class _Plain:
    """Turns ruamel's nodes into plain values and notes the line of every key."""

    file: str
    origins: dict[str, str]
    _values: int = 0

    def of(self, node: Any, prefix: str = "", depth: int = 0) -> Any:
        """Returns the plain value of a node.

        Raises:
            YAMLError: Aliases make it too large or too deep.
        """
        self._values += 1
        if self._values > MOST_VALUES:
            raise YAMLError(f"it holds more than {MOST_VALUES} values, those included that aliases repeat")
        if depth > DEEPEST:
            raise YAMLError(_TOO_DEEP)
        if isinstance(node, CommentedMap):
            result = {}
            for key, value in node.items():
                path = f"{prefix}.{key}" if prefix else str(key)
                # What a merge key (<<) brought in has no line of its own.
                place = (node.lc.data or {}).get(key)
                self.origins[path] = f"{self.file}, line {place[0] + 1}" if place else self.file
                result[str(key)] = self.of(value, path, depth + 1)
            return result
        if isinstance(node, list):
            return [self.of(item, prefix, depth + 1) for item in node]
        if isinstance(node, ScalarBoolean):  # one with an anchor, which is an integer
            return bool(node)
        for kind in (bool, int, float, str):  # ruamel's scalars are subclasses that keep their spelling
            if isinstance(node, kind):
                return kind(node)
        return node

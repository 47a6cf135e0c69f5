"""The notation of the grammar: sentences with slots, annotations, scopes and alternatives.

{slot}            a rule of the grammar, or a fact about the patient (facts.py)
<label:...>       a mention (label in MENTION_TYPES) or a modifier (any other label)
[...]             a scope: a modifier applies to the mentions of the smallest scope that has any for it
(one|or another)  alternatives; parentheses without a bar are plain text
%wording%         a wording that a site may cut short (`shorthand` in words.yaml)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import NamedTuple, TypeAlias


class Slot(NamedTuple):
    """A place filled from a rule or by a fact; names are lower case."""

    name: str


class Shorthand(NamedTuple):
    """A wording a site may cut short."""

    wording: str


class Choice(NamedTuple):
    """Alternatives inside a sentence."""

    options: tuple[Template, ...]


class Scope(NamedTuple):
    """A part of a sentence that cues do not reach out of."""

    parts: Template


class Annotation(NamedTuple):
    """A mention or a modifier."""

    label: str
    parts: Template


Part: TypeAlias = str | Slot | Shorthand | Choice | Scope | Annotation
"""Plain text, or a place in it that is filled."""
Template: TypeAlias = tuple[Part, ...]

_NOTHING = "\0"
_TOKEN = re.compile(r"\{[^{}]+\}|<[a-z ]+:|%[^%]+%|[>\[\]()|]|[^{}<>%\[\]()|]+")


@cache
def parse(source: str) -> Template:
    """Parses one alternative of a rule.

    Args:
        source: The text, in the notation above.

    Raises:
        ValueError: A bracket is not closed or not opened.
    """
    tokens = _TOKEN.findall(source)
    if "".join(tokens) != source:
        raise ValueError(f"cannot read the template {source!r}")
    try:
        return _sequence(iter([*tokens, ""]), "")[0]
    except ValueError as error:
        raise ValueError(f"{error} in the template {source!r}") from None


def _sequence(tokens: Iterator[str], *closing: str) -> tuple[Template, str]:
    """Reads the parts up to the first of some tokens; returns them, and which one it was."""
    parts: list[Part] = []
    while (token := next(tokens)) not in closing:
        parts.append(_part(token, tokens))
    return tuple(parts), token


def _part(token: str, tokens: Iterator[str]) -> Part:
    """Reads the part that begins with a token; the text ends with an empty one."""
    match token[:1]:
        case "(":
            options, end = [], "|"
            while end == "|":
                option, end = _sequence(tokens, "|", ")")
                options.append(option)
            if len(options) == 1:  # parentheses in the text itself
                options = [("(", *options[0], ")")]
            return Choice(tuple(options))
        case "[":
            return Scope(_sequence(tokens, "]")[0])
        case "<":
            return Annotation(token[1:-1], _sequence(tokens, ">")[0])
        case "{":
            return Slot(token[1:-1].lower())
        case "%":
            return Shorthand(token[1:-1])
        case ">" | "]" | ")" | "|":
            raise ValueError(f"unexpected {token!r}")
        case "":
            raise ValueError("missing bracket")
    return token


def without(source: str, words: Collection[str]) -> str:
    """Removes from a template's inline alternatives those that hold one of the words.

    Args:
        source: The template.
        words: Strings that do not fit, for example because of the patient's sex.

    Returns:
        The rest, or the empty string where nothing fits.
    """

    def prune(match: re.Match[str]) -> str:
        kept = [option for option in match[1].split("|") if not any(word in option for word in words)]
        return f"({'|'.join(kept)})" if len(kept) > 1 else (kept[0] if kept else _NOTHING)

    pruned = re.sub(r"\(([^()]*\|[^()]*)\)", prune, source)
    return "" if _NOTHING in pruned or any(word in pruned for word in words) else pruned

"""The notation of the grammar: sentences with slots, annotations, scopes and alternatives.

{slot}            a rule of the grammar, or a fact about the patient (facts.py)
<label:...>       a mention (label in MENTION_TYPES) or a modifier (any other label)
[...]             a scope: a modifier applies to the mentions of the smallest scope that has any for it
(one|or another)  alternatives; parentheses without a bar are plain text
%wording%         a wording that a site may cut short (`shorthand` in words.yaml)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Slot:
    """A place filled from a rule or by a fact; names are lower case."""

    name: str


@dataclass(frozen=True, slots=True)
class Shorthand:
    """A wording a site may cut short."""

    wording: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternatives inside a sentence."""

    options: tuple[Template, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """A part of a sentence that cues do not reach out of."""

    parts: Template


@dataclass(frozen=True, slots=True)
class Annotation:
    """A mention or a modifier."""

    label: str
    parts: Template


Part: TypeAlias = str | Slot | Shorthand | Choice | Scope | Annotation
"""Plain text, or a place in it that is filled."""
Template: TypeAlias = tuple[Part, ...]

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
    parts, end = _sequence(tokens, 0, closing="")
    if end != len(tokens):
        raise ValueError(f"unexpected {tokens[end]!r} in the template {source!r}")
    return parts


def _sequence(tokens: Sequence[str], at: int, closing: str) -> tuple[Template, int]:
    parts: list[Part] = []
    while at < len(tokens) and tokens[at] not in closing.split():
        part, at = _part(tokens, at)
        parts.append(part)
    if closing and at == len(tokens):
        raise ValueError(f"missing one of {closing!r} in the template {''.join(tokens)!r}")
    return tuple(parts), at


def _part(tokens: Sequence[str], at: int) -> tuple[Part, int]:
    token = tokens[at]
    if token[0] == "(":
        return _choice(tokens, at + 1)
    if token[0] == "[":
        parts, end = _sequence(tokens, at + 1, closing="]")
        return Scope(parts), end + 1
    if token[0] == "<":
        parts, end = _sequence(tokens, at + 1, closing=">")
        return Annotation(token[1:-1], parts), end + 1
    if token in (">", "]", ")", "|"):
        raise ValueError(f"unexpected {token!r} in the template {''.join(tokens)!r}")
    if token[0] == "{":
        return Slot(token[1:-1].lower()), at + 1
    if token[0] == "%":
        return Shorthand(token[1:-1]), at + 1
    return token, at + 1


def _choice(tokens: Sequence[str], at: int) -> tuple[Part, int]:
    options: list[Template] = []
    while True:
        parts, at = _sequence(tokens, at, closing="| )")
        options.append(parts)
        if tokens[at] == ")":
            break
        at += 1
    if len(options) == 1:  # parentheses in the text itself
        return Choice((("(", *options[0], ")"),)), at + 1
    return Choice(tuple(options)), at + 1


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


_NOTHING = "\0"

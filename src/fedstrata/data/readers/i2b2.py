r"""i2b2-2010: `ID.txt`, one sentence a line and tokens apart, with `ID.con`, perhaps `ID.ast` and `ID.rel`.

    c="renal carcinoma" 8:4 8:5||t="problem"
    c="renal carcinoma" 8:4 8:5||t="problem"||a="present"
    c="nephrectomy" 8:1 8:1||r="TrAP"||c="renal carcinoma" 8:4 8:5

Lines count from 1, tokens from 0, both ends included; a concept may span lines. Tokens are what ASCII white
space sets apart, as the challenge's byte-oriented tools see them: a no-break space is part of its token.

- `.con` lines become spans.
- `.ast` lines say of a problem whether it is present, and so on (`ASSERTIONS`): `Span.assertion`.
- `.rel` lines become relations. The concept that a line names first is `Relation.head`: the treatment or the
  test, or the first of two problems; the problem that it names last is `Relation.tail`. A text without a
  `.rel` file where others of the corpus have one `lacks_relations`.

Tools disagree on one thing: whether a line that begins with white space begins with an empty token (as a
split on `\s+` in Java gives it) or not. The quoted texts decide, for the whole file. They are compared
without regard to case, since `.con` files quote in lower case, or to the amount of white space. What `.ast`
and `.rel` files speak of must be in the `.con` file, at the same tokens.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import DataError, SettingError
from fedstrata.data.readers.files import ABOUT, Format, Source, filled_lines, read_text, stem

CONCEPTS_SUFFIX, ASSERTIONS_SUFFIX, RELATIONS_SUFFIX = ".con", ".ast", ".rel"
ASSERTIONS = ("present", "absent", "possible", "conditional", "hypothetical", "associated_with_someone_else")
"""What an `.ast` line may say of a problem."""

_MENTION = r'c="(.*)" ([0-9]{1,9}):([0-9]{1,9}) ([0-9]{1,9}):([0-9]{1,9})'
_CONCEPT = re.compile(rf'{_MENTION}\|\|t="([^"]+)"')
_ASSERTION = re.compile(rf'{_MENTION}\|\|t="([^"]+)"\|\|a="({"|".join(ASSERTIONS)})"')
_RELATION = re.compile(rf'{_MENTION}\|\|r="([^"]+)"\|\|{_MENTION}')
_SHAPE = 'c="TEXT" LINE:TOKEN LINE:TOKEN'
_TOKEN = re.compile(r"[^ \t\r\f\v]+")
_TOKEN_OR_EMPTY_START = re.compile(r"^(?=[ \t\r\f\v])|[^ \t\r\f\v]+")

Place = tuple[int, int]
"""Line and token."""
Lines = list[list[tuple[int, int]]]
"""The `(start, end)` of every token, line by line."""
_Concepts = dict[tuple[Place, Place], dict[str, Span]]
"""The concepts of a text by their place and type."""


@dataclass(frozen=True, slots=True)
class _Mention:
    """What a line quotes, and where it says that stands; in a `.con` file with its type."""

    line: int
    quote: str
    first: Place
    last: Place
    label: str = ""

    @property
    def where(self) -> str:
        return "{}:{} to {}:{}".format(*self.first, *self.last)

    def quotes(self, text: str) -> bool:
        return self.quote.casefold().split() == text.casefold().split()


def _tokens(text: str, pattern: re.Pattern[str]) -> Lines:
    lines = text.split("\n")
    begins = accumulate((len(line) + 1 for line in lines), initial=0)
    return [
        [(begin + match.start(), begin + match.end()) for match in pattern.finditer(line)]
        for begin, line in zip(begins, lines, strict=False)
    ]


def _rows(path: Path, pattern: re.Pattern[str], what: str, shape: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Yields the number and the parts of each line of a file that is not blank."""
    for number, line in filled_lines(path):
        match = pattern.fullmatch(line.strip())
        if match is None:
            raise DataError(path, f"malformed {what} line", line=number, expected=shape)
        yield number, match.groups()


def _mention(path: Path, number: int, parts: Sequence[str], label: str = "") -> _Mention:
    quote, *places = parts
    numbers = [int(place) for place in places]
    mention = _Mention(number, quote, (numbers[0], numbers[1]), (numbers[2], numbers[3]), label)
    if mention.last < mention.first:
        raise DataError(
            path, f"the concept runs backwards, from {mention.where}", line=number, code="out_of_range"
        )
    return mention


def _position(tokens: Lines, place: Place) -> tuple[int, int]:
    line, token = place
    if not 1 <= line <= len(tokens):
        raise SettingError(f"the text has no line {line}, it has {len(tokens)}", "out_of_range")
    if token >= len(tokens[line - 1]):
        raise SettingError(
            f"line {line} of the text has no token {token}, it has {len(tokens[line - 1])}", "out_of_range"
        )
    return tokens[line - 1][token]


def _span(text: str, tokens: Lines, concept: _Mention) -> Span:
    """Finds a concept in the text; raises `SettingError` if it is not there."""
    start, end = _position(tokens, concept.first)[0], _position(tokens, concept.last)[1]
    quoted = text[start:end].lstrip()  # an empty first token leaves white space before the mention
    if not quoted or not concept.quotes(quoted):
        raise SettingError(
            f"the concept ({concept.label}) does not quote the text at {concept.where}", "misquoted"
        )
    return Span(end - len(quoted), end, concept.label)


def _spans(path: Path, text: str, concepts: list[_Mention]) -> list[Span]:
    problems = []
    for pattern in (_TOKEN, _TOKEN_OR_EMPTY_START):
        tokens = _tokens(text, pattern)
        spans = []
        for concept in concepts:
            try:
                spans.append(_span(text, tokens, concept))
            except SettingError as error:
                problems.append((concept.line, error))
                break
        else:
            return spans
    line, wrong = problems[0]
    expected = "lines counted from 1 and tokens from 0"
    raise DataError(path, str(wrong), line=line, expected=expected, code=wrong.code)


def _spans_at(text: str, concepts: _Concepts, path: Path, mention: _Mention) -> Mapping[str, Span]:
    """Returns the spans at the place of a mention in another file, by their type."""
    spans = concepts.get((mention.first, mention.last))
    if spans is None:
        message = f"no concept stands at {mention.where}"
        raise DataError(
            path, message, line=mention.line, expected="a concept of the .con file", code="not_found"
        )
    span = next(iter(spans.values()))
    if not mention.quotes(text[span.start : span.end]):
        message = f"the concept does not quote the text at {mention.where}"
        raise DataError(
            path, message, line=mention.line, expected="the text of the concept there", code="misquoted"
        )
    return spans


def _assertions(path: Path, text: str, concepts: _Concepts) -> dict[Span, str]:
    """Returns what a file says of spans."""
    said: dict[Span, str] = {}
    shape = f'{_SHAPE}||t="problem"||a="{"|".join(ASSERTIONS)}"'
    for number, (*parts, label, assertion) in _rows(path, _ASSERTION, "assertion", shape):
        mention = _mention(path, number, parts)
        spans = _spans_at(text, concepts, path, mention)
        if label not in spans:
            message = f"the concept at {mention.where} is no {label}"
            raise DataError(
                path, message, line=number, expected=" or ".join(sorted(spans)), code="unknown_name"
            )
        if said.setdefault(spans[label], assertion) != assertion:
            message = f"the concept at {mention.where} was {said[spans[label]]}, and now is {assertion}"
            raise DataError(path, message, line=number, code="conflict")
    return said


def _relations(path: Path, text: str, concepts: _Concepts) -> Iterator[tuple[Span, Span, str]]:
    """Yields head, tail and type of each relation of a file."""
    shape = f'{_SHAPE}||r="TYPE"||{_SHAPE}'
    for number, parts in _rows(path, _RELATION, "relation", shape):
        mentions, label = (_mention(path, number, parts[:5]), _mention(path, number, parts[6:])), parts[5]
        # Of several types at one place the one that relations of this name are between (TrAP, TeRP, PIP).
        wanted = {"Tr": "treatment", "Te": "test"}.get(label[:2], "problem")
        first, second = (_spans_at(text, concepts, path, mention) for mention in mentions)
        yield first.get(wanted) or first[min(first)], second.get("problem") or second[min(second)], label


def read(source: Source) -> list[Document]:
    """Reads one text, its concepts, and what is said of them.

    Args:
        source: The `.txt` file, with its `.con` file or without one, and then the `.ast` and `.rel` files.

    Returns:
        One document, its id the file's name without the suffix. What is listed twice is kept once.

    Raises:
        DataError: A line does not follow the format, quotes another text than stands at its tokens, or speaks
            of a concept that is not listed.
    """
    name, text = stem(source.path, FORMAT.suffixes), read_text(source.path)
    lacks_relations = RELATIONS_SUFFIX in source.lacks
    if source.annotations is None:
        for path in source.further.values():
            raise DataError(
                path, "speaks of concepts that are not listed", expected=f"{name}.con", code="missing"
            )
        return [Document(name, text, lacks_relations=lacks_relations)]
    rows = _rows(source.annotations, _CONCEPT, "concept", f'{_SHAPE}||t="TYPE"')
    concepts = [_mention(source.annotations, line, parts, label) for line, (*parts, label) in rows]
    spans = _spans(source.annotations, text, concepts)
    by_place: _Concepts = defaultdict(dict)
    for concept, span in zip(concepts, spans, strict=True):
        by_place[concept.first, concept.last][concept.label] = span
    others = source.further
    said = _assertions(others[ASSERTIONS_SUFFIX], text, by_place) if ASSERTIONS_SUFFIX in others else {}
    related = _relations(others[RELATIONS_SUFFIX], text, by_place) if RELATIONS_SUFFIX in others else iter(())
    ordered = sorted(set(spans))
    index = {span: number for number, span in enumerate(ordered)}
    relations = dict.fromkeys(Relation(index[head], index[tail], label) for head, tail, label in related)
    asserted = tuple(replace(span, assertion=said.get(span, "")) for span in ordered)
    return [Document(name, text, asserted, tuple(relations), lacks_relations=lacks_relations)]


FORMAT = Format(
    read,
    suffixes=(".txt",),
    annotation_suffix=CONCEPTS_SUFFIX,
    further_suffixes=(ASSERTIONS_SUFFIX, RELATIONS_SUFFIX),
    text_folder="txt",
    annotation_folders=("concept", "concepts"),
    passed_over=ABOUT,
)

r"""BRAT stand-off: `ID.txt` and `ID.ann` (https://brat.nlplab.org/standoff.html).

- `T` lines become spans; several pieces (`0 5;16 23`) become `Span.fragments`, unless there is nothing or
  only white space between them: brat itself writes a mention that goes on in the next line as two pieces.
- `R` lines become relations: `R1<TAB>severity Arg1:T2 Arg2:T1` reads "T2 is the severity of T1", so Arg2 is
  `Relation.head` (the main mention) and Arg1 is `Relation.tail` (the modifier), as in MACCROBAT's
  `MODIFY Arg1:modifier Arg2:main`. Arguments of other names are taken in their order.
- `E` lines give names to triggers: an event stands for its trigger's span wherever it is referred to. Each of
  its arguments becomes a relation from the trigger (head) to the argument (tail), labelled with the role. Of
  several arguments in one role the second and later are numbered (`Theme:T2 Theme2:T3`): all are of the role.
- `*` lines name members of a set that all stand in one relation to each other, in both directions (`Equiv`;
  MACCROBAT's `OVERLAP`). Each becomes the tail of a relation whose head is the member that comes first in the
  text: members of a set of n are n - 1 relations, the same in whatever order they are listed, and not one
  for each pair.
- Attributes (`A`, `M`), normalisations (`N`) and notes (`#`) are checked and left out.

The `annotation.conf` of a folder (https://brat.nlplab.org/configuration.html) says what is annotated in
it and below it: the entities, relations, events and their roles that annotators had to choose from
(`Document.annotates`). The nearest one counts; what is annotated beside what it names was looked for as well.

Offsets count Unicode code points. Tools disagree on whether they count a byte order mark, and whether `\r\n`
is one character or two (brat's own interface and server differ), so the quoted texts decide: the first way of
counting under which every quote is found at its offsets is the one the document's text keeps.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import DataError, SettingError
from fedstrata.data.readers.files import ABOUT, BYTE_ORDER_MARK, Format, Source, filled_lines, read_text, stem
from fedstrata.data.readers.labels import label_from_file

_TEXT_BOUND = re.compile(r"(\S+) ([0-9]{1,12} [0-9]{1,12}(?:;[0-9]{1,12} [0-9]{1,12})*)")
_IDENTIFIER = re.compile(r"[A-Z][0-9]\S*")
_MEMBER = re.compile(r"[TE][0-9]\S*")
_ARGUMENT = re.compile(rf"(\S+):({_MEMBER.pattern})")
_NUMBERED = re.compile(r"(.*?\D)[0-9]+")
_TYPED = ("entities", "relations", "events")
"""The sections of a scheme that name types."""
_SECTION = re.compile(r"\[(.*)\]")
_SEPARATOR = re.compile(r"-+")
_ROLE = re.compile(r"(?:^|,)\s*([^\s,:<>?*+{}]+)[?*+]?(?:\{[^}]*\})?\s*:")
_SHAPES = {
    "T": "ID<TAB>TYPE START END[;START END]<TAB>TEXT",
    "E": "ID<TAB>TYPE:TRIGGER [ROLE:ID]...",
    "R": "ID<TAB>TYPE ROLE:ID ROLE:ID",
    "A": "ID<TAB>NAME ID [VALUE]",
    "M": "ID<TAB>NAME ID",
    "N": "ID<TAB>NAME ID RESOURCE:ENTRY<TAB>TEXT",
    "*": "*<TAB>NAME ID ID [ID]...",
    "#": "ID<TAB>NAME ID<TAB>TEXT",
}


@dataclass(frozen=True, slots=True)
class _TextBound:
    """One `T` line."""

    id: str
    line: int
    label: str
    pieces: tuple[tuple[int, int], ...]
    quote: str

    def span(self, text: str) -> Span:
        pieces = [self.pieces[0]]
        for start, end in self.pieces[1:]:
            if text[pieces[-1][1] : start].strip():
                pieces.append((start, end))
            else:
                pieces[-1] = (pieces[-1][0], end)
        return Span(pieces[0][0], pieces[-1][1], self.label, tuple(pieces) if len(pieces) > 1 else ())


_Related = tuple[int, str, tuple[str, ...]]
"""A line, its label, and the identifiers that it relates: a head and its tail, or the members of a set."""


@dataclass(slots=True)
class _AnnotationFile:
    """The lines of one `.ann` file, as they are read."""

    path: Path
    text_bound: dict[str, _TextBound] = field(default_factory=dict)
    triggers: dict[str, tuple[int, str]] = field(default_factory=dict)
    links: list[_Related] = field(default_factory=list)
    sets: list[_Related] = field(default_factory=list)
    references: list[tuple[int, str]] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def take(self, line: int, content: str) -> None:
        """Takes in one line of the file."""
        kind = content[0]
        if kind not in _SHAPES:
            expected = f"a line that begins with one of {' '.join(_SHAPES)}"
            raise DataError(
                self.path, "no known kind of annotation", line=line, expected=expected, code="unknown_name"
            )
        fields = content.split("\t", 2)
        words = fields[1].split() if len(fields) > 1 else []
        if kind in "TER":
            if not _IDENTIFIER.fullmatch(fields[0]):
                raise self._malformed(line, kind)
            if fields[0] in self.ids:
                raise DataError(
                    self.path, f"{fields[0]} is defined a second time", line=line, code="duplicate"
                )
            self.ids.add(fields[0])
        if kind == "T":
            self._take_text_bound(line, fields)
        elif kind == "E":
            self._take_event(line, fields[0], words)
        elif kind == "R":
            self._take_relation(line, words)
        elif len(words) < 2:
            raise self._malformed(line, kind)
        elif kind == "*":
            name, *members = words
            if not all(_MEMBER.fullmatch(member) for member in members):
                raise self._malformed(line, kind)
            self.sets.append((line, label_from_file(name), tuple(members)))
        elif kind != "#":  # notes may be about anything, a line that was deleted since included
            if not _IDENTIFIER.fullmatch(words[1]):
                raise self._malformed(line, kind)
            self.references.append((line, words[1]))

    def _malformed(self, line: int, kind: str) -> DataError:
        return DataError(self.path, f"malformed {kind} line", line=line, expected=_SHAPES[kind])

    def _take_text_bound(self, line: int, fields: list[str]) -> None:
        head = _TEXT_BOUND.fullmatch(fields[1].rstrip()) if len(fields) == 3 else None
        if head is None:
            raise self._malformed(line, "T")
        pieces = sorted(
            (int(start), int(end)) for start, end in (piece.split() for piece in head[2].split(";"))
        )
        for start, end in pieces:
            if start >= end:
                message = f"{fields[0]}: {start} {end} is no stretch of text"
                raise DataError(self.path, message, line=line, expected="START < END", code="out_of_range")
        for before, after in pairwise(pieces):
            if after[0] < before[1]:
                both = f"{before[0]} {before[1]} and {after[0]} {after[1]}"
                raise DataError(
                    self.path, f"{fields[0]}: its pieces {both} overlap", line=line, code="conflict"
                )
        label = label_from_file(head[1])
        self.text_bound[fields[0]] = _TextBound(fields[0], line, label, tuple(pieces), fields[2])

    def _take_event(self, line: int, name: str, words: list[str]) -> None:
        (_, trigger), *arguments = self._arguments(line, "E", words) or [("", "")]
        if not trigger:
            raise self._malformed(line, "E")
        self.triggers[name] = (line, trigger)
        roles = {role for role, _ in arguments}
        for role, target in arguments:
            numbered = _NUMBERED.fullmatch(role)
            shared = numbered[1] if numbered and numbered[1] in roles else role
            self.links.append((line, label_from_file(shared), (name, target)))

    def _take_relation(self, line: int, words: list[str]) -> None:
        arguments = self._arguments(line, "R", words[1:])
        if len(arguments) != 2:
            raise self._malformed(line, "R")
        if [role for role, _ in arguments] == ["Arg2", "Arg1"]:
            arguments.reverse()
        (_, tail), (_, head) = arguments
        self.links.append((line, label_from_file(words[0]), (head, tail)))

    def _arguments(self, line: int, kind: str, words: list[str]) -> list[tuple[str, str]]:
        """Returns the role and the identifier of each `ROLE:ID` word."""
        matches = [_ARGUMENT.fullmatch(word) for word in words]
        if not all(matches):
            raise self._malformed(line, kind)
        return [(match[1], match[2]) for match in matches if match]

    def resolve(self, line: int, name: str) -> str:
        """Returns the `T` identifier that a `T` or `E` identifier stands for."""
        defined_in, target = self.triggers.get(name, (line, name))
        if target not in self.text_bound:
            raise DataError(
                self.path,
                f"{target} is not defined in this file",
                line=defined_in,
                expected="a T line",
                code="not_found",
            )
        return target

    def relations(self, index: Mapping[str, int]) -> Iterator[Relation]:
        """Yields the relations between spans, given the rank of each `T` identifier's span in the text.

        A set may name one span several times: by its own identifier and by that of an event.
        """
        for line, label, members in self.links:
            head, tail = (index[self.resolve(line, name)] for name in members)
            yield Relation(head, tail, label)
        in_sets = dict[Relation, None]()
        for line, label, members in self.sets:
            first, *others = sorted({index[self.resolve(line, name)] for name in members})
            in_sets |= dict.fromkeys(Relation(first, other, label) for other in others)
        yield from in_sets

    def check_references(self) -> None:
        """Checks that every event has its trigger and every left-out annotation its target."""
        for name, (line, _) in self.triggers.items():
            self.resolve(line, name)
        for line, name in self.references:
            if name not in self.ids:
                raise DataError(self.path, f"{name} is not defined in this file", line=line, code="not_found")


def _ways_of_counting(decoded: str) -> Iterator[str]:
    r"""Yields the texts that offsets may count: without and with a mark, and with `\r\n` as two or as one."""
    bare = decoded.removeprefix(BYTE_ORDER_MARK)
    for text in (bare, decoded) if bare != decoded else (bare,):
        yield text
        if "\r\n" in text:
            yield text.replace("\r\n", "\n")


def _mismatch(text: str, annotation: _TextBound) -> SettingError | None:
    """Returns what is wrong with a `T` line under one way of counting; none if nothing is."""
    end = annotation.pieces[-1][1]
    if end > len(text):
        message = (
            f"{annotation.id} ({annotation.label}) ends at {end}, after the text's {len(text)} characters"
        )
        return SettingError(message, "out_of_range")
    found = " ".join(text[start:end] for start, end in annotation.pieces).split()
    # A comment may follow the quoted text after a further tab.
    if found in (annotation.quote.split(), annotation.quote.split("\t")[0].split()):
        return None
    offsets = ";".join(f"{start} {end}" for start, end in annotation.pieces)
    message = f"{annotation.id} ({annotation.label}) does not quote the text at {offsets}"
    return SettingError(message, "misquoted")


def _counted_text(decoded: str, annotations: _AnnotationFile) -> str:
    """Returns the text as the offsets count it."""
    problems = []
    for text in _ways_of_counting(decoded):
        wrong = ((line, _mismatch(text, line)) for line in annotations.text_bound.values())
        problem = next(((line.line, found) for line, found in wrong if found), None)
        if problem is None:
            return text
        problems.append(problem)
    number, found = problems[0]
    expected = "offsets in characters of the .txt file, from 0"
    raise DataError(annotations.path, str(found), line=number, expected=expected, code=found.code)


def read(source: Source) -> list[Document]:
    """Reads one text and its annotations.

    Args:
        source: The `.txt` file, with its `.ann` file or without one.

    Returns:
        One document, its id the file's name without the suffix.

    Raises:
        DataError: A line does not follow the format, refers to nothing, or quotes another text.
    """
    document_id = stem(source.path, FORMAT.suffixes)
    decoded = read_text(source.path, keep_mark=True)
    if source.annotations is None:
        return [Document(document_id, decoded.removeprefix(BYTE_ORDER_MARK))]
    annotations = _AnnotationFile(source.annotations)
    for number, line in filled_lines(source.annotations):
        annotations.take(number, line)
    annotations.check_references()
    text = _counted_text(decoded, annotations)
    spans = {name: annotation.span(text) for name, annotation in annotations.text_bound.items()}
    order = sorted(spans, key=lambda name: (spans[name].start, spans[name].end, spans[name].label))
    index = {name: position for position, name in enumerate(order)}
    relations = tuple(annotations.relations(index))
    return [Document(document_id, text, tuple(spans[name] for name in order), relations)]


def read_scheme(path: Path) -> frozenset[str] | None:
    """Reads which types annotators had to choose from.

    Args:
        path: An `annotation.conf`.

    Returns:
        The names of entities, relations and events, and the roles of events; none if it has none of these.

    Raises:
        DataError: It cannot be read, something stands before its first section, or a type has blanks in it.
    """
    names, section = set[str](), ""
    for number, line in filled_lines(path):
        content = line.strip()
        if heading := _SECTION.fullmatch(content):
            section = heading[1].strip().lower()
        elif content.startswith(("#", "<", "!")) or _SEPARATOR.fullmatch(content):
            continue  # a comment; what a macro stands for; a name for types below it; a line in a menu
        elif not section:
            expected = "[entities], [relations], [events] or [attributes] before it"
            raise DataError(path, "a line before the first section", line=number, expected=expected)
        elif section in _TYPED:
            name, *roles = content.split(maxsplit=1)
            if roles and ":" not in roles[0] and not roles[0].startswith("#"):
                expected = "one word, as in .ann files, and after it perhaps arguments (ROLE:TYPE)"
                message = f"a type in [{section}] of several words"
                raise DataError(path, message, line=number, expected=expected, code="wrong_form")
            names.add(name.partition("|")[0])  # after it what else the type is called
            if section == "events" and roles:
                names.update(_ROLE.findall(roles[0]))
    return frozenset(map(label_from_file, names)) or None


FORMAT = Format(
    read,
    suffixes=(".txt",),
    annotation_suffix=".ann",
    passed_over=ABOUT,
    scheme="annotation.conf",
    annotates=read_scheme,
)

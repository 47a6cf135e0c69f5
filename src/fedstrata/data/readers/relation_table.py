"""Tables of pairs of mentions: a row has a text and the words of two of its mentions, which are related.

    7001|No fever since aspirin was given.|fever|3|8|aspirin|15|22

So is the ADE corpus (`DRUG-AE.rel`). `data.relation_table` says which column holds what. Rows of one text are
one document with all their mentions and relations.

Where a mention stands is told, in this order, by

- its offsets, where the words stand there in the text;
- the distance of the two mentions, where the offsets count from the beginning of a longer text that the row's
  is a part of, and one pair of places alone lies so far apart;
- its words, where they occur once: as whole words, else in other capitals, else within words.

What none of these tells is refused, or its text is left out. White space in words does not count.
"""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import DataError
from fedstrata.core.settings.formats import RelationTableSettings
from fedstrata.data.readers.files import ABOUT, Format, Source, stem
from fedstrata.data.readers.tables import LONGEST_NAME, WITH_TABS, read_rows, unlike_a_name

logger = logging.getLogger(__name__)

Place = tuple[int, int]
"""Where a mention begins, and one past its end."""
_COMMAS = (".csv", ".csv.gz")
_PLAIN = (".rel", ".psv", ".txt")
_SUFFIXES = (*_PLAIN, *(f"{suffix}.gz" for suffix in _PLAIN), *_COMMAS, *WITH_TABS)


@dataclass(slots=True)
class _Text:
    """What the rows of one text say.

    Attributes:
        name: What it is from; empty if no column says so.
        line: The line of its first row.
        patient: Whose it is; empty if no column says so.
        triples: Head, tail and type of each relation, which is none where the row says there is none.
        lost: The line of the first row whose mentions cannot be told; none if all can.
    """

    name: str
    line: int
    patient: str
    triples: list[tuple[Span, Span, str | None]] = field(default_factory=list)
    lost: int | None = None

    def document(self, id_: str, text: str) -> Document:
        """Returns the text with its mentions and relations."""
        spans = sorted({span for head, tail, _ in self.triples for span in (head, tail)})
        index = {span: position for position, span in enumerate(spans)}
        related = [
            Relation(index[head], index[tail], label)
            for head, tail, label in self.triples
            if label is not None
        ]
        metadata = {"patient": self.patient} if self.patient else {}
        return Document(id_, text, tuple(spans), tuple(dict.fromkeys(related)), metadata=metadata)


def _occurrences(words: str, text: str) -> list[Place]:
    """Returns where words occur: whole and as written, else in other capitals, else within other words."""
    plain = r"\s+".join(map(re.escape, words.split()))
    whole = rf"(?<!\w){plain}(?!\w)"
    for pattern, flags in ((whole, re.NOFLAG), (whole, re.IGNORECASE), (plain, re.NOFLAG)):
        # A lookahead finds those that overlap.
        if found := [match.span(1) for match in re.finditer(f"(?=({pattern}))", text, flags)]:
            return found
    return []


def _places(
    text: str, words: tuple[str, str], offsets: tuple[Place, Place] | None
) -> tuple[Place, Place] | None:
    """Returns where the two mentions of a row stand; none if that cannot be told."""
    if offsets is not None and all(
        text[start:end].split() == own.split() for (start, end), own in zip(offsets, words, strict=True)
    ):
        return offsets
    found = [_occurrences(own, text) for own in words]
    if offsets is not None:
        apart = offsets[1][0] - offsets[0][0]
        fitting = [(head, tail) for head, tail in product(*found) if tail[0] - head[0] == apart]
        if len(fitting) == 1:
            return fitting[0]
    return (found[0][0], found[1][0]) if [len(own) for own in found] == [1, 1] else None


class _Table:
    """One file, as it is read."""

    def __init__(self, source: Source, settings: RelationTableSettings) -> None:
        self._path, self._settings = source.path, settings
        self.texts: dict[str, _Text] = {}

    def take(self, line: int, row: Mapping[str, str]) -> None:
        """Takes in a row."""
        settings, text = self._settings, row[self._settings.text]
        words = (self._words(line, row, settings.head), self._words(line, row, settings.tail))
        name, patient = (self._name(line, row, column) for column in (settings.id, settings.patient))
        own = self.texts.setdefault(text, _Text(name, line, patient))
        if (own.name, own.patient) != (name, patient):
            message = (
                f"the text of line {own.line} stands here once more, of another {settings.id or 'patient'}"
            )
            raise DataError(self._path, message, line=line, expected="one of each text", code="conflict")
        label = settings.relation_type
        if settings.relation is not None:
            label = self._name(line, row, settings.relation, empty=True)
        places = _places(text, words, self._offsets(line, row))
        if places is None:
            own.lost = own.lost or line
            return
        head, tail = (
            Span(*place, kind)
            for place, kind in zip(places, (settings.head_type, settings.tail_type), strict=True)
        )
        own.triples.append((head, tail, label or None))

    def _words(self, line: int, row: Mapping[str, str], column: str) -> str:
        if not row[column].strip():
            raise DataError(
                self._path,
                f"the column {column!r} is blank",
                line=line,
                expected="words of the text",
                code="missing",
            )
        return row[column]

    def _name(self, line: int, row: Mapping[str, str], column: str | None, *, empty: bool = False) -> str:
        if column is None:
            return ""
        name = row[column].strip()
        if not name and not empty:
            raise DataError(
                self._path, f"the column {column!r} is blank", line=line, expected="a name", code="missing"
            )
        if message := unlike_a_name(name):
            expected = f"at most {LONGEST_NAME}, in one line"
            raise DataError(
                self._path,
                f"the column {column!r} {message}",
                line=line,
                expected=expected,
                code="wrong_form",
            )
        return name

    def _offsets(self, line: int, row: Mapping[str, str]) -> tuple[Place, Place] | None:
        if self._settings.offsets is None:
            return None
        numbers = []
        for column in self._settings.offsets:
            if not re.fullmatch(r"[0-9]{1,12}", row[column].strip()):
                message = f"the column {column!r} holds no offset"
                raise DataError(
                    self._path, message, line=line, expected="a whole number from 0", code="wrong_type"
                )
            numbers.append(int(row[column]))
        return (numbers[0], numbers[1]), (numbers[2], numbers[3])

    def documents(self) -> Iterator[Document]:
        """Yields the texts all of whose mentions can be told.

        Raises:
            DataError: There are others, and they are not to be left out.
        """
        lost = [own.lost for own in self.texts.values() if own.lost is not None]
        if lost and self._settings.unfound == "refuse":
            more = f", and so in {len(lost) - 1} further texts" if len(lost) > 1 else ""
            message = f"where the two mentions stand in the text cannot be told{more}"
            expected = (
                "each once, or offsets; or data.relation_table.unfound: skip, which leaves such texts out"
            )
            raise DataError(self._path, message, line=lost[0], expected=expected, code="ambiguous")
        if lost:
            told = "texts left out whose mentions cannot be told"
            logger.warning("%s: %d of %d %s", self._path, len(lost), len(self.texts), told)
        times, numbers = Counter(own.name for own in self.texts.values()), defaultdict[str, int](int)
        for text, own in self.texts.items():
            numbers[own.name] += 1
            name = f"{own.name}-{numbers[own.name]}" if own.name and times[own.name] > 1 else own.name
            if own.lost is None:
                yield own.document(name or f"{stem(self._path, _SUFFIXES)}-{numbers['']}", text)


def read(source: Source, settings: RelationTableSettings = RelationTableSettings()) -> list[Document]:  # noqa: B008
    """Reads one table.

    Args:
        source: The file; `.gz` is decompressed.
        settings: Which column holds what.

    Returns:
        A document for each distinct text, in the order of the rows.

    Raises:
        DataError: The table is malformed, a column is missing or holds something else, or where mentions
            stand cannot be told.
    """
    table, name = _Table(source, settings), source.path.name.lower()
    separator = settings.separator or (
        None if name.endswith(_COMMAS) else "\t" if name.endswith(WITH_TABS) else "|"
    )
    for line, row in read_rows(
        source.path, required=settings.columns, names=settings.names, separator=separator
    ):
        table.take(line, row)
    return list(table.documents())


FORMAT = Format(read, _SUFFIXES, passed_over=ABOUT)
"""Its files are tables whatever they are called; those that say what a folder holds are passed over."""

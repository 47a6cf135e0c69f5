"""Documents and their annotations: what every reader gives and every task takes."""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Protocol, TypeVar

MENTION_TYPES = ("problem", "test", "treatment", "drug")
"""The four clinical mention types of Fed-MedLoRA."""

MODIFIERS_OF: Mapping[str, tuple[str, ...]] = {
    mention: tuple(modifiers)
    for mention, modifiers in json.loads((files("fedstrata.core") / "modifiers.json").read_text()).items()
}
"""The modifier types that may modify each mention type (Fed-MedLoRA, its annotation guideline)."""

MODIFIER_TYPES = tuple(sorted({modifier for allowed in MODIFIERS_OF.values() for modifier in allowed}))
"""The 16 modifier types."""


_WITH_ZEROS = re.compile(r"([+-]?\d+)\.0+")


def without_zeros(name: str) -> str:
    """Returns a whole number as it is written without decimals; other text as it is.

    Tables write the whole numbers of a column with missing values as floats.

    Example:
        >>> without_zeros("7.0"), without_zeros("7.5"), without_zeros("p7.0")
        ('7', '7.5', 'p7.0')
    """
    found = _WITH_ZEROS.fullmatch(name)
    return found[1] if found else name


@lru_cache(maxsize=2**16)
def spelling_key(name: str) -> str:
    """Returns what is equal for names that differ only by case, blanks, Unicode form or a final `.0`.

    Characters without width count as blanks.

    Example:
        >>> spelling_key(" Pat 7.0") == spelling_key("pat\u00a07.0"), spelling_key("7.0") == spelling_key("7")
        (True, True)
    """
    shown = (each for each in unicodedata.normalize("NFKC", name) if unicodedata.category(each) != "Cf")
    plain = unicodedata.normalize("NFKC", "".join(shown).casefold())
    return without_zeros("".join(plain.split())) or name.strip()


class _OfType(Protocol):
    """What has a type."""

    @property
    def label(self) -> str: ...


Labelled = TypeVar("Labelled", bound=_OfType)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """An annotated stretch of a document's text.

    Attributes:
        start: First character, counted in Unicode code points from 0.
        end: One past the last character.
        label: The type, for example `problem`.
        fragments: The `(start, end)` pieces of a discontinuous span, in order; empty for a continuous one.
            `start` and `end` are then the envelope of the pieces.
        assertion: What the text says of it, for example `absent`, where the data says so; else empty. It is
            no part of what spans are compared and shown by: no task learns it.
    """

    start: int
    end: int
    label: str
    fragments: tuple[tuple[int, int], ...] = ()
    assertion: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"a span must have 0 <= start < end, not start={self.start}, end={self.end}")


@dataclass(frozen=True, slots=True, order=True)
class Relation:
    """A typed, directed relation between two spans of one document.

    Attributes:
        head: Index into `Document.spans` of the main mention.
        tail: Index into `Document.spans` of the modifier.
        label: The type, for example `severity`.
    """

    head: int
    tail: int
    label: str


@dataclass(frozen=True, slots=True)
class Document:
    """One note with its annotations.

    Attributes:
        id: Unique within a corpus.
        text: The text, exactly as the offsets count it; of a pair the first one.
        spans: Annotated mentions, sorted by `(start, end, label)`.
        relations: Relations between them.
        labels: Labels of the whole document, for example ICD-9 codes.
        site: The site (hospital) the document belongs to; empty if unknown.
        metadata: Further facts, for example `speciality`.
        text_pair: The second text, which may be empty, of a document that is a pair of texts; none for a
            single text. Spans are of the first.
        lacks_relations: Whether nobody looked for relations in it: that it has none then says nothing.
        annotates: The types of mentions and relations and the labels that somebody looked for in it: that it
            has none of another then says nothing. Everything was looked for if none.
    """

    id: str
    text: str
    spans: tuple[Span, ...] = ()
    relations: tuple[Relation, ...] = ()
    labels: tuple[str, ...] = ()
    site: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    text_pair: str | None = None
    lacks_relations: bool = False
    annotates: frozenset[str] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or both texts of a pair."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing but white space in it."""
        return not any(text.strip() for text in self.texts)

    def looked_for(self, names: Iterable[str]) -> list[bool]:
        """Returns of some types or labels whether somebody looked for them in the document."""
        return [self.annotates is None or name in self.annotates for name in names]

    def of_looked_for(self, found: Iterable[Labelled]) -> list[Labelled]:
        """Returns of mentions or relations those of types that somebody looked for in the document."""
        return [each for each in found if self.annotates is None or each.label in self.annotates]

    @property
    def patient(self) -> str:
        """Whose document it is, empty if unknown: one text for all spellings of `metadata["patient"]`.

        Names that differ only by case, blanks, Unicode form or a final `.0` are taken for one patient. Two
        patients who are taken for one lose nothing, and one who is taken for two would be in several parts of
        a split and protected by half.
        """
        return spelling_key(self.metadata.get("patient", ""))

    def __post_init__(self) -> None:
        for span in self.spans:
            if span.end > len(self.text):
                raise ValueError(
                    f"document {self.id}: span {span.start}-{span.end} ({span.label}) ends after the text, "
                    f"which has {len(self.text)} characters"
                )
        for relation in self.relations:
            if not (0 <= relation.head < len(self.spans) and 0 <= relation.tail < len(self.spans)):
                raise ValueError(f"document {self.id}: a {relation.label} relation points at no span")

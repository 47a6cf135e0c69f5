"""JSON lines: one document an object, the format that loses nothing.

    {"id": "n1", "text": "No chest pain.", "spans": [{"start": 3, "end": 13, "label": "problem"}]}

Only `text` is required; `text_pair` is the second text of a pair. `relations` index into `spans` as they
stand in the object (head is the main mention, tail its modifier); `lacks_relations` says that nobody looked
for any, and `annotates` which types and labels somebody looked for, where not for all. A span may have an
`assertion` (`absent`); `labels` are those of the whole document. An object that names its own `site` keeps
its id as it is; one that does not is given the site its folder stands for, which then prefixes the id.
Unknown keys are refused.
"""

from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.error_codes import code_of_validation
from fedstrata.core.errors import DataError, SettingError, did_you_mean
from fedstrata.data.readers.files import Format, Source, filled_lines

Offset = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
Record = TypeVar("Record", bound=BaseModel)
_REASONS = {"extra_forbidden": "unknown key", "missing": "must be set"}
"""What is wrong by pydantic's kind of error, where its own words are not those of people who write files."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class PartRecord(BaseModel):
    """A part of a published file of JSON; what it holds besides is passed over."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class SpanRecord(_Strict):
    """A span of the object's text, in characters from 0; `fragments` for a discontinuous one.

    What is said of it (`assertion`) is there or left out, and not empty.
    """

    start: Offset
    end: Offset
    label: Name
    fragments: tuple[tuple[Offset, Offset], ...] = ()
    assertion: Name | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.start >= self.end:
            raise SettingError(f"start {self.start} is not before end {self.end}", "out_of_range")
        bounds = [bound for fragment in self.fragments for bound in fragment]
        if bounds and (
            (bounds[0], bounds[-1]) != (self.start, self.end)
            or bounds != sorted(bounds)
            or any(start == end for start, end in self.fragments)
        ):
            raise SettingError("fragments must be in order, apart, and reach from start to end", "conflict")
        return self


class RelationRecord(_Strict):
    """A relation between two of the object's spans, by their positions in `spans`."""

    head: Offset
    tail: Offset
    label: Name


class DocumentRecord(_Strict):
    """One line of the file."""

    id: Name | None = None
    text: str
    spans: list[SpanRecord] = []
    relations: list[RelationRecord] = []
    labels: list[Name] = []
    site: Name | None = None
    metadata: dict[str, str] = {}
    text_pair: str | None = None
    lacks_relations: bool = False
    annotates: list[Name] | None = None

    @model_validator(mode="after")
    def _inside(self) -> Self:
        for span in self.spans:
            if span.end > len(self.text):
                message = f"a span ends at {span.end}, after the text's {len(self.text)} characters"
                raise SettingError(message, "out_of_range")
        for relation in self.relations:
            if max(relation.head, relation.tail) >= len(self.spans):
                message = f"a relation joins spans {relation.head} and {relation.tail} of {len(self.spans)}"
                raise SettingError(message, "not_found")
        if self.lacks_relations and self.relations:
            message = f"lacks_relations is true, and there are {len(self.relations)} relations"
            raise SettingError(message, "conflict")
        if others := self._not_looked_for():
            raise SettingError(f"annotates does not name {others[0]!r}, which is annotated", "missing")
        return self

    def _not_looked_for(self) -> list[str]:
        """Returns the types and labels that it has and does not annotate."""
        if self.annotates is None:
            return []
        found = {own.label for own in self.spans} | {own.label for own in self.relations} | {*self.labels}
        return sorted(found.difference(self.annotates))

    def document(self) -> Document:
        """Returns the document, its spans sorted."""
        ordered = sorted(enumerate(self.spans), key=lambda item: (item[1].start, item[1].end, item[1].label))
        index = {number: position for position, (number, _) in enumerate(ordered)}
        return Document(
            id=self.id or "",
            text=self.text,
            spans=tuple(
                Span(span.start, span.end, span.label, span.fragments, span.assertion or "")
                for _, span in ordered
            ),
            relations=tuple(
                Relation(index[item.head], index[item.tail], item.label) for item in self.relations
            ),
            labels=tuple(self.labels),
            site=self.site or "",
            metadata=self.metadata,
            text_pair=self.text_pair,
            lacks_relations=self.lacks_relations,
            annotates=None if self.annotates is None else frozenset(self.annotates),
        )


def parse_line(record: type[Record], path: Path, number: int | None, line: str) -> Record:
    """Reads one line as one object.

    Args:
        record: What it should be.
        path: The file, for messages.
        number: The number of the line; none for a whole file.
        line: The line.

    Raises:
        DataError: It is no such object.
    """
    try:
        return record.model_validate_json(line)
    except ValidationError as error:
        # Only where and why: pydantic's own message would quote the value, and so the note.
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = _REASONS.get(first["type"]) or first["msg"].removeprefix("Value error, ")
        reason = reason.replace("Input should be", "must be")
        unknown = first["type"] == "extra_forbidden" and len(first["loc"]) == 1
        hint = did_you_mean(where, record.model_fields, before="; ") if unknown else ""
        message = f"{where}: {reason}{hint}" if where else reason
        keys = ", ".join(record.model_fields)
        raise DataError(
            path,
            message,
            line=number,
            expected=f"one object of {keys}",
            code=code_of_validation(first, "malformed_data"),
        ) from None


def read(source: Source) -> list[Document]:
    """Reads one file of JSON lines.

    Returns:
        Its documents in order, each with its own id if it has one.

    Raises:
        DataError: A line is no JSON, or not an object of the form above.
    """
    return [
        parse_line(DocumentRecord, source.path, number, line).document()
        for number, line in filled_lines(source.path)
    ]


FORMAT = Format(read, suffixes=(".jsonl", ".jsonl.gz"))

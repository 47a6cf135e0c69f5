"""How files of some formats are read: `data.conll`, `data.relation_table`."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from fedstrata.core.errors import SettingError
from fedstrata.core.settings.base import Count, Settings

Separator = Annotated[str, Field(min_length=1, max_length=1)]


class ConllSettings(Settings):
    """Columns of tagged tokens (format `conll`)."""

    token: Count = Field(default=1, description="Column of the tokens, counted from 1.")
    tag: Count | Literal["last"] = Field(default="last", description="Column of the chunk tags.")
    separator: Separator | None = Field(
        default=None,
        description="Column separator; a blank stands for any number of blanks. If null: tabs, or blanks "
        "in a file whose first token line has no tab.",
    )

    def _misfits(self) -> Iterator[SettingError]:
        if self.token == self.tag:
            yield SettingError(f"token and tag are two columns, and both are {self.token}", "conflict")


class RelationTableSettings(Settings):
    """Tables of pairs of mentions, a pair a row (format `relation_table`)."""

    names: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, description="Column names of files without a header, in order."
    )
    separator: Separator | None = Field(
        default=None,
        description="Column separator; quotation marks are then plain characters. If null: commas with "
        "quoted fields in `.csv`, tabs in `.tsv`, and `|` in other files.",
    )
    text: str = Field(
        default="text", description="Column of the text. Rows with the same text are one document."
    )
    head: str = Field(default="head", description="Column of the main mention's words.")
    tail: str = Field(default="tail", description="Column of the other mention's words.")
    head_start: str | None = Field(
        default=None,
        description="Column of the first character of the head, counted from 0. Set all four offset "
        "columns, or none.",
    )
    head_end: str | None = Field(default=None, description="Column of the end of the head (exclusive).")
    tail_start: str | None = Field(default=None, description="Column of the first character of the tail.")
    tail_end: str | None = Field(default=None, description="Column of the end of the tail (exclusive).")
    relation: str | None = Field(
        default=None,
        description="Column of the relation type; an empty value means no relation.",
    )
    id: str | None = Field(
        default=None,
        description="Column of the source document; several texts of one document are numbered. The file "
        "name and a number if null.",
    )
    patient: str | None = Field(
        default=None,
        description="Column of the patient. All documents of a patient go to the same part of the split.",
    )
    head_type: str = Field(default="head", min_length=1, description="Entity type of heads.")
    tail_type: str = Field(default="tail", min_length=1, description="Entity type of tails.")
    relation_type: str = Field(
        default="related", min_length=1, description="Relation type, where no column has it."
    )
    unfound: Literal["refuse", "skip"] = Field(
        default="refuse",
        description="Rows whose mentions cannot be located in the text: refuse the file, or skip the text "
        "with all its rows and log the number.",
    )

    @property
    def offsets(self) -> tuple[str, str, str, str] | None:
        """The columns of head's start and end and tail's start and end; none where there are none."""
        four = (self.head_start, self.head_end, self.tail_start, self.tail_end)
        return None if None in four else four  # type: ignore[return-value]

    @property
    def columns(self) -> list[str]:
        """Every column that is read."""
        own = [self.text, self.head, self.tail, *(self.offsets or ()), self.relation, self.id, self.patient]
        return [column for column in own if column is not None]

    def _misfits(self) -> Iterator[SettingError]:
        four = {name: getattr(self, name) for name in ("head_start", "head_end", "tail_start", "tail_end")}
        missing = [name for name, column in four.items() if column is None]
        if 0 < len(missing) < len(four):
            yield SettingError(
                f"head_start, head_end, tail_start and tail_end go together, and there is no {missing[0]}",
                "missing",
            )
        if self.relation is not None and self.relation_type != "related":
            yield SettingError(
                "relation_type has no meaning with relation, the column that says it", "no_effect"
            )
        if self.names is not None and (absent := [name for name in self.columns if name not in self.names]):
            yield SettingError(
                f"names has no {', '.join(map(repr, absent))}; it has {', '.join(map(repr, self.names))}",
                "unknown_name",
            )

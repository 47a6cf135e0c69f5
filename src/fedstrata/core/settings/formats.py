"""How files of some formats are read: `data.conll`, `data.relation_table`."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from fedstrata.core.errors import SettingError
from fedstrata.core.settings.base import Count, Settings

Separator = Annotated[str, Field(min_length=1, max_length=1)]


class ConllSettings(Settings):
    """Columns of tagged tokens (format `conll`)."""

    token: Count = Field(default=1, description="The column of the tokens, counted from 1.")
    tag: Count | Literal["last"] = Field(default="last", description="The column of the chunk tags.")
    separator: Separator | None = Field(
        default=None,
        description="The character between two columns; a blank stands for any number of them. When null: "
        "tabs, or blanks in a file whose first token line has no tab.",
    )

    def _misfits(self) -> Iterator[SettingError]:
        if self.token == self.tag:
            yield SettingError(f"token and tag are two columns, and both are {self.token}", "conflict")


class RelationTableSettings(Settings):
    """Tables of pairs of mentions, a pair a row (format `relation_table`)."""

    names: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, description="The columns of files that have no header, in order."
    )
    separator: Separator | None = Field(
        default=None,
        description="The character between two columns, where quotation marks are plain characters. When "
        "null: commas and quoted fields in `.csv`, tabs in `.tsv`, and `|` in others.",
    )
    text: str = Field(
        default="text", description="The column of the text; rows of one text are one document."
    )
    head: str = Field(default="head", description="The column of the main mention's words.")
    tail: str = Field(default="tail", description="The column of the other mention's words.")
    head_start: str | None = Field(
        default=None, description="The column of the head's first character, from 0; if one, then all four."
    )
    head_end: str | None = Field(default=None, description="The column of one past its last character.")
    tail_start: str | None = Field(default=None, description="The same of the tail.")
    tail_end: str | None = Field(default=None, description="The same of the tail.")
    relation: str | None = Field(
        default=None,
        description="The column of the relation's type; where it is empty there is none between the two.",
    )
    id: str | None = Field(
        default=None,
        description="The column of what a text is from; several texts of one are numbered. The file's name "
        "and a number when null.",
    )
    patient: str | None = Field(
        default=None, description="The column of whose it is: one patient's come to one part of the split."
    )
    head_type: str = Field(default="head", min_length=1, description="The type of heads.")
    tail_type: str = Field(default="tail", min_length=1, description="The type of tails.")
    relation_type: str = Field(
        default="related", min_length=1, description="The type of relations, where no column says it."
    )
    unfound: Literal["refuse", "skip"] = Field(
        default="refuse",
        description="Rows whose mentions cannot be told in the text; `skip` leaves such a text out, with all "
        "its rows, and the log says how many.",
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

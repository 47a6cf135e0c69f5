"""CoNLL columns: a token a line, its chunk tag in the last column, a blank line after each sentence.

Columns are set apart by tabs or, in a file whose first token line holds no tab, by blanks; columns between
the first and the last are left out. `data.conll` says other columns, or another separator. A document begins
at a `-DOCSTART-` line or a `# newdoc id = ...` (`#doc ...`) comment; other comments are passed over. In a
file without such marks every sentence is one.

The text is made from the tokens: single blanks between them, line feeds between sentences.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.core.settings.formats import ConllSettings
from fedstrata.data.readers.files import Format, Source, blocks
from fedstrata.data.readers.tags import TAG, invalid_transition, tagged_document

_DOCUMENT_START = re.compile(r"-DOCSTART-(?:\s.*)?")
_DOCUMENT_COMMENT = re.compile(r"#\s*(?:newdoc|doc)\b(?:\s+id\b)?\s*[:=]?\s*(.*)")
_CELL = re.compile(r"[^ \t\r\f\v]+")
_COMMENT = re.compile(r"#\s*\w+\s*=.*")

_NAMES = {"\t": "tabs", " ": "blanks"}

_Sentence = list[tuple[int, str, str]]
"""The line, the token and the tag of each token of a sentence."""
_Group = tuple[str, list[_Sentence]]
"""The id of a document, empty if it has none, and its sentences."""


@dataclass(slots=True)
class _Columns:
    """The columns of one file, as its first token line has them."""

    path: Path
    settings: ConllSettings
    separator: str = ""
    columns: int = 0
    first_line: int = 0

    def is_comment(self, content: str) -> bool:
        """Tells a comment from a token that begins with `#`, which has a tag in its place."""
        if not content.startswith("#") or "\t" in content:
            return False
        comment = _DOCUMENT_COMMENT.fullmatch(content) or _COMMENT.fullmatch(content)
        return bool(comment) or not TAG.fullmatch(self._place(self._cells(content), self.settings.tag))

    def _cells(self, content: str) -> list[str]:
        if (separator := self._separator(content)) == " ":
            return _CELL.findall(content)
        return [cell.strip(" ") for cell in content.split(separator)]

    def _separator(self, content: str) -> str:
        """Returns what sets columns apart: as the settings say, else as in the first token line."""
        return self.settings.separator or self.separator or ("\t" if "\t" in content else " ")

    @staticmethod
    def _place(cells: Sequence[str], column: int | str) -> str:
        """Returns what stands in a column; nothing where a line has no such."""
        number = len(cells) if isinstance(column, str) else column
        return cells[number - 1] if number <= len(cells) else ""

    def split(self, line: int, content: str) -> tuple[str, str]:
        """Returns the columns of the token and the tag."""
        fields = self._cells(content)
        if not self.columns and len(fields) > 1:
            self.columns, self.first_line = len(fields), line
            self.separator = self._separator(content)
            self._require_columns(line)
        if len(fields) != self.columns:
            found = f"a line of {len(fields)} columns" if len(fields) != 1 else "a line of one column"
            separator = self._separator(content)
            apart = f"set apart by {_NAMES.get(separator, repr(separator))}"
            expected = (
                f"{self.columns}, as on line {self.first_line}" if self.columns else "a token and a tag"
            )
            raise DataError(self.path, found, line=line, expected=f"{expected}, {apart}", code="wrong_count")
        token, tag = (self._place(fields, column) for column in (self.settings.token, self.settings.tag))
        if not token:
            raise DataError(
                self.path, "the token column is empty", line=line, expected="a token", code="missing"
            )
        if not TAG.fullmatch(tag):
            expected = "O, or B-, I-, E- or S- and a type"
            which = "the last column" if self.settings.tag == "last" else f"column {self.settings.tag}"
            raise DataError(self.path, f"{which} is no tag", line=line, expected=expected, code="wrong_form")
        return token, tag

    def _require_columns(self, line: int) -> None:
        """Refuses a file that has not the columns that the settings name."""
        for name in ("token", "tag"):
            column = getattr(self.settings, name)
            if isinstance(column, int) and column > self.columns:
                message = f"a line of {self.columns} columns, of which data.conll.{name} names {column}"
                raise DataError(
                    self.path, message, line=line, expected=f"at most {self.columns}", code="out_of_range"
                )


def _groups(path: Path, settings: ConllSettings) -> list[_Group]:
    """Returns what follows each mark of a document, after what comes before the first one."""
    columns = _Columns(path, settings)
    groups: list[_Group] = [("", [])]
    for block in blocks(path):
        sentence: _Sentence = []
        for line, content in block:
            if (start := _DOCUMENT_START.fullmatch(content)) or columns.is_comment(content):
                named = None if start else _DOCUMENT_COMMENT.fullmatch(content)
                if start or named:
                    groups.append((named[1].strip() if named else "", []))
                    sentence = []
                continue
            token, tag = columns.split(line, content)
            if not sentence:
                groups[-1][1].append(sentence)
            sentence.append((line, token, tag))
    return groups


def _check_tags(path: Path, sentences: Sequence[_Sentence]) -> None:
    """Checks the tags of a whole file."""
    tags_of = [[tag for _, _, tag in sentence] for sentence in sentences]
    broken = invalid_transition(tags_of)
    if broken is not None:
        number, position, expected = broken
        line, _, _ = sentences[number][min(position, len(sentences[number]) - 1)]
        tags = ["the start of its sentence", *tags_of[number], "the end of its sentence"]
        message = f"{tags[position + 1]} cannot follow {tags[position]}"
        raise DataError(path, message, line=line, expected=expected, code="conflict")


def read(source: Source, settings: ConllSettings = ConllSettings()) -> list[Document]:  # noqa: B008 - frozen
    """Reads one file of tagged tokens.

    Args:
        source: The file; `.gz` is decompressed.
        settings: Which columns hold what.

    Returns:
        Its documents in order, each with its own id if it has one.

    Raises:
        DataError: The number of columns changes, or a tag is malformed or cannot follow the one before.
    """
    unmarked, *groups = _groups(source.path, settings)
    sentences = [sentence for _, own in (unmarked, *groups) for sentence in own]
    _check_tags(source.path, sentences)
    if not groups:
        groups = [("", [sentence]) for sentence in sentences]
    elif unmarked[1]:
        groups.insert(0, unmarked)
    return [
        tagged_document(name, [[(token, tag) for _, token, tag in sentence] for sentence in own])
        for name, own in groups
    ]


_SUFFIXES = (".conll", ".tsv", ".bio", ".iob", ".iob2", ".bioes")
FORMAT = Format(read, suffixes=(*_SUFFIXES, *(f"{suffix}.gz" for suffix in _SUFFIXES)))

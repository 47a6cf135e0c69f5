"""CoNLL columns: a token a line, its chunk tag in the last column, a blank line after each sentence.

Columns are set apart by tabs or, in a file whose first token line holds no tab, by blanks; columns between
the first and the last are left out. A document begins at a `-DOCSTART-` line or a `# newdoc id = ...`
(`#doc ...`) comment; other comments are passed over. In a file without such marks every sentence is one.

The text is made from the tokens: single blanks between them, line feeds between sentences.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import Format, Source, numbered_lines, read_text, stem
from fedstrata.data.readers.tags import TAG, invalid_transition, tagged_document

_DOCUMENT_START = re.compile(r"-DOCSTART-(?:\s.*)?")
_DOCUMENT_COMMENT = re.compile(r"#\s*(?:newdoc|doc)\b(?:\s+id\b)?\s*[:=]?\s*(.*)")
_CELL = re.compile(r"[^ \t\r\f\v]+")
_COMMENT = re.compile(r"#\s*\w+\s*=.*")


@dataclass(slots=True)
class _Sentence:
    tokens: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    """The sentences of one document."""

    id: str
    sentences: list[_Sentence] = field(default_factory=list)


@dataclass(slots=True)
class _ColumnFile:
    """The lines of one file, as they are read."""

    path: Path
    groups: list[_Group] = field(default_factory=list)
    marked: bool = False
    tabs: bool = False
    columns: int = 0
    first_line: int = 0
    inside: bool = False

    def take(self, line: int, content: str) -> None:
        """Takes in one line of the file."""
        if not content.strip():
            self.inside = False
            return
        if (start := _DOCUMENT_START.fullmatch(content)) or self._is_comment(content):
            named = None if start else _DOCUMENT_COMMENT.fullmatch(content)
            if start or named:
                self.marked, self.inside = True, False
                self.groups.append(_Group(named[1].strip() if named else ""))
            return
        token, tag = self._split(line, content)
        if not self.groups:
            self.groups.append(_Group(""))
        if not self.inside:
            self.groups[-1].sentences.append(_Sentence())
            self.inside = True
        sentence = self.groups[-1].sentences[-1]
        sentence.tokens.append(token)
        sentence.tags.append(tag)
        sentence.lines.append(line)

    def _is_comment(self, content: str) -> bool:
        """Tells a comment from a token that begins with `#`, which has a tag at its end."""
        if not content.startswith("#") or "\t" in content:
            return False
        comment = _DOCUMENT_COMMENT.fullmatch(content) or _COMMENT.fullmatch(content)
        return bool(comment) or not TAG.fullmatch(content.rsplit(maxsplit=1)[-1])

    def _split(self, line: int, content: str) -> tuple[str, str]:
        """Returns the first and the last column."""
        if not self.columns:
            self.tabs = "\t" in content
        fields = [cell.strip(" ") for cell in content.split("\t")] if self.tabs else _CELL.findall(content)
        if not self.columns and len(fields) > 1:
            self.columns, self.first_line = len(fields), line
        if len(fields) != self.columns:
            found = f"a line of {len(fields)} columns" if len(fields) != 1 else "a line of one column"
            apart = "set apart by tabs" if self.tabs else "set apart by blanks"
            expected = (
                f"{self.columns}, as on line {self.first_line}" if self.columns else "a token and a tag"
            )
            raise DataError(self.path, found, line=line, expected=f"{expected}, {apart}")
        token, tag = fields[0], fields[-1]
        if not token:
            raise DataError(self.path, "the token column is empty", line=line, expected="a token")
        if not TAG.fullmatch(tag):
            expected = "O, or B-, I-, E- or S- and a type"
            raise DataError(self.path, "the last column is no tag", line=line, expected=expected)
        return token, tag

    def documents(self) -> list[_Group]:
        """Returns the documents, after checking the tags of the whole file."""
        sentences = [sentence for group in self.groups for sentence in group.sentences]
        broken = invalid_transition([sentence.tags for sentence in sentences])
        if broken is not None:
            number, position, expected = broken
            line = sentences[number].lines[min(position, len(sentences[number].lines) - 1)]
            tags = ["the start of its sentence", *sentences[number].tags, "the end of its sentence"]
            message = f"{tags[position + 1]} cannot follow {tags[position]}"
            raise DataError(self.path, message, line=line, expected=expected)
        if self.marked:
            return self.groups
        return [_Group("", [sentence]) for sentence in sentences]


def read(source: Source) -> list[Document]:
    """Reads one file of tagged tokens.

    Args:
        source: The file; `.gz` is decompressed.

    Returns:
        Its documents in order, each with its own id, or the file's name and its number.

    Raises:
        DataError: The number of columns changes, or a tag is malformed or cannot follow the one before.
    """
    file = _ColumnFile(source.path)
    for number, line in numbered_lines(read_text(source.path)):
        file.take(number, line)
    name = stem(source.path, FORMAT.suffixes)
    return [
        tagged_document(
            group.id or f"{name}-{number}",
            ((sentence.tokens, sentence.tags) for sentence in group.sentences),
        )
        for number, group in enumerate(file.documents(), start=1)
    ]


_SUFFIXES = (".conll", ".tsv", ".bio", ".iob", ".iob2", ".bioes")
FORMAT = Format(read, suffixes=(*_SUFFIXES, *(f"{suffix}.gz" for suffix in _SUFFIXES)))

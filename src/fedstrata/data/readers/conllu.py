"""CoNLL-U, the format of Universal Dependencies: ten columns a word, a blank line after each sentence.

A document begins at a `# newdoc id = ...` comment; in a file without one the whole file is one. Its text is
that of its sentences with line feeds between them: as they were written (`# text = ...`) or, by
`data.conllu.text`, their tokens with blanks between them. Tokens are surface tokens: `don't` where a range
`2-3` spells it out of two words, and no empty nodes (`8.1`). Trees and features are not read.

The genre is what stands before the first `-` of a document's id, as in the English Web Treebank
(`weblog-blogspot.com_...`). It is the document's label, and its site unless a folder says another one, so
that `partition.by` can go by it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import Format, Source, numbered_lines, read_text, stem

_COMMENT = re.compile(r"#\s*(newdoc|text)\b\s*(?:id\b\s*)?(?:=\s*(.*))?")
_WORD = re.compile(r"[1-9]\d*")
_RANGE = re.compile(r"([1-9]\d*)-([1-9]\d*)")
_EMPTY_NODE = re.compile(r"\d+\.[1-9]\d*")
_COLUMNS = 10

Text = Literal["original", "tokens"]


@dataclass(slots=True)
class _Sentence:
    line: int
    text: str | None = None
    tokens: list[str] = field(default_factory=list)
    spelt: int = 0  # the last word that a range has spelt already


@dataclass(slots=True)
class _Group:
    """The sentences of one document."""

    id: str
    texts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Treebank:
    """The lines of one file, as they are read."""

    path: Path
    kind: Text
    groups: list[_Group] = field(default_factory=list)
    sentence: _Sentence | None = None

    def take(self, line: int, content: str) -> None:
        """Takes in one line of the file."""
        if not content.strip():
            self.close()
            return
        if self.sentence is None:
            self.sentence = _Sentence(line)
        if content.startswith("#"):
            self._comment(self.sentence, content)
        else:
            self._word(self.sentence, line, content)

    def close(self) -> None:
        """Ends the sentence under way, if there is one."""
        sentence, self.sentence = self.sentence, None
        if sentence is None or not (sentence.tokens or sentence.text):
            return  # comments alone
        text = " ".join(sentence.tokens) if self.kind == "tokens" else sentence.text
        if text is None:
            message = "a sentence without its text"
            wanted = "a comment `# text = ...`; or set data.conllu.text to tokens"
            raise DataError(self.path, message, line=sentence.line, expected=wanted)
        if not self.groups:
            self.groups.append(_Group(""))
        self.groups[-1].texts.append(text)

    def _comment(self, sentence: _Sentence, content: str) -> None:
        found = _COMMENT.fullmatch(content)
        if found is None:
            return
        value = (found[2] or "").strip()
        if found[1] == "newdoc":
            self.groups.append(_Group(value))
        else:
            sentence.text = value

    def _word(self, sentence: _Sentence, line: int, content: str) -> None:
        cells = content.split("\t")
        if len(cells) != _COLUMNS:
            message = f"{len(cells)} columns set apart by tabs"
            raise DataError(self.path, message, line=line, expected=f"{_COLUMNS}, or a blank line")
        place, form = cells[:2]
        if joined := _RANGE.fullmatch(place):
            sentence.tokens.append(form)
            sentence.spelt = int(joined[2])
        elif _WORD.fullmatch(place):
            if int(place) > sentence.spelt:
                sentence.tokens.append(form)
        elif not _EMPTY_NODE.fullmatch(place):
            message = "the first column is no number of a word"
            raise DataError(self.path, message, line=line, expected="for example 3, 3-4 or 3.1")


def read(source: Source, text: Text = "original") -> list[Document]:
    """Reads one treebank.

    Args:
        source: The file; `.gz` is decompressed.
        text: What the text of a sentence is.

    Returns:
        Its documents in order, each with its own id, or the file's name and its number.

    Raises:
        DataError: A line has not ten columns, or a sentence has no text.
    """
    treebank = _Treebank(source.path, text)
    for number, line in numbered_lines(read_text(source.path)):
        treebank.take(number, line)
    treebank.close()
    name = stem(source.path, FORMAT.suffixes)
    return [
        _document(group, f"{name}-{number}", has_site=bool(source.site))
        for number, group in enumerate(treebank.groups, start=1)
    ]


def _document(group: _Group, name: str, *, has_site: bool) -> Document:
    genre, hyphen, _ = group.id.partition("-")
    genre = genre if hyphen else ""
    return Document(
        group.id or name,
        "\n".join(group.texts),
        labels=(genre,) if genre else (),
        site="" if has_site else genre,
    )


FORMAT = Format(read, suffixes=(".conllu", ".conllu.gz"))

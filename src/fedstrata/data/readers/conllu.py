"""CoNLL-U, the format of Universal Dependencies: ten columns a word, a blank line after each sentence.

A document begins at a `# newdoc id = ...` comment; in a file without one the whole file is one. By
`data.conllu.documents: paragraphs` one begins at a `# newpar id = ...` comment too, by whose id it goes.
Its text is that of its sentences with line feeds between them: as they were written (`# text = ...`) or, by
`data.conllu.text`, their tokens with blanks between them. Tokens are surface tokens: `don't` where a range
`2-3` spells it out of two words, and no empty nodes (`8.1`). Trees and features are not read.

The genre is what stands before the first `-` of a document's id, as in the English Web Treebank
(`weblog-blogspot.com_...`). It is the document's label, and its site unless a folder says another one, so
that `partition.by` can go by it.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import Format, Source, blocks

_COMMENT = re.compile(r"#\s*(newdoc|newpar|text)\b\s*(?:id\b\s*)?(?:=\s*(.*))?")
_WORD = re.compile(r"[1-9]\d*")
_RANGE = re.compile(r"([1-9]\d*)-([1-9]\d*)")
_EMPTY_NODE = re.compile(r"\d+\.[1-9]\d*")
_COLUMNS = 10

Text = Literal["original", "tokens"]
Documents = Literal["documents", "paragraphs"]


def _tokens(path: Path, words: Iterable[tuple[int, str]]) -> list[str]:
    """Returns the surface tokens of a sentence, given its numbered lines without the comments."""
    tokens: list[str] = []
    spelt = 0  # the last word that a range has spelt already
    for line, content in words:
        cells = content.split("\t")
        if len(cells) != _COLUMNS:
            message = f"{len(cells)} columns set apart by tabs"
            raise DataError(
                path, message, line=line, expected=f"{_COLUMNS}, or a blank line", code="wrong_count"
            )
        place, form = cells[:2]
        if joined := _RANGE.fullmatch(place):
            tokens.append(form)
            spelt = int(joined[2])
        elif _WORD.fullmatch(place):
            if int(place) > spelt:
                tokens.append(form)
        elif not _EMPTY_NODE.fullmatch(place):
            message = "the first column is no number of a word"
            raise DataError(path, message, line=line, expected="for example 3, 3-4 or 3.1", code="wrong_form")
    return tokens


def _groups(path: Path, kind: Text, documents: Documents) -> list[tuple[str, list[str]]]:
    """Returns the id of each document, empty if it has none, and the texts of its sentences."""
    groups: list[tuple[str, list[str]]] = []
    for block in blocks(path):
        text = None
        for comment in filter(None, (_COMMENT.fullmatch(content) for _, content in block)):
            value = (comment[2] or "").strip()
            if comment[1] == "text":
                text = value
            elif comment[1] == "newdoc" or documents == "paragraphs":
                if groups and not groups[-1][1]:
                    groups.pop()  # a document that begins with a paragraph
                groups.append((value, []))
        tokens = _tokens(path, (item for item in block if not item[1].startswith("#")))
        if not (tokens or text):
            continue  # comments alone
        written = " ".join(tokens) if kind == "tokens" else text
        if written is None:
            wanted = "a comment `# text = ...`; or set data.conllu.text to tokens"
            raise DataError(
                path, "a sentence without its text", line=block[0][0], expected=wanted, code="missing"
            )
        if not groups:
            groups.append(("", []))
        groups[-1][1].append(written)
    return groups


def read(source: Source, text: Text = "original", documents: Documents = "documents") -> list[Document]:
    """Reads one treebank.

    Args:
        source: The file; `.gz` is decompressed.
        text: What the text of a sentence is.
        documents: What a document is.

    Returns:
        Its documents in order, each with its own id if it has one.

    Raises:
        DataError: A line has not ten columns, or a sentence has no text.
    """
    found = []
    for name, texts in _groups(source.path, text, documents):
        genre, hyphen, _ = name.partition("-")
        labels = (genre,) if genre and hyphen else ()
        site = genre if labels and not source.site else ""
        found.append(Document(name, "\n".join(texts), labels=labels, site=site))
    return found


FORMAT = Format(read, suffixes=(".conllu", ".conllu.gz"))

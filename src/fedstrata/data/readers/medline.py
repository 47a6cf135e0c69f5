"""MEDLINE, as PubMed exports it: titles and abstracts, without annotations.

    PMID- 10192393
    TI  - A common human skin tumour is caused by activating mutations in
          beta-catenin.
    AB  - WNT signalling orchestrates a number of developmental programs.

A field begins with a tag of at most four characters, `-` and a blank; lines that begin with blanks go on with
it. A record begins at `PMID-`, or after a blank line. A document's text is title, blank, abstract, as of
`pubtator`; of a record without one of them it is the other. Other fields are not read.
"""

import logging
import re
from dataclasses import dataclass, field
from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import ABOUT, Format, Source, blocks

logger = logging.getLogger(__name__)

_FIELD = re.compile(r"([A-Z][A-Z0-9]{0,3}) {0,3}- ?(.*)")
_FIRST = "PMID"


@dataclass(slots=True)
class _Article:
    """The fields of one record that are read."""

    line: int
    fields: dict[str, list[str]] = field(default_factory=dict)

    def text(self) -> str:
        """Returns title and abstract."""
        return " ".join(" ".join(self.fields[tag]) for tag in ("TI", "AB") if any(self.fields.get(tag, ())))


def _articles(path: Path) -> list[_Article]:
    articles: list[_Article] = []
    for block in blocks(path):
        tag = ""
        for number, line in block:
            found = _FIELD.fullmatch(line)
            if found:
                tag = found[1]
            elif not tag or not line.startswith(" "):
                message = "no line of this format"
                raise DataError(
                    path, message, line=number, expected="TAG - VALUE, or blanks and what goes on"
                )
            if number == block[0][0] or (found and tag == _FIRST and articles[-1].fields):
                articles.append(_Article(number))
            fields = articles[-1].fields
            if found and tag in fields and tag in (_FIRST, "TI", "AB"):
                raise DataError(
                    path, f"a second {tag} of one record", line=number, expected="one", code="duplicate"
                )
            fields.setdefault(tag, []).append((found[2] if found else line).strip())
    return articles


def read(source: Source) -> list[Document]:
    """Reads one file of records.

    Returns:
        Its documents in order, each under its PMID. Records without a title and an abstract are left out, and
        the log says how many.

    Raises:
        DataError: A line does not follow the format, or a record has no PMID.
    """
    documents, blank = [], 0
    for article in _articles(source.path):
        name = " ".join(article.fields.get(_FIRST, ()))
        if not re.fullmatch(r"[A-Za-z0-9]{1,20}", name):
            raise DataError(
                source.path,
                "a record without a PMID",
                line=article.line,
                expected="PMID- NUMBER",
                code="missing",
            )
        if text := article.text():
            documents.append(Document(name, text))
        else:
            blank += 1
    if blank:
        logger.warning("%s: %d records without title and abstract left out", source.path, blank)
    return documents


_SUFFIXES = (".nbib", ".medline", ".txt")
FORMAT = Format(read, (*_SUFFIXES, *(f"{suffix}.gz" for suffix in _SUFFIXES)), passed_over=ABOUT)

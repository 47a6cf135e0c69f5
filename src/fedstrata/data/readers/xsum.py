"""XSum (Narayan et al., EMNLP 2018): articles of the BBC, a file each, with their first sentence as summary.

    [SN]URL[SN]
    http://web.archive.org/web/...

    [SN]TITLE[SN]
    Flood alert for parts of Wales

    [SN]FIRST-SENTENCE[SN]
    Heavy rain is expected in parts of Wales.

    [SN]RESTBODY[SN]
    Forecasters said up to 60 mm could fall on hills.
    Drivers are asked to take care.

A document is an article without its first sentence, which is its second text, for task `summarize`; its
`metadata` have the `title`. Where the list of the published split lies beside the files, or above them in the
folder that is read, it says which part each article is of, by the name of its file. What buttons of the page
say (`_AROUND`) stands in many articles and is left out, as in the copies of the Hugging Face hub.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import Format, Source, read_text, stem

_SPLIT = "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json"
"""The name of the list of the published split: an object of the names of articles by part."""
_TITLE, _SUMMARY, _ARTICLE = "TITLE", "FIRST-SENTENCE", "RESTBODY"
_AROUND = {
    *("Share this with", "Email", "Facebook", "Messenger", "Twitter", "Pinterest", "WhatsApp", "LinkedIn"),
    *("Linkedin", "Copy this link", "These are external links and will open in a new window"),
}
"""What buttons of the page say."""
_HEADING = re.compile(r"^\[SN\]([A-Z-]+)\[SN\]\s*$", re.MULTILINE)
_PARTS = ("train", "validation", "test")


def read(source: Source) -> Iterator[Document]:
    """Reads one article.

    Yields:
        The article, called after its file.

    Raises:
        DataError: It lacks a part, or the list of the published split is malformed or does not name it.
    """
    name = stem(source.path, FORMAT.suffixes)
    parts = _parts(source.path)
    split = {} if source.scheme is None else {"split": _split_of(name, source.path, source.scheme)}
    title = {"title": parts[_TITLE]} if parts.get(_TITLE) else {}
    yield Document(name, parts[_ARTICLE], metadata={**title, **split}, text_pair=parts[_SUMMARY] or None)


def _parts(path: Path) -> dict[str, str]:
    """Returns the text under each heading, without blank lines; of some articles a part is empty."""
    pieces = _HEADING.split(read_text(path))[1:]
    parts = {
        heading: "\n".join(
            filter(None, (line.strip() for line in text.splitlines() if line.strip() not in _AROUND))
        )
        for heading, text in zip(pieces[::2], pieces[1::2], strict=True)
    }
    if lacking := [heading for heading in (_SUMMARY, _ARTICLE) if heading not in parts]:
        expected = f"lines [SN]{_SUMMARY}[SN] and [SN]{_ARTICLE}[SN]"
        raise DataError(path, f"has no line [SN]{lacking[0]}[SN]", expected=expected, code="missing")
    return parts


def _split_of(name: str, path: Path, scheme: Path) -> str:
    split = _published(scheme, scheme.stat().st_mtime_ns).get(name)
    if split is None:
        raise DataError(
            path, f"is in no part of {scheme.name}", expected="an article that it names", code="not_found"
        )
    return split


@lru_cache(maxsize=4)
def _published(path: Path, written: int) -> Mapping[str, str]:
    """Returns the part of every article by its name, as a list says that was written at this time."""
    try:
        found = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(
            path, "is no JSON", line=error.lineno, expected="an object", code="not_json"
        ) from None
    lists = found if isinstance(found, dict) else {}
    if set(lists) != set(_PARTS) or not all(isinstance(names, list) for names in lists.values()):
        raise DataError(
            path, "is no list of a split", expected=f"names in {', '.join(_PARTS)}", code="wrong_form"
        )
    parts = {str(name): part for part in _PARTS for name in lists[part]}
    if len(parts) < sum(len({*map(str, lists[part])}) for part in _PARTS):
        raise DataError(path, "names an article in two parts", expected="one part for each", code="duplicate")
    return parts


FORMAT = Format(read, suffixes=(".summary",), one_a_file=True, scheme=_SPLIT)

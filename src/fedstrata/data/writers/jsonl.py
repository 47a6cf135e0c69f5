"""JSON lines, as `fedstrata.data.readers.jsonl` describes them: nothing of a document is lost."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from fedstrata.core.documents import Document
from fedstrata.data.writers.layout import WrittenFile, by_folder, name_of


def line(document: Document, name: str) -> str:
    """Returns a document as one line, with this name as its id."""
    record = {**asdict(document), "id": name}
    for span in record["spans"]:
        for key in ("fragments", "assertion"):
            if not span[key]:
                del span[key]
    # A pair whose second text is empty is another document than a single text.
    written = {"text"} if document.text_pair is None else {"text", "text_pair"}
    if document.annotates is not None:  # nothing at all is another thing than everything
        record["annotates"] = sorted(document.annotates)
        written.add("annotates")
    filled = {key: value for key, value in record.items() if value or key in written}
    return json.dumps(filled, ensure_ascii=False) + "\n"


def files(documents: Iterable[Document]) -> Iterator[WrittenFile]:
    """Yields the files of a corpus, one for each site and split; see `layout.Writer`.

    Raises:
        DataError: A site, a split or an id cannot be written.
    """
    for folder, group in by_folder(documents).items():
        # A document that names its site keeps its id when it is read; another gets its folders put before it.
        lines = [line(document, document.id if document.site else name_of(document)) for document in group]
        yield folder / "documents.jsonl", "".join(lines)

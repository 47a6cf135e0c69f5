"""MTS-Dialog (Ben Abacha et al., 2023): dialogues of doctors and patients, and what a note says of each.

    ID,section_header,section_text,dialogue
    0,GENHX,"The patient is a 76-year-old ...","Doctor: What brings you back into the clinic today, miss? ..."

A document is a dialogue with the text of the note's section as its second text, for task `summarize`. The
section's header is its label and `metadata["section"]`. Files without `section_text` are dialogues alone.
"""

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import Format, Source
from fedstrata.data.readers.tables import read_rows

SECTION = "section"
"""The name, in a document's metadata, of the section that its dialogue gives."""


def read(source: Source) -> list[Document]:
    """Reads one table of dialogues.

    Returns:
        A document for each row, called by its `ID` if it has one.

    Raises:
        DataError: The table is malformed, or a row has no dialogue.
    """
    documents = []
    for line, row in read_rows(source.path, required=["dialogue"], fold_case=True):
        if not row["dialogue"].strip():
            raise DataError(source.path, "a row without a dialogue", line=line, code="missing")
        section = row.get("section_header", "").strip()
        metadata = {SECTION: section} if section else {}
        own, second = row.get("id", "").strip(), row.get("section_text")
        labels = tuple(metadata.values())
        documents.append(Document(own, row["dialogue"], labels=labels, metadata=metadata, text_pair=second))
    return documents


FORMAT = Format(read, suffixes=(".csv", ".csv.gz"))

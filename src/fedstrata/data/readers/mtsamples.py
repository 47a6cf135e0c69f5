"""MTSamples: transcriptions and the specialties they are filed under, as CSV.

Either the table as Kaggle has it (`medical_specialty`, `transcription`), in which a note stands once under
each of its specialties: rows of one transcription become one document with all of them as labels. Or a table
with all specialties of a note in one field (`specialties`), set apart by `|`.

Labels are in the order in which they come; `metadata["speciality"]` is the first. A document's id is its
`sample_id`, or the file's name and the number of the row. Rows without a transcription are left out.
"""

import logging

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import Format, Source, stem
from fedstrata.data.readers.tables import read_rows

logger = logging.getLogger(__name__)


def read(source: Source) -> list[Document]:
    """Reads one table of transcriptions.

    Returns:
        A document for each distinct transcription (without white space around it), in the order of the rows.

    Raises:
        DataError: The table is malformed, has no column of specialties, or a transcription has none.
    """
    name = stem(source.path, FORMAT.suffixes)
    ids: dict[str, str] = {}
    labels_of: dict[str, dict[str, None]] = {}  # of each transcription, in the order in which they come
    blank = 0
    rows = read_rows(source.path, required=["transcription"], fold_case=True)
    for number, (line, row) in enumerate(rows, start=1):
        specialties = row.get("specialties", row.get("medical_specialty"))
        if specialties is None:
            message = "has no column of specialties"
            raise DataError(
                source.path,
                message,
                line=1,
                expected="medical_specialty or specialties",
                code="missing_column",
            )
        text = row["transcription"].strip()
        if not text:
            blank += 1
            continue
        given = specialties.split("|") if "specialties" in row else [specialties]
        labels = [label.strip() for label in given if label.strip()]
        if not labels:
            raise DataError(source.path, "a transcription without a specialty", line=line, code="missing")
        ids.setdefault(text, row.get("sample_id", "").strip() or f"{name}-{number}")
        labels_of.setdefault(text, {}).update(dict.fromkeys(labels))
    if blank:
        logger.warning("%s: %d rows without a transcription left out", source.path, blank)
    return [
        Document(ids[text], text, labels=tuple(labels), metadata={"speciality": next(iter(labels))})
        for text, labels in labels_of.items()
    ]


FORMAT = Format(read, suffixes=(".csv", ".csv.gz"))

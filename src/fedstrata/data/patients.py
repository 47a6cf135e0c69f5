"""Whose documents are: told by a file (`data.patients`) where a format does not, and counted.

    document,patient
    north/n1,p07
    north/n2,p07
    north/n3,p11

Documents are called by their ids in the corpus, which begin with the sub-folders they lie in. A file whose
name ends in `.tsv` has tabs in place of commas and no quotation marks; `.gz` is decompressed. A further
column is refused: whatever it says (a site, a date) would be passed over, and a run needs no more of a
patient than a name that says nothing.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedstrata.core.documents import Document, spelling_key
from fedstrata.core.errors import DataError, refused
from fedstrata.data.readers.tables import LONGEST_NAME, TABLES, WITH_TABS, read_rows, unlike_a_name

logger = logging.getLogger(__name__)

COLUMNS = ("document", "patient")


def patients_of(documents: Iterable[Document]) -> set[tuple[str, str]]:
    """Returns the patients whom documents name, each with the site: one site's are apart from another's."""
    return {(document.site, document.patient) for document in documents if document.patient}


def read_patients(path: Path) -> dict[str, str]:
    """Reads the patient of each document that a file names; blanks around names are no part of them.

    Args:
        path: The file.

    Raises:
        DataError: It cannot be read, has other columns, names nothing in a row, or names two patients of a
            document.
    """
    name = path.name.lower()
    if not name.endswith(TABLES):
        raise DataError(
            path, "is no table", expected=f"a name that ends in {' or '.join(TABLES)}", code="wrong_format"
        )
    found: dict[str, tuple[str, int]] = {}
    for line, row in read_rows(path, required=COLUMNS, separator="\t" if name.endswith(WITH_TABS) else None):
        if further := [column for column in row if column not in COLUMNS]:
            message = f"has the column {further[0]!r:.80}, which would be passed over"
            raise DataError(
                path, message, line=1, expected=f"{' and '.join(COLUMNS)} alone", code="unknown_name"
            )
        document, patient = (_name(path, line, column, row[column]) for column in COLUMNS)
        first, before = found.setdefault(document, (patient, line))
        if spelling_key(first) != spelling_key(patient):
            message = f"document {document!r} has the patient {patient!r}, and {first!r} in line {before}"
            raise DataError(path, message, line=line, expected="one patient of a document", code="conflict")
    if not found:
        raise DataError(path, "names no document", expected="a row for each", code="not_enough_data")
    return {document: patient for document, (patient, _) in found.items()}


def with_patients(documents: Sequence[Document], path: Path, setting: str) -> list[Document]:
    """Returns a corpus whose documents name their patients as a file does.

    Documents that are not in the file keep the patient they name themselves, if any. How many are left
    without one is logged, and how many documents of the file are not there.

    Args:
        documents: The whole corpus.
        path: The file.
        setting: The setting that names it, for messages.

    Raises:
        ConfigurationError: The file cannot be read, is of another corpus, or says of a document another
            patient than the document itself.
    """
    try:
        patients = read_patients(path)
    except DataError as error:
        raise refused(setting, str(error), error.code) from None
    known = {document.id for document in documents}
    absent = [name for name in patients if name not in known]
    if message := _misfit(documents, patients, absent):
        code = "not_found" if len(absent) == len(patients) else "conflict"
        raise refused(setting, f"{path}: {message}", code)
    if absent:
        told = f"{len(absent)} of the {len(patients)} documents that it names are not in the data"
        logger.warning("%s: %s: %s (for example %r)", setting, path, told, absent[0])
    named = [
        replace(document, metadata={**document.metadata, "patient": patients[document.id]})
        if document.id in patients
        else document
        for document in documents
    ]
    if nameless := [document.id for document in named if not document.patient]:
        told = f"{len(nameless)} of {len(named)} documents have no patient"
        logger.warning("%s: %s: %s (for example %r)", setting, path, told, nameless[0])
    return named


def _misfit(documents: Sequence[Document], patients: Mapping[str, str], absent: Sequence[str]) -> str:
    """Says why a file is not one of these documents; empty if it is."""
    if len(absent) == len(patients):
        count = f"none of the {len(patients)} documents that it names is in the data"
        return f"{count} (for example {absent[0]!r}), whose documents have ids such as {documents[0].id!r}"
    others = [
        document
        for document in documents
        if document.patient
        and document.id in patients
        and document.patient != spelling_key(patients[document.id])
    ]
    if not others:
        return ""
    first = others[0]
    example = f"the data has {first.metadata['patient']!r}, and the file {patients[first.id]!r}"
    count = f"{len(others)} of {len(documents)} documents name another patient themselves"
    return f"{count}; of {first.id!r} {example}"


def _name(path: Path, line: int, column: str, field: str) -> str:
    """Returns what a field names."""
    name = field.strip()
    if not name:
        raise DataError(
            path, f"the {column} is blank", line=line, expected=f"a {column} in every row", code="missing"
        )
    if message := unlike_a_name(name):
        expected = f"at most {LONGEST_NAME}, in one line"
        raise DataError(
            path, f"the column {column} {message}", line=line, expected=expected, code="wrong_form"
        )
    return name

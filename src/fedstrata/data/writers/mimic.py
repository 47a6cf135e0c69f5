"""The tables of MIMIC-III that hold notes and diagnoses, with its column names and quoting.

    NOTEEVENTS.csv      one row a document
    DIAGNOSES_ICD.csv   one row a code of an admission, in the order of `Document.labels`, without the dot
    ADMISSIONS.csv, PATIENTS.csv    their identifiers, so that the tables join

Patients and admissions are `metadata["patient"]` and `metadata["admission"]`, numbered if they are no
numbers; a document without them is a patient's only note. Codes of several notes of one admission are put
together, as the database has them. What a document does not say (dates, sex, titles of codes) stays empty;
sites, spans and relations have no place in the tables.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from ruamel.yaml import YAML

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.icd9 import without_dot
from fedstrata.data.writers.layout import WrittenFile

_TABLES = YAML(typ="safe").load(Path(__file__).with_name("mimic.yaml").read_text(encoding="utf-8"))
Key = tuple[str, ...]


def _row(*values: str | int | None) -> str:
    # Text quoted, numbers not, missing values empty: csv can do this from Python 3.12 on (QUOTE_STRINGS).
    cells = ('"' + value.replace('"', '""') + '"' if isinstance(value, str) else value for value in values)
    return ",".join("" if cell is None else str(cell) for cell in cells) + "\n"


def _table(name: str, rows: Iterable[Sequence[str | int | None]]) -> WrittenFile:
    columns = _TABLES["columns"][name].split()
    numbered = (_row(number, *row) for number, row in enumerate(rows, start=1))
    return PurePosixPath(f"{name}.csv"), "".join([_row(*columns), *numbered])


def _patient(document: Document) -> Key:
    return (document.site, document.patient or document.id)


def _admission(document: Document) -> Key:
    return (*_patient(document), document.metadata.get("admission", document.id))


def _numbers(keys: Iterable[Key], first: int) -> dict[Key, int]:
    """Returns a number for each key: its last part, if those are distinct numbers; else one counted on."""
    distinct = list(dict.fromkeys(keys))
    if all(key[-1].isascii() and key[-1].isdecimal() for key in distinct):
        own = {key: int(key[-1]) for key in distinct}
        if len(set(own.values())) == len(own):
            return own
    return {key: number for number, key in enumerate(distinct, start=first)}


def files(documents: Iterable[Document]) -> Iterator[WrittenFile]:
    """Yields the tables of a corpus.

    Args:
        documents: The documents, of all sites: the tables know none.

    Yields:
        Path and text of each file.

    Raises:
        DataError: A label is no ICD-9-CM code.
    """
    corpus = list(documents)
    subjects = _numbers(map(_patient, corpus), first=10_001)
    admissions = _numbers(map(_admission, corpus), first=100_001)
    codes: dict[Key, dict[str, None]] = {key: {} for key in admissions}
    for document in corpus:
        for label in document.labels:
            if not (code := without_dot(label)):
                what = f"the label {label!r} is no ICD-9-CM diagnosis code"
                raise DataError(f"document {document.id!r}", what, code="wrong_form")
            codes[_admission(document)][code] = None
    stays = [(subjects[key[:2]], number, key) for key, number in admissions.items()]
    notes = []
    for document in corpus:
        owner = subjects[_patient(document)], admissions[_admission(document)]
        kind = document.metadata.get("kind", "discharge summary")
        category = _TABLES["categories"].get(kind.lower(), ("General", kind))
        notes.append((*owner, None, None, None, *category, None, None, document.text))
    yield _table("NOTEEVENTS", notes)
    diagnoses = (
        (subject, stay, position, code)
        for subject, stay, key in stays
        for position, code in enumerate(codes[key], start=1)
    )
    yield _table("DIAGNOSES_ICD", diagnoses)
    yield _table("ADMISSIONS", ((subject, stay, *[None] * 16) for subject, stay, _ in stays))
    yield _table("PATIENTS", ((subject, *[None] * 6) for subject in subjects.values()))

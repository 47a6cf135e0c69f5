"""Synthetic notes under the admissions of somebody else's MIMIC-III tables.

The public demo of MIMIC-III has real tables and no notes. This gives each of its admissions one synthetic
note, so that code which joins notes with diagnoses can be run on real tables. The notes were not written
about these patients: each admission gets the note that shares most codes with it, and its other codes are
stated nowhere.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from fedstrata.core.documents import Document
from fedstrata.core.errors import refused
from fedstrata.data.readers.mimic import Admission


def under_admissions(notes: Sequence[Document], admissions: Mapping[str, Admission]) -> list[Document]:
    """Gives every admission one note as its discharge summary.

    Admissions choose in their order; of notes that share equally many codes the first is taken.

    Args:
        notes: At least as many notes as admissions.
        admissions: The admissions by HADM_ID.

    Returns:
        A document an admission, in their order: the text of the note, the codes of the admission as labels,
        and `patient`, `admission` and `kind` as metadata.

    Raises:
        ConfigurationError: There are fewer notes than admissions.
    """
    if len(notes) < len(admissions):
        message = f"{len(notes)} notes are too few for {len(admissions)} admissions; ask for at least as many"
        raise refused("--notes", message, "not_enough_data")
    free = dict.fromkeys(range(len(notes)))
    stating: dict[str, list[int]] = defaultdict(list)
    for number, note in enumerate(notes):
        for code in note.labels:
            stating[code].append(number)
    documents = []
    for name, admission in admissions.items():
        shared = Counter(
            number for code in admission.codes for number in stating.get(code, ()) if number in free
        )
        chosen = min(shared or free, key=lambda number: (-shared[number], number))
        del free[chosen]
        metadata = {"patient": admission.patient, "admission": name, "kind": "discharge summary"}
        documents.append(Document(name, notes[chosen].text, labels=tuple(admission.codes), metadata=metadata))
    return documents

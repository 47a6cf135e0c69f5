"""The readers on public corpora that nobody here wrote; the counts were taken with other tools."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.data.readers import read
from fedstrata.data.writers import write


def modifier_counts(documents: list[Document]) -> Counter[tuple[str, str]]:
    return Counter(
        (document.spans[relation.tail].label, document.spans[relation.head].label)
        for document in documents
        for relation in document.relations
        if relation.label == "MODIFY"
    )


def test_maccrobat_2020(data_root: Path, tmp_path: Path) -> None:
    # The release holds a stray hi.txt without annotations.
    documents = read(data_root / "maccrobat2020" / "brat", "brat", skip_unannotated=True)
    spans = [span for document in documents for span in document.spans]
    relations = Counter(relation.label for document in documents for relation in document.relations)
    assert len(documents) == 200
    assert len(spans) == 25189
    assert sum(bool(span.fragments) for span in spans) == 44
    assert len({span.label for span in spans}) == 41
    assert relations.total() == 16307
    assert (relations["MODIFY"], relations["BEFORE"], relations["CO-OCCURRENCE"]) == (11571, 2014, 5)
    modifiers = modifier_counts(documents)
    assert modifiers["Lab_value", "Diagnostic_procedure"] == 2747
    assert modifiers["Biological_structure", "Sign_symptom"] == 1539
    assert modifiers["Severity", "Sign_symptom"] == 276
    write(documents, tmp_path / "copy", "brat")
    assert read(tmp_path / "copy", "brat") == documents


def test_ncbi_disease(data_root: Path, tmp_path: Path) -> None:
    documents = read(data_root / "ncbi_disease" / "conll", "conll")
    sentences = Counter(document.metadata["split"] for document in documents)
    entities = Counter(document.metadata["split"] for document in documents for _ in document.spans)
    tokens = Counter[str]()
    for document in documents:
        tokens[document.metadata["split"]] += len(document.text.split(" "))
    assert sentences == {"train": 5432, "validation": 923, "test": 940}
    assert entities == {"train": 5145, "validation": 787, "test": 960}
    assert tokens == {"train": 136086, "validation": 23969, "test": 24497}
    write(documents, tmp_path / "copy", "conll")
    copy = read(tmp_path / "copy", "conll")
    assert sum(len(document.spans) for document in copy) == 5145 + 787 + 960


def test_i2b2_2010_fixtures(data_root: Path) -> None:
    documents = {item.id: item for item in read(data_root / "i2b2_format_fixtures", "i2b2")}
    assert {name: len(item.spans) for name, item in documents.items()} == {
        "cliner/ex_doc": 58,
        "cliner/single": 1,
        "cliner_old/pretend": 6,
    }
    example = documents["cliner/ex_doc"]
    assert example.site == "cliner"
    first = example.spans[0]
    assert (example.text[first.start : first.end], first.label) == ("Vasovagal syncope", "problem")

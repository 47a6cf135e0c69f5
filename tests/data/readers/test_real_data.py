"""The readers on public corpora that nobody here wrote; the counts were taken with other tools."""

from __future__ import annotations

import shutil
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from fedstrata.core.documents import Document
from fedstrata.core.settings.data import DataSettings
from fedstrata.data.choices import choices_of
from fedstrata.data.readers import read
from fedstrata.data.readers.mimic import read_codes
from fedstrata.data.select import select_relations, select_types
from fedstrata.data.synthetic import generate
from fedstrata.data.synthetic.admissions import under_admissions
from fedstrata.data.writers import write


def modifier_counts(documents: list[Document]) -> Counter[tuple[str, str]]:
    return Counter(
        (document.spans[relation.tail].label, document.spans[relation.head].label)
        for document in documents
        for relation in document.relations
        if relation.label == "MODIFY"
    )


@cache
def maccrobat(data_root: Path) -> list[Document]:
    """The release holds a stray hi.txt without annotations."""
    return read(data_root / "maccrobat2020" / "brat", "brat", unannotated="skip")


def test_maccrobat_2020(data_root: Path, tmp_path: Path) -> None:
    documents = maccrobat(data_root)
    spans = [span for document in documents for span in document.spans]
    relations = Counter(relation.label for document in documents for relation in document.relations)
    assert len(documents) == 200
    assert len(spans) == 25189
    assert sum(bool(span.fragments) for span in spans) == 39  # and 5 with only white space between the pieces
    assert len({span.label for span in spans}) == 41
    assert relations.total() - relations["OVERLAP"] == 16307
    # 2023 sets of 10729 events, each of them in one set, so that nothing is said twice.
    assert relations["OVERLAP"] == 10729 - 2023
    assert (relations["MODIFY"], relations["BEFORE"], relations["CO-OCCURRENCE"]) == (11571, 2014, 5)
    modifiers = modifier_counts(documents)
    assert modifiers["Lab_value", "Diagnostic_procedure"] == 2747
    assert modifiers["Biological_structure", "Sign_symptom"] == 1539
    assert modifiers["Severity", "Sign_symptom"] == 276
    write(documents[:50], tmp_path / "copy", "brat")
    assert read(tmp_path / "copy", "brat") == documents[:50]


def test_the_modifiers_of_maccrobat_as_triples(data_root: Path) -> None:
    """Main mention, modifier, and the modifier's type as that of the relation, as in Fed-MedLoRA."""
    documents = maccrobat(data_root)
    types = {
        "Sign_symptom": "problem",
        "Disease_disorder": "problem",
        "Diagnostic_procedure": "test",
        "Medication": "drug",
        "Therapeutic_procedure": "treatment",
        "Lab_value": "lab value",
        "Biological_structure": "body location",
        "Severity": "severity",
        "Dosage": "dosage",
        "Administration": "route",
        "Frequency": "frequency",
    }
    settings = DataSettings(relations={"MODIFY": "<modifier>"}, modifiers="clinical")
    found = select_relations(select_types(documents, types), settings)
    triples = Counter(
        (document.spans[own.head].label, document.spans[own.tail].label, own.label)
        for document in found
        for own in document.relations
    )
    assert triples == {  # two relations are in the files twice
        ("test", "lab value", "lab value"): 2747,
        ("problem", "body location", "body location"): 1801,
        ("drug", "dosage", "dosage"): 353,
        ("problem", "severity", "severity"): 352,
        ("drug", "route", "route"): 179,
        ("drug", "frequency", "frequency"): 20,
    }


@pytest.mark.slow
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


def test_ncbi_disease_as_pubtator(data_root: Path) -> None:
    documents = read(data_root / "ncbi_disease" / "pubtator", "pubtator")
    splits = Counter(document.metadata["split"] for document in documents)
    spans = Counter(document.metadata["split"] for document in documents for _ in document.spans)
    assert splits == {"train": 592, "validation": 100, "test": 100}
    # The training file holds 5145 mentions, 11 of them in the second copy of one document.
    assert spans == {"train": 5134, "validation": 787, "test": 960}
    assert {span.label for document in documents for span in document.spans} == {
        "SpecificDisease", "DiseaseClass", "Modifier", "CompositeMention",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["mtsamples", "mtsamples_multilabel"])
def test_mtsamples(data_root: Path, name: str) -> None:
    documents = read(data_root / "mtsamples" / f"{name}.csv.gz", "mtsamples")
    # 2377 sample numbers, two of them with the same transcription.
    assert len(documents) == 2376
    assert Counter(len(document.labels) for document in documents) == {1: 211, 2: 1743, 3: 388, 4: 33, 5: 1}
    assert len({label for document in documents for label in document.labels}) == 40


def test_synthetic_notes_join_the_tables_of_the_mimic_demo(data_root: Path, tmp_path: Path) -> None:
    demo, tables = data_root / "mimic3_demo", tmp_path / "tables"
    admissions = read_codes(demo)
    write(under_admissions(generate(seed=0, sites=2, notes=130), admissions), tables, "mimic")
    for name in ("DIAGNOSES_ICD.csv", "ADMISSIONS.csv", "PATIENTS.csv"):
        shutil.copyfile(demo / name, tables / name)
    documents = read(tables, "mimic")
    counts = Counter(label for document in documents for label in document.labels)
    assert len(documents) == 129
    assert len({document.metadata["patient"] for document in documents}) == 100
    assert (counts.total(), len(counts)) == (1761, 581)
    assert [counts[code] for code in ("401.9", "427.31", "584.9", "428.0")] == [53, 48, 45, 39]


def test_ag_news(data_root: Path) -> None:
    documents = read(data_root / "ag_news" / "test.csv", "ag_news")
    names = ["Business", "Sci/Tech", "Sports", "World"]
    assert Counter(document.labels[0] for document in documents) == dict.fromkeys(names, 1900)
    assert not any("\\" in document.text for document in documents)
    sample = read(data_root / "ag_news" / "promptft_dev1000.json", "ag_news")
    assert Counter(document.labels[0] for document in sample) == dict.fromkeys(names, 250)


@pytest.mark.parametrize(
    ("place", "train", "validation", "labels"),
    [
        ("glue/rte", 2490, 277, {"entailment": 1395, "not_entailment": 1372}),
        ("glue/mrpc", 3668, 408, {"0": 1323, "1": 2753}),
        ("glue/QQP", 8999, 1000, {"0": 6370, "1": 3629}),
        ("glue/MNLI", 8999, 1000, {"entailment": 3408, "neutral": 3313, "contradiction": 3278}),
        ("superglue/RTE", 1000, 277, {"entailment": 647, "not_entailment": 630}),
        ("superglue/CB", 250, 56, {"contradiction": 147, "entailment": 138, "neutral": 21}),
        ("superglue/BoolQ", 1000, 3270, {"true": 2657, "false": 1613}),
        ("superglue/COPA", 400, 100, {"choice1": 250, "choice2": 250}),
        ("superglue/fewglue/WiC", 32, 0, {"true": 17, "false": 15}),
        ("superglue/fewglue/WSC", 32, 0, {"choice1": 32}),
    ],
)
def test_glue_and_superglue(
    data_root: Path, place: str, train: int, validation: int, labels: dict[str, int]
) -> None:
    documents = read(data_root / place, place.partition("/")[0])
    splits = Counter(document.metadata["split"] for document in documents)
    assert splits == Counter(train=train, validation=validation)
    assert Counter(label for document in documents for label in document.labels) == labels
    if place.startswith("glue"):
        assert all(document.text and document.text_pair for document in documents)
    if place.endswith("WSC"):
        assert all(f"*{own.metadata['pronoun']}*".lower() in own.text.lower() for own in documents)


def test_the_questions_of_superglue_with_choices(data_root: Path) -> None:
    documents = read(data_root / "superglue" / "MultiRC", "superglue")
    parts = {
        split: [own for own in documents if own.metadata["split"] == split]
        for split in ("train", "validation")
    }
    answers = {split: sum(len(choices_of(own)) for own in own_part) for split, own_part in parts.items()}
    assert {split: len(own_part) for split, own_part in parts.items()} == {"train": 5131, "validation": 953}
    assert answers == {"train": 27243, "validation": 4848}
    assert sum(own.labels == ("none",) for own in documents) == 26
    record = read(data_root / "superglue" / "fewglue" / "ReCoRD", "superglue")
    assert len(record) == 32
    assert all(own.labels and set(own.labels) <= choices_of(own).keys() for own in record)
    assert sum(len(choices_of(own)) for own in record) == 397


def test_mts_dialog(data_root: Path) -> None:
    documents = read(data_root / "mts_dialog", "mts_dialog")
    splits = Counter(document.metadata["split"] for document in documents)
    assert splits == {"train": 1201, "validation": 100, "test": 400}
    assert len({document.labels for document in documents if document.metadata["split"] == "train"}) == 20
    assert all(document.text_pair for document in documents)

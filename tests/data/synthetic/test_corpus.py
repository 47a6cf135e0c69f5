from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import fewer_examples, refused

from fedstrata.core.documents import MENTION_TYPES, MODIFIER_TYPES, MODIFIERS_OF, Document
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.data.synthetic import generate, icd9_titles
from fedstrata.data.synthetic.corpus import NUMBERS_PER_SITE, READMISSION, _several
from fedstrata.data.synthetic.draw import Draw
from fedstrata.data.synthetic.lexicons import lexicon

KINDS = {"discharge summary", "progress note", "transcription"}
PUNCTUATION = ".,;:!?()[]{}<>\"'#*-"
WORD = re.compile(r"\w+|[^\w\s]")
ABSENT = {"negation", "subject", "uncertain"}
"""A problem with one of these is none that the patient is known to have."""


@pytest.fixture(scope="module")
def corpus() -> list[Document]:
    return generate(seed=0, sites=4, notes=200)


def modifiers_of(document: Document, head: int) -> set[str]:
    return {relation.label for relation in document.relations if relation.head == head}


# ---- what holds for every corpus -----------------------------------------------------------------------
sizes = st.integers(1, 4).flatmap(lambda sites: st.tuples(st.just(sites), st.integers(sites, sites + 4)))


@given(seed=st.integers(0, 2**32), size=sizes)
def test_a_corpus_is_well_formed(seed: int, size: tuple[int, int]) -> None:
    sites, notes = size
    documents = generate(seed=seed, sites=sites, notes=notes)
    assert len(documents) == notes
    assert len({document.id for document in documents}) == notes
    assert {document.site for document in documents} == {f"site-{site}" for site in range(1, sites + 1)}
    for document in documents:
        assert_spans_are_clean(document)
        assert_relations_are_allowed(document)
        assert_codes_are_stated(document)
        assert document.metadata["kind"] in KINDS
        assert document.metadata["patient"].isdigit()
        assert document.metadata["admission"].isdigit()


def assert_spans_are_clean(document: Document) -> None:
    assert list(document.spans) == sorted(document.spans, key=lambda span: (span.start, span.end, span.label))
    end_before = 0
    for span in document.spans:
        text = document.text[span.start : span.end]
        assert span.label in {*MENTION_TYPES, *MODIFIER_TYPES}
        assert span.start >= end_before, "spans neither overlap nor cross"
        assert text == text.strip()
        assert "\n" not in text
        assert text[0] not in PUNCTUATION, text
        assert text[-1] not in PUNCTUATION, text
        assert not document.text[: span.start][-1:].isalnum(), "begins at a word"
        assert not document.text[span.end :][:1].isalnum(), "ends at a word"
        end_before = span.end


def assert_relations_are_allowed(document: Document) -> None:
    for relation in document.relations:
        head, tail = document.spans[relation.head], document.spans[relation.tail]
        assert relation.label == tail.label
        assert relation.label in MODIFIERS_OF[head.label]
    modified = {relation.tail for relation in document.relations}
    loose = [
        span
        for index, span in enumerate(document.spans)
        if span.label in MODIFIER_TYPES and index not in modified
    ]
    assert not loose


def assert_codes_are_stated(document: Document) -> None:
    evidence = json.loads(document.metadata["evidence"])
    assert tuple(evidence) == document.labels
    assert document.labels
    assert set(document.labels) <= set(icd9_titles())
    place = {
        (span.start, span.end): index for index, span in enumerate(document.spans) if span.label == "problem"
    }
    for offsets in evidence.values():
        assert offsets
        for start, end in offsets:
            assert not modifiers_of(document, place[start, end]) & ABSENT


@fewer_examples(5)
@given(seed=st.integers(0, 2**32), size=sizes)
def test_the_seed_decides_everything(seed: int, size: tuple[int, int]) -> None:
    sites, notes = size
    first = generate(seed=seed, sites=sites, notes=notes)
    assert first == generate(seed=seed, sites=sites, notes=notes)
    other = generate(seed=seed + 1, sites=sites, notes=notes)
    assert not {document.text for document in first} & {document.text for document in other}


@pytest.mark.parametrize(("sites", "notes"), [(3, 40), (9, 80)])
def test_more_notes_and_more_sites_keep_the_notes_there_are(sites: int, notes: int) -> None:
    few = {document.id: document for document in generate(seed=3, sites=3, notes=20)}
    many = {document.id: document for document in generate(seed=3, sites=sites, notes=notes)}
    shared = few.keys() & many.keys()
    assert len(shared) > 15
    assert all(many[name] == few[name] for name in shared)


@fewer_examples(12)
@given(seed=st.integers(0, 2**32), size=sizes, most=st.integers(1, 6))
def test_patients_have_several_notes_one_after_the_other(seed: int, size: tuple[int, int], most: int) -> None:
    sites, notes = size
    documents = generate(seed=seed, sites=sites, notes=notes, notes_per_patient=most)
    assert documents == generate(seed=seed, sites=sites, notes=notes, notes_per_patient=most)
    stretches = [patient for patient, _ in groupby(document.patient for document in documents)]
    assert len(set(stretches)) == len(stretches), "no patient comes twice, at one site or at two"
    assert max(Counter(document.patient for document in documents).values()) <= most
    more = generate(seed=seed, sites=sites, notes=notes + sites, notes_per_patient=most)
    longer = {document.id: document for document in more}
    assert all(longer[document.id] == document for document in documents if document.id in longer)


def test_the_notes_of_patients_vary_in_number_and_tell_of_one_person() -> None:
    documents = generate(seed=0, sites=2, notes=150, notes_per_patient=5)
    whole = list(Counter(document.patient for document in documents).values())
    assert {1, 2, 3, 4, 5} == set(whole)
    assert 2.4 < sum(whole) / len(whole) < 3.6
    specialities: dict[str, set[str]] = defaultdict(set)
    for document in documents:
        specialities[document.patient].add(document.metadata["speciality"])
    assert all(len(own) == 1 for own in specialities.values())
    assert len({document.metadata["admission"] for document in documents}) == len(documents)
    single = generate(seed=0, sites=2, notes=30, notes_per_patient=1)
    assert len({document.patient for document in single}) == 30


@pytest.mark.parametrize("most", [2, 3, 5, 40])
def test_a_patient_s_notes_go_over_two_years_in_order(most: int) -> None:
    visits = list(islice(_several(Seed(0).child("site"), most), 200))
    for owner, own in groupby(enumerate(visits), key=lambda item: item[1].owner):
        indices, years = zip(*((index, visit.years) for index, visit in own), strict=True)
        assert indices[0] == owner
        assert list(years) == sorted(years)
        assert set(years) <= {0, 1}
    assert any(visit.years for visit in visits)


def test_without_the_setting_every_second_note_may_be_a_readmission() -> None:
    """As the numbers of patients always were: a corpus of before has the same ones."""
    for document in generate(seed=5, sites=2, notes=80):
        site, index = (int(part) for part in document.id.removeprefix("site-").split("-"))
        draw = Draw(Seed(5).child("synthetic").child("site", site, "readmission", index - 1))
        readmitted = index % 2 == 0 and draw.chance(READMISSION)
        assert int(document.patient) == site * NUMBERS_PER_SITE + index - readmitted


@pytest.mark.parametrize(
    ("sizes", "at", "value"),
    [
        ({"sites": 0, "notes": 10}, "sites", 0),
        ({"sites": -1, "notes": 10}, "sites", -1),
        ({"sites": 3, "notes": 2}, "notes", 2),
        ({"sites": 1, "notes": 0}, "notes", 0),
        ({"sites": 1, "notes": 4, "notes_per_patient": 0}, "notes_per_patient", 0),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int], at: str, value: int) -> None:
    with refused(ConfigurationError, "out_of_range", at=at, values=[value]):
        generate(seed=0, **sizes)


# ---- what a corpus of a few hundred notes holds --------------------------------------------------------
def test_texts_are_unique_and_of_moderate_length(corpus: list[Document]) -> None:
    assert len({document.text for document in corpus}) == len(corpus)
    lengths = [len(WORD.findall(document.text)) for document in corpus]
    assert 170 <= sum(lengths) / len(lengths) <= 240
    assert max(lengths) <= 600


def test_every_modifier_modifies_every_type_it_may(corpus: list[Document]) -> None:
    seen = {
        (document.spans[relation.head].label, relation.label)
        for document in corpus
        for relation in document.relations
    }
    assert seen == {(mention, modifier) for mention, allowed in MODIFIERS_OF.items() for modifier in allowed}


def test_specialities_and_kinds_occur(corpus: list[Document]) -> None:
    assert len({document.metadata["speciality"] for document in corpus}) >= 8
    assert {document.metadata["kind"] for document in corpus} == KINDS


def test_a_code_is_stated_by_one_of_its_conditions_wordings() -> None:
    """In a site that neither clips words nor respells them, the span holds a wording of the lexicon."""
    wordings: dict[str, set[str]] = defaultdict(set)
    known = lexicon()
    conditions = [*known.comorbidities, *known.child_comorbidities]
    for condition in [
        *conditions,
        *(item for speciality in known.specialities for item in speciality.conditions),
    ]:
        wordings[condition.code].update(re.sub(r"\{\w+\} ?", "", text).lower() for text in condition.surfaces)
    found = total = 0
    for document in generate(seed=2, sites=6, notes=120):
        for code, offsets in json.loads(document.metadata["evidence"]).items():
            for start, end in offsets:
                total += 1
                found += any(wording in document.text[start:end].lower() for wording in wordings[code])
    assert found / total > 0.7


def test_patients_come_back_with_the_same_chronic_illness(corpus: list[Document]) -> None:
    notes: dict[str, list[Document]] = defaultdict(list)
    for document in corpus:
        notes[document.metadata["patient"]].append(document)
    readmitted = [documents for documents in notes.values() if len(documents) > 1]
    assert 10 <= len(readmitted) <= len(corpus) / 4
    for documents in readmitted:
        assert len({document.site for document in documents}) == 1
        assert len({document.metadata["speciality"] for document in documents}) == 1
    admissions = [document.metadata["admission"] for document in corpus]
    assert len(set(admissions)) == len(admissions)


# ---- sites differ --------------------------------------------------------------------------------------
def by_site(documents: Sequence[Document]) -> dict[str, list[Document]]:
    sites: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        sites[document.site].append(document)
    return dict(sites)


def headings(documents: Sequence[Document]) -> set[str]:
    """Short lines or beginnings of lines met in at least a fifth of the notes."""
    starts = Counter(
        start for document in documents for start in {line[:12] for line in document.text.split("\n") if line}
    )
    return {start for start, count in starts.items() if count >= len(documents) / 5}


def test_sites_differ_in_size_speciality_and_headings() -> None:
    sites = by_site(generate(seed=1, sites=6, notes=240))
    assert len({len(documents) for documents in sites.values()}) > 3
    assert min(len(documents) for documents in sites.values()) >= 240 // 12
    main = {
        Counter(item.metadata["speciality"] for item in documents).most_common(1)[0][0]
        for documents in sites.values()
    }
    assert len(main) >= 4
    kept = [headings(documents) for documents in sites.values()]
    assert all(len(own) >= 3 for own in kept)
    for index, own in enumerate(kept):
        for other in kept[:index]:
            assert len(own & other) <= 0.5 * min(len(own), len(other))


def test_sites_differ_in_casing() -> None:
    casing = Counter()
    for documents in by_site(generate(seed=0, sites=8, notes=80)).values():
        first = "".join(item.text[item.spans[0].start : item.spans[0].end] for item in documents)
        casing["lower" if first.islower() else "upper" if first.isupper() else "mixed"] += 1
    assert casing.keys() == {"lower", "upper", "mixed"}

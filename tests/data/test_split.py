from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import problems_of, refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.data import SplitSettings
from fedstrata.data.split import PARTS, Split, set_aside, split

SHARES = SplitSettings()


def corpus(sites: list[int]) -> list[Document]:
    return [
        Document(f"{site}/{number}", "text", site=f"site-{site}")
        for site, count in enumerate(sites)
        for number in range(count)
    ]


def named(**parts: int) -> list[Document]:
    return [
        Document(f"{part}-{number}", "text", metadata={"split": part})
        for part, count in parts.items()
        for number in range(count)
    ]


def ids(parts: Split) -> dict[str, list[str]]:
    return {part: [document.id for document in getattr(parts, part)] for part in PARTS}


@st.composite
def shares(draw: st.DrawFn) -> SplitSettings:
    """Shares in hundredths; validation and test may be 0."""
    train = draw(st.integers(1, 100))
    validation = draw(st.integers(0, min(99, 100 - train)))
    return SplitSettings(
        train=train / 100, validation=validation / 100, test=(100 - train - validation) / 100
    )


@given(sites=st.lists(st.integers(0, 30), min_size=1, max_size=5), shares=shares(), seed=st.integers(0, 9))
def test_every_document_is_in_one_part_and_no_site_is_left_out(
    sites: list[int], shares: SplitSettings, seed: int
) -> None:
    documents = corpus(sites)
    parts = split(documents, shares, Seed(seed))
    assert Counter(document.id for document in parts.all) == Counter(document.id for document in documents)
    for site, count in enumerate(sites):
        in_part = {part: sum(d.site == f"site-{site}" for d in getattr(parts, part)) for part in PARTS}
        assert in_part["train"] >= min(count, 1)
        for part in PARTS:
            share = getattr(shares, part)
            if share == 0.0:
                assert in_part[part] == 0
            elif count >= 3:
                assert in_part[part] >= 1
            # One document off for rounding, and one for each other part that would have been empty.
            assert abs(in_part[part] - count * share) < 3


@given(order=st.permutations(corpus([5, 9, 3])), seed=st.integers(0, 3))
def test_the_order_of_the_input_does_not_matter(order: list[Document], seed: int) -> None:
    assert split(order, SHARES, Seed(seed)) == split(corpus([5, 9, 3]), SHARES, Seed(seed))


def test_shares_are_those_asked_for_and_the_seed_changes_who_is_where() -> None:
    documents = corpus([100, 50])
    parts = split(documents, SHARES, Seed(0))
    assert [len(getattr(parts, part)) for part in PARTS] == [105, 15, 30]
    assert ids(split(documents, SHARES, Seed(0))) == ids(parts)
    assert ids(split(documents, SHARES, Seed(1))) != ids(parts)


def test_a_site_that_joins_does_not_change_the_others() -> None:
    before, after = split(corpus([20]), SHARES, Seed(0)), split(corpus([20, 20]), SHARES, Seed(0))
    for part in PARTS:
        assert set(ids(before)[part]) <= set(ids(after)[part])


@given(counts=st.tuples(*[st.integers(1, 20)] * 3))
def test_the_data_s_own_parts_are_honoured(counts: tuple[int, int, int]) -> None:
    documents = named(**dict(zip(PARTS, counts, strict=True)))
    assert split(documents, SHARES, Seed(0)) == Split(
        *(
            tuple(sorted((d for d in documents if d.metadata["split"] == part), key=lambda d: d.id))
            for part in PARTS
        )
    )


@pytest.mark.parametrize(
    ("given_parts", "expected"),
    [
        ({"train": 80, "test": 7}, (70, 10, 7)),  # 0.1 of 0.7 + 0.1
        ({"train": 90, "validation": 7}, (70, 7, 20)),  # 0.2 of 0.7 + 0.2
        ({"train": 100}, (70, 10, 20)),
    ],
)
def test_a_part_the_data_does_not_have_is_cut_off_its_training_documents(
    given_parts: dict[str, int], expected: tuple[int, int, int]
) -> None:
    parts = split(named(**given_parts), SHARES, Seed(0))
    assert tuple(len(getattr(parts, part)) for part in PARTS) == expected
    for part in given_parts:
        if part != "train":
            assert all(id_.startswith(part) for id_ in ids(parts)[part])


def test_no_part_is_cut_off_that_the_shares_do_not_ask_for() -> None:
    parts = split(named(train=10, test=2), SplitSettings(train=0.8, validation=0.0, test=0.2), Seed(0))
    assert [len(getattr(parts, part)) for part in PARTS] == [10, 0, 2]


@pytest.mark.parametrize(
    ("documents", "code", "words"),
    [
        (
            named(train=3, dev=2),
            "unknown_name",
            ["2 documents", "'dev-0'", "'dev'", "train, validation, test"],
        ),
        (named(train=3) + corpus([2]), "missing", ["2 documents", "'0/0'"]),
        (named(test=3), "not_enough_data", ["'train'", "'test-0'", "'test'"]),
    ],
)
def test_what_cannot_be_split_is_refused(documents: list[Document], code: str, words: list[str]) -> None:
    with refused(ConfigurationError, code, at="data.path", values=words) as error:
        split(documents, SHARES, Seed(0))
    assert len(problems_of(error.value)) == 1


def stays(*patients: int, split: str = "") -> list[Document]:
    """Documents of numbered patients at two sites; a patient of one site is not that of the other."""
    return [
        Document(
            f"{split}{number}",
            "text",
            site=f"site-{number % 2}",
            metadata={"patient": str(patient), **({"split": split} if split else {})},
        )
        for number, patient in enumerate(patients)
    ]


@given(
    patients=st.lists(st.integers(0, 9), max_size=60),
    shares=shares(),
    seed=st.integers(0, 3),
    named_train=st.booleans(),
    by=st.sampled_from(["patient", "auto"]),
)
def test_by_patient_no_patient_is_in_two_parts(
    patients: list[int], shares: SplitSettings, seed: int, named_train: bool, by: str
) -> None:
    documents = stays(*patients, split="train" if named_train and patients else "")
    parts = split(documents, shares.model_copy(update={"by": by}), Seed(seed))
    assert Counter(document.id for document in parts.all) == Counter(document.id for document in documents)
    where: dict[tuple[str, str], set[str]] = {}
    for part in PARTS:
        for document in getattr(parts, part):
            where.setdefault((document.site, document.metadata["patient"]), set()).add(part)
    assert all(len(found) == 1 for found in where.values())
    for site in {site for site, _ in where}:
        found = Counter(part for (at, _), (part,) in where.items() if at == site)
        if found.total() >= 3 and not named_train:
            assert all(found[part] for part in PARTS if getattr(shares, part) > 0)
        for part in PARTS:
            assert abs(found[part] - found.total() * getattr(shares, part)) < 3


def test_patients_of_one_document_each_are_divided_like_documents() -> None:
    """The share of a part is one of patients; its rank goes by the patient's name."""
    documents = [Document(f"d{n}", "text", metadata={"patient": f"d{n}"}) for n in range(40)]
    by_patient = split(documents, SplitSettings(by="patient"), Seed(0))
    assert by_patient == split(documents, SplitSettings(by="document"), Seed(0))


def test_by_default_documents_that_name_a_patient_are_divided_by_patient() -> None:
    patients = [number // 3 for number in range(60)]
    documents = [replace(document, site="") for document in stays(*patients)]
    by_patient = split(documents, SplitSettings(by="patient"), Seed(0))
    assert split(documents, SHARES, Seed(0)) == by_patient
    assert split(documents, SHARES, Seed(0)) != split(documents, SplitSettings(by="document"), Seed(0))
    alone = corpus([30])
    assert split(alone, SHARES, Seed(0)) == split(alone, SplitSettings(by="document"), Seed(0))
    parts = split(documents + alone, SHARES, Seed(0))
    found = [
        {document.metadata.get("patient") for document in getattr(parts, part)} - {None} for part in PARTS
    ]
    assert sum(map(len, found)) == 20


def test_by_document_is_what_it_was_whatever_patients_are_named() -> None:
    documents = stays(*range(20), *range(20))
    parts = split(documents, SplitSettings(by="document"), Seed(0))
    nameless = [replace(document, metadata={}) for document in documents]
    assert ids(parts) == ids(split(nameless, SplitSettings(by="document"), Seed(0)))


def test_by_patient_every_document_needs_one_and_named_parts_must_keep_them_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    by_patient = SplitSettings(by="patient")
    with refused(ConfigurationError, "missing", at="data.split.by", values=["2 of 5", "'0/0'"]):
        split(corpus([2]) + stays(1, 2, 3), by_patient, Seed(0))
    torn = stays(1, 2, 3, split="train") + stays(1, 4, split="test")
    with refused(ConfigurationError, "conflict", at="data.split.by", values=["1 of 4 patients"]):
        split(torn, by_patient, Seed(0))
    with caplog.at_level(logging.WARNING):
        assert len(split(torn, SHARES, Seed(0)).test) == 2
    assert "1 of 4 patients" in caplog.text


@given(
    sites=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    count=st.integers(0, 20),
    seed=st.integers(0, 3),
)
def test_the_server_s_documents_come_evenly_from_the_sites_and_are_trained_on_by_nobody(
    sites: list[int], count: int, seed: int
) -> None:
    parts = split(corpus(sites), SHARES, Seed(seed))
    asked = SplitSettings(server=count)
    at = Counter(document.site for document in parts.train)
    most = sum(own - 1 for own in at.values())
    if count > most:
        with refused(ConfigurationError, "out_of_range", at="data.split.server", values=[most, count]):
            set_aside(parts, asked, Seed(seed))
        return
    left, taken = set_aside(parts, asked, Seed(seed))
    assert len(taken) == count
    both = [document.id for document in (*left.train, *taken)]
    assert sorted(both) == sorted(document.id for document in parts.train)
    assert (left.validation, left.test) == (parts.validation, parts.test)
    given_by = Counter(document.site for document in taken)
    assert all(given_by[site] < own for site, own in at.items())
    able = [given_by[site] for site, own in at.items() if given_by[site] < own - 1]
    assert max(given_by.values(), default=0) - min(able, default=count) <= 1
    shuffled = replace(parts, train=parts.train[::-1])
    assert set_aside(shuffled, asked, Seed(seed))[1] == taken


def test_the_server_gets_all_of_a_patient_s_training_documents() -> None:
    parts = split(stays(*(number // 4 for number in range(48))), SHARES, Seed(0))
    left, taken = set_aside(parts, SplitSettings(server=3), Seed(0))

    def patients(documents: tuple[Document, ...]) -> set[tuple[str, str]]:
        return {(document.site, document.metadata["patient"]) for document in documents}

    assert len(taken) >= 3
    assert not patients(left.train) & patients(taken)
    assert len(set_aside(parts, SplitSettings(server=3, by="document"), Seed(0))[1]) == 3

"""Disorder in the examples of both tasks: what moves, what stays, and that collating still works."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedstrata.core.documents import Document, Span
from fedstrata.core.seeding import Seed
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.corrupt import permuted
from fedstrata.tasks.lm import LanguageModelling
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.tasks.windows import IGNORED

TEXTS = ["severe chest pain, given aspirin 5mg " * 6, "CT of the chest; no fever.", "denies fever " * 7]
NER_NOTES = [
    Document(str(n), text, spans=(Span(0, 6, "x"), Span(7, 12, "y"))) for n, text in enumerate(TEXTS)
]
SHORT = {"max_length": 16, "stride": 4}
LABELS = ("a", "b", "c")


def ner_task() -> NamedEntityRecognition:
    return NamedEntityRecognition(**SHORT).of_types(["x", "y"])


def label_task(labels: tuple[str, ...] = LABELS, kind: str = "multi_label") -> DocumentClassification:
    return DocumentClassification(problem_type=kind, **SHORT).of_labels(labels)


def lm_task() -> LanguageModelling:
    return LanguageModelling(max_length=16)


def corrupted(task: Any, documents: list[Document], kind: str, tokenizer: Any) -> tuple[list[Any], list[Any]]:
    """Examples, and those of a corrupt client."""
    examples = task.encode(documents, tokenizer)
    return examples, task.corrupt(examples, kind, tokenizer, Seed(0))


def notes(*labels: tuple[str, ...]) -> list[Document]:
    return [Document(str(n), TEXTS[n % 3], labels=own) for n, own in enumerate(labels)]


def equal(one: Any, other: Any, *leave: str) -> bool:
    names = [name for name in one.__dataclass_fields__ if name not in leave]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def test_tags_are_permuted_among_owned_tokens(tokenizer: Any) -> None:
    task = ner_task()
    examples, found = corrupted(task, NER_NOTES, "shuffled_labels", tokenizer)
    before, after = (np.concatenate([window.tags for window in each]) for each in (examples, found))
    assert ((before == IGNORED) == (after == IGNORED)).all()
    assert Counter(before.tolist()) == Counter(after.tolist())
    assert (before != after).any()
    assert all(equal(one, two, "tags") for one, two in zip(examples, found, strict=True))
    assert found[0].tags.dtype == examples[0].tags.dtype
    task.collate(found)


def test_each_tag_becomes_the_next(tokenizer: Any) -> None:
    for one, two in zip(*corrupted(ner_task(), NER_NOTES, "label_flips", tokenizer), strict=True):
        expected = [tag if tag == IGNORED else (tag + 1) % 5 for tag in one.tags.tolist()]
        assert two.tags.tolist() == expected
        assert two.tags.dtype == one.tags.dtype
        assert equal(one, two, "tags")


@pytest.mark.parametrize("task", [ner_task(), label_task(), lm_task()], ids=["ner", "classify", "lm"])
def test_tokens_are_permuted_within_their_window_and_special_ones_stay(task: Any, tokenizer: Any) -> None:
    documents = [replace(note, labels=("a",), spans=()) for note in NER_NOTES]
    examples, found = corrupted(task, documents, "shuffled_tokens", tokenizer)
    moved = 0
    for one, two in zip(examples, found, strict=True):
        assert equal(one, two, "input_ids", "windows")
        assert len(one) == len(two)
        for before, after in zip(one.windows, two.windows, strict=True):
            assert after.dtype == before.dtype
            assert sorted(before.tolist()) == sorted(after.tolist())
            special = np.isin(before, tokenizer.all_special_ids)
            assert (before[special] == after[special]).all()
            moved += int((before != after).sum())
    assert moved > 20
    batches = [task.collate(each)["input_ids"] for each in (examples, found)]
    assert batches[0].shape == batches[1].shape


def test_what_follows_is_permuted_over_all_of_a_clients_text(tokenizer: Any) -> None:
    examples, shuffled = corrupted(lm_task(), NER_NOTES, "shuffled_labels", tokenizer)
    _, flipped = corrupted(lm_task(), NER_NOTES, "label_flips", tokenizer)
    before, after, next_ = (
        np.concatenate([passage.targets for passage in each]) for each in (examples, shuffled, flipped)
    )
    assert Counter(before.tolist()) == Counter(after.tolist())
    assert (before != after).mean() > 0.5
    assert next_.tolist() == [(token + 1) % len(tokenizer) for token in before.tolist()]
    assert before.dtype == after.dtype == next_.dtype
    for found in (shuffled, flipped):
        assert all(equal(one, two, "targets", "windows") for one, two in zip(examples, found, strict=True))


def test_label_sets_are_permuted_among_documents(tokenizer: Any) -> None:
    documents = notes(("a",), ("b", "c"), (), ("c",), ("a", "b"))
    sides = corrupted(label_task(), documents, "shuffled_labels", tokenizer)
    before, after = ([tuple(each.targets.tolist()) for each in side] for side in sides)
    assert before != after
    assert Counter(before) == Counter(after)


def test_each_label_becomes_the_next(tokenizer: Any) -> None:
    documents = notes(("a",), ("b", "c"), (), ("a", "c"))
    _, found = corrupted(label_task(), documents, "label_flips", tokenizer)
    assert [each.targets.tolist() for each in found] == [[1], [0, 2], [], [0, 1]]
    single = label_task(kind="single_label")
    _, found = corrupted(single, notes(("c",), ("b",)), "label_flips", tokenizer)
    assert single.collate(found)["labels"].tolist() == [0, 2]


def test_the_only_label_is_swapped_with_its_absence(tokenizer: Any) -> None:
    task = label_task(labels=("a",))
    _, found = corrupted(task, notes(("a",), ()), "label_flips", tokenizer)
    assert task.collate(found)["labels"].tolist() == [[0.0], [1.0]]


@given(st.lists(arrays(np.int16, st.integers(0, 6), elements=st.integers(0, 99)), max_size=5), st.data())
def test_a_permutation_moves_the_movable_and_nothing_else(
    rows: list[np.ndarray], data: st.DataObject
) -> None:
    movable = [data.draw(arrays(np.bool_, len(row))) for row in rows]
    found = permuted(rows, movable, Seed(data.draw(st.integers(0, 99))))
    assert [(each.shape, each.dtype) for each in found] == [(row.shape, row.dtype) for row in rows]
    for row, moves, after in zip(rows, movable, found, strict=True):
        assert (row[~moves] == after[~moves]).all()
    sides = [
        [v for each, moves in zip(side, movable, strict=True) for v in each[moves]] for side in (rows, found)
    ]
    assert Counter(sides[0]) == Counter(sides[1])

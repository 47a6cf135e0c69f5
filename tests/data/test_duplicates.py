"""Documents that others repeat: what MinHash finds is what comparing all pairs finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.documents import Document
from fedstrata.data import duplicates
from fedstrata.data.duplicates import Duplicates, Repeated, clusters, find_duplicates, own_shingles
from fedstrata.data.split import Split

Corpus = Mapping[str, Mapping[str, Sequence[str]]]
WORDS = [f"word{number}" for number in range(400)]


def text_of(seed: int, words: int = 60) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, words))


def changed(text: str, places: Sequence[int]) -> str:
    words = text.split()
    for number, place in enumerate(places):
        words[place % len(words)] = f"other{place}x{number}"
    return " ".join(words)


def found(corpus: Corpus) -> Duplicates:
    clients = {
        name: Split(
            **{
                part: tuple(Document(f"{name}-{part}-{number}", text) for number, text in enumerate(texts))
                for part, texts in parts.items()
            }
        )
        for name, parts in corpus.items()
    }
    return find_duplicates(clients, lambda document: document.text)


def by_brute_force(corpus: Corpus) -> set[frozenset[str]]:
    """The connected components of all pairs from the threshold, word by word."""
    every = list(dict.fromkeys(text for parts in corpus.values() for own in parts.values() for text in own))
    shingles = [set(own.tolist()) for own in own_shingles(corpus, every)]
    component = {text: {text} for text in every}
    for (one, left), (other, right) in combinations(zip(every, shingles, strict=True), 2):
        compared = min(len(left), len(right)) >= duplicates.FEWEST
        if compared and len(left & right) / len(left | right) >= duplicates.SIMILARITY:
            joined = component[one] | component[other]
            component.update(dict.fromkeys(joined, joined))
    return {frozenset(own) for own in component.values()}


@given(
    bases=st.lists(st.tuples(st.integers(0, 5), st.integers(12, 80)), min_size=1, max_size=4),
    copies=st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.integers(0, 79), max_size=6), st.booleans()), max_size=12
    ),
)
def test_clusters_are_those_of_all_pairs(
    bases: list[tuple[int, int]], copies: list[tuple[int, list[int], bool]]
) -> None:
    texts = [text_of(*base) for base in bases]
    corpus: dict[str, dict[str, list[str]]] = {"a": {"train": [*texts], "test": []}, "b": {"train": []}}
    for which, places, elsewhere in copies:
        part = corpus["b"]["train"] if elsewhere else corpus["a"]["test"]
        part.append(changed(texts[which % len(texts)], places))
    groups: dict[int, set[str]] = {}
    for text, number in clusters(corpus).items():
        groups.setdefault(number, set()).add(text)
    assert {frozenset(own) for own in groups.values()} == by_brute_force(corpus)


def test_what_is_scored_and_was_trained_on_is_counted_by_client_and_part() -> None:
    one, two, three = (text_of(seed) for seed in range(3))
    got = found(
        {
            "a": {
                "train": [one, two],
                "validation": [changed(one, [5])],
                "test": [f"{one.upper()} .", three],
            },
            "b": {"train": [text_of(9)], "test": [changed(two, [7]), three]},
        }
    )
    assert got.learnt["a"] == {"validation": Repeated(1, 0, 1), "test": Repeated(2, 1, 0)}
    assert got.learnt["b"]["test"] == Repeated(2, 0, 1)  # near a training document of the other client
    assert got.elsewhere == {"a": Repeated(5, 1, 1), "b": Repeated(3, 1, 1)}


def test_what_notes_of_a_site_have_in_common_makes_no_duplicates() -> None:
    heading = text_of(1000, 90)
    notes = [f"{heading} {text_of(seed, 15)}" for seed in range(40)]
    got = found({"a": {"train": notes[:30], "test": [*notes[30:], changed(notes[0], [100])]}})
    assert got.learnt["a"]["test"] == Repeated(11, 0, 0)  # of 13 stretches of its own 3 are others
    got = found({"a": {"train": notes[:30], "test": [*notes[30:], changed(notes[0], [104])]}})
    assert got.learnt["a"]["test"] == Repeated(11, 0, 1)


def test_notes_that_are_nothing_but_a_template_are_near_duplicates() -> None:
    template = text_of(7, 80)
    notes = [changed(template, [number]) for number in range(80)]
    got = found({"a": {"train": notes[:60], "test": notes[60:]}})
    assert got.learnt["a"]["test"] == Repeated(20, 0, 20)


def test_short_texts_are_compared_word_for_word_alone() -> None:
    got = found(
        {"a": {"train": ["No acute distress."], "test": ["no acute distress", "No acute pain.", " "]}}
    )
    assert got.learnt["a"]["test"] == Repeated(2, 1, 0)  # a blank one is none


def test_among_too_many_words_equal_documents_are_found_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(1)
    corpus = {"a": {"train": [text, text_of(2)], "test": [text, changed(text_of(2), [3])]}}
    assert found(corpus).learnt["a"]["test"] == Repeated(2, 1, 1)
    monkeypatch.setattr(duplicates, "MOST_WORDS", 200)
    got = found(corpus)
    assert (got.learnt["a"]["test"], got.compared) == (Repeated(2, 1, 0), False)

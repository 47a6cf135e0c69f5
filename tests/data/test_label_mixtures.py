"""Clients of equal size with mixes of labels: exact numbers, the drawn distribution, one mix in all parts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.documents import Document
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.partition import PartitionSettings
from fedstrata.data.label_mixtures import in_whole, settled
from fedstrata.data.partition import partition
from fedstrata.data.split import PARTS, Split

SHARES = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}


def corpus(counts: dict[str, list[int]]) -> Split:
    """Documents of each label: so many in each part."""
    return Split(
        *(
            tuple(
                Document(f"{part}-{label}-{n}", "x", labels=(label,))
                for label, own in counts.items()
                for n in range(own[index])
            )
            for index, part in enumerate(PARTS)
        )
    )


def divided(parts: Split, clients: int, alpha: float, seed: int = 0) -> list[Split]:
    rule = PartitionSettings(by="dirichlet_equal", clients=clients, alpha=alpha)
    return list(partition(parts, rule, Seed(seed)).values())


def numbers(own: Split, part: str, labels: list[str]) -> np.ndarray:
    found = Counter(document.labels[0] for document in getattr(own, part))
    return np.array([found[label] for label in labels])


COUNTS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(st.integers(0, 60), st.integers(0, 9), st.integers(0, 20)).map(list),
    min_size=1,
).filter(lambda counts: sum(own[0] for own in counts.values()) >= 12)
ALPHAS = st.sampled_from([1e-3, 0.1, 1.0, 10.0, 1e4])


@given(counts=COUNTS, clients=st.integers(1, 12), alpha=ALPHAS, seed=st.integers(0, 99))
def test_every_document_goes_to_one_client_and_sizes_differ_by_one_at_most(
    counts: dict[str, list[int]], clients: int, alpha: float, seed: int
) -> None:
    parts = corpus(counts)
    owned = divided(parts, clients, alpha, seed)
    for part in PARTS:
        ids = sorted(document.id for own in owned for document in getattr(own, part))
        assert ids == sorted(document.id for document in getattr(parts, part))
        sizes = [len(getattr(own, part)) for own in owned]
        assert max(sizes) - min(sizes) <= 1


MATRICES = st.integers(1, 8).flatmap(
    lambda labels: st.tuples(
        st.lists(
            st.lists(st.floats(0.0, 1.0), min_size=labels, max_size=labels).filter(
                lambda row: sum(row) > 0.01
            ),
            min_size=1,
            max_size=9,
        ),
        st.lists(st.integers(0, 40), min_size=labels, max_size=labels).filter(any),
    )
)


@given(drawn=MATRICES, seed=st.integers(0, 99))
def test_mixes_settle_to_the_shares_of_the_corpus_and_numbers_to_its_counts(
    drawn: tuple[list[list[float]], list[int]], seed: int
) -> None:
    wanted, counts = np.array(drawn[0]), np.array(drawn[1])
    wanted /= wanted.sum(axis=1, keepdims=True)
    mixes = settled(wanted, counts / counts.sum())
    np.testing.assert_allclose(mixes.sum(axis=1), 1.0, atol=1e-9)
    np.testing.assert_allclose(mixes.mean(axis=0), counts / counts.sum(), atol=1e-9)
    assert mixes.min() >= 0
    found = in_whole(mixes, counts, np.random.default_rng(seed))
    assert found.min() >= 0
    assert (found.sum(axis=0) == counts).all()
    assert np.ptp(found.sum(axis=1)) <= 1


def test_the_rule_by_hand_where_a_label_runs_out() -> None:
    """Three clients; b is a third of the corpus, and the first two want more of it than there is."""
    wanted = np.array([[0.25, 0.75, 0.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    mixes = settled(wanted, np.array([1 / 3, 1 / 3, 1 / 3]))
    # The second finds a quarter of b left; the other one it takes from a and c, of which 1/4 and 1 are left.
    np.testing.assert_allclose(mixes[0], [0.25, 0.75, 0.0])
    np.testing.assert_allclose(mixes[1], [0.55, 0.25, 0.2])
    np.testing.assert_allclose(mixes[2], [0.2, 0.0, 0.8])


@pytest.mark.slow
def test_before_labels_run_out_mixes_are_those_drawn() -> None:
    """Over many seeds the first client's share of a label has the mean and variance of Dir(alpha p)."""
    parts = corpus({label: [round(1000 * share), 0, 0] for label, share in SHARES.items()})
    share = (
        np.array([numbers(divided(parts, 5, 2.0, seed)[0], "train", list(SHARES)) for seed in range(300)])
        / 200
    )
    expected = np.array(list(SHARES.values()))
    assert share.mean(axis=0) == pytest.approx(expected, abs=0.05)
    # A client cannot have more of a label than there is; of five, only d may be that scarce.
    assert share.var(axis=0)[:2] == pytest.approx((expected * (1 - expected) / 3)[:2], rel=0.2)


def test_a_small_alpha_gives_few_labels_and_a_large_one_the_mix_of_the_corpus() -> None:
    counts = {label: [round(4000 * share), 0, 0] for label, share in SHARES.items()}
    labels_a_client = [
        np.mean(
            [len({document.labels for document in own.train}) for own in divided(corpus(counts), 40, alpha)]
        )
        for alpha in (0.01, 1.0, 1e5)
    ]
    assert labels_a_client[0] < 1.5 < labels_a_client[1] < labels_a_client[2] == 4
    for own in divided(corpus(counts), 40, 1e5):
        assert numbers(own, "train", list(SHARES)) == pytest.approx(
            100 * np.array([0.4, 0.3, 0.2, 0.1]), abs=2
        )


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_all_parts_of_a_client_have_its_mix(alpha: float) -> None:
    counts = {label: [round(7000 * s), round(1000 * s), round(2000 * s)] for label, s in SHARES.items()}
    for own in divided(corpus(counts), 50, alpha):
        mix = numbers(own, "train", list(SHARES)) / 140
        assert numbers(own, "validation", list(SHARES)) == pytest.approx(20 * mix, abs=1.3)
        assert numbers(own, "test", list(SHARES)) == pytest.approx(40 * mix, abs=1.6)


def test_parts_with_other_label_shares_stay_near_the_mix_of_their_client() -> None:
    """A test part with more of one label: the surplus is spread, and nobody's mix is turned over."""
    counts = {"a": [500, 0, 110], "b": [500, 0, 90]}
    owned = divided(corpus(counts), 20, 1.0)
    shifts = [numbers(own, "test", ["a", "b"])[0] - numbers(own, "train", ["a", "b"])[0] / 5 for own in owned]
    assert sum(shifts) == pytest.approx(10)
    assert max(map(abs, shifts)) <= 2


def test_numbers_have_nearly_the_expectation_of_the_mix() -> None:
    """Eight documents a client, as in AG News's test part among a thousand."""
    mixes = settled(np.random.default_rng(1).dirichlet([0.4, 0.3, 0.3], size=60), np.array([0.4, 0.3, 0.3]))
    counts = np.array([192, 144, 144])
    drawn = [in_whole(mixes, counts, np.random.default_rng(seed)) for seed in range(500)]
    assert np.abs(np.stack(drawn) - 8 * mixes).max() < 2
    assert np.mean(drawn, axis=0) == pytest.approx(8 * mixes, abs=0.25)


@pytest.mark.slow
def test_a_hundred_thousand_documents_are_divided_among_a_thousand_clients() -> None:
    """All in seconds; a rule that compares documents or clients in pairs would take hours."""
    owned = divided(corpus({label: [25000, 100, 1900] for label in "abcd"}), 1000, 1.0)
    assert {len(own.train) for own in owned} == {100}

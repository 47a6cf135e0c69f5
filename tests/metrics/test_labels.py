"""Label scores against scikit-learn and against loops over documents."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support, roc_auc_score

from fedstrata.metrics.labels import (
    SCORED_SINGLY,
    areas,
    choice_scores_from,
    choice_tally,
    right_at,
    scores_from,
    tally_of,
)

Case = tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]


def label_scores(
    gold: np.ndarray, given: np.ndarray, probabilities: np.ndarray, labels: list[str], *, one_each: bool
) -> dict[str, float]:
    tally = tally_of(gold, given, probabilities, labels)
    return scores_from(tally, areas(gold, probabilities), labels, one_each=one_each)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Gold labels, given labels and probabilities with many ties: a seed and shapes say it all."""
    documents, labels = draw(st.integers(1, 12)), draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    density = draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    gold = rng.random((documents, labels)) < density
    probabilities = rng.integers(0, 5, (documents, labels)) / 4
    return gold, probabilities >= 0.5, probabilities, [f"label-{number}" for number in range(labels)]


@given(case=cases())
def test_micro_and_macro_scores_are_those_of_scikit_learn(case: Case) -> None:
    gold, given_labels, _, labels = case
    scores = label_scores(*case, one_each=False)
    # With one label scikit-learn takes a column for a two-class problem; a second, empty one makes it ours.
    wide = [np.pad(matrix, ((0, 0), (0, 1))).astype(int) for matrix in (gold, given_labels)]
    micro = precision_recall_fscore_support(*wide, average="micro", zero_division=0)[:3]
    assert [scores[f"micro_{name}"] for name in ("precision", "recall", "f1")] == pytest.approx(micro)
    occurring = np.flatnonzero(gold.any(axis=0) | given_labels.any(axis=0)).tolist()
    assert scores["f1_labels_left_out"] == len(labels) - len(occurring)
    names = ("macro_precision", "macro_recall", "macro_f1")
    if not occurring:
        assert [scores[name] for name in names] == [0.0, 0.0, 0.0]
        return
    macro = precision_recall_fscore_support(*wide, labels=occurring, average="macro", zero_division=0)[:3]
    assert [scores[name] for name in names] == pytest.approx(macro)
    each = f1_score(*wide, labels=occurring, average=None, zero_division=0)
    assert {name: score for name, score in scores.items() if "/" in name} == pytest.approx(
        {f"f1/label-{label}": score for label, score in zip(occurring, each, strict=True)}
    )


def naive_auc(gold: np.ndarray, probabilities: np.ndarray) -> float | None:
    """The share of pairs of a document with and one without the label that are in the right order."""
    pairs = [
        (high > low) + (high == low) / 2
        for high in probabilities[gold].tolist()
        for low in probabilities[~gold].tolist()
    ]
    return sum(pairs) / len(pairs) if pairs else None


@given(case=cases())
def test_auc_is_the_share_of_pairs_in_order_and_left_out_where_there_are_none(case: Case) -> None:
    gold, _, probabilities, labels = case
    scores = label_scores(*case, one_each=False)
    each = [naive_auc(gold[:, label], probabilities[:, label]) for label in range(len(labels))]
    defined = [area for area in each if area is not None]
    assert scores["auc_labels_left_out"] == len(labels) - len(defined)
    assert scores.get("macro_auc") == (pytest.approx(np.mean(defined)) if defined else None)
    micro = naive_auc(gold, probabilities)
    assert scores.get("micro_auc") == (pytest.approx(micro) if micro is not None else None)
    if defined and len(defined) == len(labels) > 1:
        assert scores["macro_auc"] == pytest.approx(roc_auc_score(gold, probabilities, average="macro"))
    assert all(np.isfinite(score) for score in scores.values())


@given(case=cases(), cut=st.integers(1, 7))
def test_precision_at_a_cut_is_that_of_a_loop(case: Case, cut: int) -> None:
    gold, _, probabilities, labels = case
    cut = min(cut, len(labels))
    expected = []
    for own, row in zip(gold.tolist(), probabilities.tolist(), strict=True):
        ranking = sorted(range(len(labels)), key=lambda label: (-row[label], label))
        expected.append(sum(own[label] for label in ranking[:cut]) / cut)
    assert right_at(cut, gold, probabilities) / (cut * len(gold)) == pytest.approx(np.mean(expected))


@given(seed=st.integers(0, 10_000), documents=st.integers(1, 12), labels=st.integers(2, 6))
def test_scores_of_one_label_each_are_those_of_scikit_learn(seed: int, documents: int, labels: int) -> None:
    rng = np.random.default_rng(seed)
    gold, given_labels = rng.integers(0, labels, (2, documents))
    probabilities = rng.dirichlet(np.ones(labels), documents)
    one_hot = np.eye(labels, dtype=bool)
    scores = label_scores(
        one_hot[gold], one_hot[given_labels], probabilities, list("abcdef"[:labels]), one_each=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        macro = precision_recall_fscore_support(gold, given_labels, average="macro", zero_division=0)[:3]
    assert scores["accuracy"] == pytest.approx(accuracy_score(gold, given_labels))
    names = ("macro_precision", "macro_recall", "macro_f1")
    assert [scores[name] for name in names] == pytest.approx(macro)
    if len(set(gold.tolist())) == labels > 2:
        expected = roc_auc_score(gold, probabilities, multi_class="ovr", average="macro")
        assert scores["macro_auc"] == pytest.approx(expected)


def test_cuts_are_scored_only_where_they_say_something() -> None:
    for labels, cuts in ((5, set()), (6, {"precision_at_5"}), (9, {"precision_at_5", "precision_at_8"})):
        gold = np.zeros((2, labels), dtype=bool)
        scores = label_scores(
            gold, gold, np.zeros((2, labels)), [str(n) for n in range(labels)], one_each=False
        )
        assert {name for name in scores if name.startswith("precision_at")} == cuts


def test_thousands_of_labels_are_not_scored_singly() -> None:
    gold = np.ones((1, SCORED_SINGLY + 1), dtype=bool)
    names = [str(number) for number in range(SCORED_SINGLY + 1)]
    assert not any("/" in name for name in label_scores(gold, gold, gold * 1.0, names, one_each=False))
    few = label_scores(gold[:, 1:], gold[:, 1:], gold[:, 1:] * 1.0, names[1:], one_each=False)
    assert sum("/" in name for name in few) == SCORED_SINGLY


CHOICES = st.sets(st.sampled_from(["choice1", "choice2", "choice3", "choice4"]))


@given(pairs=st.lists(st.tuples(CHOICES, CHOICES), min_size=1, max_size=8))
def test_choices_are_scored_as_one_yes_or_no_each(pairs: list[tuple[set[str], set[str]]]) -> None:
    """As SuperGLUE scores MultiRC: F1 of all answers together, and the questions without a mistake."""
    names = ["choice1", "choice2", "choice3", "choice4"]
    gold = [name in right for right, _ in pairs for name in names]
    given_choices = [name in own for _, own in pairs for name in names]
    scores = choice_scores_from(choice_tally([right for right, _ in pairs], [own for _, own in pairs]))
    assert scores["f1a"] == pytest.approx(f1_score(gold, given_choices, zero_division=0))
    assert scores["exact_match"] == pytest.approx(np.mean([right == own for right, own in pairs]))

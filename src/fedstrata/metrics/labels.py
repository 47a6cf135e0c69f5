"""Scores of labels given to whole documents.

Micro scores pool all decisions, macro scores are means over labels. Two conventions differ between papers and
are therefore said here:

- Macro F1 is the mean of the labels' F1 scores, as in scikit-learn, and not the harmonic mean of macro
  precision and macro recall of Mullenbach et al. ("Explainable Prediction of Medical Codes from Clinical
  Text", NAACL 2018); Edin et al. ("Automated Medical Coding on MIMIC-III and MIMIC-IV", SIGIR 2023) say why.
- A label that no scored document has and that none was given is left out of macro scores, as one that all or
  none of them have is left out of the macro AUC, since it is undefined there. How many were left out is told.

A ratio of nothing is 0, as in `fedstrata.metrics.counts`.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedstrata.core.types import Tally
from fedstrata.metrics.counts import Counts, mean, total

CUTS = (5, 8)
"""Numbers of labels at which the precision of the ranking is taken, as in the literature on ICD coding."""

SCORED_SINGLY = 100
"""Most labels for which each one's F1 is given; thousands of codes would fill the record."""

SINGLE_LABEL = ("accuracy", "macro_f1", "macro_precision", "macro_recall")
"""The scores that documents with one label each always have."""


def names_of(labels: Sequence[str], cuts: Sequence[int] = ()) -> tuple[str, ...]:
    """Returns the names of the scores that documents may have besides: AUC, cuts, and each label's F1.

    Args:
        labels: The labels.
        cuts: The numbers of labels at which precision is taken.
    """
    ranked = [f"precision_at_{cut}" for cut in cuts if cut < len(labels)]
    singles = [f"f1/{label}" for label in labels] if len(labels) <= SCORED_SINGLY else []
    return ("micro_auc", "macro_auc", *ranked, *singles)


def tally_of(
    gold: NDArray[np.bool_],
    predicted: NDArray[np.bool_],
    probabilities: NDArray[np.float64],
    labels: Sequence[str],
    looked: NDArray[np.bool_] | None = None,
) -> dict[str, float]:
    """Counts decisions: the documents, those that are right, of each label, and among the likeliest labels.

    Args:
        gold: Which labels each document has, (documents, labels).
        predicted: Which it was given, (documents, labels).
        probabilities: Of each label, (documents, labels).
        labels: Their names.
        looked: Which labels somebody looked for in each document, (documents, labels); of others nothing is
            counted. All of them if none.
    """
    if looked is not None:
        predicted, probabilities = predicted & looked, np.where(looked, probabilities, -1.0)
    tally: dict[str, float] = {"documents": len(gold), "right": int((gold & predicted).any(axis=1).sum())}
    for cut in CUTS:
        if cut < len(labels):
            tally[f"right_at_{cut}"] = right_at(cut, gold, probabilities)
    # The documents that have, were given, and have and were given each label; and over all labels.
    columns = (gold.sum(axis=0), predicted.sum(axis=0), (gold & predicted).sum(axis=0))
    counts = [Counts(*map(int, numbers)) for numbers in zip(*columns, strict=True)]
    tally |= total(counts).tally()
    for label, own in zip(labels, counts, strict=True):
        tally |= own.tally(ends=f"/{label}")
    return tally


def scores_from(
    tally: Tally, areas_under_curves: Mapping[str, float], labels: Sequence[str], *, one_each: bool
) -> dict[str, float]:
    """Scores the labels of documents.

    Args:
        tally: What `tally_of` gave, added up or not.
        areas_under_curves: What `areas` gave, which adds up over nothing.
        labels: The labels' names.
        one_each: Whether every document has, and was given, exactly one label; else any number.

    Returns:
        `accuracy` with one label a document, whose micro F1 that is, and else `micro_f1`; `macro_f1`;
        `micro_auc`, `macro_auc` of each label against the others, where defined; `macro_precision`,
        `macro_recall`; `f1_labels_left_out` and `auc_labels_left_out`; with at most 100 labels `f1/LABEL` of
        each one that occurs. With any number of labels also `micro_precision` and `micro_recall`, and where
        there are more labels `precision_at_5` and `precision_at_8`: the share of a document's likeliest
        labels that it has, mean over documents.
    """
    counts = [Counts.of(tally, ends=f"/{label}") for label in labels]
    occurring = {label: own for label, own in zip(labels, counts, strict=True) if own.gold or own.predicted}
    micro, number = Counts.of(tally), max(len(occurring), 1)
    further: dict[str, float] = {}
    if one_each:
        first = {"accuracy": mean(tally, "right")}
    else:
        first = {"micro_f1": micro.f1}
        cuts = [cut for cut in CUTS if cut < len(labels)]
        further |= {f"precision_at_{cut}": mean(tally, f"right_at_{cut}") / cut for cut in cuts}
        further |= {"micro_precision": micro.precision, "micro_recall": micro.recall}
    left_out = {name: value for name, value in areas_under_curves.items() if name.endswith("left_out")}
    curves = {name: value for name, value in areas_under_curves.items() if name.endswith("_auc")}
    singly = occurring if len(labels) <= SCORED_SINGLY else {}
    return {
        **first,
        "macro_f1": sum(own.f1 for own in occurring.values()) / number,
        **curves,
        **further,
        "macro_precision": sum(own.precision for own in occurring.values()) / number,
        "macro_recall": sum(own.recall for own in occurring.values()) / number,
        "f1_labels_left_out": float(len(counts) - len(occurring)),
        **left_out,
        **{f"f1/{label}": own.f1 for label, own in singly.items()},
    }


def choice_tally(gold: Sequence[Collection[str]], given: Sequence[Collection[str]]) -> dict[str, float]:
    """Counts questions, those answered rightly, and right choices.

    Args:
        gold: The right choices of each question; at least one question.
        given: Those that were taken for right.
    """
    pairs = [(set(right), set(own)) for right, own in zip(gold, given, strict=True)]
    counts = total(Counts(len(right), len(own), len(right & own)) for right, own in pairs)
    return {"documents": len(pairs), "right": sum(right == own for right, own in pairs), **counts.tally()}


def choice_scores_from(tally: Tally) -> dict[str, float]:
    """Scores questions with any number of right answers among their choices, as SuperGLUE scores MultiRC.

    Args:
        tally: What `choice_tally` counted.

    Returns:
        `f1a`, the F1 of right choices over all questions together; `exact_match`, the share of questions
        whose choices were all told rightly.

    Example:
        >>> choice_scores_from(choice_tally([{"a", "b"}, {"c"}], [{"a", "b"}, set()]))
        {'f1a': 0.8, 'exact_match': 0.5}
    """
    return {"f1a": Counts.of(tally).f1, "exact_match": mean(tally, "right")}


def right_at(cut: int, gold: NDArray[np.bool_], probabilities: NDArray[np.float64]) -> int:
    """Returns how many of each document's likeliest labels it has, in all; of equals the first is taken.

    At most as many labels as there are can be looked at (`cut`). What else is given is as for `tally_of`.
    """
    likeliest = np.argsort(-probabilities, axis=1, kind="stable")[:, :cut]
    return int(np.take_along_axis(gold, likeliest, axis=1).sum())


def areas(
    gold: NDArray[np.bool_],
    probabilities: NDArray[np.float64],
    looked: NDArray[np.bool_] | None = None,
) -> dict[str, float]:
    """Returns the areas under the ROC curve that are defined, and how many labels have none.

    What is given is as for `tally_of`.
    """
    looked = np.ones_like(gold) if looked is None else looked
    lacking = looked & ~gold
    defined = np.flatnonzero(gold.any(axis=0) & lacking.any(axis=0))
    scores = {}
    if gold.any() and lacking.any():
        scores["micro_auc"] = _area(gold[looked], probabilities[looked])
    if len(defined):
        columns = (each[:, defined].T for each in (gold, probabilities, looked))
        each = [_area(has[rows], likely[rows]) for has, likely, rows in zip(*columns, strict=True)]
        scores["macro_auc"] = float(np.mean(each))
    return scores | {"auc_labels_left_out": float(gold.shape[1] - len(defined))}


def _area(gold: NDArray[np.bool_], probabilities: NDArray[np.float64]) -> float:
    """Returns the share of pairs, one that has the label and one that has not, that are in the right order.

    Pairs of equals count a half: the area under the ROC curve, by the ranks of those that have the label
    (Mann and Whitney). scikit-learn's takes a second and 150 MB to import, and then 30 times as long.
    """
    _, place, ties = np.unique(probabilities, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]  # from 1; of equals their mean rank
    having = int(gold.sum())
    pairs = ranks[gold].sum() - having * (having + 1) / 2
    return float(pairs / (having * (len(gold) - having)))

"""Precision, recall and F1 of marked spans, by character offsets within each document.

- Strict: a predicted span of the same document has the same type and covers exactly the same characters.
- Lenient: it has the same type and shares a character with the span; one predicted span counts for one
  annotated one, and as many as possible count (Fed-MedLoRA, "Evaluation metrics"; `metrics.matching`).
- Untyped, strict or lenient: the same without regard to the type. It is never below the typed score.

Equal spans of one document count once. Overlapping and nested spans count each for itself.

nervaluate (1.2) gives the same numbers where no span overlaps two of the other side: `strict`; `ent_type` for
lenient; `exact` for untyped; `partial`, its partial matches counted whole, for untyped lenient. Elsewhere it
goes through the predictions in their order and lets each use up the annotated span it meets first, also as a
wrong one. So its `strict` and `exact` miss matches where predictions overlap each other, its `ent_type` where
a prediction of another type comes first, and neither that nor `partial` looks for the most matches.
"""

from collections.abc import Iterable, Sequence

from fedstrata.core.documents import Span
from fedstrata.core.types import Tally
from fedstrata.metrics.counts import Counts
from fedstrata.metrics.matching import SCHEMES, Item, Matching, place_of

OF_A_TYPE = ("f1", "precision", "recall", "lenient_f1")
"""The scores of a single type of mentions or relations."""
OVERALL = (*OF_A_TYPE, "lenient_precision", "lenient_recall", "untyped_f1", "untyped_lenient_f1")
"""Those over everything (micro)."""
OF_TYPES = {"": False, "lenient_": True}
"""What the names of their counts begin with, and whether these are lenient."""


def score_names(types: Sequence[str], prefix: str = "") -> tuple[str, ...]:
    """Returns every score that mentions or relations of these types may have, as `scores_of` orders them."""
    overall = (f"{prefix}{name}" for name in OVERALL)
    return (*overall, *(f"{prefix}{name}/{label}" for label in types for name in OF_A_TYPE))


def match_spans(gold: Sequence[Iterable[Span]], predicted: Sequence[Iterable[Span]]) -> Matching:
    """Matches the annotated spans of each document with the predicted ones, in the same order."""
    return Matching(gold, predicted, lambda span: Item((place_of(span),), span.label))


def scores_of(matching: Matching, types: Sequence[str], prefix: str = "") -> dict[str, float]:
    """Scores mentions or relations that were matched; see `scores_from`."""
    return scores_from(tally_of(matching, types, prefix), types, prefix)


def tally_of(matching: Matching, types: Sequence[str], prefix: str = "") -> dict[str, float]:
    """Counts mentions or relations that were matched, over all of them and for each type.

    Args:
        matching: Those that are annotated and those that are predicted.
        types: The types to count by themselves.
        prefix: What the names of the counts begin with, for example `ner_`.
    """
    counts: dict[str, float] = {}
    for begins, scheme in SCHEMES.items():
        counts |= matching.total(scheme).tally(f"{prefix}{begins}")
    for begins, lenient in OF_TYPES.items():
        of_types = matching.by_type(lenient=lenient)
        for label in types:
            own = of_types.get(label, Counts(0, 0, 0))
            counts |= own.tally(f"{prefix}{begins}", f"/{label}")
    return counts


def scores_from(tally: Tally, types: Sequence[str], prefix: str = "") -> dict[str, float]:
    """Scores mentions or relations by their counts: over all of them (micro), and for each type.

    Args:
        tally: What `tally_of` gave, added up or not.
        types: The types to give single scores for; others still count in the micro scores.
        prefix: What the names of counts and scores begin with, for example `ner_`.

    Returns:
        The scores of `score_names`, without those of types that occur neither among what is annotated nor
        among what is predicted.
    """
    every = {
        f"{begins}{name}": value
        for begins in SCHEMES
        for name, value in _ratios(Counts.of(tally, f"{prefix}{begins}")).items()
    }
    scores = {f"{prefix}{name}": every[name] for name in OVERALL}
    for label in types:
        strict, lenient = (Counts.of(tally, f"{prefix}{begins}", f"/{label}") for begins in OF_TYPES)
        if strict.gold or strict.predicted:  # a type that does not occur has no score: 0 would spoil means
            own = {**_ratios(strict), "lenient_f1": lenient.f1}
            scores |= {f"{prefix}{name}/{label}": own[name] for name in OF_A_TYPE}
    return scores


def _ratios(counts: Counts) -> dict[str, float]:
    return {"f1": counts.f1, "precision": counts.precision, "recall": counts.recall}

"""Scores of systems against annotated documents: what `fedstrata score` shows.

They are the scores a run gives its own predictions of the same documents.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import refused
from fedstrata.core.seeding import Seed
from fedstrata.metrics import stats
from fedstrata.metrics.counts import Counts
from fedstrata.metrics.errors import MentionError, count_errors, errors_of
from fedstrata.metrics.matching import SCHEMES, Matching
from fedstrata.metrics.relations import match_relations, triples_of
from fedstrata.metrics.spans import match_spans, scores_of


@dataclass(frozen=True, slots=True)
class Draws:
    """How intervals are made.

    Attributes:
        instances: Documents in a draw, at most as many as there are; 0 for as many.
        resamples: The number of draws.
        level: The share of their scores that an interval holds.
        seed: Of everything that is drawn.
    """

    instances: int = 0
    resamples: int = stats.RESAMPLES
    level: float = stats.LEVEL
    seed: int = 0

    def size(self, documents: int) -> int:
        """Returns how many documents a draw holds; more than there are would make intervals too narrow."""
        return min(self.instances or documents, documents)


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of a system's mentions, or of its relations.

    Attributes:
        scores: By name, as a run gives them.
        counts: Over everything, by what the names of a scheme's scores begin with (`SCHEMES`).
        types: The strict counts of each type.
        intervals: Of the micro F1 of each scheme.
        by_document: What is annotated, predicted and correct in each document under each scheme,
            (documents, 3).
    """

    scores: Mapping[str, float]
    counts: Mapping[str, Counts]
    types: Mapping[str, Counts]
    intervals: Mapping[str, stats.Interval]
    by_document: Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class System:
    """The scores of one system.

    Attributes:
        documents: The ids of the documents.
        mentions: Of its mentions.
        relations: Of its relations; none where no relation is annotated or predicted.
        errors: What is wrong with its mentions.
        unrelated: Documents that say nothing of relations and are in no score of these.
    """

    documents: tuple[str, ...]
    mentions: Scored
    relations: Scored | None
    errors: tuple[MentionError, ...]
    unrelated: int = 0

    @property
    def parts(self) -> dict[str, Scored]:
        """What was scored, by its name."""
        parts = {"mentions": self.mentions, "relations": self.relations}
        return {name: part for name, part in parts.items() if part is not None}

    def as_json(self) -> dict[str, Any]:
        """Returns everything; errors by offsets, without the text."""
        own: dict[str, Any] = {
            name: {
                "counts": {f"{begins}f1": asdict(count) for begins, count in part.counts.items()},
                "scores": dict(part.scores),
                "intervals": {f"{begins}f1": asdict(ends) for begins, ends in part.intervals.items()},
                "types": {label: asdict(count) for label, count in part.types.items()},
            }
            for name, part in self.parts.items()
        }
        counts = {category: asdict(count) for category, count in count_errors(self.errors).items()}
        return {
            "relations": None,
            "documents_without_relations": self.unrelated,
            **own,
            "error_counts": counts,
            "errors": list(map(self._error, self.errors)),
        }

    def _error(self, error: MentionError) -> dict[str, Any]:
        gold, predicted = (
            [{"pieces": item.places[0], "type": item.label} for item in items]
            for items in (error.gold, error.predicted)
        )
        document = self.documents[error.document]
        return {"category": error.category, "document": document, "gold": gold, "predicted": predicted}


@dataclass(frozen=True, slots=True)
class Difference:
    """How two systems differ in one micro F1.

    Attributes:
        first: That of the first.
        second: That of the second.
        interval: Of the first less the second, over draws of documents that are the same for both.
        paired_p: The p-value of the paired permutation test.
        rank_sum_p: That of the rank-sum test of as many draws as Fed-MedLoRA makes; not a sound test.
    """

    first: float
    second: float
    interval: stats.Interval
    paired_p: float
    rank_sum_p: float


def score_systems(
    gold: Sequence[Document],
    systems: Sequence[Sequence[Document]],
    draws: Draws,
    mentions: Collection[str] | None = None,
) -> list[System]:
    """Scores each system's documents against the annotated ones, in the same order.

    Documents in which nobody looked for relations are in no score of relations, as in a run.

    Args:
        gold: The annotated documents.
        systems: Those of each system.
        draws: How intervals are made.
        mentions: The types that are scored as mentions; all if none. Others may be ends of relations.

    Raises:
        ConfigurationError: No document has any mention.
    """
    everything = [document for side in (gold, *systems) for document in side]
    if not any(document.spans for document in everything):
        message = "no document has a mention, annotated or predicted: there is nothing to score"
        if any(document.labels for document in everything):
            message += "; labels are scored by the run that learns them, and by `fedstrata predict`"
        raise refused("GOLD", message, "not_enough_data")
    looked = [index for index, document in enumerate(gold) if not document.lacks_relations]
    with_relations = any(side[index].relations for side in (gold, *systems) for index in looked)
    scored = []
    for number, predicted in enumerate(systems):
        seed = Seed(draws.seed).child("bootstrap", number)
        pairs = list(zip(gold, predicted, strict=True))  # of what nobody looked for nothing is right or wrong
        spans = [own.of_looked_for(_of(answer, mentions)) for own, answer in pairs]
        found = match_spans([_of(document, mentions) for document in gold], spans)
        triples = [gold[index].of_looked_for(triples_of(predicted[index])) for index in looked]
        relations = match_relations([triples_of(gold[index]) for index in looked], triples)
        scored.append(
            System(
                tuple(document.id for document in gold),
                _scored(found, draws, seed),
                _scored(relations, draws, seed) if with_relations else None,
                errors_of(found),
                len(gold) - len(looked) if with_relations else 0,
            )
        )
    return scored


def _of(document: Document, types: Collection[str] | None) -> list[Span]:
    """Returns the mentions of some types."""
    return [span for span in document.spans if types is None or span.label in types]


def _scored(matching: Matching, draws: Draws, seed: Seed) -> Scored:
    types = matching.by_type()
    size = draws.size(matching.documents)
    rows = {begins: matching.by_document(scheme) for begins, scheme in SCHEMES.items()}
    drawn = {
        begins: stats.bootstrap(own, seed, instances=size, resamples=draws.resamples)
        for begins, own in rows.items()
    }
    return Scored(
        scores_of(matching, list(types)),
        {begins: matching.total(scheme) for begins, scheme in SCHEMES.items()},
        types,
        {begins: stats.interval(own, draws.level) for begins, own in drawn.items()},
        rows,
    )


def differences(first: System, second: System, draws: Draws) -> dict[str, dict[str, Difference]]:
    """Compares two systems that were scored on the same documents, part by part and scheme by scheme."""
    seed = draws.seed
    found: dict[str, dict[str, Difference]] = {}
    for name, one in first.parts.items():
        other = second.parts[name]
        found[name] = {
            begins: Difference(
                one.counts[begins].f1,
                other.counts[begins].f1,
                _interval_of_difference(one.by_document[begins], other.by_document[begins], draws),
                stats.paired_permutation(
                    one.by_document[begins], other.by_document[begins], Seed(seed).child("permutation")
                ),
                stats.rank_sum(
                    *(
                        stats.bootstrap(
                            own.by_document[begins],
                            Seed(seed).child("rank sum", number),
                            instances=min(stats.PAPER_INSTANCES, len(own.by_document[begins])),
                            resamples=stats.PAPER_RESAMPLES,
                        )
                        for number, own in enumerate((one, other))
                    )
                ),
            )
            for begins in SCHEMES
        }
    return found


def _interval_of_difference(
    first: NDArray[np.int64], second: NDArray[np.int64], draws: Draws
) -> stats.Interval:
    one, other = (
        stats.bootstrap(
            own,
            Seed(draws.seed).child("paired bootstrap"),  # one seed: the same documents in every draw
            instances=draws.size(len(own)),
            resamples=draws.resamples,
        )
        for own in (first, second)
    )
    return stats.interval(one - other, draws.level)


def as_json(
    gold: Path,
    paths: Sequence[Path],
    systems: Sequence[System],
    draws: Draws,
    compared: Mapping[str, Mapping[str, Difference]],
) -> dict[str, Any]:
    """Returns everything that was found, without the text of any document.

    Args:
        gold: Where the annotated documents lie.
        paths: Where each system's lie.
        systems: Their scores.
        draws: How intervals were made.
        compared: What `differences` gives; empty for one system.
    """
    count = len(systems[0].documents)
    tests = {
        part: {f"{begins}f1": asdict(one) for begins, one in own.items()} for part, own in compared.items()
    }
    return {
        "gold": str(gold),
        "documents": count,
        "bootstrap": {**asdict(draws), "instances": draws.size(count)},
        "systems": [
            {"path": str(path), **system.as_json()} for path, system in zip(paths, systems, strict=True)
        ],
        "differences": tests or None,
    }

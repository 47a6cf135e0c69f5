"""Scoring predictions against annotations: strict, lenient, by type, with intervals; two systems compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedstrata.api.arguments import kinds_in, warn_of_trained, with_argument_names
from fedstrata.core.documents import Document
from fedstrata.core.errors import Problem, refuse, refused
from fedstrata.core.settings.yaml import shortened
from fedstrata.data.partial_annotation import mark_unannotated
from fedstrata.data.readers import FORMATS
from fedstrata.metrics import stats
from fedstrata.record.words import SCHEMES
from fedstrata.results import document_pairs
from fedstrata.results.score import Difference, Draws, System, as_json, differences, score_systems
from fedstrata.results.trained import TrainedTexts

if TYPE_CHECKING:
    import pandas as pd

Documents: TypeAlias = "str | Path | Sequence[Document]"


@dataclass(frozen=True, slots=True)
class Formats:
    """The formats of the files of both sides; known by their names where none is given.

    Attributes:
        both: That of all files.
        gold: That of the annotations alone.
        predicted: That of the predictions alone.
        names: What messages call the three.
    """

    both: str | None
    gold: str | None
    predicted: str | None
    names: tuple[str, str, str] = ("--format", "--gold-format", "--pred-format")

    def of(self, *, predicted: bool) -> tuple[str | None, str]:
        """Returns the format of a side, and what has named it or could."""
        own, name = (self.predicted, self.names[2]) if predicted else (self.gold, self.names[1])
        return (self.both, self.names[0]) if self.both and not own else (own, name)


@dataclass(frozen=True, slots=True)
class Scores:
    """What one or two systems scored.

    Attributes:
        systems: What was found of each.
        compared: How the two differ, by part and scheme; empty for one system.
        draws: How intervals were made.
        places: Where the annotations and each system's predictions came from.
        trained: How many of the documents the named run was trained on; none where no run is named.
    """

    systems: Sequence[System]
    compared: Mapping[str, Mapping[str, Difference]]
    draws: Draws
    places: Sequence[Path]
    trained: int | None = None

    @property
    def table(self) -> pd.DataFrame:
        """Precision, recall and F1 by system, part (mentions, relations), scheme and type.

        `low` and `high` are the interval of the micro F1 over all types; single types have none.
        """
        import pandas as pd

        rows = [
            row
            for number, system in enumerate(self.systems)
            for name, part in system.parts.items()
            for row in _rows(number, name, part)
        ]
        return pd.DataFrame(rows).set_index(["system", "part", "scheme", "type"])

    @property
    def differences(self) -> pd.DataFrame:
        """The two systems' micro F1 by part and scheme.

        `low` and `high` are the interval of their difference, `delta`, over draws of the same documents, `p`
        that of the paired permutation test.
        """
        import pandas as pd

        rows = [
            {
                "part": part,
                "scheme": SCHEMES[begins],
                "first": one.first,
                "second": one.second,
                "delta": one.first - one.second,
                "low": one.interval.low,
                "high": one.interval.high,
                "p": one.paired_p,
            }
            for part, schemes in self.compared.items()
            for begins, one in schemes.items()
        ]
        return pd.DataFrame(rows, columns=["part", "scheme", "first", "second", "delta", "low", "high", "p"])

    def as_json(self) -> dict[str, Any]:
        """Returns everything that was found, without the text of any document."""
        gold, *systems = self.places
        everything = as_json(gold, systems, self.systems, self.draws, self.compared)
        return everything if self.trained is None else {**everything, "trained_on": self.trained}

    def _repr_html_(self) -> str:
        parts = [self.table.to_html(float_format="{:.4f}".format)]
        if self.compared:
            parts.append(self.differences.to_html(float_format="{:.4f}".format))
        return "\n".join(parts)


def _rows(number: int, name: str, part: Any) -> list[dict[str, Any]]:
    """Returns the rows of one part of a system: over all types by scheme, then strict by type."""
    over = [
        (SCHEMES[begins], "all", counts, part.intervals[begins]) for begins, counts in part.counts.items()
    ]
    typed = [("strict", label, counts, None) for label, counts in part.types.items()]
    return [
        {
            "system": number,
            "part": name,
            "scheme": scheme,
            "type": label,
            "precision": counts.precision,
            "recall": counts.recall,
            "f1": counts.f1,
            "low": None if ends is None else ends.low,
            "high": None if ends is None else ends.high,
            "annotated": counts.gold,
            "predicted": counts.predicted,
        }
        for scheme, label, counts, ends in [*over, *typed]
    ]


@with_argument_names
def score(
    gold: Documents,
    predicted: Documents,
    against: Documents | None = None,
    *,
    format: str | None = None,
    gold_format: str | None = None,
    predicted_format: str | None = None,
    types: Sequence[str] | Mapping[str, str] | None = None,
    run: str | Path | None = None,
    part: str | None = None,
    instances: int = 0,
    resamples: int = stats.RESAMPLES,
    level: float = stats.LEVEL,
    seed: int = 0,
) -> Scores:
    """Scores predicted mentions and relations against annotated ones.

    Args:
        gold: The annotated documents, or where they lie.
        predicted: The same documents as predicted.
        against: The same documents as a second system predicted.
        format: The format of all files; brat, i2b2 and jsonl are known by the files' names when none.
        gold_format: That of `gold` alone.
        predicted_format: That of the predictions alone.
        types: Mention types to keep, or a mapping to new names; everything when none.
        run: A run directory: keep the mentions and relations that the run is scored on.
        part: With `run`, train, validation or test: the documents the run has there, alone.
        instances: Documents in a bootstrap draw, at most as many as there are; 0 for as many.
        resamples: Bootstrap draws.
        level: The share of the draws that an interval holds.
        seed: The same seed gives the same draws.

    Raises:
        ConfigurationError: Options do not go together, or the sides hold other documents.
        DataError: Files do not follow their format.

    Warns:
        TrainedOnWarning: The run was trained on some of the documents.
    """
    sides = {"gold": gold, "predicted": predicted} | ({} if against is None else {"against": against})
    names = ("format", "gold_format", "predicted_format")
    formats = Formats(format, gold_format, predicted_format, names)
    draws = Draws(instances, resamples, level, seed)
    found = scored(sides, formats, types=types, run=run, part=part, draws=draws)
    warn_of_trained(found.trained, len(found.systems[0].documents))
    return found


def scored(
    sides: Mapping[str, Documents],
    formats: Formats,
    *,
    types: Sequence[str] | Mapping[str, str] | None,
    run: str | Path | None,
    part: str | None,
    draws: Draws,
) -> Scores:
    """Does as `score`; the annotations come first, and sides are called in messages what they are here.

    Args:
        sides: The annotated documents, and those of one or two systems.
        formats: The formats of the sides.
        types: As for `score`.
        run: As for `score`.
        part: As for `score`.
        draws: How intervals are made.
    """
    if run is not None and types is not None:
        raise refused("--types", "has no meaning with --as, which names the types", "no_effect")
    if part is not None and run is None:
        raise refused("--part", "has no meaning without --as, which names the run", "no_effect")
    refuse([*_misfits(sides, types, draws)])
    known = FORMATS if run is None else document_pairs.formats_as(Path(run))
    documents = [
        document_pairs.read_documents(Path(side), *formats.of(predicted=bool(number)), known)
        if isinstance(side, str | Path)
        else list(side)
        for number, side in enumerate(sides.values())
    ]
    documents[0] = mark_unannotated(documents[0])  # as a run does, and before some are left out
    mentions = trained = None
    if run is None:
        annotated, *systems = document_pairs.select(documents, types)
    else:
        if part is not None:
            documents = document_pairs.select_part(Path(run), part, documents)
        trained = TrainedTexts(Path(run)).count(documents[0])
        (annotated, *systems), mentions = document_pairs.select_as(Path(run), documents)
    named = zip(systems, list(sides)[1:], strict=True)
    ordered = [document_pairs.paired(annotated, system, name) for system, name in named]
    found = score_systems(annotated, ordered, draws, mentions)
    compared = differences(found[0], found[1], draws) if len(found) > 1 else {}
    places = [Path(side) if isinstance(side, str | Path) else Path(name) for name, side in sides.items()]
    return Scores(found, compared, draws, places, trained)


def _misfits(sides: Mapping[str, Any], types: Any, draws: Draws) -> Iterator[Problem]:
    """Yields what is wrong with what was given from Python; a command has looked at its options."""
    for name, side in sides.items():
        if isinstance(side, str | Path):
            continue
        if not isinstance(side, list | tuple) or not all(isinstance(each, Document) for each in side):
            message = "must be a path, or a list of documents (fedstrata.Document)"
            yield Problem(name, f"{message}, not {kinds_in(side)}", code="wrong_type")
            continue
        ids = Counter((document.site, document.id) for document in side)
        if twice := next((own for (_, own), times in ids.items() if times > 1), None):
            yield Problem(name, f"has the document {twice!r} twice", code="duplicate")
    if isinstance(types, str):
        yield Problem(
            "types", "must be a list of types, or a mapping to new names, not one text", code="wrong_type"
        )
    for option, count in (("instances", draws.instances), ("resamples", draws.resamples)):
        least = 1 if option == "resamples" else 0
        if not isinstance(count, int) or count < least:
            yield Problem(
                option, f"must be a whole number from {least}, not {shortened(count)}", code="out_of_range"
            )
    if not isinstance(draws.level, float) or not 0 < draws.level < 1:
        yield Problem(
            "level", f"must be a share between 0 and 1, not {shortened(draws.level)}", code="out_of_range"
        )

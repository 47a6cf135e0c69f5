"""`fedstrata score`: predictions on disk against annotations on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstrata.cli.options import Debug, number
from fedstrata.display.tables import new_table, say
from fedstrata.record.words import SCHEMES, plural
from fedstrata.record.words import score as in_words

if TYPE_CHECKING:
    from rich.table import Table

    from fedstrata.results.score import Difference, Draws, Scored, System


def score(
    gold: Annotated[
        Path,
        typer.Argument(metavar="GOLD", help="The annotated documents: a file or folder.", show_default=False),
    ],
    predicted: Annotated[
        Path, typer.Argument(metavar="PRED", help="The same documents as predicted.", show_default=False)
    ],
    against: Annotated[
        Path | None, typer.Option(metavar="PRED2", help="The same documents as a second system predicted.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="The format of all files; brat, i2b2 and jsonl are known by the files' names when not given."
        ),
    ] = None,
    gold_format: Annotated[str | None, typer.Option(help="That of GOLD alone.")] = None,
    pred_format: Annotated[str | None, typer.Option(help="That of the predictions alone.")] = None,
    types: Annotated[
        str | None,
        typer.Option(
            help="Mention types to keep, as data.types: problem,drug or '{Medication: drug}', which renames."
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--as", metavar="RUN", help="A run: keep the mentions and relations that it is scored on."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="PART",
            help="With --as: train, validation or test; the documents the run has there, alone.",
        ),
    ] = None,
    instances: Annotated[
        int,
        typer.Option(min=0, help="Documents in a bootstrap draw, at most as many as there are; 0: as many."),
    ] = 0,
    resamples: Annotated[int, typer.Option(min=1, help="Bootstrap draws.")] = 2_000,
    level: Annotated[float, number("Share of the draws that an interval holds.", 0.5, 0.999)] = 0.95,
    seed: Annotated[int, typer.Option(help="The same seed gives the same draws.")] = 0,
    file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="A file to write everything to, as JSON.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Score predicted mentions and relations: strict, lenient, by type, with intervals and kinds of errors.

    Example: fedstrata score notes found --against others --json scores.json
    """
    from rich.console import Console  # noqa: PLC0415 - heavy

    from fedstrata.api.scoring import Formats, scored  # noqa: PLC0415
    from fedstrata.core.files import write_atomically  # noqa: PLC0415
    from fedstrata.results.document_pairs import wanted_types  # noqa: PLC0415
    from fedstrata.results.score import Draws  # noqa: PLC0415
    from fedstrata.results.trained import caution  # noqa: PLC0415

    sides = {"GOLD": gold, "PRED": predicted} | ({} if against is None else {"--against": against})
    formats = Formats(format, gold_format, pred_format)
    draws = Draws(instances, resamples, level, seed)
    found = scored(sides, formats, types=wanted_types(types), run=run, part=part, draws=draws)
    first, compared = found.systems[0], found.compared
    if file is not None:
        text = json.dumps(found.as_json(), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        write_atomically(file, [text.encode()])
    console = Console()
    for table in _tables(first):
        console.print(table)
    for name, schemes in compared.items():
        console.print(_comparison(name, schemes))
    if found.trained:
        say(console, f"warning: {caution(found.trained, len(first.documents))}")
    for line in _notes(first, draws, compared=bool(compared)):
        say(console, line)
    if file is not None:
        say(console, f"everything is in {file}")


def _tables(system: System) -> Iterator[Table]:
    """Yields what one system scored, and its errors."""
    from fedstrata.metrics.errors import count_errors  # noqa: PLC0415

    for name, part in system.parts.items():
        yield _schemes(name, part)
        if len(part.types) > 1 and part.counts[""].predicted:
            yield _types(name, part)
    table = _table("errors in mentions", "errors", "gold", "predicted")
    for category, count in count_errors(system.errors).items():
        table.add_row(category, f"{count.errors:,}", f"{count.gold:,}", f"{count.predicted:,}")
    yield table


def _schemes(name: str, part: Scored) -> Table:
    """Returns the scores over everything."""
    every = part.counts[""]
    title = f"{name}: {every.gold:,} gold, {every.predicted:,} predicted"
    table = _table(title, "precision", "recall", "f1", "interval")
    for begins, words in SCHEMES.items():
        count, ends = part.counts[begins], part.intervals[begins]
        cells = map(in_words, (count.precision, count.recall, count.f1))
        table.add_row(words, *cells, f"{in_words(ends.low)} to {in_words(ends.high)}")
    return table


def _types(name: str, part: Scored) -> Table:
    """Returns the scores of each type."""
    from rich.text import Text  # noqa: PLC0415 - heavy

    table = _table(f"{name} by type", "gold", "predicted", "precision", "recall", "f1", "lenient f1")
    for label, count in part.types.items():
        scores = (count.precision, count.recall, count.f1, part.scores[f"lenient_f1/{label}"])
        table.add_row(Text(label), f"{count.gold:,}", f"{count.predicted:,}", *map(in_words, scores))
    return table


def _comparison(part: str, compared: Mapping[str, Difference]) -> Table:
    """Returns how the mentions or relations of two systems differ."""
    columns = ("PRED", "PRED2", "difference", "interval", "paired p")
    table = _table(f"{part}: micro f1 of two systems", *columns)
    for begins, one in compared.items():
        values = in_words(one.first), in_words(one.second), f"{one.first - one.second:+.3f}"
        ends = f"{one.interval.low:+.3f} to {one.interval.high:+.3f}"
        table.add_row(SCHEMES[begins], *values, ends, _chance(one.paired_p))
    return table


def _chance(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else "<0.0001"


def _table(title: str, *columns: str) -> Table:
    """Returns a table whose headings have a line a word."""
    return new_table(title, ["", *(column.replace(" ", "\n") for column in columns)], overflow="fold")


def _notes(system: System, draws: Draws, *, compared: bool) -> Iterator[str]:
    """Says what the tables mean."""
    count = len(system.documents)
    drawn = f"{draws.resamples:,} draws of {draws.size(count):,} of {count:,} documents with replacement"
    yield f"intervals of f1 hold {100 * draws.level:g} % of {drawn} (seed {draws.seed})"
    if system.unrelated:
        which = f"{plural(system.unrelated, 'document')} in which nobody looked for relations"
        yield f"the scores of relations leave out {which}"
    if compared:
        yield "the interval of a difference: over draws of the same documents for both systems"
        yield "paired p: by exchanging the two systems in documents at random"

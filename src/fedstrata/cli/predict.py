"""`fedstrata predict`: what a finished run's model finds in files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedstrata.cli.options import Debug, FinishedRun, Owner
from fedstrata.cli.run import INTERRUPTED
from fedstrata.display.tables import say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from fedstrata.results.predict import Outcome
    from fedstrata.results.result import Result

UNSCORED = {
    "labels": "the model gives one answer to each, and they have none that it knows, or several",
    "relations": "nobody looked for relations in them",
    "text_pair": "they have no text with which the model's could be compared",
}
"""Why documents cannot be scored, by the last of what a task gives."""
SHOWN = 20
"""How many names of unknown types or labels are shown; MIMIC-III has thousands of codes."""


def predict(
    run: FinishedRun,
    input: Annotated[
        Path,
        typer.Argument(help="A file, or a folder with sub-folders.", metavar="INPUT", show_default=False),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY.PATH=VALUE",
            help="device, threads, task.decoding, training.eval_batch_size or training.precision, other than "
            "the run's.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder to write; ./predictions, numbered if taken, when not given."),
    ] = None,
    format: Annotated[
        Literal["brat", "i2b2", "jsonl"] | None,
        typer.Option(
            help="The format to write; when not given brat for mentions and relations, jsonl for documents."
        ),
    ] = None,
    input_format: Annotated[
        str,
        typer.Option(
            help="text (every .txt file, at any depth), or a data.format of files (not synthetic, datasets); "
            "annotations in it are scored against."
        ),
    ] = "text",
    client: Owner = None,
    keep_mentions: Annotated[
        bool,
        typer.Option(
            "--keep-mentions",
            help="Task extract: keep the input's mentions and ask for their modifiers, as a run is scored.",
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Find mentions in texts, their relations, labels, or how likely texts are, with a finished run's model.

    Example: fedstrata predict runs/first notes --out found --format brat
    """
    from rich.console import Console  # noqa: PLC0415 - heavy
    from rich.progress import Progress  # noqa: PLC0415

    from fedstrata.core.files import require_new  # noqa: PLC0415
    from fedstrata.engine.run_folder import free_folder  # noqa: PLC0415
    from fedstrata.results import predict as prediction  # noqa: PLC0415
    from fedstrata.results.result import open_result  # noqa: PLC0415

    console = Console()
    folder = out or free_folder(Path(), "predictions")
    require_new(folder)
    result = open_result(run, overrides or [], client=client)
    result = prediction.keeping_mentions(result) if keep_mentions else result
    prediction.check_input(result.task, input_format)
    output = prediction.check_output(result.task, format)
    inputs = prediction.open_inputs(input, input_format, output, result.settings.data)
    progress = Progress(console=console, disable=not console.is_terminal)
    bar = progress.add_task("documents", total=inputs.count)
    try:
        with progress:
            advance = partial(progress.advance, bar)
            outcome = prediction.predict_files(result, inputs, folder, output, advance)
    except KeyboardInterrupt:
        done = int(progress.tasks[bar].completed)
        kept = "nothing was written" if output == "jsonl" else f"their files are in {folder}"
        say(console, f"stopped after {done} of {inputs.count} documents; {kept}")
        raise typer.Exit(INTERRUPTED) from None
    _show(console, result, outcome, folder, output)


def _show(console: Console, result: Result, outcome: Outcome, folder: Path, output: str) -> None:
    """Prints what the prediction came to."""
    from fedstrata.results.trained import caution  # noqa: PLC0415 - heavy

    if outcome.scores:
        _show_scores(console, outcome.scores, annotated=result.task.needs_annotations)
    if outcome.unknown:
        names = sorted(outcome.unknown)
        shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
        what = f"{len(names):,} types or labels that the model does not know, not scored"
        say(console, f"the input is also annotated with {what}: {shown}")
    if outcome.unscored and (outcome.scores or outcome.unknown):
        left_out = f"{outcome.unscored:,} of {outcome.documents:,} documents are not in the scores"
        say(console, f"{left_out}: {UNSCORED[result.task.gives[-1]]}")
    if outcome.left_out:
        what = "modifiers, and mentions that became equal"
        say(console, f"{outcome.left_out:,} mentions were left out: {output} has no place for them ({what})")
    if outcome.widened:
        say(console, f"{outcome.widened:,} mentions were widened to whole tokens of the input")
    if outcome.trained:
        say(console, f"warning: {caution(outcome.trained, outcome.documents)}")
    rate = outcome.documents / outcome.seconds
    found = f", {outcome.annotations - outcome.left_out:,} annotations"
    counts = f"{outcome.documents:,} documents{found if result.task.needs_annotations else ''}"
    say(console, f"{counts}; {rate:,.1f} documents a second; in {folder} ({output})")


def _show_scores(console: Console, scores: Mapping[str, float], *, annotated: bool) -> None:
    """Prints the scores: against the input's own annotations, or of its texts."""
    from rich.table import Table  # noqa: PLC0415 - heavy
    from rich.text import Text  # noqa: PLC0415

    from fedstrata.record.scores import score_tables  # noqa: PLC0415

    for scored in score_tables(scores):
        table = Table(title="against the input's own annotations" if annotated else "of all texts")
        table.add_column("")
        for name in scored.columns:
            table.add_column(Text(name), justify="right")
        for name, cells in scored.rows:
            table.add_row(Text(name), *cells)
        console.print(table)

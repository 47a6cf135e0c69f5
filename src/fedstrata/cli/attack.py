"""`fedstrata attack`: what a server could read back of what leaves the clients of a divided model."""

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedstrata.cli.options import Arguments, Debug, configuration, sort_arguments
from fedstrata.core.errors import ConfigurationError, Problem


def attack(
    arguments: Arguments = None,
    front: Annotated[str, typer.Option(help="Values of p, the blocks below the server's.")] = "0,1,2,3",
    noise: Annotated[str, typer.Option(help="Scales of the noise.")] = "0,0.02,0.1,0.5",
    kind: Annotated[
        Literal["mean_abs", "std"], typer.Option(help="What a scale is: mean absolute value, or deviation.")
    ] = "mean_abs",
    relative: Annotated[bool, typer.Option(help="Scales in units of the hidden states.")] = False,
    texts: Annotated[int, typer.Option(min=1, help="Texts that are learnt from, and read, at most.")] = 500,
    epochs: Annotated[int, typer.Option(min=1, help="How often the attacker goes through them.")] = 20,
    sent: Annotated[
        int | None,
        typer.Option(
            min=1, help="How often each text is sent, with other noise each time; as in the run if not given."
        ),
    ] = None,
    searched: Annotated[
        int, typer.Option(min=0, help="Tokens of a text that whoever has A searches for; 0: none.")
    ] = 16,
    out: Annotated[Path, typer.Option(help="Folder for leakage.json and leakage.md.")] = Path("leakage"),
    debug: Debug = False,
) -> None:
    """Try to read clients' texts back from hidden states, as a server that colludes with one client could.

    Example: fedstrata attack site.yaml --front 0,1,2 --noise 0,0.5
    """
    file, overrides = sort_arguments(arguments or [])

    from rich.console import Console  # noqa: PLC0415 - heavy
    from rich.table import Table  # noqa: PLC0415

    from fedstrata.engine.prepare import prepare  # noqa: PLC0415
    from fedstrata.engine.sites import sites_of  # noqa: PLC0415
    from fedstrata.privacy.attacks import leakage  # noqa: PLC0415

    fronts = [int(value) for value in _numbers("--front", front, whole=True)]
    target = leakage.Target(fronts, _numbers("--noise", noise), kind, relative, texts, epochs, sent, searched)
    console = Console()
    console.print("preparing the data and the model ...")
    experiment = prepare(configuration(file, overrides))
    attempts = []
    settings, clients = experiment.settings, [site.encode() for site in sites_of(experiment)[1]]
    for attempt in leakage.leakage_table(settings, experiment.task, experiment.model, clients, target):
        attempts.append(attempt)
        share = 100 * attempt.leakage.tokens
        console.print(f"p {attempt.front}, noise {attempt.noise:g}: {share:.1f} % of the tokens")
        facts = {"sent": target.times(settings), "model": settings.model.title, "seed": settings.seed}
        leakage.write_leakage(attempts, target, facts, out)
    table = Table(*leakage.COLUMNS, title="read back, in hundredths")
    for attempt in attempts:
        table.add_row(*leakage.cells(attempt))
    console.print(table)
    console.print(f"leakage.json and leakage.md in {out}")


def _numbers(option: str, text: str, *, whole: bool = False) -> list[float]:
    """Returns the numbers of a list with commas.

    Raises:
        ConfigurationError: Something in it is no number of 0 or more, or no whole one.
    """
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [-1.0]
    if any(not 0 <= value < math.inf or (whole and value != int(value)) for value in values):
        kind = "whole numbers" if whole else "numbers"
        raise ConfigurationError([Problem(option, f"must be {kind} of 0 or more with commas, not {text!r}")])
    return values

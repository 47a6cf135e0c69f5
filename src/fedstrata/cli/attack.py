"""`fedstrata attack`: what a server could learn of what leaves clients.

`attack hidden` reads texts back of a divided model's hidden states, `attack span` finds them in updates,
`attack invert` tells words and labels by rows of updates, and `attack membership` tells by updates who was
trained on. What each finds is a `Finding`: of a run that is named alone it goes into its folder and its
report.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from fedstrata.cli.options import Debug, configuration, sort_arguments
from fedstrata.core.errors import ConfigurationError, refused
from fedstrata.display.tables import new_table, say

if TYPE_CHECKING:
    from rich.console import Console

    from fedstrata.auditing.observed_run import ObservedRound
    from fedstrata.core.settings.source import Source
    from fedstrata.engine.prepare import Experiment
    from fedstrata.record.findings import Finding

RunOrSettings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN|CONFIG.yaml|KEY.PATH=VALUE",
        help="A run's folder or a configuration, and settings that override it.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for what is found; audits in the folder of a run that is named alone, else audits here.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
ShowText = Annotated[
    bool,
    typer.Option(
        "--show-text",
        help="Show texts beside what was read of them, on the terminal and in the report: only where "
        "everybody may see them. Texts of the synthetic corpus always are.",
    ),
]
RaiseUnits = Annotated[
    bool,
    typer.Option(
        "--raise-units",
        help="Raise privacy.units and privacy.expected_batch by one factor, so that they hold canaries.",
    ),
]


DecidingScore = Annotated[
    Literal["updates", "losses", "threshold", "lira"],
    typer.Option(
        help="What decides: all updates, how far a canary's loss has fallen, how low it is in the end, or "
        "how that compares with shadow runs."
    ),
]
MadeFalse = Annotated[
    Literal["half", "none"] | None,
    typer.Option(
        help="Run once more with less noise than is claimed, and tell what each score finds then: with that "
        "of twice the epsilon (half), or with none."
    ),
]


class Attacks(TyperGroup):
    """Attacks by name; there is no default, as each fits other methods."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuses whatever stands in the place of a name."""
        first = next(iter(args), None)
        if first not in (*self.commands, "--help"):
            given = "name the attack first" if first is None else f"there is no attack {first!r}"
            ctx.fail(f"{given}; the attacks are {', '.join(sorted(self.commands))}")
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=Attacks,
    help="Try what a server could learn of clients: hidden, invert, membership, span. Each is refused where "
    "the run's method sends nothing that it reads.",
)


@app.command()
def hidden(
    arguments: RunOrSettings = None,
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
    target: Annotated[
        Literal["same", "next"],
        typer.Option(
            help="Which token behind a state the decoder learns to name: the one that gave it, or, as in "
            "the code of FL-LLaMA's authors, the one after it."
        ),
    ] = "same",
    what_if: Annotated[
        bool,
        typer.Option(
            "--what-if",
            help="Attack hidden states that the run's method never sends, as if it divided the model; marked "
            "in all that is written.",
        ),
    ] = False,
    as_json: AsJson = False,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Try to read clients' texts back from hidden states, as a server that colludes with one client could.

    For methods that divide the model. `--what-if` shows what another method would give away.

    Example: fedstrata attack hidden site.yaml --front 0,1,2 --noise 0,0.5
    """
    from rich.console import Console  # noqa: PLC0415 - heavy

    from fedstrata.auditing.hidden_states import own_cuts  # noqa: PLC0415
    from fedstrata.engine.prepare import prepare  # noqa: PLC0415
    from fedstrata.engine.sites import sites_of  # noqa: PLC0415
    from fedstrata.privacy.attacks import leakage  # noqa: PLC0415
    from fedstrata.record.findings import what_was_attacked, write_finding  # noqa: PLC0415

    fronts = [int(value) for value in _numbers("--front", front, whole=True)]
    noises = _numbers("--noise", noise)
    aim = leakage.Target(fronts, noises, kind, relative, texts, epochs, sent, searched, target)
    console, (source, run, folder) = Console(quiet=as_json), _asked(arguments, out)
    say(console, "preparing the data and the model ...")
    experiment = prepare(source)
    unsent = _unsent(source, experiment, what_if=what_if)
    attempts: list[leakage.Attempt] = []
    settings, clients = experiment.settings, [site.encode() for site in sites_of(experiment)[1]]
    for attempt in leakage.leakage_table(settings, experiment.task, experiment.model, clients, aim):
        attempts.append(attempt)
        share = 100 * attempt.leakage.tokens
        row = f"p {attempt.front}, noise {attempt.noise:g}: {share:.1f} % of the tokens by the decoder"
        say(console, f"what if: {row}" if unsent else row)
        facts = {"sent": aim.times(settings), **what_was_attacked(settings)}
        finding = leakage.finding_of(attempts, aim, facts, own_cuts(experiment), unsent)
        write_finding(finding, folder)  # each takes minutes
    _tell(console, finding, folder, run, as_json=as_json)


def _unsent(source: Source, experiment: Experiment, *, what_if: bool) -> str:
    """Returns why a run sends no hidden states, where it is asked what if; empty where it sends some.

    Raises:
        ConfigurationError: It sends none and is not asked what if, or it sends some and is.
    """
    from fedstrata.auditing.hidden_states import applicable, why_none  # noqa: PLC0415 - heavy

    unsent = why_none(experiment)
    if unsent and not what_if:
        fitting = ", ".join(applicable(experiment)) or "none"
        way = "--what-if attacks hidden states that it would send if it did"
        message = f"attack hidden does not apply: {unsent}; attacks that apply: {fitting}; {way}"
        raise ConfigurationError([source.problem("method.name", message, "not_supported")])
    if what_if and not unsent:
        message = f"is for methods that send no hidden states, and {experiment.method.name} sends them"
        raise refused("--what-if", message, "no_effect")
    return unsent


@app.command()
def membership(
    arguments: RunOrSettings = None,
    canaries: Annotated[int, typer.Option(min=2, help="Made-up patients; half of them are left out.")] = 2000,
    words: Annotated[int, typer.Option(min=1, help="Words of each.")] = 6,
    client: Annotated[
        list[str] | None, typer.Option(help="Whose patients they are; give it once for each. All if none.")
    ] = None,
    score: DecidingScore = "updates",
    shadows: Annotated[
        int, typer.Option(min=0, help="Further runs, of which the score lira is made: 4 or more; 0: no lira.")
    ] = 0,
    falsified: MadeFalse = None,
    raise_units: RaiseUnits = False,
    as_json: AsJson = False,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Tell who was trained on, as an honest but curious server could, and hold it against the claim.

    The run is made anew in a scratch folder, with made-up patients in it; nothing of it is kept.

    Example: fedstrata attack membership site.yaml --canaries 1000 --client site-1
    """
    from rich.console import Console  # noqa: PLC0415 - heavy

    from fedstrata.auditing import audit_report  # noqa: PLC0415
    from fedstrata.auditing.membership import Target, audit_membership  # noqa: PLC0415

    console, (source, run, folder) = Console(quiet=as_json), _asked(arguments, out)
    say(console, "preparing the data and the model ...")
    target = Target(canaries, words, tuple(client or ()), score, raise_units, shadows, falsified)
    finding = audit_report.finding_of(audit_membership(source, target, partial(_say_event, console)))
    _tell(console, finding, folder, run, as_json=as_json)


@app.command()
def span(
    arguments: RunOrSettings = None,
    longest: Annotated[int, typer.Option(min=2, help="Tokens of a text that are looked for, at most.")] = 64,
    show_text: ShowText = False,
    as_json: AsJson = False,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Look for clients' texts in the updates of the first round, as a curious server could.

    The round is made anew in a scratch folder; nothing of it is kept.

    Example: fedstrata attack span site.yaml data.limit=2 training.optimizer=sgd
    """
    from fedstrata.auditing import text_recovery  # noqa: PLC0415 - heavy

    console, observed, run, folder = _observed(arguments, out, as_json=as_json)
    found = []
    for own in text_recovery.recoveries(observed, longest):
        found.append(own)
        say(console, f"{own.seen}: {own.why or f'{own.exact} of {own.texts} texts found'}")
    finding = text_recovery.finding_of(found, observed, longest=longest, show_text=show_text)
    _tell(console, finding, folder, run, as_json=as_json)


@app.command()
def invert(
    arguments: RunOrSettings = None,
    show_text: ShowText = False,
    as_json: AsJson = False,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Tell by rows of the first round's updates which words and labels clients have, as a server could.

    The round is made anew in a scratch folder; nothing of it is kept.

    Example: fedstrata attack invert site.yaml 'method={name: fedavg}'
    """
    from fedstrata.auditing import words_and_labels  # noqa: PLC0415 - heavy

    console, observed, run, folder = _observed(arguments, out, as_json=as_json)
    finding = words_and_labels.finding_of(
        list(words_and_labels.inversions(observed)), observed, show_text=show_text
    )
    _tell(console, finding, folder, run, as_json=as_json)


def _observed(
    arguments: list[str] | None, out: Path | None, *, as_json: bool
) -> tuple[Console, ObservedRound, Path | None, Path]:
    """Makes the first round; returns where to print, what a server saw, the run, and where to write."""
    from rich.console import Console  # noqa: PLC0415 - heavy

    from fedstrata.auditing.observed_run import observe_round  # noqa: PLC0415

    console, (source, run, folder) = Console(quiet=as_json), _asked(arguments, out)
    say(console, "preparing the data and the model ...")
    return console, observe_round(source, lambda event, facts: None), run, folder


def _say_event(console: Console, event: str, facts: Mapping[str, Any]) -> None:
    """Prints how far a membership audit has come."""
    if event == "round":
        say(console, f"round {facts['round']} is made and seen")
    elif event == "shadow":
        say(console, f"shadow run {facts['number']} of {facts['shadows']} is made")
    elif event == "falsified":
        say(console, f"once more, with noise of {facts['sigma']:g} times the clipping norm")


def _short(text: str) -> str:
    return repr(textwrap.shorten(text, 300, placeholder=" ...")) if text else "nothing"


def _asked(arguments: list[str] | None, out: Path | None) -> tuple[Source, Path | None, Path]:
    """Returns the configuration that is attacked, the run that is named alone, and where to write.

    Raises:
        ConfigurationError: There is no such run or configuration, or what is found cannot be written there.
    """
    from fedstrata.core.files import require_writable  # noqa: PLC0415 - heavy
    from fedstrata.record.findings import AUDITS, require_no_other_run  # noqa: PLC0415

    file, overrides = sort_arguments(arguments or [])
    run = file if file is not None and file.is_dir() and not overrides else None
    folder = out or (run / AUDITS if run else Path(AUDITS))
    require_writable(folder)
    require_no_other_run(folder, run)
    return configuration(_settings_of(file), overrides), run, folder


def _tell(console: Console, finding: Finding, folder: Path, run: Path | None, *, as_json: bool) -> None:
    """Writes and prints what was found; where it is of a run, in its report and its statement too."""
    from fedstrata.auditing.published import publish  # noqa: PLC0415 - heavy

    if as_json:
        typer.echo(finding.as_json())
        publish(finding, folder, run)
        return
    for own in finding.tables:
        table = new_table(own.title, own.columns, overflow="fold")
        for row in own.rows:
            table.add_row(*row)
        console.print(table)
    for sentence in finding.says:
        say(console, sentence)
    for reading in finding.readings:
        say(console, f"{reading.seen}: {_short(reading.text)} was read as {_short(reading.read)}")
    say(console, f"written: {', '.join(map(str, publish(finding, folder, run)))}")


def _settings_of(file: Path | None) -> Path | None:
    """Returns the configuration of a run, where its folder is named."""
    from fedstrata.engine.run_folder import SETTINGS  # noqa: PLC0415 - heavy
    from fedstrata.record.history import require_run  # noqa: PLC0415

    if file is None or not file.is_dir():
        return file
    require_run(file)
    return file / SETTINGS


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
        raise refused(option, f"must be {kind} of 0 or more with commas, not {text!r}", "wrong_form")
    return values

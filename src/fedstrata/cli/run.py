"""`fedstrata run`: one federated run, from a configuration to a run directory."""

import os
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import Arguments, Debug, Resume, configuration, sort_arguments
from fedstrata.core.errors import refused
from fedstrata.display import log
from fedstrata.display.log import LogJson
from fedstrata.engine.workers.fork_server import fork_server

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def run(
    arguments: Arguments = None,
    out: Annotated[
        Path | None, typer.Option(help="The run directory; runs/NAME, numbered if taken, when not given.")
    ] = None,
    resume: Resume = False,
    until_eof: Annotated[
        bool,
        typer.Option(
            "--until-eof", hidden=True, help="Stop when standard input closes: for programs that start runs."
        ),
    ] = False,
    log_json: LogJson = False,
    debug: Debug = False,
) -> None:
    """Fine-tune a model across clients.

    Example: fedstrata run site.yaml method.top=4 federation.rounds=20 --out runs/top4
    """
    if until_eof:
        _stop_at_eof()
    file, overrides = sort_arguments(arguments or [])
    if resume and out is None:
        raise refused("", "--resume needs --out: the run directory to go on with", "missing")
    asked = None if resume else configuration(file, overrides)
    if asked is not None and asked.values.get("workers", 1) not in (1, "ray"):
        fork_server()  # which imports while this process does

    from fedstrata.api.running import Session  # noqa: PLC0415 - heavy
    from fedstrata.display.run import Display  # noqa: PLC0415
    from fedstrata.engine.run_folder import resumable  # noqa: PLC0415

    log.take_over()
    display = Display()
    display.say("preparing the data and the model ...")
    session = Session(display)
    try:
        source = asked or resumable(out or Path(), file, overrides, command="fedstrata run")
        opened = session.prepare(source, out, resume=resume)
        log.about(run=opened.experiment.settings.name)
        summary = session.execute(opened, resume=resume)
    except KeyboardInterrupt:
        how = f"; go on with: fedstrata run --resume --out {session.run.folder}" if session.run else ""
        display.say(f"stopped{how}")
        raise typer.Exit(INTERRUPTED) from None
    display.show(summary, opened.folder, personal=opened.experiment.method.personal)


def _stop_at_eof() -> None:
    """Ends this process when standard input closes, which it does when whoever started the run is gone.

    At once and whatever is under way: what is committed is on disk, and nobody is there to read a message.
    """

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os._exit(INTERRUPTED)

    threading.Thread(target=watch, daemon=True).start()

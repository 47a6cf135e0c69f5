"""One run from a configuration to a result, going on with one, and what one will cost before it starts."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any, Unpack

from rich.console import Console

from fedstrata.api.arguments import with_argument_names
from fedstrata.api.inputs import kept_for, with_data, with_documents_again, with_model
from fedstrata.api.options import OBJECTS, Config, OnEvent, Options, lay, source_of
from fedstrata.api.result import Result
from fedstrata.core.errors import ConfigurationError, Problem, refused
from fedstrata.core.settings.source import Source
from fedstrata.display.plan import show_plan
from fedstrata.display.run import Display
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.run import Run
from fedstrata.engine.run_folder import (
    SETTINGS,
    free_folder,
    open_run,
    require_free_folder,
    require_same_settings,
    resumable,
)
from fedstrata.engine.workers.fork_server import end_fork_server, fork_server
from fedstrata.planning.plan import RunPlan, make_plan
from fedstrata.record.log import Listener

PLAN_WIDTH = 110
"""Characters of a line of a plan in a notebook."""
PLAN_HTML = '<pre style="line-height: 1.2">{code}</pre>'


class Session:
    """A run of this process, from its preparation to its end, with what a person sees of it.

    Args:
        display: Shows it; nothing is shown if none.
        on_event: Told of every event too.

    Attributes:
        run: The run, once it is prepared.
    """

    def __init__(self, display: Display | None, on_event: OnEvent | None = None) -> None:
        self._display, self._on_event = display, on_event
        self.run: Run[LocalEngine] | None = None

    def prepare(self, source: Source, out: Path | None, *, resume: bool) -> Run[LocalEngine]:
        """Prepares a run and its directory.

        Args:
            source: The configuration.
            out: The run directory; `runs/NAME`, numbered if taken, when none.
            resume: Whether the directory holds a run to go on with.

        Raises:
            ConfigurationError: With every problem that could be found.
        """
        if source.values.get("workers", 1) not in (1, "ray"):
            fork_server()  # which imports while this process prepares
        self.run = open_run(source, out, self._listener(), resume=resume)
        experiment = self.run.experiment
        if experiment.workers == 1:
            end_fork_server()
        if self._display is not None:
            found = experiment.settings.workers
            if isinstance(found, str) and (experiment.workers > 1 or "workers" in source.values):
                self._display.say(f"workers: {found} is {experiment.workers} here")
            if idle := experiment.idle_cores:
                self._display.say(idle)
        return self.run

    def execute(self, run: Run[LocalEngine], *, resume: bool) -> dict[str, Any]:
        """Runs to the end and returns the summary; see `engine.run.Run.execute`."""
        if self._display is None:
            return run.execute(resume=resume)
        with self._display:
            return run.execute(resume=resume)

    def _listener(self) -> Listener:
        told = [each for each in (self._display, self._on_event) if each is not None]

        def listen(event: str, facts: Mapping[str, Any]) -> None:
            for each in told:
                each(event, facts)

        return listen


@with_argument_names
def run(
    config: Config = None,
    *,
    out: str | Path | None = None,
    on_event: OnEvent | None = None,
    progress: bool = True,
    keep_documents: bool = False,
    **options: Unpack[Options],
) -> Result:
    """Fine-tunes a model across clients, in this process or in workers of this machine.

    Args:
        config: A YAML file, nested settings, or none for the demo's, as on the command line; arguments are
            laid over it.
        out: The run directory; `runs/NAME`, numbered if taken, when none.
        on_event: Called with every event and its facts. What it raises ends the run.
        progress: Whether progress is shown: bars on a terminal and in a notebook, else a line a round.
        keep_documents: Whether documents that are given as objects stay in the run directory when the run
            has ended (`inputs/documents.jsonl`, for its owner alone). A run that is stopped keeps them, so
            that it can go on.
        **options: The settings (`Options`).

    Returns:
        What the run has learnt. Ctrl-C leaves a run directory with which `resume` goes on.

    Raises:
        ConfigurationError: The configuration or its data are wrong; all problems at once, before anything has
            started.
        FedstrataError: A client failed that the run needs; what was committed stays.

    Examples:
        >>> import fedstrata as fs
        >>> result = fs.run(  # doctest: +SKIP
        ...     "site.yaml", method=fs.methods.LayerSkipping(top=2), rounds=3
        ... )
    """
    display = _display(progress)
    source = source_of(config, options)
    folder = _folder_of(source, out)
    require_free_folder(folder, named_by="out", way="go on with fedstrata.resume")
    with kept_for(folder, SETTINGS, keep=keep_documents):
        with_objects(source, options, folder)
        return _finished(Session(display, on_event), source, folder, resume=False, display=display)


@with_argument_names
def resume(
    folder: str | Path,
    *,
    on_event: OnEvent | None = None,
    progress: bool = True,
    keep_documents: bool = False,
    **options: Unpack[Options],
) -> Result:
    """Goes on with a run after its last committed round, to the numbers that it would have come to anyway.

    Args:
        folder: The run directory.
        on_event: As for `run`.
        progress: As for `run`.
        keep_documents: As for `run`.
        **options: Settings that may change: `rounds`, `workers`, `device` and others that no committed round
            depends on. A method or task that was defined in a notebook is to be given again, and so are
            documents (`data`) that were removed when the run ended.

    Returns:
        What the run has learnt.

    Raises:
        ConfigurationError: The directory holds no run, or a setting differs that may not.
        FedstrataError: As for `run`.
    """
    display = _display(progress)
    folder = Path(folder)
    if kept := [name for name in OBJECTS if name in options and name not in ("data", "columns")]:
        message = f"is kept in {folder}, and is not given again"
        raise ConfigurationError([Problem(name, message, code="exists") for name in kept])
    source_of(None, options)  # first: a class of a notebook that is given again is known by then
    source = resumable(folder, None, (), named_by="folder", command="fedstrata run")
    data, columns = options.pop("data", None), options.pop("columns", None)
    lay(source, options)
    require_same_settings(folder, source)
    with_documents_again(source, data, columns, folder)
    with kept_for(folder, SETTINGS, keep=keep_documents, resumes=data is None):
        return _finished(Session(display, on_event), source, folder, resume=True, display=display)


class ShownPlan(RunPlan):
    """A plan, of which a notebook and `print` show what the command line prints."""

    def __str__(self) -> str:
        return self._console().export_text()

    def _repr_html_(self) -> str:
        return self._console().export_html(inline_styles=True, code_format=PLAN_HTML)

    def _console(self) -> Console:
        console = Console(record=True, file=StringIO(), width=PLAN_WIDTH)
        show_plan(console, self)
        return console


@with_argument_names
def plan(
    config: Config = None, *, out: str | Path = "runs", seconds: float = 10.0, **options: Unpack[Options]
) -> ShownPlan:
    """Says what a run will train, send and cost, by a rehearsal of a few batches; nothing is left behind.

    Args:
        config: As for `run`.
        out: Where runs will go; its free space is looked up.
        seconds: How long to measure; longer is surer.
        **options: The settings, as for `run`.

    Returns:
        The plan, which a notebook shows as tables.

    Raises:
        ConfigurationError: With every problem that could be found.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = source_of(config, options)
        with_objects(source, options, Path(folder))
        made = make_plan(source, folder=Path(out), seconds=seconds)
    return ShownPlan(**{field.name: getattr(made, field.name) for field in fields(made)})


def with_objects(source: Source, options: Mapping[str, Any], folder: Path) -> None:
    """Lays those arguments over a configuration that may be objects; these are kept in a folder."""
    if (data := options.get("data")) is not None:
        with_data(source, data, options.get("columns"), folder)
    elif options.get("columns") is not None:
        raise refused("columns", "has no meaning without data, whose columns they are", "no_effect")
    with_model(source, options.get("model"), options.get("tokenizer"), folder)


def _finished(
    session: Session, source: Source, folder: Path, *, resume: bool, display: Display | None
) -> Result:
    run = session.prepare(source, folder, resume=resume)
    try:
        session.execute(run, resume=resume)
    except KeyboardInterrupt:
        if display is not None:
            display.say(f"stopped; go on with: fedstrata.resume({str(folder)!r})")
        raise
    return Result(folder)


def _display(progress: bool) -> Display | None:
    display = Display() if progress else None
    if display is not None:
        display.say("preparing the data and the model ...")
    return display


def _folder_of(source: Source, out: str | Path | None) -> Path:
    name = source.values.get("name") or "run"
    return (
        Path(out) if out is not None else free_folder(Path("runs"), name if isinstance(name, str) else "run")
    )

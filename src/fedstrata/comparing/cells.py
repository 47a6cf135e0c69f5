"""One run of a comparison, as `fedstrata run` in a process of its own.

A process of its own makes peak memory that of one run, and a crash harms no other run. Its standard input is
a pipe that nobody writes to: it closes when whoever started the run is gone, killed or not, and the run
stops (`--until-eof`), so that nothing goes on unseen in a folder that is later taken up again.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.files import TEMPORARY, open_private, private_folder
from fedstrata.engine.check import Checked
from fedstrata.engine.run_folder import require_same_settings, write_settings
from fedstrata.record.history import round_rows
from fedstrata.record.log import Follower, committed_rounds, read_events
from fedstrata.record.table import CellResult

STOP_SECONDS = 30.0
"""How long a run may take to stop before it is killed; it may be within one step of training."""


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One run of a comparison.

    Attributes:
        name: How people know it.
        seed: Its seed.
        checked: Its configuration.
        folder: Its run directory; `FOLDER.yaml` and `FOLDER.log` are beside it.
    """

    name: str
    seed: int
    checked: Checked
    folder: Path

    @property
    def begun(self) -> bool:
        """Whether there is a run to go on with."""
        return (self.folder / "config.yaml").is_file()

    @property
    def record(self) -> Path:
        """The record of the run."""
        return self.folder / "record.jsonl"

    def summary(self) -> dict[str, Any] | None:
        """Returns the summary if the run has finished all the rounds that are wanted."""
        try:
            summary = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return summary if summary["rounds"] == self.checked.settings.federation.rounds else None

    def require_resumable(self) -> None:
        """Refuses a folder that holds a run of other settings, or of more rounds.

        Raises:
            ConfigurationError: It does.
        """
        if not self.begun:
            return
        require_same_settings(self.folder, self.checked.source)
        committed = len(committed_rounds(read_events(self.record)))
        if committed > self.checked.settings.federation.rounds:
            message = f"must be at least {committed}, the rounds already committed in {self.folder}"
            raise ConfigurationError(
                [self.checked.source.problem("federation.rounds", message, "out_of_range")]
            )

    def validation(self, metric: str) -> float | None:
        """Returns the score on the validation split after the last round that was scored."""
        rounds = committed_rounds(read_events(self.record))
        groups = [event.get("global") or event.get("mean_client") or {} for event in rounds]
        scores = [group[metric] for group in groups if metric in group]  # an AUC may be undefined
        return scores[-1] if scores else None

    def result(self, top: Path, message: str = "") -> CellResult:
        """Returns what the run left, or why it failed.

        Args:
            top: The comparison's folder.
            message: Why it failed; it has finished when empty.
        """
        events = read_events(self.record)
        run = next((event for event in reversed(events) if event["event"] == "run"), None)
        return CellResult(
            seed=self.seed,
            folder=self.folder.relative_to(top).as_posix(),
            summary=None if message else self.summary(),
            run=run,
            message=message,
            curve=round_rows(committed_rounds(events), run["metric"]) if run else (),
        )


class CellProcess:
    """A run of a comparison under way; starts when made.

    Args:
        cell: What to run; a run that has begun is resumed.
        cores: The CPU cores that it may use, where the operating system can tell it; any if empty.
    """

    def __init__(self, cell: Cell, cores: Sequence[int] = ()) -> None:
        self.cell, self.cores = cell, cores
        configuration = _beside(cell.folder, ".yaml")
        private_folder(configuration.parent)
        write_settings(cell.checked.settings, configuration)
        for leftover in [] if cell.begun else cell.folder.glob(f".*{TEMPORARY}"):
            leftover.unlink()  # of a run killed before it began; a new one wants an empty folder
        self._follower = Follower(cell.record)
        command = [sys.executable, "-m", "fedstrata", "run", str(configuration), "--out", str(cell.folder)]
        with open_private(_beside(cell.folder, ".log"), "wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line, no shell
                [*command, "--until-eof", *(["--resume"] if cell.begun else [])],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is for whoever watches; runs are told once, by `stop`
            )

        if cores:
            with suppress(AttributeError, psutil.Error):  # macOS knows no affinity; or it has ended already
                psutil.Process(self._process.pid).cpu_affinity(list(cores))

    def events(self) -> list[dict[str, Any]]:
        """Returns what was recorded since the last call."""
        return self._follower.new()

    def finished(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def failure(self) -> str:
        """Returns why the process failed; empty if it did not."""
        status = self._process.returncode
        if status == 0:
            return "" if self.cell.summary() else "it ended without a summary"
        log = _beside(self.cell.folder, ".log")
        if status < 0:
            name = signal.Signals(-status).name
            hint = "; was there too little memory?" if name == "SIGKILL" else ""
            return f"killed by {name}{hint} (see {log})"
        said = re.split(
            r"^fedstrata: ", log.read_text(encoding="utf-8", errors="replace"), flags=re.MULTILINE
        )
        return said[-1].strip() if len(said) > 1 else f"ended with status {status} (see {log})"


def stop(processes: Collection[CellProcess]) -> None:
    """Tells runs to stop, as Ctrl-C does, and waits until they have; every one can be resumed."""
    for running in processes:
        running._process.send_signal(signal.SIGINT)
    for running in processes:
        try:
            running._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            running._process.kill()
            running._process.wait()


def _beside(folder: Path, suffix: str) -> Path:
    """Returns a file beside a run directory; the directory itself must be empty when a run begins."""
    return folder.with_name(folder.name + suffix)

"""Runs a command, and notes how long it takes and how much memory it and all that it starts have."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PERIOD = 1.0
"""Seconds between two looks at the processes; a look takes some 10 ms of a core a process."""


@dataclass
class Observed:
    """What was seen of a command.

    Attributes:
        began: When it was started, in seconds of the epoch.
        ended: When it ended.
        memory: The greatest sum of its processes' proportional set sizes (PSS), in bytes.
        processor: The seconds of processor time of each process, as it was last seen.
    """

    began: float = 0.0
    ended: float = 0.0
    memory: int = 0
    processor: dict[int, float] = field(default_factory=dict)

    def look(self, processes: Sequence[psutil.Process]) -> None:
        """Takes down what the processes have now."""
        memory = 0
        for process in processes:
            with suppress(psutil.Error):  # it may have ended meanwhile
                memory += process.memory_full_info().pss
                times = process.cpu_times()
                self.processor[process.pid] = times.user + times.system
        self.memory = max(self.memory, memory)


def observe(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Observed:
    """Runs a command to its end.

    Args:
        command: The command.
        environment: Its environment.
        log: Where what it writes goes.

    Raises:
        SystemExit: It failed; its last lines are shown.
    """
    known: dict[int, psutil.Process] = {}  # some have a daemon for a parent later on
    with log.open("w") as file:
        seen = Observed(began=time.time())
        with psutil.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT) as process:
            while process.poll() is None:
                with suppress(psutil.Error):
                    for each in (process, *process.children(recursive=True)):
                        known.setdefault(each.pid, each)
                seen.look([each for each in known.values() if each.is_running()])
                time.sleep(PERIOD)
        seen.ended = time.time()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{log.read_text()[-3000:]}")
    return seen

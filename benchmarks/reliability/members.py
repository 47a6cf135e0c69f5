"""A federation of processes, each started again when it fails, for `kill.py` and `hostile.py`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from fedstrata.core.settings.kit import FederationSettings
from fedstrata.core.settings.yaml import as_document
from fedstrata.privacy.federation_lock import write_lock
from fedstrata.privacy.identity import Identity
from fedstrata.transport.enrolment import Federation
from fedstrata.transport.kit import IDENTITY, LOCK

REFUSED = 2
"""Status of what is not to be started again."""
Command = Callable[[], Sequence[str]]


@dataclass
class Member:
    """A process that is started again whenever it fails, as a service manager does.

    Attributes:
        command: Returns the arguments of Python to start it with.
        log: Where it writes.
        starts: How often it was started.
        status: What it ended with; none while it runs.
    """

    command: Command
    log: Path
    starts: int = 0
    status: int | None = None
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Starts it."""
        self.starts, self.status = self.starts + 1, None
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with self.log.open("ab") as log:
            command = [sys.executable, *self.command()]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def look(self) -> None:
        """Starts it again if it has failed in a way that may pass."""
        self.status = self.process.poll()
        if self.status not in (None, 0, REFUSED):
            self.start()

    def processes(self) -> list[psutil.Process]:
        """Returns its process and all that it has started, as far as they live."""
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        return []

    def end(self) -> None:
        """Ends all of it."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


def kits_of(
    folder: Path, run: Mapping[str, Any], site: Mapping[str, Any], names: Sequence[str]
) -> Federation:
    """Returns a federation on this machine whose server and sites have their configurations.

    Args:
        folder: Where to make it.
        run: What the server's kit says; with secure aggregation each site gets an identity and a lock.
        site: What the kit of every site says.
        names: Of the sites.
    """
    address = free_address()
    settings = FederationSettings(name="reliability", server=address, days=365)
    made = Federation.create(folder, settings, address, names, archive=False)
    (folder / "server" / "run.yaml").write_bytes(as_document(dict(run)))
    kits = {name: folder / "sites" / name for name in names}
    for kit in kits.values():
        (kit / "site.yaml").write_bytes(as_document(dict(site)))
    if run.get("privacy", {}).get("secure_aggregation"):
        publics = {name: Identity.create(kit / IDENTITY).public for name, kit in kits.items()}
        for kit in kits.values():
            write_lock(kit / LOCK, publics)
    return made


def free_address() -> str:
    """Returns an address of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def made(folder: Path) -> Path:
    """Makes a folder and returns it."""
    folder.mkdir()
    return folder


def show_logs(folder: Path) -> None:
    """Prints the ends of what the members of a run have written."""
    for log in sorted(folder.glob("*.log")):
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}", file=sys.stderr, flush=True)

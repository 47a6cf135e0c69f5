"""A federation of processes, each started again when it fails, for the programs of this folder."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from fedstrata.core.settings.kit import FederationSettings
from fedstrata.core.settings.source import read_source
from fedstrata.core.settings.yaml import as_document
from fedstrata.core.types import State
from fedstrata.engine.run_folder import has_begun
from fedstrata.privacy.federation_lock import write_lock
from fedstrata.privacy.identity import Identity
from fedstrata.record.log import read_events
from fedstrata.transport.enrolment import Federation
from fedstrata.transport.kit import IDENTITY, LOCK, Kit
from fedstrata.wire import frame

CONFIGURATION = Path(__file__).with_name("kill.yaml")
SITES = ("site-1", "site-2", "site-3")
REFUSED = 2
"""Status of what is not to be started again."""
Command = Callable[[], Sequence[str]]
Settings = tuple[dict[str, Any], dict[str, Any]]
"""What a server's configuration says, and what that of every site says."""


@dataclass
class Member:
    """A process that is started again whenever it fails, as a service manager does.

    Attributes:
        command: Returns the arguments of Python to start it with.
        log: Where it writes.
        environment: What it needs of the environment besides.
        always: Whether it is started again whatever it has ended with.
        starts: How often it was started.
        status: What it ended with; none while it runs.
    """

    command: Command
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    always: bool = False
    starts: int = 0
    status: int | None = None
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Starts it."""
        self.starts, self.status = self.starts + 1, None
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **self.environment,
        }
        with self.log.open("ab") as log:
            command = [sys.executable, *self.command()]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def look(self) -> None:
        """Starts it again if it has failed in a way that may pass."""
        self.status = self.process.poll()
        if self.status is not None and (self.always or self.status not in (0, REFUSED)):
            self.start()

    def processes(self) -> list[psutil.Process]:
        """Returns its process and all that these have started, as far as they live."""
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            return [each for each in (own, *own.children(recursive=True)) if lives(each)]
        return []

    def end(self) -> None:
        """Ends all of it."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


def lives(process: psutil.Process) -> bool:
    """Whether a process is there, and not only its status."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


@contextmanager
def running(members: Sequence[Member], longest: float, *, apart: float = 0.0) -> Iterator[Iterator[None]]:
    """Starts members, gives what looks after them until the run of the first has ended, and ends them.

    Args:
        members: The members.
        longest: Seconds after which nobody looks any more.
        apart: Seconds between two starts.
    """
    try:
        for member in members:
            member.start()
            time.sleep(apart)
        yield _looked_after(members, longest)
    finally:
        for member in members:
            if member.starts:
                member.end()


def _looked_after(members: Sequence[Member], longest: float) -> Iterator[None]:
    """Has members started again that fail, until the first is done, or one is not to be started again."""
    began = time.monotonic()
    while members[0].status != 0 and time.monotonic() - began < longest:
        time.sleep(0.02)
        for member in members:
            member.look()
        if REFUSED in [member.status for member in members]:
            return
        yield


def undisturbed(members: Sequence[Member], longest: float) -> None:
    """Has a run come to its end that nobody disturbs; see `require_end`."""
    with running(members, longest) as looks:
        for _ in looks:
            pass
        require_end(members)


def require_end(members: Sequence[Member]) -> None:
    """Raises `SystemExit`, and shows what members have written, unless the run of the first has ended."""
    if members[0].status != 0:
        show_logs(members[0].log.parent)
        raise SystemExit("a run that nobody has disturbed does not complete")


def simulation(out: Path, *overrides: str) -> Member:
    """Returns what simulates the run in a process, and goes on with it where it has begun."""

    def command() -> Sequence[str]:
        if has_begun(out):
            return ["-m", "fedstrata", "run", "--resume", "--out", str(out)]
        return ["-m", "fedstrata", "run", str(CONFIGURATION), *overrides, "--out", str(out)]

    return Member(command, out.with_name("run.log"))


def served(
    folder: Path, settings: Settings, names: Sequence[str], proxy: Callable[[str], str] = str
) -> list[Member]:
    """Returns a server and its sites, each with its kit, by the commands of `deploy/systemd`.

    Args:
        folder: Of all that they write; the run is in `run`.
        settings: What the server says, and what every site says.
        names: Of the sites.
        proxy: Returns the address that sites call, for that of the server.
    """
    kits = kits_of(folder / "federation", *settings, names).folder
    out = str(folder / "run")
    serve = ["-m", "fedstrata", "serve", str(kits / "server"), "--out", out, "--resume-if-begun"]
    found = [Member(lambda: serve, folder / "server.log")]
    for name in names:
        kit = kits / "sites" / name
        join = ["-m", "fedstrata", "join", str(kit), "--server", proxy(str(Kit.read(kit).settings.server))]
        found.append(Member(lambda join=join: join, folder / f"{name}.log"))  # type: ignore[misc]
    return found


def said(*overrides: str) -> Settings:
    """Returns what of the configuration the server says, and what every site says."""
    values = read_source(CONFIGURATION, overrides).values
    return values, {"data": values.pop("data"), "partition": values.pop("partition")}


def outcome(run: Path) -> dict[str, Any]:
    """Returns what equal runs have in common: the loss of each round, scores of clients, the last tensors.

    Of the one model that a run with heads of the clients' own does not have only a simulation has scores.
    """
    summary = json.loads((run / "summary.json").read_bytes())
    metrics = {name: summary["metrics"][name] for name in ("clients", "mean_client")}
    last = max((run / "checkpoints").glob("round-*"))
    tensors = {
        name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
        for name, tensor in frame.decode(frame.read(last), State).tensors.items()
    }
    losses = {event["round"]: event["loss"] for event in rounds_of(run)}
    return {"losses": losses, "metrics": metrics, "tensors": tensors}


def round_seconds(run: Path) -> float:
    """Returns the median of what rounds took, but the first, in which sites prepare what they keep."""
    return statistics.median(float(event["seconds"]) for event in rounds_of(run)[1:])


def rounds_of(run: Path) -> list[dict[str, Any]]:
    """Returns the events of a run's committed rounds."""
    return [event for event in read_events(run / "record.jsonl") if event["event"] == "round"]


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

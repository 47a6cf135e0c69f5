"""Do runs whose processes are killed at random moments end as if nobody had disturbed them?

    python benchmarks/reliability/kill.py --engine grpc --kills 100

Runs `kill.yaml` again and again, and kills one of its processes, any one, by SIGKILL after a random time, so
often as is asked. What was killed is started again by the very command that started it, as a service
manager does; of the workers of a simulation it is the run's own process that starts them again. A run that
fails because a client was lost is started again too. Nobody else does anything.

- `kills`: processes that were killed; `runs`: in so many runs;
- `completed`: whether all of these came to their end; `equal`: whether all have the losses and the scores of
  an undisturbed simulation in one process, to the last bit;
- `rounds_lost_max`: the most rounds that had begun and were begun anew, by any restart;
- `human_actions`: what would have taken a person: a member that is not to be started again (status 2), or one
  that was started again more often than processes were killed would explain.

Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from fedstrata.core.settings.kit import FederationSettings
from fedstrata.core.settings.source import read_source
from fedstrata.core.settings.yaml import as_document
from fedstrata.engine.run_folder import has_begun, has_ended
from fedstrata.record.log import read_events
from fedstrata.transport.enrolment import Federation

CONFIGURATION = Path(__file__).with_name("kill.yaml")
SITES = ("site-1", "site-2", "site-3")
ENGINES = ("local", "workers", "grpc")
_REFUSED = 2
"""Status of what is not to be started again."""
_LONGEST = 600.0
"""Seconds after which a run counts as one that does not complete."""
Command = Callable[[], Sequence[str]]


@dataclass
class Member:
    """A process that is started again whenever it fails, as a service manager does.

    Attributes:
        command: Returns the arguments to start it with, as its unit would.
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
            command = [sys.executable, "-m", "fedstrata", *self.command()]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def look(self) -> None:
        """Starts it again if it has failed in a way that may pass."""
        self.status = self.process.poll()
        if self.status not in (None, 0, _REFUSED):
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


def members_of(engine: str, folder: Path) -> list[Member]:
    """Returns the members of a run; the first is the one that ends with the run.

    Args:
        engine: Where its clients are.
        folder: Of all that they write; the run is in `run`.
    """
    run = folder / "run"

    def simulate() -> Sequence[str]:
        if has_begun(run):
            return ["run", "--resume", "--out", str(run)]
        workers = ["workers=2"] if engine == "workers" else []
        return ["run", str(CONFIGURATION), *workers, "--out", str(run)]

    if engine != "grpc":
        return [Member(simulate, folder / "run.log")]
    return served_members(folder, run)


def served_members(folder: Path, run: Path) -> list[Member]:
    """Returns a server and its sites, each with its kit, by the commands of `deploy/systemd`."""
    address = free_address()
    federation = folder / "federation"
    settings = FederationSettings(name="kill", server=address, days=1)
    Federation.create(federation, settings, address, SITES, archive=False)
    values = read_source(CONFIGURATION, []).values
    own = {"data": values.pop("data"), "partition": values.pop("partition")}
    (federation / "server" / "run.yaml").write_bytes(as_document(values))
    serve = ["serve", str(federation / "server"), "--out", str(run), "--resume-if-begun"]
    found = [Member(lambda: serve, folder / "server.log")]
    for site in SITES:
        kit = federation / "sites" / site
        (kit / "site.yaml").write_bytes(as_document(own))
        join = ["join", str(kit)]
        found.append(Member(lambda join=join: join, folder / f"{site}.log"))  # type: ignore[misc]
    return found


def free_address() -> str:
    """Returns an address of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def disturbed(
    members: Sequence[Member], chance: random.Random, mean_seconds: float, most: int
) -> tuple[int, bool]:
    """Runs members to the end of their run, and kills some of their processes on the way.

    Args:
        members: The members, the first of which ends with the run.
        chance: What moments and processes are drawn from.
        mean_seconds: Between one kill and the next, on average.
        most: Kills at most.

    Returns:
        How many were killed, and whether the run came to its end.
    """
    for member in members:
        member.start()
    kills, began = 0, time.monotonic()
    due = began + chance.expovariate(1 / mean_seconds)
    try:
        while members[0].status != 0 and time.monotonic() - began < _LONGEST:
            time.sleep(0.02)
            for member in members:
                member.look()
            if _REFUSED in [member.status for member in members]:
                break
            alive = [process for member in members if member.status is None for process in member.processes()]
            if kills < most and alive and time.monotonic() >= due:
                with suppress(psutil.NoSuchProcess):
                    chance.choice(alive).send_signal(signal.SIGKILL)
                    kills += 1
                due = time.monotonic() + chance.expovariate(1 / mean_seconds)
        return kills, members[0].status == 0
    finally:
        for member in members:
            member.end()


def outcome(run: Path) -> dict[str, Any]:
    """Returns what two runs that are equal have in common: the loss of each round, and all scores."""
    events = read_events(run / "record.jsonl")
    committed = [event for event in events if event["event"] == "round"]
    summary = json.loads((run / "summary.json").read_bytes())
    metrics = {name: summary["metrics"][name] for name in ("global", "clients", "mean_client")}
    return {"losses": {event["round"]: event["loss"] for event in committed}, "metrics": metrics}


def rounds_lost(run: Path) -> int:
    """Returns the most rounds that had begun, and were begun anew, by one restart."""
    most = begun = 0
    for event in read_events(run / "record.jsonl"):
        if event["event"] == "resumed":
            most, begun = max(most, begun - event["round"]), event["round"]
        elif event["event"] in {"client", "round"}:
            begun = max(begun, event["round"])
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)  # noqa: S311 - moments of kills, no secrets
    with tempfile.TemporaryDirectory(prefix="kill-") as place:
        root = Path(place)
        undisturbed = Member(members_of("local", made(root / "undisturbed"))[0].command, root / "log")
        disturbed([undisturbed], chance, 1e9, 0)
        expected = outcome(root / "undisturbed" / "run")
        kills = runs = lost = people = 0
        completed = equal = True
        seconds = undisturbed_seconds(options.engine, root, chance)
        while kills < options.kills:
            runs += 1
            members = members_of(options.engine, made(root / f"run-{runs}"))
            run = root / f"run-{runs}" / "run"
            own, ended = disturbed(members, chance, seconds / 3, options.kills - kills)
            kills += own
            completed &= ended and has_ended(run)
            people += sum(member.status == _REFUSED for member in members)
            if has_ended(run):
                equal &= outcome(run) == expected
                lost = max(lost, rounds_lost(run))
            print(f"run {runs}: {kills} killed, completed {completed}, equal {equal}", flush=True)
            if not (completed and equal):
                show_logs(root / f"run-{runs}")
    found = {"kills": kills, "completed": completed, "equal": equal, "rounds_lost_max": lost}
    print(json.dumps({**found, "human_actions": people, "runs": runs, "engine": options.engine}))


def undisturbed_seconds(engine: str, root: Path, chance: random.Random) -> float:
    """Returns how long a run of an engine takes that nobody disturbs."""
    started = time.monotonic()
    _, ended = disturbed(members_of(engine, made(root / "timed")), chance, 1e9, 0)
    if not ended:
        show_logs(root / "timed")
        raise SystemExit("a run that nobody has disturbed does not complete")
    return time.monotonic() - started


def made(folder: Path) -> Path:
    """Makes a folder and returns it."""
    folder.mkdir()
    return folder


def show_logs(folder: Path) -> None:
    """Prints the ends of what the members of a run have written."""
    for log in sorted(folder.glob("*.log")):
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

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
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from members import REFUSED, Member, kits_of, made, show_logs

from fedstrata.core.settings.source import read_source
from fedstrata.engine.run_folder import has_begun, has_ended
from fedstrata.record.log import read_events

CONFIGURATION = Path(__file__).with_name("kill.yaml")
SITES = ("site-1", "site-2", "site-3")
ENGINES = ("local", "workers", "grpc")
_LONGEST = 600.0
"""Seconds after which a run counts as one that does not complete."""


def members_of(engine: str, folder: Path) -> list[Member]:
    """Returns the members of a run; the first is the one that ends with the run.

    Args:
        engine: Where its clients are.
        folder: Of all that they write; the run is in `run`.
    """
    run = folder / "run"

    def simulate() -> Sequence[str]:
        if has_begun(run):
            return ["-m", "fedstrata", "run", "--resume", "--out", str(run)]
        workers = ["workers=2"] if engine == "workers" else []
        return ["-m", "fedstrata", "run", str(CONFIGURATION), *workers, "--out", str(run)]

    if engine != "grpc":
        return [Member(simulate, folder / "run.log")]
    return served_members(folder, run)


def served_members(folder: Path, run: Path) -> list[Member]:
    """Returns a server and its sites, each with its kit, by the commands of `deploy/systemd`."""
    values = read_source(CONFIGURATION, []).values
    own = {"data": values.pop("data"), "partition": values.pop("partition")}
    kits = kits_of(folder / "federation", values, own, SITES).folder
    serve = ["-m", "fedstrata", "serve", str(kits / "server"), "--out", str(run), "--resume-if-begun"]
    found = [Member(lambda: serve, folder / "server.log")]
    for site in SITES:
        join = ["-m", "fedstrata", "join", str(kits / "sites" / site)]
        found.append(Member(lambda join=join: join, folder / f"{site}.log"))  # type: ignore[misc]
    return found


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
            if REFUSED in [member.status for member in members]:
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
            people += sum(member.status == REFUSED for member in members)
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


if __name__ == "__main__":
    main()

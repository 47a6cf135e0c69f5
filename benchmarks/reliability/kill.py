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
  that was started again more often than processes were killed.

Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from members import (
    REFUSED,
    SITES,
    Member,
    lives,
    made,
    outcome,
    running,
    said,
    served,
    show_logs,
    simulation,
    undisturbed,
)
from nvflare_kits import SERVER, NVFlareKits

from fedstrata.core.settings.yaml import as_document
from fedstrata.engine.run_folder import has_ended
from fedstrata.record.log import read_events

ENGINES = ("local", "workers", "grpc", "nvflare", "ray")
_WORKERS = {"local": [], "workers": ["workers=2"], "ray": ["workers=ray"]}
_LONGEST = 1800.0
"""Seconds after which a run counts as one that does not complete."""
_KILLS_A_RUN = 4
"""How many kills there are in the time of a run that nobody disturbs, unless another pace is asked for."""


def members_of(engine: str, folder: Path) -> list[Member]:
    """Returns the members of a run; the first is the one that ends with the run.

    Args:
        engine: Where its clients are.
        folder: Of all that they write; the run is in `run`.
    """
    if engine == "grpc":
        return served(folder, said(), SITES)
    if engine == "nvflare":
        return nvflare_members(folder)
    return [simulation(folder / "run", *_WORKERS[engine])]


def nvflare_members(folder: Path) -> list[Member]:
    """Returns what has a run served, and NVFlare at its server and at each site, by the commands of kits."""
    kits = NVFlareKits(folder / "federation", SITES)
    values, own = said()
    configurations = {"run": {**values, "data": own["data"]}, "site": own}
    for name, configuration in configurations.items():
        (folder / f"{name}.yaml").write_bytes(as_document(configuration))
    for site in SITES:
        home = folder / f"home of {site}"
        kits.site(site, configuration=str(folder / "site.yaml"), home=str(home))
    serve = ["-m", "fedstrata", *kits.serve(folder / "run.yaml", folder / "run"), "--resume-if-begun"]
    found = [Member(lambda: serve, folder / "serve.log", kits.environment)]
    for name in (SERVER, *SITES):
        command, log = kits.command(name), folder / f"{name}.log"
        found.append(Member(lambda command=command: command, log, kits.environment, always=True))  # type: ignore[misc]
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
    kills, due = 0, time.monotonic() + chance.expovariate(1 / mean_seconds)
    known: set[psutil.Process] = set()  # who has lost its parent is nobody's child
    try:
        with running(members, _LONGEST) as looks:
            for _ in looks:
                if kills == most or time.monotonic() < due:
                    continue
                known.update(process for member in members for process in member.processes())
                alive = sorted(filter(lives, known), key=lambda process: process.pid)
                with suppress(psutil.NoSuchProcess, IndexError):
                    chance.choice(alive).kill()
                    kills += 1
                due = time.monotonic() + chance.expovariate(1 / mean_seconds)
            return kills, members[0].status == 0
    finally:
        for process in filter(lives, known):
            process.kill()


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
    parser.add_argument("--seconds", type=float, help="between two kills, on average")
    options = parser.parse_args()
    chance = random.Random(options.seed)  # noqa: S311 - moments of kills, no secrets
    with tempfile.TemporaryDirectory(prefix="kill-") as place:
        root = Path(place)
        undisturbed(members_of("local", made(root / "local")), _LONGEST)
        expected = outcome(root / "local" / "run")
        kills = runs = lost = people = 0
        completed = equal = True
        seconds = options.seconds or seconds_of(options.engine, made(root / "timed"), expected) / _KILLS_A_RUN
        print(f"a kill every {seconds:.1f} s", flush=True)
        while kills < options.kills:
            runs += 1
            members = members_of(options.engine, made(root / f"run-{runs}"))
            run = root / f"run-{runs}" / "run"
            own, ended = disturbed(members, chance, seconds, options.kills - kills)
            kills += own
            completed &= ended and has_ended(run)
            people += sum(member.status == REFUSED or member.starts > 1 + own for member in members)
            if has_ended(run):
                equal &= outcome(run) == expected
                lost = max(lost, rounds_lost(run))
            told = f"completed {completed}, equal {equal}, lost {lost}, asked {people}"
            print(f"run {runs}: {kills} killed, {told}", flush=True)
            if not (completed and equal):
                show_logs(root / f"run-{runs}")
    found = {"kills": kills, "completed": completed, "equal": equal, "rounds_lost_max": lost}
    print(json.dumps({**found, "human_actions": people, "runs": runs, "engine": options.engine}))


def seconds_of(engine: str, folder: Path, expected: Mapping[str, Any]) -> float:
    """Returns how long a run of an engine takes that nobody disturbs, which has to be equal too."""
    started = time.monotonic()
    undisturbed(members_of(engine, folder), _LONGEST)
    if outcome(folder / "run") != expected:
        raise SystemExit(f"a run of {engine} that nobody has disturbed is not equal")
    return time.monotonic() - started


if __name__ == "__main__":
    main()

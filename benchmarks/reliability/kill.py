"""Do runs whose processes are killed at random moments end as if nobody had disturbed them?

    python benchmarks/reliability/kill.py --engine grpc --kills 100

Runs `kill.yaml` again and again, and kills one of its processes, any one, by SIGKILL at a random moment, so
often as is asked. Where processes only start nothing can be lost: three kills of four are in the midst of
rounds, the others at any moment. What was killed is started again by the very command that started it, as a
service manager does; of the workers of a simulation it is the run's own process that starts them again. A run
that fails because a client was lost is started again too. Nobody else does anything.

- `kills`: processes that were killed; `kills_in_rounds`: of them while rounds went on; `runs`: in so many;
- `completed`: whether all of these came to their end; `equal`: whether all have the losses, scores and
  tensors of an undisturbed simulation in one process, to the last bit;
- `rounds_lost_max`: the most rounds in which a client had delivered and that were begun anew, by any restart;
- `human_actions`: what would have taken a person: a member that is not to be started again (status 2), or one
  that was started again more often than processes were killed.

Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Sequence
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
_AT_ANY_MOMENT = 0.25
"""The share of kills that do not wait for rounds to go on."""
_SECONDS = 2.0
"""From the first sign that rounds go on to a kill, on average, unless another pace is asked for."""


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
    members: Sequence[Member], run: Path, chance: random.Random, mean_seconds: float, most: int
) -> tuple[int, int, bool]:
    """Runs members to the end of their run, and kills some of their processes on the way.

    Args:
        members: The members, the first of which ends with the run.
        run: The run directory.
        chance: What moments and processes are drawn from.
        mean_seconds: From the moment from which a kill may be to the kill, on average.
        most: Kills at most.

    Returns:
        How many were killed, how many of them while rounds went on, and whether the run came to its end.
    """
    kills = in_rounds = written = 0
    due, record = math.inf, run / "record.jsonl"
    anytime = chance.random() < _AT_ANY_MOMENT
    known: set[psutil.Process] = set()  # who has lost its parent is nobody's child
    try:
        with running(members, _LONGEST) as looks:
            for _ in looks:
                goes_on = record.exists() and record.stat().st_size > written
                if due == math.inf and (anytime or goes_on):
                    due = time.monotonic() + chance.expovariate(1 / mean_seconds)
                if kills == most or time.monotonic() < due:
                    continue
                known.update(process for member in members for process in member.processes())
                alive = sorted(filter(lives, known), key=lambda process: process.pid)
                with suppress(psutil.NoSuchProcess, IndexError):
                    chance.choice(alive).kill()
                    kills, in_rounds = kills + 1, in_rounds + goes_on
                due, anytime = math.inf, chance.random() < _AT_ANY_MOMENT
                written = record.stat().st_size if record.exists() else 0
            return kills, in_rounds, members[0].status == 0
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
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="till a kill, on average")
    options = parser.parse_args()
    chance = random.Random(options.seed)  # noqa: S311 - moments of kills, no secrets
    with tempfile.TemporaryDirectory(prefix="kill-") as place:
        root = Path(place)
        undisturbed(members_of("local", made(root / "local")), _LONGEST)
        expected = outcome(root / "local" / "run")
        kills = in_rounds = runs = lost = people = 0
        completed = equal = True
        while kills < options.kills:
            runs += 1
            members = members_of(options.engine, made(root / f"run-{runs}"))
            run = root / f"run-{runs}" / "run"
            own, going, ended = disturbed(members, run, chance, options.seconds, options.kills - kills)
            kills, in_rounds = kills + own, in_rounds + going
            completed &= ended and has_ended(run)
            people += sum(member.status == REFUSED or member.starts > 1 + own for member in members)
            if has_ended(run):
                equal &= outcome(run) == expected
                lost = max(lost, rounds_lost(run))
            told = f"completed {completed}, equal {equal}, lost {lost}, asked {people}"
            print(f"run {runs}: {kills} killed, {in_rounds} of them in rounds, {told}", flush=True)
            if not (completed and equal):
                show_logs(root / f"run-{runs}")
    found: dict[str, Any] = {
        "kills": kills,
        "kills_in_rounds": in_rounds,
        "completed": completed,
        "equal": equal,
    }
    found["rounds_lost_max"] = lost
    print(json.dumps({**found, "human_actions": people, "runs": runs, "engine": options.engine}))


if __name__ == "__main__":
    main()

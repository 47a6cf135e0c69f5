"""What can one enrolled site do to the others, and what can the server read?

    python benchmarks/reliability/hostile.py

Four sites, each with its kit, learn together over TLS on loopback; three are honest, and the fourth does harm
in one way (`hostile_site.py`). The documents promise that it loses its own part, and the others nothing: in
every round the updates of the honest are in the mean, the run comes to its end with their scores, and takes
no longer than deadlines allow. Each case names the claim that promises so, and what the documents say that it
costs the others all the same.

The server is hostile in further cases (`hostile_server.py`): it lies about masked sums, and the documents
promise that it reads no site's update.

- `cases`: how many were tried; `held`: in how many the honest lost nothing;
- `documented_costs`: of which the honest lost what the documents say, with the claim that says so;
- `broken_promises`: of which they lost anything else, with the false claim. The exit status is then 1.

The deadline of a turn is `DEADLINE_ROUNDS` times the longest round of runs in which all four sites are
honest, on the machine as it is; `--busy N` starts N processes that compute all the time beside them.

Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hostile_server import ATTACKS, READ
from hostile_site import PLAIN, SECURE, Case
from members import Member, kits_of, made, show_logs

from fedstrata.core.settings.source import read_source
from fedstrata.record.log import read_events

CONFIGURATION = Path(__file__).with_name("kill.yaml")
HONEST, HOSTILE = ("site-1", "site-2", "site-3"), "site-4"
ROUNDS = 3
DEADLINE_ROUNDS, LEAST_DEADLINE = 10, 30.0
"""A deadline in rounds of honest sites, and the least one in seconds: a loaded machine stalls for seconds."""
PATIENCE_RUNS = 2
"""How long all sites may take to start, in runs of honest sites."""
LONGEST_DEADLINES, LONGEST_RUNS = 16, 3
"""A run counts as held up after so many deadlines, and so many times the longest run of honest sites."""
CASES = {**PLAIN, **SECURE}
_BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(10**6))"
"""A process that computes as long as the one that started it lives."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What the honest sites have lost.

    Attributes:
        kind: Its kind, by which the cost of a case names it.
        told: What it was.
    """

    kind: str
    told: str


def settings_of(*, secure: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what the server's kit says, and what that of every site says."""
    values = read_source(CONFIGURATION, []).values
    own = {"data": {**values.pop("data"), "synthetic": {"sites": 4, "notes": 32}}}
    own["partition"] = values.pop("partition")
    values["federation"] = {"rounds": ROUNDS, "min_clients": len(HONEST)}
    values["method"] = {"name": "layer_skipping", "top": 2}
    if secure:
        values["privacy"] = {"secure_aggregation": True}
    return values, own


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take, in seconds.

    Attributes:
        deadline: A turn.
        patience: The start of all sites.
        longest: A run.
    """

    deadline: float = 600.0
    patience: float = 600.0
    longest: float = 3600.0


def lost_by_others(case: str | None, folder: Path, limits: Limits, *, secure: bool) -> list[Loss]:
    """Runs a federation with a hostile site, or with none; returns what the honest have lost."""
    kits = kits_of(folder / "federation", *settings_of(secure=secure), (*HONEST, HOSTILE)).folder
    run, site = folder / "run", Path(__file__).with_name("hostile_site.py")
    times = ["--deadline", str(limits.deadline), "--patience", str(limits.patience)]
    serve = ["-m", "fedstrata", "serve", str(kits / "server"), "--out", str(run), *times]
    commands = {"server": serve}
    commands |= {name: ["-m", "fedstrata", "join", str(kits / "sites" / name)] for name in (*HONEST, HOSTILE)}
    if case is not None:
        commands[HOSTILE] = [str(site), case, str(kits / "sites" / HOSTILE)]
    members = {
        name: Member(lambda command=command: command, folder / f"{name}.log")  # type: ignore[misc]
        for name, command in commands.items()
    }
    started = time.monotonic()
    try:
        members[HOSTILE].start()  # the first to come, if it likes
        for name in ("server", *HONEST):
            members[name].start()
        while members["server"].process.poll() is None and time.monotonic() - started < limits.longest:
            time.sleep(0.05)
            if members[HOSTILE].process.poll() not in (None, 0):
                members[HOSTILE].start()  # it tries again
        status = members["server"].process.poll()
        if status is None:
            return [Loss("held up", f"the run is held up for {limits.longest:.0f} s")]
        if status != 0:
            return [Loss("run ended", f"the run ends with status {status}")]
        return list(losses_in(run))
    finally:
        for member in members.values():
            if member.starts:
                member.end()


def limits_for(cases: Sequence[str], place: Path, deadline: float | None) -> Limits:
    """Returns limits by runs of honest sites alone; a deadline that is given replaces the measured one.

    Raises:
        SystemExit: Such a run loses something.
    """
    longest_round = longest_run = 0.0
    for secure in sorted({case in SECURE for case in cases}):
        folder, started = made(place / f"honest-{'masked' if secure else 'plain'}"), time.monotonic()
        if losses := lost_by_others(None, folder, Limits(), secure=secure):
            show_logs(folder)
            raise SystemExit(f"a run of honest sites loses: {'; '.join(loss.told for loss in losses)}")
        events = read_events(folder / "run" / "record.jsonl")
        seconds = (event["seconds"] for event in events if event["event"] == "round")
        longest_round = max(longest_round, *seconds)
        longest_run = max(longest_run, time.monotonic() - started)
    deadline = deadline or max(LEAST_DEADLINE, DEADLINE_ROUNDS * longest_round)
    patience = max(LEAST_DEADLINE, PATIENCE_RUNS * longest_run)
    return Limits(deadline, patience, LONGEST_DEADLINES * deadline + LONGEST_RUNS * longest_run + patience)


def losses_in(run: Path) -> Iterator[Loss]:
    """Yields what honest sites have lost in a run that came to its end."""
    events = read_events(run / "record.jsonl")
    for event in events:
        if event["event"] != "round":
            continue
        number, failed = event["round"], event.get("failed") or []
        if event.get("abandoned"):
            yield Loss("round abandoned", f"round {number} was given up")
        for name in HONEST:
            if name in failed:
                yield Loss("site left out", f"round {number} without {name}")
    if len(rounds := rounds_of(events)) != ROUNDS:
        yield Loss("rounds missing", f"{len(rounds)} of {ROUNDS} rounds")
    if not (run / "model").exists():
        yield Loss("no model", "no model")
    summary = json.loads((run / "summary.json").read_bytes())
    if not scores_are_there(summary["metrics"], secure=bool(summary.get("secure_aggregation"))):
        yield Loss("no scores", "scores of honest sites")


def rounds_of(events: list[dict[str, Any]]) -> list[int]:
    """Returns the rounds that were committed."""
    return [event["round"] for event in events if event["event"] == "round"]


def scores_are_there(metrics: Mapping[str, Any], *, secure: bool) -> bool:
    """Whether the scores of all honest sites are known; under masks sites tell none."""
    return secure or all(metrics["clients"].get(name) for name in HONEST)


def is_documented(case: Case, losses: Sequence[Loss]) -> bool:
    """Whether the honest have lost no more than the documents say that this case costs them."""
    allowed = Counter(case.cost.losses) if case.cost is not None else Counter[str]()
    return Counter(loss.kind for loss in losses) <= allowed


@contextmanager
def busy(count: int, folder: Path) -> Iterator[None]:
    """Has so many processes compute all the time within the block."""
    command = ["-c", _BUSY, str(os.getpid())]
    members = [Member(lambda: command, folder / f"busy-{number}.log") for number in range(count)]
    try:
        for member in members:
            member.start()
        yield
    finally:
        for member in members:
            if member.starts:
                member.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    every = [*CASES, *ATTACKS]
    parser.add_argument("--only", nargs="+", choices=every, default=every)
    parser.add_argument("--logs", action="store_true", help="show what the members of a broken run wrote")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside the runs")
    parser.add_argument("--deadline", type=float, help="seconds of a turn; measured by default")
    options = parser.parse_args()
    os.environ["GRPC_VERBOSITY"] = "NONE"
    costs: dict[str, dict[str, Any]] = {}
    broken: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="hostile-") as name, busy(options.busy, Path(name)):
        place = Path(name)
        for case in filter(ATTACKS.__contains__, options.only):
            claim, does, cost, attack = ATTACKS[case]
            cosine = attack(place / case.replace(" ", "-"))
            print(f"{case}: the server {does}; it reads an update with cosine {cosine:.2f}", flush=True)
            if abs(cosine) > READ:
                told = [f"an update, with cosine {cosine:.2f}"]
                (costs if cost else broken)[case] = {"claim": cost or claim, "losses": told}
        sites = [case for case in options.only if case in CASES]
        limits = limits_for(sites, place, options.deadline)
        print(f"deadline: {limits.deadline:.0f} s; longest run: {limits.longest:.0f} s", flush=True)
        for case in sites:
            folder, started = made(place / case.replace(" ", "-")), time.monotonic()
            losses = lost_by_others(case, folder, limits, secure=case in SECURE)
            seconds, own = time.monotonic() - started, CASES[case]
            told = [loss.told for loss in losses]
            lost = "; ".join(told) or "nothing"
            print(f"{case}: it {own.told}; others lose {lost} ({seconds:.0f} s)", flush=True)
            if not losses:
                continue
            if own.cost is not None and is_documented(own, losses):
                costs[case] = {"claim": own.cost.claim, "losses": told}
                continue
            broken[case] = {"claim": own.claim, "losses": told}
            if options.logs:
                show_logs(folder)
    cases = len(options.only)
    counts = {"cases": cases, "held": cases - len(costs) - len(broken)}
    print(json.dumps({**counts, "documented_costs": costs, "broken_promises": broken}))
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()

"""What can one enrolled site do to the others?

    python benchmarks/reliability/hostile.py

Four sites, each with its kit, learn together over TLS on loopback; three are honest, and the fourth does harm
in one way (`hostile_site.py`). It may lose its own part, and nothing else: in every round the updates of the
honest are in the mean, the run comes to its end with their scores, and takes no longer than deadlines allow.

- `cases`: how many were tried; `held`: in how many it was so;
- `broken`: of the others, what the honest have lost.

Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hostile_site import PLAIN, SECURE
from members import Member, kits_of, made, show_logs

from fedstrata.core.settings.source import read_source
from fedstrata.record.log import read_events

CONFIGURATION = Path(__file__).with_name("kill.yaml")
HONEST, HOSTILE = ("site-1", "site-2", "site-3"), "site-4"
ROUNDS, DEADLINE = 3, 15
_LONGEST = 240.0
"""Seconds after which a run counts as held up."""


def settings_of(case: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what the server's kit says, and what that of every site says."""
    values = read_source(CONFIGURATION, []).values
    own = {"data": {**values.pop("data"), "synthetic": {"sites": 4, "notes": 32}}}
    own["partition"] = values.pop("partition")
    values["federation"] = {"rounds": ROUNDS, "min_clients": len(HONEST)}
    values["method"] = {"name": "layer_skipping", "top": 2}
    if case in SECURE:
        values["privacy"] = {"secure_aggregation": True}
    return values, own


def lost_by_others(case: str, folder: Path) -> list[str]:
    """Runs a federation with a hostile site; returns what the honest have lost."""
    kits = kits_of(folder / "federation", *settings_of(case), (*HONEST, HOSTILE)).folder
    run, site = folder / "run", Path(__file__).with_name("hostile_site.py")
    limits = ["--deadline", str(DEADLINE), "--patience", "30"]
    serve = ["-m", "fedstrata", "serve", str(kits / "server"), "--out", str(run), *limits]
    commands = {"server": serve}
    commands |= {name: ["-m", "fedstrata", "join", str(kits / "sites" / name)] for name in HONEST}
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
        while members["server"].process.poll() is None and time.monotonic() - started < _LONGEST:
            time.sleep(0.05)
            if members[HOSTILE].process.poll() not in (None, 0):
                members[HOSTILE].start()  # it tries again
        status = members["server"].process.poll()
        if status is None:
            return [f"the run is held up for {_LONGEST:g} s"]
        if status != 0:
            return [f"the run ends with status {status}"]
        return list(losses_in(run))
    finally:
        for member in members.values():
            if member.starts:
                member.end()


def losses_in(run: Path) -> list[str]:
    """Returns what honest sites have lost in a run that came to its end."""
    events, found = read_events(run / "record.jsonl"), []
    for event in events:
        if event["event"] != "round":
            continue
        number, failed = event["round"], event.get("failed") or []
        if event.get("abandoned"):
            found.append(f"round {number} was given up")
        found += [f"round {number} without {name}" for name in HONEST if name in failed]
    found += [f"{len(rounds)} of {ROUNDS} rounds"] if len(rounds := rounds_of(events)) != ROUNDS else []
    if not (run / "model").exists():
        found.append("no model")
    summary = json.loads((run / "summary.json").read_bytes())
    if not scores_are_there(summary["metrics"], secure=bool(summary.get("secure_aggregation"))):
        found.append("scores of honest sites")
    return found


def rounds_of(events: list[dict[str, Any]]) -> list[int]:
    """Returns the rounds that were committed."""
    return [event["round"] for event in events if event["event"] == "round"]


def scores_are_there(metrics: Mapping[str, Any], *, secure: bool) -> bool:
    """Whether the scores of all honest sites are known; under masks sites tell none."""
    return secure or all(metrics["clients"].get(name) for name in HONEST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*PLAIN, *SECURE], default=[*PLAIN, *SECURE])
    parser.add_argument("--logs", action="store_true", help="show what the members of a broken run wrote")
    options = parser.parse_args()
    os.environ["GRPC_VERBOSITY"] = "NONE"
    broken: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="hostile-") as place:
        for case in options.only:
            folder, started = made(Path(place, case.replace(" ", "-"))), time.monotonic()
            lost = lost_by_others(case, folder)
            seconds, told = time.monotonic() - started, {**PLAIN, **SECURE}[case][0]
            losses = "; ".join(lost) or "nothing"
            print(f"{case}: it {told}; others lose {losses} ({seconds:.0f} s)", flush=True)
            if lost:
                broken[case] = lost
                if options.logs:
                    show_logs(folder)
    cases = len(options.only)
    print(json.dumps({"cases": cases, "held": cases - len(broken), "broken": broken}))


if __name__ == "__main__":
    main()

"""What do many sites cost the server, in memory and in time?

    python benchmarks/reliability/fifty_sites.py

Runs `kill.yaml` with so many sites, each a process with its kit, over TLS on loopback, and simulates the same
with as many workers as there are cores.

- `equal`: whether both have the same losses and scores, to the last bit;
- `memory_after_first_round`, `memory_at_end`: resident memory of the server, MiB; `memory_growth` is the
  share by which the second is more;
- `round_seconds`, `simulated_round_seconds`: medians of all rounds but the first;
- `overhead_seconds`, `overhead_share`: the difference, and its share of the simulation's round.

A site takes some 250 MB. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil
from members import (
    Member,
    made,
    outcome,
    require_end,
    round_seconds,
    running,
    said,
    served,
    simulation,
    undisturbed,
)

from fedstrata.record.log import Follower

_LONGEST = 3600.0
"""Seconds after which a run counts as one that does not complete."""


def memory_by_round(members: Sequence[Member], run: Path, apart: float) -> list[float]:
    """Runs members to the end of their run; returns the memory of the first after each round, MiB."""
    follower, found = Follower(run / "record.jsonl"), []
    with running(members, _LONGEST, apart=apart) as looks:
        for _ in looks:
            committed = [event for event in follower.new() if event["event"] == "round"]
            if committed:
                resident = psutil.Process(members[0].process.pid).memory_info().rss / 2**20
                found += [resident] * len(committed)
                print(f"round {committed[-1]['round']}: {resident:.0f} MiB", flush=True)
        require_end(members)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--apart", type=float, default=2.0, help="seconds between the starts of two sites")
    options = parser.parse_args()
    names = [f"site-{number}" for number in range(1, options.sites + 1)]
    asked = (
        f"data.synthetic={{sites: {options.sites}, notes: {8 * options.sites}}}",
        f"federation.rounds={options.rounds}",
    )
    with tempfile.TemporaryDirectory(prefix="sites-") as place:
        folder, simulated = made(Path(place, "served")), made(Path(place, "simulated")) / "run"
        memory = memory_by_round(served(folder, said(*asked), names), folder / "run", options.apart)
        undisturbed([simulation(simulated, *asked, f"workers={psutil.cpu_count()}")], _LONGEST)
        equal = outcome(folder / "run") == outcome(simulated)
        seconds, expected = round_seconds(folder / "run"), round_seconds(simulated)
    result = {
        "sites": options.sites,
        "rounds": len(memory),
        "equal": equal,
        "memory_after_first_round": round(memory[0], 1),
        "memory_at_end": round(memory[-1], 1),
        "memory_growth": round(memory[-1] / memory[0] - 1, 4),
        "round_seconds": round(seconds, 3),
        "simulated_round_seconds": round(expected, 3),
        "overhead_seconds": round(seconds - expected, 3),
        "overhead_share": round(seconds / expected - 1, 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

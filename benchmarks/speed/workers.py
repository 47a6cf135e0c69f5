"""What do two clients at a time gain over two threads for one?

    python benchmarks/speed/workers.py

Runs the demo's federation three times in turn: one client at a time on one thread, one at a time on two
threads, and two workers of one thread each. `speedup` is the seconds of the rounds on two threads over those
with two workers, the median of repeated pairs (the first round, in which processes start, is left out);
`rss_ratio` is the peak proportional set size (PSS) of all processes of a run with workers over that of one
process of two threads; `equal` says whether the weights with workers are those of one thread, to the last
bit. Linux only: PSS is read from /proc. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from fedstrata.engine.checkpoint import Checkpoints

WAYS = {
    "one thread": ("threads=1", "workers=1"),
    "two threads": ("threads=2", "workers=1"),
    "two workers": ("threads=1", "workers=2"),
}
PERIOD = 0.25
"""Seconds between two looks at the memory."""


def memory_of(process: psutil.Popen) -> int:
    """Returns the proportional set size of a process and all that it has started, in bytes."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):  # it may have ended meanwhile
            total += one.memory_full_info().pss
    return total


def run(way: str, folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Runs once; returns the seconds of its rounds and of their scoring, its peak memory, and its weights."""
    command = [sys.executable, "-m", "fedstrata", "run", *overrides, *WAYS[way], "--out", str(folder)]
    peak, began = 0, time.perf_counter()
    with psutil.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, memory_of(process))
            time.sleep(PERIOD)
    if process.returncode:
        raise SystemExit(process.returncode)
    whole = time.perf_counter() - began
    events = [json.loads(line) for line in (folder / "record.jsonl").read_text("utf-8").splitlines()]
    rounds = [event for event in events if event["event"] == "round"]
    return {
        "round_seconds": sum(event["seconds"] for event in rounds[1:]),
        "scoring_seconds": sum(event["evaluate_seconds"] for event in rounds[1:]),
        "whole_seconds": whole,
        "memory": peak,
        "tensors": Checkpoints(folder / "checkpoints").load(len(rounds))[1].tensors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("overrides", nargs="*", default=["federation.rounds=4"])
    options = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(options.repeats):
            for way in WAYS:
                found = run(way, Path(folder, f"{way}-{repeat}"), options.overrides)
                runs[way].append(found)
                shown = {key: round(value, 2) for key, value in found.items() if key != "tensors"}
                print(way, json.dumps(shown), flush=True)
    ratios = [
        one["round_seconds"] / two["round_seconds"]
        for one, two in zip(runs["two threads"], runs["two workers"], strict=True)
    ]
    alone = [
        one["round_seconds"] / two["round_seconds"]
        for one, two in zip(runs["one thread"], runs["two workers"], strict=True)
    ]
    memory = [
        two["memory"] / one["memory"]
        for one, two in zip(runs["two threads"], runs["two workers"], strict=True)
    ]
    expected = runs["one thread"][0]["tensors"]
    equal = all(
        found["tensors"].keys() == expected.keys()
        and all(bool((found["tensors"][name] == expected[name]).all()) for name in expected)
        for found in runs["two workers"]
    )
    result = {
        "speedup": round(statistics.median(ratios), 2),
        "speedup_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "speedup_over_one_thread": round(statistics.median(alone), 2),
        "rss_ratio": round(statistics.median(memory), 2),
        "equal": equal,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

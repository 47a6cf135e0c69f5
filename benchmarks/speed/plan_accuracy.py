"""How near are the estimates of `fedstrata plan` to what the run then measures?

    python benchmarks/speed/plan_accuracy.py

Plans and then runs each configuration, every one in a process of its own with one thread, and divides the
estimates by what the run measured: seconds, peak memory, bytes sent, and the size of the run directory. Last
line: one JSON object with the ratios of each configuration.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fedstrata.record.log import read_events

CONFIGURATIONS = {
    "top2": ["method={name: layer_skipping, top: 2}"],
    "fedavg": ["method={name: fedavg}", "training.learning_rate=2e-4"],
    "local_only": ["method={name: local_only}", "training.learning_rate=2e-4"],
    "private": [
        "training.batch_size=8",
        "method={name: layer_skipping, top: 2}",
        "task.types=[problem, test, treatment, drug]",
        "privacy={mechanism: local, unit: document, units: {site-1: 80, site-2: 80, site-3: 80, site-4: 80}, "
        "epsilon: 8, delta: 1.0e-3, expected_batch: 8, steps: 10}",
    ],
    "fl_llama": ["method={name: fl_llama, front: 1, back: 1}", "training.learning_rate=2e-4"],
}
"""Changes to the demo."""


def fedstrata(*arguments: str) -> str:
    """Runs a command and returns what it printed."""
    # Threads of other libraries would wait in busy loops for cores that are taken.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "fedstrata", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return done.stdout


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the recorded events of one kind that did what they say."""
    recorded = read_events(folder / "record.jsonl")
    return [event for event in recorded if event["event"] == kind and event.get("used", True)]


def ratios(overrides: list[str], options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Returns estimate over measurement of every quantity."""
    shortened = [f"federation.rounds={options.rounds}", f"data.synthetic.notes={options.notes}", "threads=1"]
    settings = [*overrides, *shortened]
    plan = json.loads(fedstrata("plan", *settings, "--json", "--seconds", str(options.seconds)))
    fedstrata("run", *settings, "--out", str(folder))
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    held += sum(event["bytes"] for event in events(folder, "cache"))  # these files are removed at the end
    sent, measured = plan["communication"], summary["communication"]
    pairs = {
        "seconds": (plan["time"]["total_seconds"], summary["time"]["total_seconds"]),
        "train_seconds": (plan["time"]["train_seconds"], summary["time"]["train_seconds"]),
        "serve_seconds": (plan["time"]["serve_seconds"], summary["time"]["serve_seconds"]),
        "memory": (plan["memory"]["peak_rss_bytes"], summary["memory"]["peak_rss_bytes"]),
        "bytes": tuple(values["bytes_up"] + values["bytes_down"] for values in (sent, measured)),
        "disk": (plan["disk"]["bytes"], held),
    }
    return {
        name: round(estimate / measurement, 5)
        for name, (estimate, measurement) in pairs.items()
        if measurement  # what the server works at its part of the model, where it has none
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--configurations", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--notes", type=int, default=80, help="notes in the corpus")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long a plan measures")
    options = parser.parse_args()
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.configurations:
            result[name] = ratios(CONFIGURATIONS[name], options, Path(folder) / name)
            print(name, result[name])
    print(json.dumps(result))


if __name__ == "__main__":
    main()

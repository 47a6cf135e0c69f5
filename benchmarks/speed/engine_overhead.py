"""How much of a round is the engine's own work?

    python benchmarks/speed/engine_overhead.py

Runs the demo for a few rounds in a process of its own. `overhead_fraction` is the share of the rounds' time
that is neither local training nor scoring: restoring and loading the model, frames, the mean, the record
and the checkpoint. Last
line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--method", default="layer_skipping")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        overrides = [f"federation.rounds={options.rounds}", f"method={{name: {options.method}}}"]
        command = [sys.executable, "-m", "fedstrata", "run", *overrides, "--out", str(out)]
        subprocess.run(command, check=True)
        events = [
            json.loads(line) for line in (out / "record.jsonl").read_text(encoding="utf-8").splitlines()
        ]
    rounds = [event for event in events if event["event"] == "round"]
    seconds, overhead = (
        sum(event[key] for event in rounds) for key in ("seconds", "engine_overhead_seconds")
    )
    result = {
        "overhead_fraction": round(overhead / seconds, 4),
        "overhead_seconds_per_round": round(overhead / len(rounds), 4),
        "seconds_per_round": round(seconds / len(rounds), 3),
        "method": options.method,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

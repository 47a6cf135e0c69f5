"""How long does `import fedstrata` take, and the first use of what it gives?

    python benchmarks/speed/import_time.py

Starts processes of their own, in turn, one that does nothing and one that imports.

- `import_seconds`: the median of what importing adds to a process.
- `over_start`: the same over what a process takes that does nothing.
- `run_seconds`: what the first use of `fedstrata.run` adds, which imports torch and transformers.

Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

PROGRAMS = {
    "nothing": "pass",
    "import": "import fedstrata",
    "run": "import fedstrata; fedstrata.run",
}


def seconds(program: str) -> float:
    """Returns what a process takes that runs a program."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - begun


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="How long importing fedstrata takes.")
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for number in range(repeats + 1):
        for name, program in PROGRAMS.items():
            found = seconds(program)
            if number:  # the first has the disk to wait for
                taken[name].append(found)
    nothing, imported, used = (statistics.median(taken[name]) for name in PROGRAMS)
    result = {
        "repeats": repeats,
        "start_seconds": round(nothing, 4),
        "import_seconds": round(imported - nothing, 4),
        "import_seconds_most": round(max(taken["import"]) - nothing, 4),
        "over_start": round((imported - nothing) / nothing, 3),
        "run_seconds": round(used - nothing, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

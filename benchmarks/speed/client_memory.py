"""Does memory grow with the number of clients?

    python benchmarks/speed/client_memory.py

Runs the same federation with 5 and with 50 clients of equal size, each run in a process of its own, and
compares their peak resident memory. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def peak_rss(clients: int, options: argparse.Namespace, folder: Path) -> int:
    """Returns the peak resident memory of one run, in bytes."""
    out = folder / f"clients-{clients}"
    overrides = [
        f"data.synthetic.sites={clients}",
        f"data.synthetic.notes={clients * options.notes}",
        f"method={{name: {options.method}}}",
        f"partition={{by: iid, clients: {clients}}}",
        f"federation.rounds={options.rounds}",
        # Batches for scoring hold several clients' notes: they are to be as full with few as with many.
        "training.eval_batch_size=4",
    ]
    subprocess.run([sys.executable, "-m", "fedstrata", "run", *overrides, "--out", str(out)], check=True)
    return int(json.loads((out / "summary.json").read_text(encoding="utf-8"))["memory"]["peak_rss_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--few", type=int, default=5)
    parser.add_argument("--many", type=int, default=50)
    parser.add_argument("--notes", type=int, default=8, help="notes of each client")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--method", default="layer_skipping")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        few, many = (peak_rss(clients, options, Path(folder)) for clients in (options.few, options.many))
    result = {
        f"rss_ratio_{options.many}_over_{options.few}": round(many / few, 4),
        f"rss_bytes_{options.few}": few,
        f"rss_bytes_{options.many}": many,
        "method": options.method,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

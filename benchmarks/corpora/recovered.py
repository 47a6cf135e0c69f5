"""How much of what full annotation gains is given back by taking what nobody looked for to be unknown?

    fedstrata compare benchmarks/corpora/partial.yaml --out runs/partial
    python benchmarks/corpora/recovered.py runs/partial

Reads that comparison's table, whose runs are scored on `new_notes`, in which everything is annotated. Of each
seed: (unknown - absent) / (all - absent), by micro F1 and by that of each type. Last line: one JSON object,
with each way's `recovered` (mean over seeds), the `least` of a seed, and the mean F1 of each row.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

WAYS = ("three types a site", "one type a site")
EVERYTHING, ABSENT, UNKNOWN = "all annotate everything", "others absent", "others unknown"
BEGINS = "external.new_notes."


def scores_of(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Returns the F1 of rows on `new_notes`, over all types and of each, in the order of the seeds.

    Args:
        folder: What `fedstrata compare` was given as `--out`.
    """
    table = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    return {
        row["name"]: {
            key.removeprefix(BEGINS): list(own["by_seed"].values())
            for key, own in row["values"].items()
            if key == f"{BEGINS}f1" or key.startswith(f"{BEGINS}f1/")
        }
        for row in table["rows"]
    }


def main() -> None:
    """Prints a line a score, and the whole as JSON."""
    parser = argparse.ArgumentParser(
        description="What partial annotation costs, and what of it is recovered."
    )
    parser.add_argument("folder", type=Path, help="the comparison's folder")
    rows = scores_of(parser.parse_args().folder)
    result = {}
    for way in WAYS:
        own = {
            "all": rows[EVERYTHING],
            "absent": rows[f"{way}, {ABSENT}"],
            "unknown": rows[f"{way}, {UNKNOWN}"],
        }
        for name in own["all"]:
            told = ", ".join(f"{short} {_percent(each[name])}" for short, each in own.items())
            shares = ", ".join(f"{100 * share:.0f} %" for share in _recovered(own, name))
            print(f"{way}, {name}: {told}; recovered {shares}")
        result[way] = {
            "recovered": round(statistics.mean(_recovered(own, "f1")), 3),
            "least": round(min(_recovered(own, "f1")), 3),
            **{short: round(statistics.mean(each["f1"]), 4) for short, each in own.items()},
        }
    print(json.dumps(result))


def _recovered(rows: dict[str, dict[str, list[float]]], name: str) -> list[float]:
    """Returns of each seed what share of the gain of full annotation is recovered."""
    seeds = zip(*(rows[short][name] for short in ("all", "absent", "unknown")), strict=True)
    return [(own - low) / (high - low) for high, low, own in seeds]


def _percent(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f}"


if __name__ == "__main__":
    main()

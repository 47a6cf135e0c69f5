"""How much of what full annotation gains is given back by taking what nobody looked for to be unknown?

    fedstrata compare benchmarks/corpora/partial.yaml --out runs/partial
    python benchmarks/corpora/recovered.py runs/partial

Reads that comparison's table, whose runs are scored on `new_notes`, in which everything is annotated. Of each
seed: (unknown - absent) / (all - absent), by micro F1 and by that of each type. Last line: one JSON object,
`recovered` (mean over seeds), the `least` of a seed, and the mean F1 of each row.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

ROWS = {
    "all": "all annotate everything",
    "absent": "one type a site, others absent",
    "unknown": "one type a site, others unknown",
}
SCORED = "new_notes"


def scores_of(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Returns the F1 of rows on `new_notes`, over all types and of each, in the order of the seeds.

    Args:
        folder: What `fedstrata compare` was given as `--out`.
    """
    table = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    rows = {row["name"]: row["values"] for row in table["rows"]}
    begins = f"external.{SCORED}."
    return {
        short: {
            key.removeprefix(begins): list(own["by_seed"].values())
            for key, own in rows[name].items()
            if key == f"{begins}f1" or key.startswith(f"{begins}f1/")
        }
        for short, name in ROWS.items()
    }


def main() -> None:
    """Prints a line a score, and the whole as JSON."""
    parser = argparse.ArgumentParser(
        description="What partial annotation costs, and what of it is recovered."
    )
    parser.add_argument("folder", type=Path, help="the comparison's folder")
    rows = scores_of(parser.parse_args().folder)
    shares = {}
    for name in rows["all"]:
        every, absent, unknown = (rows[short][name] for short in ROWS)
        shares[name] = [
            (own - low) / (high - low) for high, low, own in zip(every, absent, unknown, strict=True)
        ]
        told = ", ".join(f"{short} {_percent(own[name])}" for short, own in rows.items())
        print(f"{name}: {told}; recovered {', '.join(f'{100 * share:.0f} %' for share in shares[name])}")
    result = {
        "recovered": round(statistics.mean(shares["f1"]), 3),
        "least": round(min(shares["f1"]), 3),
        **{short: round(statistics.mean(own["f1"]), 4) for short, own in rows.items()},
    }
    print(json.dumps(result))


def _percent(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f}"


if __name__ == "__main__":
    main()

"""What jax-privacy's estimators make of scores: run by the Python of an environment that has it.

Reads cases from the file that is its first argument, writes what it finds of each to the second, both JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def estimates(case: dict[str, Any]) -> dict[str, float]:
    from jax_privacy import auditing

    scores = auditing.CanaryScoreAuditor(case["inside"], case["outside"])
    left, delta = 1.0 - case["confidence"], case["delta"]
    at = {"threshold_strategy": auditing.Explicit(case["threshold"])}
    # Guesses on both sides have no public way in; below the public ones is a function of counts, and no more.
    counts = (case["canaries"], case["guesses"], case["correct"])
    return {
        "clopper_pearson": scores.epsilon_clopper_pearson(left, delta, one_sided=False, **at),
        "one_run_above": scores.epsilon_one_run(left, delta, **at),
        "one_run_gaussian_above": scores.epsilon_one_run_fdp(left, delta, **at),
        "one_run": auditing._epsilon_one_run(0.0, *counts, left, delta),
        "one_run_gaussian": auditing._epsilon_one_run_fdp(0.0, *counts, left, delta),
    }


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    found = [{name: float(each) for name, each in estimates(case).items()} for case in cases]
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()

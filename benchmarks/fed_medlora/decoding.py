"""Copy decoding and free decoding of one extraction model, side by side on the run's test documents.

    python benchmarks/fed_medlora/decoding.py RUN

RUN is the folder of a finished run of task `extract` for mentions, whose model all clients share. It tells
the micro F1 of both by scheme, the interval of their difference (95 %, over draws of documents that are the
same for both), what was wrong with answers and left out, and the CPU seconds of each. Last line: one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from errors import tested_documents

import fedstrata
from fedstrata.results.result import open_result
from fedstrata.train.evaluate import answer

WAYS = ("copy", "free")


def decoded(run: Path, way: str, documents: list[fedstrata.Document]) -> tuple[list[Any], dict[str, Any]]:
    """Returns the documents as the model annotates them, and what that took and left out."""
    result = open_result(run, [f"task.decoding={way}", "threads=1"])
    started = time.process_time()
    found = answer(result.model, result.task, documents, result.settings.training)
    seconds = time.process_time() - started
    tally = result.task.tally(documents, found)
    faults = {name: int(tally[name]) for name in sorted(tally) if name.endswith(("left_out", "out_of_reach"))}
    pairs = zip(documents, found, strict=True)
    return [result.task.annotate(document, own) for document, own in pairs], {"seconds": seconds, **faults}


def main() -> None:
    """Prints both, and ends with a line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the folder of a run")
    run = parser.parse_args().run
    documents = tested_documents(run)
    found, cost = {}, {}
    for way in WAYS:
        found[way], cost[way] = decoded(run, way, documents)
        print(f"{way}: {', '.join(f'{name} {value:g}' for name, value in cost[way].items())}", flush=True)
    scores = fedstrata.score(documents, found["copy"], found["free"], run=run)
    differences = {scheme or "strict_": asdict(one) for scheme, one in scores.compared["mentions"].items()}
    for scheme, one in differences.items():
        ends = f"{one['interval']['low']:+.4f} to {one['interval']['high']:+.4f}"
        print(f"{scheme}f1: copy {one['first']:.4f}, free {one['second']:.4f}, difference {ends}")
    print(json.dumps({"documents": len(documents), "cost": cost, "f1": differences}))


if __name__ == "__main__":
    main()

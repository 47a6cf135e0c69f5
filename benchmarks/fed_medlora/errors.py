"""Do two rows of a comparison differ, and what does the first one get wrong?

    python benchmarks/fed_medlora/errors.py comparisons/two-sites Fed-MedLoRA+ Fed-MedLoRA --seeds 0,1,2

The models of both rows annotate the test documents of each seed, of all clients together. Of mentions and of
relations it tells both strict F1 with two p: of the paired permutation test, and of the rank-sum test over
bootstrap scores as the paper has it (docs/scoring.md says which to go by). Then the first row's errors by the
kinds of the paper's Table 7, as shares of all its errors. Rows need models that all clients share. Relations
are of the mentions that a model finds itself, where the scores of a run ask about the annotated ones. Last
line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import fedstrata
from fedstrata.core.settings.source import read_source
from fedstrata.data.divide import divide
from fedstrata.engine.check import check_settings
from fedstrata.metrics.errors import CATEGORIES, count_errors


def tested_documents(run: Path) -> list[fedstrata.Document]:
    """Returns the test documents of all clients of a run that train."""
    checked = check_settings(read_source(run / "config.yaml", []))
    checked.require_sound()
    clients = divide(checked.settings, checked.task).clients
    return [document for own in clients.values() if own.train for document in own.test]


def compared(first: Path, second: Path) -> dict[str, Any]:
    """Returns how two runs on the same documents differ, and how many errors of each kind the first makes."""
    documents = tested_documents(first)
    found = [fedstrata.load(run).annotate(documents) for run in (first, second)]
    scores = fedstrata.score(documents, *found, run=first)
    strict = {part: asdict(schemes[""]) for part, schemes in scores.compared.items()}
    errors = {kind: counts.errors for kind, counts in count_errors(scores.systems[0].errors).items()}
    return {"documents": len(documents), **strict, "errors": errors}


def main() -> None:
    """Prints both tables, and ends with a line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("comparison", type=Path, help="the folder of a comparison")
    parser.add_argument("first", help="a row")
    parser.add_argument("second", help="another row")
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    table = json.loads((options.comparison / "table.json").read_text(encoding="utf-8"))
    folders = {
        (row["name"], cell["seed"]): options.comparison / cell["folder"]
        for row in table["rows"]
        for cell in row["cells"]
    }
    by_seed = {}
    for seed in map(int, options.seeds.split(",")):
        own = by_seed[seed] = compared(folders[options.first, seed], folders[options.second, seed])
        for part in [name for name in ("mentions", "relations") if name in own]:
            told = ", ".join(f"{name} {value:.3f}" for name, value in own[part].items())
            print(f"seed {seed}, {own['documents']} documents, {part}: {told}", flush=True)
    errors = {kind: sum(own["errors"][kind] for own in by_seed.values()) for kind in CATEGORIES}
    for kind, count in errors.items():
        print(f"{kind}: {count}, {count / max(1, sum(errors.values())):.1%}")
    print(json.dumps({"by_seed": by_seed, "errors": errors}))


if __name__ == "__main__":
    main()

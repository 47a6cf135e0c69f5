"""Layer-Skipping FL on clinical NER: one command a table.

    python benchmarks/layer_skipping/ner.py demo --seeds 0 1 2
    python benchmarks/layer_skipping/ner.py ncbi --seeds 0
    python benchmarks/layer_skipping/ner.py maccrobat --seeds 0

Every row is a `fedstrata run` in a process of its own on the same data with the same seeds. A finished run
is not repeated and a broken one is resumed, so the command can be stopped and given again. Real data is
looked for under --data-root, else $FEDSTRATA_DATA, else ../shared/data. Prints the table; last line: one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedstrata.engine.folder import resumable

HERE = Path(__file__).parent
DEMO = Path(str(files("fedstrata.cli") / "demo.yaml"))


def top(k: int, rate: str) -> list[str]:
    """Layer-Skipping FL with the top k blocks."""
    return [f"method={{name: layer_skipping, top: {k}}}", f"training.learning_rate={rate}"]


def whole(name: str, rate: str) -> list[str]:
    """A method that trains the whole model."""
    return [f"method={{name: {name}}}", f"training.learning_rate={rate}"]


# Name: configuration, folder of real data, rows as overrides. Rates were chosen on the validation split.
TABLES: dict[str, tuple[Path, str | None, dict[str, list[str]]]] = {
    "demo": (
        DEMO,
        None,
        {
            "top 2 of 8": top(2, "2e-3"),
            "fedavg": whole("fedavg", "5e-4"),
            "local only": whole("local_only", "5e-4"),
            "centralised": whole("centralized", "2e-4"),
        },
    ),
    "ncbi": (
        HERE / "ner_ncbi.yaml",
        "ncbi_disease/conll",
        {"top 2 of 6": top(2, "3e-4"), "top 3 of 6": top(3, "3e-4"), "all 6": top(6, "3e-4")},
    ),
    "maccrobat": (
        HERE / "ner_maccrobat.yaml",
        "maccrobat2020/brat",
        {"top 2 of 6": top(2, "4e-4"), "top 3 of 6": top(3, "4e-4"), "all 6": top(6, "4e-4")},
    ),
}


def run(config: Path, overrides: list[str], out: Path) -> dict[str, Any]:
    """Runs or resumes one run, or reads a finished one; refuses one of other settings in its place."""
    begun = (out / "config.yaml").exists()
    if begun:
        resumable(out, config, overrides)
    if not (out / "summary.json").exists():
        command = [sys.executable, "-m", "fedstrata", "run", str(config), *overrides, "--out", str(out)]
        subprocess.run([*command, *(["--resume"] if begun else [])], check=True, stdout=subprocess.DEVNULL)
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))


def row(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and spread over seeds; scores are F1 points (percent) on the test split."""

    def over(values: list[float | None]) -> dict[str, float] | None:
        known = [value for value in values if value is not None]
        if not known:
            return None
        return {
            "mean": round(statistics.fmean(known), 3),
            "min": round(min(known), 3),
            "max": round(max(known), 3),
        }

    return {
        "f1": over([100 * item["metrics"]["global"]["f1"] for item in summaries]),
        "mean_client_f1": over([100 * item["metrics"]["mean_client"]["f1"] for item in summaries]),
        "percent_of_full_model": over([item["communication"]["percent_of_full_model"] for item in summaries]),
        "megabytes_sent": over(
            [
                (item["communication"]["bytes_up"] + item["communication"]["bytes_down"]) / 1e6
                if item["communication"]["bytes_up"] is not None
                else None
                for item in summaries
            ]
        ),
        "train_seconds_per_round": over(
            [item["time"]["train_seconds"] / item["rounds"] for item in summaries]
        ),
        "rounds_to_90_percent": over([item["convergence"]["rounds_to_90_percent"] for item in summaries]),
    }


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Prints a Markdown table: mean (smallest to largest)."""
    columns = list(next(iter(rows.values())))
    print("| | " + " | ".join(columns) + " |")
    print("|---|" + "---|" * len(columns))
    for name, cells in rows.items():
        texts = [
            f"{cell['mean']:.2f} ({cell['min']:.2f} to {cell['max']:.2f})" if (cell := cells[column]) else "-"
            for column in columns
        ]
        print(f"| {name} | " + " | ".join(texts) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--data-root", type=Path, default=Path(os.environ.get("FEDSTRATA_DATA", "../shared/data"))
    )
    parser.add_argument("--out", type=Path, default=Path("runs/layer_skipping"))
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY.PATH=VALUE", help="overrides for every row"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side; with several, set threads=1")
    options = parser.parse_args()
    config, folder, rows = TABLES[options.table]
    data = []
    if folder is not None:
        if not (options.data_root / folder).is_dir():
            sys.exit(f"no real data at {options.data_root / folder}; name its parent with --data-root")
        data = [f"data.path={options.data_root / folder}"]
    wanted = {
        (name, seed): [*data, *rows[name], f"seed={seed}", *options.set]
        for name in rows
        for seed in options.seeds
    }

    def finish(row_and_seed: tuple[str, int]) -> dict[str, Any]:
        name, seed = row_and_seed
        out = options.out / options.table / name.replace(" ", "-") / f"seed-{seed}"
        summary = run(config, wanted[name, seed], out)
        print(f"{name}, seed {seed}: F1 {100 * summary['metrics']['global']['f1']:.2f}", flush=True)
        return summary

    with ThreadPoolExecutor(options.jobs) as pool:
        summaries = dict(zip(wanted, pool.map(finish, wanted), strict=True))
    results = {name: row([summaries[name, seed] for seed in options.seeds]) for name in rows}
    show(results)
    print(json.dumps({"table": options.table, "seeds": options.seeds, "rows": results}))


if __name__ == "__main__":
    main()

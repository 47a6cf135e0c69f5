"""A table of Fed-MedLoRA from nothing: the models that its rows begin with, then the comparison itself.

    python benchmarks/fed_medlora/table.py two_sites

All rows begin with the model of pretrain_mini_markup.yaml; those of new_site.yaml, besides, with models of
the first seed of three_sites.yaml. What is finished is not run again, and a run that was stopped goes on.
Everything lies under runs/ and comparisons/ of the folder where it is called, as with the commands
themselves.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TABLES = ("two_sites", "three_sites", "new_site", "uneven_tasks", "number_of_sites")
PRETRAINED = Path("runs/pretrain-mini-markup")
THREE_SITES = Path("comparisons/three-sites")
MODELS = {
    "Fed-MedLoRA/seed-0": Path("runs/three-sites-fedmedlora"),
    "Fed-MedLoRA+/seed-0": Path("runs/three-sites-fedmedlora_plus"),
    "centralised/seed-0": Path("runs/three-sites-centralized"),
}
"""The runs of three_sites.yaml whose models a new site takes over, and where new_site.yaml looks for them."""


def fedstrata(*arguments: str | Path) -> None:
    """Calls the command line; a command that fails has said why, and ends this one."""
    done = subprocess.run([sys.executable, "-m", "fedstrata", *map(str, arguments)], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def compare(table: str, jobs: int) -> None:
    """Makes a table."""
    fedstrata("compare", HERE / f"{table}.yaml", "--jobs", str(jobs))


def main() -> None:
    """Runs what is missing, then compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    options = parser.parse_args()
    if not (PRETRAINED / "summary.json").is_file():
        begun = ["--resume"] if (PRETRAINED / "config.yaml").is_file() else []
        fedstrata("run", HERE / "pretrain_mini_markup.yaml", *begun, "--out", PRETRAINED)
    if options.table == "new_site":
        compare("three_sites", options.jobs)
        for run, exported in MODELS.items():
            if not exported.is_dir():
                fedstrata("export", THREE_SITES / run, "--out", exported)
    compare(options.table, options.jobs)


if __name__ == "__main__":
    main()

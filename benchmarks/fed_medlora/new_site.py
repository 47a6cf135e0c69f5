"""Fed-MedLoRA, table 6, from nothing: the models that its rows begin with, then the comparison itself.

    python benchmarks/fed_medlora/new_site.py

The models are those of the first seed of three_sites.yaml, which is run if it has not been. What is finished
is not run again, and a run that was stopped goes on. Everything lies under runs/ and comparisons/ of the
folder where it is called, as with the commands themselves.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PRETRAINED = Path("runs/pretrain-mini-markup")
THREE_SITES = Path("comparisons/three-sites")
MODELS = {
    "Fed-MedLoRA/seed-0": Path("runs/three-sites-fedmedlora"),
    "Fed-MedLoRA+/seed-0": Path("runs/three-sites-fedmedlora_plus"),
    "centralised/seed-0": Path("runs/three-sites-centralized"),
}
"""The runs of three_sites.yaml whose models a new site takes over, and where new_site.yaml looks for them."""


def fedstrata(*arguments: str | Path) -> None:
    """Calls the command line."""
    subprocess.run([sys.executable, "-m", "fedstrata", *map(str, arguments)], check=True)


def main() -> None:
    """Runs what is missing, then compares."""
    if not (PRETRAINED / "summary.json").is_file():
        begun = ["--resume"] if (PRETRAINED / "config.yaml").is_file() else []
        fedstrata("run", HERE / "pretrain_mini_markup.yaml", *begun, "--out", PRETRAINED)
    fedstrata("compare", HERE / "three_sites.yaml", "--jobs", "2", "--out", THREE_SITES)
    for run, exported in MODELS.items():
        if not exported.is_dir():
            fedstrata("export", THREE_SITES / run, "--out", exported)
    fedstrata("compare", HERE / "new_site.yaml", "--jobs", "2")


if __name__ == "__main__":
    main()

"""Fed-MedLoRA, table 6, from nothing: the models that its rows begin with, then the comparison itself.

    python benchmarks/fed_medlora/new_site.py

What has finished is not run again, and a run that was stopped goes on. Everything lies under runs/ and
comparisons/ of the folder that it is called in, as with the commands themselves.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
METHODS = ("fedmedlora", "fedmedlora_plus")


def fedstrata(*arguments: str | Path) -> None:
    """Calls the command line."""
    subprocess.run([sys.executable, "-m", "fedstrata", *map(str, arguments)], check=True)


def runs() -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yields each run's directory with its configuration."""
    yield Path("runs/pretrain-mini-markup"), (str(HERE / "pretrain_mini_markup.yaml"),)
    for method in METHODS:
        yield (
            Path(f"runs/federation-{method}"),
            (str(HERE / "federation.yaml"), f"method={{name: {method}}}", f"name=federation-{method}"),
        )


def main() -> None:
    """Runs what is missing, then compares."""
    for folder, configuration in runs():
        if not (folder / "summary.json").is_file():
            begun = ("--resume",) if (folder / "config.yaml").is_file() else ()
            fedstrata("run", *configuration, *begun, "--out", folder)
    for method in METHODS:
        exported = Path(f"runs/federation-{method}-export")
        if not exported.is_dir():
            fedstrata("export", f"runs/federation-{method}", "--out", exported)
    fedstrata("compare", HERE / "new_site.yaml", "--jobs", "2")


if __name__ == "__main__":
    main()

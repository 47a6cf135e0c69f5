"""Every script of examples/ runs from its first cell to its last, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import REPOSITORY

SAYS = {
    "comparing": "top blocks",
    "five_sites": "site-5",
    "own_data": "micro F1",
    "own_method": "- a resumed run comes to the numbers of an uninterrupted one",
    "own_reader": "- it tells which file is broken, and neither messages nor the log quote a note",
    "private_training": "with privacy",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in (REPOSITORY / "examples").glob("*.py")))
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    if name == "private_training":
        pytest.importorskip("opacus")
        pytest.importorskip("dp_accounting")
    command = [sys.executable, str(REPOSITORY / "examples" / f"{name}.py")]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout

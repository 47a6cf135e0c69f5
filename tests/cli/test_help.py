from __future__ import annotations

import subprocess
import sys

from support import Call

import fedstrata
from fedstrata.methods import METHODS

HEAVY = ("torch", "transformers", "sklearn", "numpy", "rich.progress", "pydantic")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['fedstrata', '--help']\n"
        "from fedstrata.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "loaded: []" in done.stdout


def test_version_methods_and_an_unknown_command(call: Call) -> None:
    assert call("--version").out.strip() == fedstrata.__version__
    done = call("methods")  # what each of them sends
    assert done.status == 0
    assert all(name in done.out for name in METHODS)
    unknown = call("federate")
    assert unknown.status == 2
    assert "federate" in unknown.err

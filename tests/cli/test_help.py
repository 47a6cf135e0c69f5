from __future__ import annotations

import subprocess
import sys

from support import Call

import fedstrata

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
    for verb in ("run", "compare", "plan", "methods", "synth", "predict", "score", "export", "split"):
        assert verb in done.stdout


def test_version_methods_and_an_unknown_command(call: Call) -> None:
    assert call("--version").out.strip() == fedstrata.__version__
    done = call("methods")  # what each of them sends
    assert done.status == 0
    for name in ("layer_skipping", "fedavg", "fedprox", "local_only", "centralized", "whole model"):
        assert name in done.out
    unknown = call("federate")
    assert unknown.status == 2
    assert "federate" in unknown.err

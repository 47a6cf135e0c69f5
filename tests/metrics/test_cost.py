from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a program inherits its parent's peak")
def test_the_peak_of_memory_is_the_programs_own_and_holds_what_was_once_allocated() -> None:
    """Not that of the program that started it."""
    child = (
        "from fedstrata.metrics.cost import peak_rss_bytes\n"
        "before = peak_rss_bytes()\n"
        "held = b'x' * 200_000_000\n"
        "del held\n"
        "print(before, peak_rss_bytes() - before)"
    )
    parent = (
        "import subprocess, sys\n"
        "held = bytearray(300_000_000)\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True)
    before, grown = map(int, done.stdout.split())
    assert 1_000_000 < before < 200_000_000
    assert 150_000_000 < grown < 250_000_000

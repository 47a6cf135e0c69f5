from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a program inherits its parent's peak")
def test_the_peak_of_memory_is_the_programs_own_and_not_that_of_what_started_it() -> None:
    child = "from fedstrata.metrics.cost import peak_rss_bytes; print(peak_rss_bytes())"
    code = (
        "import subprocess, sys\n"
        "held = bytearray(300_000_000)\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 1_000_000 < int(done.stdout) < 200_000_000


def test_the_peak_holds_what_was_once_allocated() -> None:
    code = (
        "from fedstrata.metrics.cost import peak_rss_bytes\n"
        "before = peak_rss_bytes()\n"
        "held = b'x' * 200_000_000\n"
        "del held\n"
        "print(peak_rss_bytes() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 150_000_000 < int(done.stdout) < 250_000_000

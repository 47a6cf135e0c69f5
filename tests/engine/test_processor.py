"""How a process uses memory; each case in one of its own, since malloc's thresholds stay."""

import os
import platform
import subprocess
import sys

import pytest

_COUNT_FAULTS = """
import resource, torch
from fedstrata.engine.processor import use_processor

use_processor(1)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(32):  # until the heap has grown to what it needs
    torch.ones(2**24)  # 64 MiB, freed at once
before = faults()
for _ in range(4):
    torch.ones(2**24)
print(faults() - before, torch.get_num_threads())
"""


def _faults(**environment: str) -> int:
    of_malloc = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
    own = {name: value for name, value in os.environ.items() if not name.startswith(of_malloc)}
    command = [sys.executable, "-c", _COUNT_FAULTS]
    finished = subprocess.run(command, env=own | environment, capture_output=True, text=True, check=True)
    faults, threads = map(int, finished.stdout.split())
    assert threads == 1
    return faults


pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries have no thresholds"
)


def test_freed_memory_is_used_again_without_a_page_fault() -> None:
    assert _faults() < 60  # 4 times 16,384 pages otherwise, or 4 times 32 huge ones


def test_thresholds_of_the_environment_stand() -> None:
    assert _faults(MALLOC_MMAP_THRESHOLD_="1000000") > 60

"""How a process uses the processor and its memory.

Each case of memory is a process of its own, since malloc's thresholds stay.
"""

import logging
import os
import platform
import subprocess
import sys

import pytest
import torch

from fedstrata.core.settings.run import RunSettings
from fedstrata.engine.prepare import device_of
from fedstrata.train.processor import warn_of_slow_bfloat16

_COUNT_FAULTS = """
import resource, torch
from fedstrata.train.processor import use_processor

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


glibc_only = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries have no thresholds"
)


@glibc_only
@pytest.mark.slow  # each of the two waits seconds for the imports of its process
def test_freed_memory_is_used_again_without_a_page_fault() -> None:
    assert _faults() < 60  # 4 times 16,384 pages otherwise, or 4 times 32 huge ones


@glibc_only
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_MMAP_THRESHOLD_", "1000000"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1000000")],
)
def test_thresholds_of_the_environment_stand(name: str, value: str) -> None:
    assert _faults(**{name: value}) > 60


def _told(caplog: pytest.LogCaptureFixture, precision: str) -> list[str]:
    warn_of_slow_bfloat16.cache_clear()
    caplog.clear()
    for _ in range(2):  # as for two runs of a comparison
        device_of(RunSettings.model_validate({"device": "cpu", "training": {"precision": precision}}))
    return caplog.messages


def test_a_processor_that_is_slow_in_bfloat16_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    (message,) = _told(caplog, "bfloat16")
    assert message.startswith("training.precision: bfloat16 ")
    assert not _told(caplog, "auto")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert not _told(caplog, "bfloat16")

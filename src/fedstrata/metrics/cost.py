"""What a run cost this machine, and which machine it is."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def peak_rss_bytes() -> int:
    """Returns the largest resident memory of this process so far, in bytes.

    Linux hands the peak of `getrusage` down to a program that a larger process starts; the kernel's own high
    water mark begins anew with the program.
    """
    status = Path("/proc/self/status")
    lines = status.read_text("utf-8").splitlines() if status.exists() else []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_memory(device: torch.device) -> dict[str, int | None]:
    """Returns the peaks so far of this process, as the record's events and the summary call them.

    That of a GPU is the most memory torch has held on it; none on a CPU.
    """
    import torch  # noqa: PLC0415 - heavy

    held = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {"peak_rss_bytes": peak_rss_bytes(), "peak_gpu_bytes": held}


def cores() -> int:
    """Returns the number of CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Returns what seconds and memory depend on: cores, processor and operating system."""
    listed = ""
    with suppress(OSError):  # Linux alone has it
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"^model name\s*:\s*(.+)$", listed, flags=re.MULTILINE)
    processor = (found[1].strip() if found else "") or platform.processor() or platform.machine()
    return {"cores": cores(), "processor": processor, "system": platform.platform()}

"""What a run cost this machine."""

from __future__ import annotations

import resource
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def peak_rss_bytes() -> int:
    """Returns the largest resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_gpu_bytes(device: torch.device) -> int | None:
    """Returns the most memory torch has held on this GPU, in bytes; none on a CPU."""
    import torch  # noqa: PLC0415 - heavy

    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None

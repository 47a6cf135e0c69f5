"""What a run cost this machine."""

from __future__ import annotations

import resource
import sys


def peak_rss_bytes() -> int:
    """Returns the largest resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_gpu_bytes() -> int | None:
    """Returns the most memory torch has held on the current GPU, in bytes; none without a GPU."""
    import torch  # noqa: PLC0415 - heavy

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None

"""How this process uses the processor and its memory."""

import ctypes
import logging
import os
import platform
from collections.abc import Callable
from functools import cache

import torch

logger = logging.getLogger(__name__)

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MOST = 2**31 - 1  # what an int holds
_MOST_OF_OLD = 32 * 2**20  # older versions of glibc refuse a greater threshold for a map
_KEPT_BY_SERVERS = 2**20
_OWN_CHOICE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def use_processor(threads: int | None) -> None:
    """Sets up this process for arithmetic on the processor.

    Args:
        threads: `threads` of the configuration; torch's own choice if none.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    _keep_freed_memory()


@cache  # told once in a process, however many runs it checks
def warn_of_slow_bfloat16() -> None:
    """Says so if this processor multiplies matrices in bfloat16 far more slowly than in float32.

    oneDNN has kernels for it from AVX-512 on; with AVX2 alone torch takes a generic path, with which the
    clients of a small divided model trained at an eighth of the speed.
    """
    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        logger.warning(
            "training.precision: bfloat16 is many times slower than float32 on this processor, which has "
            "AVX2 and not AVX-512"
        )


def _keep_freed_memory() -> None:
    """Has freed memory used again rather than given back to the system between two tensors.

    By default glibc maps every block over 32 MiB anew, and the system then clears each of its pages at the
    first touch: some 45,000 page faults in one training step of a small encoder, a fifth of its time. An
    environment that sets malloc's thresholds itself is left alone; other C libraries have no such setting.
    """
    if (mallopt := _mallopt()) is None:
        return
    if mallopt(_M_MMAP_THRESHOLD, _MOST) or mallopt(_M_MMAP_THRESHOLD, _MOST_OF_OLD):
        mallopt(_M_TRIM_THRESHOLD, _MOST)  # alone it would fix the threshold for a map at 128 KiB


def give_freed_memory_back() -> None:
    """Has freed memory given back to the system: for a server that trains nothing, and has many connections.

    Each of its threads would keep for itself what it has once had for a message as large as the model, so
    that memory would grow with the number of clients. They also share one of malloc's arenas.
    """
    if (mallopt := _mallopt()) is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BY_SERVERS)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BY_SERVERS)


def _mallopt() -> Callable[[int, int], int] | None:
    """Returns what sets glibc's malloc; none with other C libraries, or where the environment has set it."""
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _OWN_CHOICE):
        return None
    found: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    return found

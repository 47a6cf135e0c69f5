"""How fast and how lean is the streaming mean?

    python benchmarks/speed/streaming_mean.py

Folds updates into the running float32 sum. `fraction_of_copy` is the mean's GB/s (bytes of the updates it
reads) over that of a plain copy of the same bytes, the two timed in turn in one run; `peak_payloads` is the
memory above the inputs at the peak, in units of one float32 payload. What clients train is float32, hence the
default; bfloat16 payloads (`--dtype bfloat16`) hold twice the numbers a byte and pass through a conversion.
Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from fedstrata.aggregate.mean import StreamingMean
from fedstrata.core.types import Update


def payload(tensors: int, size: int, seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Tensors of (size, 1024)."""
    generator = torch.Generator().manual_seed(seed)
    return {f"block.{i}": torch.randn(size, 1024, generator=generator).to(dtype) for i in range(tensors)}


def seconds_of_mean(updates: list[Update]) -> float:
    started = time.perf_counter()
    mean = StreamingMean()
    for update in updates:
        mean.add(update)
    mean.finish()
    return time.perf_counter() - started


def seconds_of_copy(updates: list[Update], targets: dict[str, torch.Tensor]) -> float:
    started = time.perf_counter()
    for update in updates:
        for name, tensor in update.tensors.items():
            targets[name].copy_(tensor)
    return time.perf_counter() - started


def peak_bytes(updates: list[Update]) -> int:
    """Peak resident memory of one mean above what was resident before it (Linux: the peak can be reset)."""

    def resident(field: str) -> int:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024

    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = resident("VmRSS")
    seconds_of_mean(updates)
    return resident("VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tensors", type=int, default=32)
    parser.add_argument("--rows", type=int, default=1024, help="each tensor has this many rows of 1024")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    updates = [
        Update(payload(options.tensors, options.rows, seed, dtype), weight=10.0 + seed)
        for seed in range(options.clients)
    ]
    targets = {name: torch.empty_like(tensor) for name, tensor in updates[0].tensors.items()}
    one_payload = 4 * sum(tensor.numel() for tensor in updates[0].tensors.values())
    moved = sum(tensor.nbytes for update in updates for tensor in update.tensors.values())
    peak = peak_bytes(updates)
    seconds_of_copy(updates, targets)
    pairs = [(seconds_of_mean(updates), seconds_of_copy(updates, targets)) for _ in range(options.repeats)]
    ratios = [copy / mean for mean, copy in pairs]
    print(
        f"{options.clients} clients, {one_payload / 4e6:.0f} M parameters, {options.dtype}, "
        f"{torch.get_num_threads()} threads"
    )
    result = {
        "fraction_of_copy": round(statistics.median(ratios), 3),
        "fraction_of_copy_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "mean_gb_per_second": round(moved / statistics.median(mean for mean, _ in pairs) / 1e9, 2),
        "copy_gb_per_second": round(moved / statistics.median(copy for _, copy in pairs) / 1e9, 2),
        "peak_payloads": round(peak / one_payload, 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

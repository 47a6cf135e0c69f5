"""How much does starting from the stored output of the frozen blocks save?

    python benchmarks/speed/prefix_cache.py

Times local epochs of a LLaMA-like token classifier with random weights (16 blocks, width 384, 128 tokens,
batches of 8, float32 on the CPU) through `fit`, as every method trains: the whole model (`full`), its top 4
blocks with the lower 12 run in every step (`frozen`), and the same from stored hidden states (`cached`).
The three are timed in turn in one run, several times; ratios are medians over the repeats. `max_abs_diff` is
the largest difference of any trained parameter between frozen and cached, from the same start with the same
seeds; `fill_over_frozen_epoch` is the first cached epoch, in which the states are computed and written, over
a frozen one. `cpu_ratios` are the same ratios in processor time, which other work on the machine disturbs
less; they mean something with one thread. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from random_client import client_of, llama_like, random_windows

from fedstrata.client.caches import ClientCaches
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.run import RunSettings
from fedstrata.models.prefix_cache import FILE
from fedstrata.policies.freeze import train_top
from fedstrata.tasks.ner import NamedEntityRecognition


class Bench:
    """One client, its model, and what it trains."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.settings = RunSettings.model_validate({"training": {"batch_size": options.batch}})
        self.folder = folder
        self.task = NamedEntityRecognition().of_types(["a", "b", "c", "d"])
        self.model = llama_like(self.task, options.blocks, options.hidden)
        rows = self.model.module.get_input_embeddings().num_embeddings  # type: ignore[operator]
        self.windows = random_windows(options.batches * options.batch, options.tokens, rows, Seed(1))
        self.top = train_top(self.model.layout, options.top)
        self.seconds: dict[str, list[float]] = {"full": [], "frozen": [], "fill": [], "cached": []}
        self.processor_seconds: dict[str, list[float]] = {what: [] for what in self.seconds}
        self.losses: dict[str, list[float]] = {"frozen": [], "cached": []}

    def epoch(self, what: str, repeat: int) -> None:
        """Times one local epoch and notes its loss."""
        from fedstrata.train.local import fit  # noqa: PLC0415

        caches = ClientCaches(self.folder, self.settings, lambda event, facts: None)
        cache = caches.of("client") if what in {"fill", "cached"} else None
        client = client_of(self.model, self.task, self.windows, self.settings.training, self.folder, cache)
        names: Sequence[str] = self.model.layout.all if what == "full" else self.top
        self.model.train_only(())
        self.model.restore()
        started = time.perf_counter(), time.process_time()
        loss = fit(client, names, Seed(repeat))
        self.seconds[what].append(time.perf_counter() - started[0])
        self.processor_seconds[what].append(time.process_time() - started[1])
        if what in self.losses:
            self.losses[what].append(loss)

    def difference(self, trained: dict[str, torch.Tensor]) -> float:
        """Largest difference of a parameter from these."""
        now = self.model.tensors(trained)
        return max(float((now[name] - tensor).abs().max()) for name, tensor in trained.items())


def ratios_of(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    """The figures of each repeat."""
    pairs = {
        "full_over_cached": ("full", "cached"),
        "frozen_over_cached": ("frozen", "cached"),
        "fill_over_frozen_epoch": ("fill", "frozen"),
    }
    return {
        name: [a / b for a, b in zip(seconds[one], seconds[other], strict=True)]
        for name, (one, other) in pairs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--top", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--batches", type=int, default=12, help="batches of an epoch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    differences = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        for what in ("frozen", "cached"):  # threads, allocator, hashes of the weights
            bench.epoch(what, 0)
            bench.seconds[what].clear()
            bench.processor_seconds[what].clear()
            bench.losses[what].clear()
        stored = Path(folder, "clients", "client", FILE)
        for repeat in range(options.repeats):
            bench.epoch("full", repeat)
            bench.epoch("frozen", repeat)
            trained = bench.model.snapshot(bench.top)
            stored.unlink()
            bench.epoch("fill", repeat)
            bench.epoch("cached", repeat)
            differences.append(bench.difference(trained))
            print({what: round(seconds[-1], 2) for what, seconds in bench.seconds.items()}, flush=True)
        stored_bytes = stored.stat().st_size
    ratios = ratios_of(bench.seconds)
    pairs = zip(bench.losses["frozen"], bench.losses["cached"], strict=True)
    result: dict[str, Any] = {name: round(statistics.median(each), 3) for name, each in ratios.items()}
    result |= {f"{name}_range": [round(min(each), 3), round(max(each), 3)] for name, each in ratios.items()}
    result |= {
        "max_abs_diff": max(differences),
        "max_abs_diff_of_loss": max(abs(a - b) for a, b in pairs),
        "cpu_ratios": {
            name: round(statistics.median(each), 3)
            for name, each in ratios_of(bench.processor_seconds).items()
        },
        "seconds": {what: round(statistics.median(each), 3) for what, each in bench.seconds.items()},
        "stored_bytes": stored_bytes,
        "dtype": "float32",
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

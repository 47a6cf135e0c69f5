"""How much time and memory does a step save when blocks sit it out?

    python benchmarks/speed/layer_dropout.py

Times local epochs of a LLaMA-like token classifier with random weights (16 blocks, width 384, 128 tokens,
batches of 8, float32 on the CPU) with LoRA in all linear layers of the blocks, through `fit` as DropPEFT
trains, at mean rates 0, .25, .5 and .75 that grow with the depth. `time_ratio` is an epoch at a rate over
one at rate 0 in the same repeat, the median over the repeats with the range beside it; in processor time, if
there is one thread, also `cpu_ratio`. `share_run` is the share of the blocks that did run, which chance moves
a little from 1 - rate. `activation_ratio` is the memory that autograd keeps for the backward pass, as runs on
emulated devices count it (`fedstrata.metrics.memory`). Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from random_client import client_of, llama_like, random_windows

from fedstrata.adapters.attach import attach
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.adapter import LoraSettings
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.types import Work
from fedstrata.policies.dropout import LayerDropout, block_rates
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.train.local import fit
from fedstrata.train.processor import use_processor

RATES = (0.0, 0.25, 0.5, 0.75)


class Bench:
    """One client with a LoRA."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        values = {"batch_size": options.batch, "checkpointing": options.checkpointing}
        self.settings = RunSettings.model_validate({"training": values}).training
        task = NamedEntityRecognition().of_types(["a", "b", "c", "d"])
        base = llama_like(task, options.blocks, options.hidden)
        if options.checkpointing:
            base.module.activation_checkpointing_enable()  # type: ignore[operator]
        lora = LoraSettings(kind="lora", rank=options.rank)
        self.model = attach(base, lora, kind=task.kind, seed=Seed(0))
        rows = base.module.get_input_embeddings().num_embeddings  # type: ignore[operator]
        windows = random_windows(options.batches * options.batch, options.tokens, rows, Seed(1))
        self.client = client_of(self.model, task, windows, self.settings, folder)
        self.blocks = options.blocks

    def epoch(self, rate: float, repeat: int) -> tuple[float, float, float]:
        """Trains one epoch; returns its seconds, its processor seconds and the share of blocks that ran."""
        self.model.train_only(())
        self.model.restore()
        dropout = LayerDropout(block_rates(rate, self.blocks), Seed(repeat))
        started = time.perf_counter(), time.process_time()
        fit(self.client, self.model.layout.all, Seed(repeat), dropout=dropout)
        return (
            time.perf_counter() - started[0],
            time.process_time() - started[1],
            dropout.share_run,
        )

    def saved(self, rate: float, repeat: int) -> float:
        """Returns the bytes that autograd keeps in an epoch."""
        self.client.work = Work()
        self.epoch(rate, repeat)
        saved, self.client.work = self.client.work.activation_bytes, None
        return saved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--batches", type=int, default=8, help="batches of an epoch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--checkpointing", action="store_true")
    options = parser.parse_args()
    use_processor(options.threads)
    times: dict[float, list[tuple[float, float, float]]] = {rate: [] for rate in RATES}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        repeats = range(options.repeats)
        saved = {rate: sum(bench.saved(rate, repeat) for repeat in repeats) for rate in RATES}
        for repeat in repeats:
            for rate in RATES:
                times[rate].append(bench.epoch(rate, repeat))
    result: dict[str, object] = {
        "share_run": {f"{rate:g}": round(statistics.mean(own[2] for own in times[rate]), 3) for rate in RATES}
    }
    for name, position in (("time_ratio", 0), ("cpu_ratio", 1)):
        ratios = {
            rate: [own[position] / full[position] for own, full in zip(times[rate], times[0.0], strict=True)]
            for rate in RATES[1:]
        }
        result[name] = {f"{rate:g}": round(statistics.median(own), 3) for rate, own in ratios.items()}
        result[f"{name}_range"] = {
            f"{rate:g}": [round(min(own), 3), round(max(own), 3)] for rate, own in ratios.items()
        }
    result["activation_ratio"] = {f"{rate:g}": round(saved[rate] / saved[0.0], 3) for rate in RATES[1:]}
    result |= {"threads": torch.get_num_threads(), "checkpointing": options.checkpointing}
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""What does it cost that clients take turns with one model, each with an adapter of its own?

    python benchmarks/speed/adapter_swap.py

A client's turn begins with `restore` (the base values back) and two `load`s (its store and the plan). They
are timed together over the adapters of many clients, in turn with local steps of 8 texts of 128 tokens on a
LLaMA-like token classifier with random weights (16 blocks, width 384, LoRA of rank 8 in all linear layers of
the blocks: 224 tensors; float32 on the CPU). `swap_fraction_of_step` is the median switch over the median
step. Not timed is what else a turn takes: its frames, the client's store on the disk, the optimiser, which is
made anew, and on emulated devices the look at the model that operations are counted by. Last line: one JSON
object.
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
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.train.local import fit
from fedstrata.train.processor import use_processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    use_processor(options.threads)
    settings = RunSettings.model_validate({"training": {"batch_size": options.batch}})
    task = NamedEntityRecognition().of_types(["a", "b", "c", "d"])
    base = llama_like(task, options.blocks, options.hidden)
    rows = base.module.get_input_embeddings().num_embeddings  # type: ignore[operator]
    model = attach(base, LoraSettings(kind="lora", rank=options.rank), kind=task.kind, seed=Seed(0))
    windows = random_windows(options.batch, options.tokens, rows, Seed(1))
    first = model.snapshot(model.layout.all)
    adapters = [
        {name: value + 0.01 * client for name, value in first.items()} for client in range(options.clients)
    ]
    swaps, steps = [], []
    with tempfile.TemporaryDirectory() as folder:
        client = client_of(model, task, windows, settings.training, Path(folder))
        fit(client, model.layout.all, Seed(0))  # threads and allocator
        for repeat in range(options.repeats):
            for own in adapters[repeat :: options.repeats]:
                started = time.perf_counter()
                model.restore()
                model.load(own)
                model.load(own)
                swaps.append(time.perf_counter() - started)
            started = time.perf_counter()
            fit(client, model.layout.all, Seed(repeat))  # one batch, so one step
            steps.append(time.perf_counter() - started)
        changed = any(bool((now != first[name]).any()) for name, now in model.tensors(first).items())
    swap, step = statistics.median(swaps), statistics.median(steps)
    print(f"{len(first)} tensors; they {'changed' if changed else 'did not change'}")
    result = {
        "swap_fraction_of_step": round(swap / step, 5),
        "swap_milliseconds": round(1000 * swap, 3),
        "step_milliseconds": round(1000 * step, 1),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

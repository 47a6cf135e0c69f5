"""What does federated LoRA of large LLaMAs take: parameters, bytes, memory, operations?

    python benchmarks/speed/llama_shapes.py
    python benchmarks/speed/llama_shapes.py --measure --shapes llama-3.2-1b llama-3-8b

The first is an estimate from the shapes alone, on any machine; nothing is downloaded. Fed-MedLoRA's setting:
LoRA of rank 16 with dropout on all seven linear layers of a block, 4-bit frozen weights, batches of 4 of 800
tokens, activations computed again in the backward pass; two sites, two rounds. `--measure` takes real steps
on random weights, on a GPU if there is one, and adds peak memory and seconds; on a CPU the peak is that of
the process, with the making of the model and the shapes before. Last line: one JSON object by
shape.

The estimated seconds a step are its operations, over 40 % of what an RTX 4090, the paper's example, computes
in bfloat16 at its peak (165 teraflops a second, products summed in float32): a common share in training, and
taken from no measurement of ours. Unpacking 4-bit weights and loading texts come on top.

The estimated peak is the sum of: frozen weights (4 bits and their scales for the linear layers of the blocks,
bfloat16 for the rest), adapter with gradient and two AdamW moments in float32, the input of every block in
bfloat16, and the larger of what the backward pass of one block and that of the logits hold at a time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from random_client import client_of

from fedstrata.adapters.attach import attach, wrap
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.adapter import LoraSettings
from fedstrata.core.settings.devices import SHAPES as NAMED
from fedstrata.core.settings.model import ModelSettings
from fedstrata.core.settings.run import RunSettings
from fedstrata.metrics.cost import peak_memory
from fedstrata.metrics.flops import FlopCounter
from fedstrata.models.blocks import find_layout, transformers_model
from fedstrata.models.load import load, skeleton
from fedstrata.tasks.causal import LOGITS_AT_A_TIME
from fedstrata.tasks.lm import LanguageModelling, Passage
from fedstrata.train.local import fit
from fedstrata.train.processor import use_processor

SHAPES: dict[str, Mapping[str, Any]] = {
    "llama-3.2-1b": NAMED["llama-3.2-1b"],
    "llama-3-8b": NAMED["llama-3-8b"],
    "tiny": {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 3072,
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
    },
}
SITES, ROUNDS = 2, 2
SUSTAINED_TERAFLOPS = 0.4 * 165
"""A second, of an RTX 4090."""
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""A number in 4 bits; for 64 of them a scale in 8 bits, and for 256 of those one in float32."""


def settings_of(shape: str) -> ModelSettings:
    """The settings of a model of this shape with random weights, and the tokenizer of `mini`."""
    return ModelSettings(init="random", tokenizer="mini", config={**SHAPES[shape]}, dtype="bfloat16")


def estimate(shape: str, options: argparse.Namespace) -> dict[str, Any]:
    """Counts and adds up; nothing is computed on."""
    lora = LoraSettings(kind="lora", rank=options.rank, alpha=64.0, dropout=0.05)
    module = skeleton(settings_of(shape), kind="causal-lm")
    plain = find_layout(module)
    whole = sum(plain.sizes.values())
    quantised = sum(plain.sizes[name] for block in plain.blocks for name in block if "proj" in name)
    wrapped, learnable = wrap(module, lora, kind="causal-lm")
    layout = find_layout(wrapped, learnable)
    adapter = sum(layout.sizes[name] for name in layout.all)
    config = transformers_model(wrapped).config
    tokens, hidden = options.batch * options.tokens, config.hidden_size
    per_number = NF4_BYTES if options.weights == "nf4" else 2.0
    weights = quantised * per_number + (whole - quantised) * 2
    # One block: input and output of every linear layer, bfloat16 (fused attention keeps no products); and
    # what each adapter reads, in float32 behind its dropout, with the mask of that.
    inputs = 6 * hidden + config.intermediate_size
    block = tokens * (2 * (6 * hidden + 4 * config.intermediate_size) + 5 * inputs)
    logits = 2 * 2 * tokens * config.vocab_size + 3 * 4 * min(LOGITS_AT_A_TIME, tokens * config.vocab_size)
    activations = 2 * tokens * hidden * len(layout.blocks)
    teraflops = FlopCounter(wrapped, layout, layout.all).batch(options.batch, options.tokens) / 1e12
    return {
        "parameters": whole,
        "adapter_parameters": adapter,
        "adapter_percent": round(100.0 * adapter / whole, 3),
        "update_megabytes": round(4 * adapter / 1e6, 1),
        "whole_update_gigabytes": round(4 * whole / 1e9, 2),
        "gigabytes_a_round": round(2 * SITES * 4 * adapter / 1e9, 3),
        "gigabytes_in_all": round(2 * SITES * ROUNDS * 4 * adapter / 1e9, 3),
        "weights_gigabytes": round(weights / 1e9, 2),
        "peak_gigabytes": round((weights + 16 * adapter + activations + max(block, logits)) / 1e9, 2),
        "teraflops_a_step": round(teraflops, 2),
        "seconds_a_step": round(teraflops / SUSTAINED_TERAFLOPS, 3),
    }


def measure(shape: str, options: argparse.Namespace) -> dict[str, Any]:
    """Takes steps on random weights and random text; the first is not timed."""
    values = {
        "model": {"dtype": "bfloat16"},
        "training": {"batch_size": options.batch, "checkpointing": True, "precision": "bfloat16"},
    }
    run = RunSettings.model_validate(values)
    task = LanguageModelling(max_length=options.tokens)
    lora = LoraSettings(kind="lora", rank=options.rank, alpha=64.0, dropout=0.05)
    with tempfile.TemporaryDirectory() as folder:
        load(settings_of(shape), kind=task.kind, seed=Seed(0)).save(Path(folder, "model"))
        quantization: Any = "nf4" if options.weights == "nf4" else None
        stored = ModelSettings(name=f"{folder}/model", dtype="bfloat16", quantization=quantization)
        model = attach(load(stored, kind=task.kind, seed=Seed(0)), lora, kind=task.kind, seed=Seed(0))
        inner = transformers_model(model.module)
        inner.activation_checkpointing_enable({"use_reentrant": False})
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        count = options.batch * (options.steps + 1)
        generator = Seed(1).numpy()
        ids = generator.integers(3000, size=(count, options.tokens + 1), dtype=np.int32)
        owner = np.zeros(options.tokens, dtype=np.int32)
        passages = [Passage(row[:-1], row[1:], owner, 0) for row in ids]
        client = client_of(model, task, passages, run.training, Path(folder))  # type: ignore[arg-type]
        moments: list[float] = []
        client.report = lambda progress: moments.append(time.perf_counter())
        if model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(model.device)  # of the shape before, and of making this one
        fit(client, model.layout.all, Seed(0))
        device = model.device
    seconds = (moments[-1] - moments[0]) / (len(moments) - 1)
    peaks = peak_memory(device)
    gpu = peaks["peak_gpu_bytes"]
    return {
        "device": torch.cuda.get_device_name(device) if gpu else "cpu",
        "measured_seconds_a_step": round(seconds, 4),
        "measured_peak_gigabytes": round((gpu or peaks["peak_rss_bytes"] or 0) / 1e9, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["llama-3.2-1b", "llama-3-8b"])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--weights", choices=["nf4", "bfloat16"], default="nf4")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--steps", type=int, default=5, help="steps that are timed")
    options = parser.parse_args()
    use_processor(None)
    result = {}
    for shape in options.shapes:
        result[shape] = estimate(shape, options)
        if options.measure:
            result[shape] |= measure(shape, options)
        for name, value in result[shape].items():
            print(
                f"{shape:14} {name:26} {value:,}"
                if not isinstance(value, str)
                else f"{shape:14} {name:26} {value}"
            )
    print(json.dumps(result))


if __name__ == "__main__":
    main()

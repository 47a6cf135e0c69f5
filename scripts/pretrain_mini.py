"""Pretrains `mini`, the small model that fedstrata ships, as a causal language model on synthetic notes.

    python scripts/pretrain_mini.py --out src/fedstrata/models/mini

The corpus is generated from seeds that no run uses by default (`CORPUS_SEED` and up); its notes never
overlap a demo's, which a test asserts. The log of the run that made the shipped weights is
`scripts/pretrain_mini.log.jsonl`, one JSON object a line, the settings first. The result depends on the
number of threads and the CPU's bfloat16 arithmetic, so a repeat gives an equivalent model rather than equal
bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, get_scheduler

from fedstrata.core.seeding import Seed
from fedstrata.data.synthetic import generate

CORPUS_SEED = 700_001
"""The corpus of shard i is generated from this seed plus i."""
SPECIAL = ("<pad>", "<s>", "</s>")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the model and its tokenizer")
    parser.add_argument("--log", type=Path, default=Path("scripts/pretrain_mini.log.jsonl"))
    parser.add_argument("--shards", type=int, default=10, help="corpora of `--notes` notes each")
    parser.add_argument("--notes", type=int, default=2500)
    parser.add_argument("--sites", type=int, default=25, help="sites in each shard: house styles to learn")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--vocabulary", type=int, default=3072)
    parser.add_argument("--length", type=int, default=256, help="tokens in a training sequence")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(given)


def corpus(options: argparse.Namespace) -> list[str]:
    """Generates the texts of all shards."""
    return [
        note.text
        for shard in range(options.shards)
        for note in generate(seed=CORPUS_SEED + shard, sites=options.sites, notes=options.notes)
    ]


def train_tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE tokenizer; digits stand alone so that numbers do not fill the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=1024,
    )


def pack(texts: list[str], tokenizer: PreTrainedTokenizerFast, length: int) -> torch.Tensor:
    """Joins all notes, each between its special tokens, and cuts them into rows; shape (rows, length)."""
    rows = tokenizer([text + tokenizer.eos_token for text in texts])["input_ids"]
    stream = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
    return stream[: len(stream) // length * length].view(-1, length)


def new_model(vocabulary: int) -> LlamaForCausalLM:
    """8 blocks of hidden size 192; 3.7 million parameters, 7.5 MB in bfloat16."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=8,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def loss_of(model: LlamaForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(input_ids=batch, labels=batch, use_cache=False).loss


def train(
    model: LlamaForCausalLM, rows: torch.Tensor, held_out: torch.Tensor, options: Any, log: Any
) -> None:
    steps = math.floor(options.epochs * len(rows) / options.batch)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, weight_decay=0.1, betas=(0.9, 0.95), fused=True
    )
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=200, num_training_steps=steps)
    order = Seed(options.seed).child("order").torch()
    chosen = torch.cat([torch.randperm(len(rows), generator=order) for _ in range(math.ceil(options.epochs))])
    started, total = time.perf_counter(), 0.0
    for step in range(steps):
        model.train()
        loss = loss_of(model, rows[chosen[step * options.batch : (step + 1) * options.batch]].long())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loss.item()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            model.eval()
            with torch.inference_mode():
                held = torch.stack(
                    [loss_of(model, part.long()) for part in held_out.split(options.batch)]
                ).mean()
            seconds = time.perf_counter() - started
            log(
                step=step + 1,
                steps=steps,
                loss=total / (step % 100 + 1),
                held_out=held.item(),
                seconds=round(seconds),
            )
            total = 0.0


def main() -> None:
    options = arguments()
    with options.log.open("w", encoding="utf-8") as file:

        def log(**facts: Any) -> None:
            line = json.dumps(facts)
            print(line, flush=True)
            file.write(line + "\n")
            file.flush()

        torch.manual_seed(options.seed)
        settings = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
        log(**settings, corpus_seed=CORPUS_SEED, torch=torch.__version__, threads=torch.get_num_threads())
        texts = corpus(options)
        tokenizer = train_tokenizer(texts, options.vocabulary)
        rows = pack(texts, tokenizer, options.length)
        held_out, rows = rows[-64:], rows[:-64]
        model = new_model(len(tokenizer))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        log(notes=len(texts), tokens=rows.numel(), vocabulary=len(tokenizer), parameters=parameters)
        train(model, rows, held_out, options, log)
        model.to(torch.bfloat16).save_pretrained(options.out)
        tokenizer.save_pretrained(options.out)
        weights = (options.out / "model.safetensors").read_bytes()
        log(bytes=len(weights), sha256=hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()

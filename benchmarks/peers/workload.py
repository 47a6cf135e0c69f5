"""What every system is given: the data, the model, the clients of each round, local training, and the score.

Imported by each system's script in that system's own environment, so it needs torch and transformers alone.
`fedavg.py` names the folder that `prepare.py` made, the rounds, and the file of marks in the environment.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertForSequenceClassification
from transformers.utils import logging

FOLDER = Path(os.environ["FEDAVG_WORKLOAD"])
ROUNDS = int(os.environ["FEDAVG_ROUNDS"])
BATCH_SIZE, SCORED_BATCH_SIZE = 16, 32
LEARNING_RATE = 5e-4

Example = tuple[Tensor, Tensor]
"""The numbers of an article's tokens, and that of its label."""


def mark(event: str, **facts: Any) -> None:
    """Notes when something happened; lines are written whole, so that processes may share a file."""
    with Path(os.environ["FEDAVG_MARKS"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "time": time.time(), **facts}) + "\n")


@cache
def schedule() -> list[list[int]]:
    """Returns the clients of each round, as fedstrata draws them."""
    rounds: list[list[int]] = json.loads((FOLDER / "schedule.json").read_text("utf-8"))
    return rounds[:ROUNDS]


@cache
def articles() -> Mapping[str, Any]:
    """Returns the encoded articles: `clients`, the examples of each, and `test`."""
    found: Mapping[str, Any] = torch.load(FOLDER / "articles.pt")
    return found


def sizes() -> list[int]:
    """Returns the number of each client's examples."""
    return [len(own) for own in articles()["clients"]]


def examples_of(client: int) -> list[Example]:
    """Returns what a client trains on; called once in each local training, which is marked."""
    own: list[Example] = articles()["clients"][client]
    mark("client", client=client, examples=len(own))
    return own


def new_model() -> nn.Module:
    """Returns the model with the weights that all systems begin with."""
    logging.disable_progress_bar()
    model: nn.Module = BertForSequenceClassification.from_pretrained(FOLDER / "model")
    return model


def collate(examples: list[Example]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a batch: tokens and attention mask, (examples, longest), and labels, (examples,)."""
    tokens = nn.utils.rnn.pad_sequence([own for own, _ in examples], batch_first=True).long()  # pads with 0
    return tokens, (tokens != 0).long(), torch.stack([label for _, label in examples])


def batches_of(examples: list[Example], seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yields one epoch's batches, in a drawn order."""
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed)).tolist()
    for start in range(0, len(order), BATCH_SIZE):
        yield collate([examples[index] for index in order[start : start + BATCH_SIZE]])


def loss_of(model: nn.Module, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean loss of a batch."""
    return nn.functional.cross_entropy(model(input_ids=tokens, attention_mask=mask).logits, labels)


def new_optimizer(parameters: Any, lr: float = LEARNING_RATE) -> torch.optim.Optimizer:
    """Returns the optimiser of a local training: the kind that fedstrata has, torch's fastest."""
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0, fused=True)


def train(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor, Tensor]]) -> tuple[float, int]:
    """Trains a model in place; returns the sum of the batches' losses, and the number of examples."""
    model.train()
    optimizer, total, count = new_optimizer(model.parameters()), 0.0, 0
    for tokens, mask, labels in batches:
        loss = loss_of(model, tokens, mask, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total, count = total + loss.item(), count + len(labels)
    return total, count


@torch.inference_mode()
def score(model: nn.Module, threads: int) -> None:
    """Marks the accuracy and the macro AUC on the test articles, sorted by length as fedstrata sorts them."""
    torch.set_num_threads(threads)
    model.eval()
    examples, logits, labels = sorted(articles()["test"], key=lambda example: len(example[0])), [], []
    for start in range(0, len(examples), SCORED_BATCH_SIZE):
        tokens, mask, own = collate(examples[start : start + SCORED_BATCH_SIZE])
        logits.append(model(input_ids=tokens, attention_mask=mask).logits)
        labels.append(own)
    found, right = torch.cat(logits).double(), torch.cat(labels)
    areas = []
    for label, likely in enumerate(found.softmax(dim=-1).T):
        having, others = likely[right == label, None], likely[right != label]
        areas.append(((having > others).double() + (having == others).double() / 2).mean())
    accuracy = (found.argmax(dim=-1) == right).double().mean()
    mark("score", accuracy=float(accuracy), macro_auc=float(torch.stack(areas).mean()))

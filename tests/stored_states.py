"""What tests of stored states share: a task that any model can do, and training with and without a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedstrata.core.client import Client
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.models.prefix_cache import PrefixCache
from fedstrata.models.state import Model
from fedstrata.train.local import fit

PAD = 3
LENGTHS = (5, 12, 1, 9, 12, 7, 20, 3, 16, 2)


class Text(list[int]):
    """An example: its tokens, which are its only window."""

    @property
    def windows(self) -> tuple[list[int], ...]:
        """See `fedstrata.core.task.Task`."""
        return (self,)


class Regression:
    """A task that any kind of model can do: brings the logits of every row near its number of tokens."""

    def collate(self, examples: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        width = max(map(len, examples))
        ids = torch.tensor([[*each, *[PAD] * (width - len(each))] for each in examples])
        lengths = torch.tensor([len(each) for each in examples])
        mask = (torch.arange(width) < lengths[:, None]).long()
        return {"input_ids": ids, "attention_mask": mask, "lengths": lengths}

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits = module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.float()
        if logits.ndim == 3:
            mask = batch["attention_mask"][..., None]
            logits = (logits * mask).sum(1) / mask.sum(1)
        return (logits - 0.1 * batch["lengths"][:, None]).square().mean(1).sum(), batch["lengths"].new_tensor(
            len(logits)
        )


def texts(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[Text]:
    generator = Seed(seed).numpy()
    return [Text(generator.integers(4, 40, size=length).tolist()) for length in lengths]


def cache_in(
    folder: Path,
    told: list[dict[str, Any]],
    *,
    dtype: str = "auto",
    refused: str | None = None,
    **changes: Any,
) -> PrefixCache:
    training = TrainingSettings(**{"cache": "on", "epochs": 1, "cache_dtype": dtype, **changes})
    return PrefixCache(folder, training, lambda path, needed: refused, lambda facts: told.append(dict(facts)))


def client_of(
    model: Model, examples: Sequence[Sequence[int]], cache: PrefixCache | None, **training: Any
) -> Client:
    common = {"batch_size": 3, "epochs": 2, "optimizer": "sgd", "learning_rate": 0.01, "eval_batch_size": 4}
    return Client(
        id="client",
        model=model,
        task=Regression(),
        examples=examples,
        training=TrainingSettings(**{**common, **training}),
        store=None,
        report=lambda progress: None,
        cache=cache,
    )


def trained(
    model: Model,
    names: Sequence[str],
    examples: Sequence[Sequence[int]],
    cache: PrefixCache | None,
    **training: Any,
) -> tuple[float, dict[str, Tensor]]:
    """Trains from the base values; returns loss and weights."""
    model.train_only(())
    model.restore()
    loss = fit(client_of(model, examples, cache, **training), names, Seed(1))
    return loss, model.snapshot(names)


def assert_close(one: tuple[float, dict[str, Tensor]], other: tuple[float, dict[str, Tensor]]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    for name, tensor in one[1].items():
        torch.testing.assert_close(tensor, other[1][name], rtol=1e-5, atol=1e-5)


@contextmanager
def serving(
    cache: PrefixCache, model: Model, examples: Sequence[Sequence[int]], cut: int = 1
) -> Iterator[Callable[[Mapping[str, Tensor]], None]]:
    """What `fit` asks of a cache, in batches of three texts."""
    task = Regression()

    def batches() -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(examples), 3):
            yield task.collate(examples[start : start + 3])

    with cache.serve(model, cut, batches, lambda batch: task.loss(model.module, batch)[0], "cpu") as feed:
        yield feed

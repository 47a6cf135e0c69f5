"""What a client computes, counted for the device that it is emulated on; nothing is counted without one."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor

from fedstrata.adapters.rank import held
from fedstrata.core.client import Client, Feed
from fedstrata.core.model import Model
from fedstrata.core.types import AdapterSize, Work
from fedstrata.metrics.flops import FlopCounter
from fedstrata.metrics.memory import SavedActivations
from fedstrata.models.state import FIRST_VALUES
from fedstrata.train.emulated_model import EmulatedCounter


class Tally:
    """Counts the batches that a client trains on.

    Args:
        client: The client.
        work: What is counted so far.
        trainable: Names of the parameters that train.
        steps: Whether the optimiser takes steps, so that it has a state.
    """

    def __init__(self, client: Client, work: Work, trainable: Collection[str], *, steps: bool) -> None:
        model = client.model
        self._work = work
        self._counter = _counter(model, trainable, work)
        self._activations = SavedActivations(model.module)
        shares = {
            name: held(name, parameter, work.adapter)
            for name, parameter in model.module.named_parameters()
            if FIRST_VALUES not in name  # a device has no need of them
        }
        weights = {name: tensor.nbytes * shares[name] for name, tensor in model.tensors(shares).items()}
        self._trained = [
            (parameter, shares[name])
            for name, parameter in zip(trainable, model.parameters(trainable), strict=True)
        ]
        self._fixed = sum(weights.values())
        if steps:  # the optimiser keeps so many numbers for each that trains
            states = 2 if client.training.optimizer == "adamw" else int(client.training.momentum > 0)
            self._fixed += states * sum(weights[name] for name in trainable)

    def watching(self) -> AbstractContextManager[None]:
        """Returns the context in which a batch goes forward."""
        return self._activations.counted()

    def add(
        self, batch: Mapping[str, Tensor], *, stored: int = 0, active_blocks: Collection[int] | None = None
    ) -> None:
        """Adds a batch that has gone forward and backward to the client's work.

        Args:
            batch: The batch.
            stored: How many of the lowest blocks stored states stood in for.
            active_blocks: The blocks that ran, where some were skipped; all when none.
        """
        work = self._work
        rows, tokens = batch["input_ids"].shape
        work.flops += self._counter.batch(rows, tokens, active_blocks, stored=stored)
        gradients = sum(own.grad.nbytes * share for own, share in self._trained if own.grad is not None)
        memory = self._fixed + gradients + self._activations.bytes
        work.batches += 1
        work.memory_bytes += memory
        work.peak_memory_bytes = max(work.peak_memory_bytes, memory)
        work.activation_bytes += self._activations.bytes


def counting(client: Client, trainable: Collection[str], *, steps: bool = True) -> Tally | None:
    """Returns what counts a client's batches while these parameters train; none without emulation.

    The arguments are those of `Tally`.
    """
    return None if client.work is None else Tally(client, client.work, trainable, steps=steps)


def adapter_of(client: Client, rank: int, absent: Collection[str] = ()) -> None:
    """Says how much of the model's adapters the client has: its device is counted with no more.

    Args:
        client: The client.
        rank: Ranks (or widths) of each adapter.
        absent: Names of the parameters of adapters that the device has not.
    """
    client.rank = rank
    if client.work is not None:
        client.work.adapter = AdapterSize(rank, frozenset(absent))


def _counter(model: Model, trainable: Collection[str], work: Work) -> FlopCounter | EmulatedCounter:
    """Returns the counter of a device's operations: of the model, or of the one that stands for it."""
    if model.emulated is not None:
        counter: EmulatedCounter = model.emulated.counter(model.layout, trainable, work.adapter)
        return counter
    return FlopCounter(
        model.module, model.layout, trainable, lambda name, tensor: held(name, tensor, work.adapter)
    )


@contextmanager
def counted_passes(model: Model, work: Work | None) -> Iterator[None]:
    """Counts the operations of every forward pass within the block, which nothing is trained by."""
    if work is None:
        yield
        return
    counter = _counter(model, (), work)

    def count(module: Any, arguments: Any, named: Mapping[str, Tensor]) -> None:
        rows, tokens = named["input_ids"].shape
        work.flops += counter.batch(rows, tokens)

    handle = model.module.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def counted_states(
    client: Client,
    cut: int,
    batches: Callable[[], Iterable[Mapping[str, Tensor]]],
    served: AbstractContextManager[Feed],
) -> Iterator[Feed]:
    """Counts the passes by which the client's device came to the states it is served, if they are new to it.

    Whether they were computed just now or lay on the disk makes no difference: a resumed run finds what the
    interrupted one has stored, and its clock must not run less for it.

    Args:
        client: The client.
        cut: The number of blocks that the states stand in for.
        batches: Returns the texts in the batches in which their states are computed.
        served: What serves the states.
    """
    with served as feed:
        work, serving = client.work, client.cache.serving if client.cache else None
        if work is not None and serving is not None and work.stored_states != serving:
            counter = _counter(client.model, (), work)
            for batch in batches():
                rows, tokens = batch["input_ids"].shape
                work.flops += counter.prefix(rows, tokens, cut)
            work.stored_states = serving
        yield feed

"""What a client computes, counted for the device that it is emulated on; nothing is counted without one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from fedstrata.adapters.rank import held
from fedstrata.core.types import AdapterSize
from fedstrata.metrics.flops import FlopCounter

if TYPE_CHECKING:
    from torch import Tensor

    from fedstrata.core.method import Client, Feed, Model
    from fedstrata.core.types import Work


class Tally(Protocol):
    """Told each batch that was trained on."""

    def __call__(
        self, batch: Mapping[str, Tensor], *, stored: int = 0, active_blocks: Collection[int] | None = None
    ) -> None:
        """Adds the operations of a batch to the client's work.

        Args:
            batch: The batch.
            stored: How many of the lowest blocks stored states stood in for.
            active_blocks: The blocks that ran, where some were skipped; all when none.
        """


def counting(client: Client, trainable: Collection[str]) -> Tally | None:
    """Returns what counts a client's batches while these parameters train; none without emulation."""
    work = client.work
    if work is None:
        return None
    counter = _counter(client.model, trainable, work)

    def tally(
        batch: Mapping[str, Tensor], *, stored: int = 0, active_blocks: Collection[int] | None = None
    ) -> None:
        rows, tokens = batch["input_ids"].shape
        work.flops += counter.batch(rows, tokens, active_blocks, stored=stored)

    return tally


def adapter_of(client: Client, rank: int, absent: Collection[str] = ()) -> None:
    """Says how much of the model's adapters the client's emulated device has; it is counted with no more.

    Args:
        client: The client.
        rank: Ranks (or widths) of each adapter.
        absent: Names of the parameters of adapters that the device has not.
    """
    if client.work is not None:
        client.work.adapter = AdapterSize(rank, frozenset(absent))


def _counter(model: Model, trainable: Collection[str], work: Work) -> FlopCounter:
    """Returns the counter of a device's operations."""
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

"""A larger model that devices are emulated with, block for block, while the run's own trains.

Nothing of it is computed: its operations are counted from its shapes, on the batches that the run's own model
sees. Each of its blocks stands where one of the run's does, by their depth: of 16 blocks for 4 the first four
stand for the first. A block runs, trains and has an adapter where the block it stands for does; of an adapter
the matrices train that train there.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

from fedstrata.adapters.rank import adapter_part, held
from fedstrata.core.model import Layout, Model
from fedstrata.core.types import AdapterSize
from fedstrata.metrics.flops import FlopCounter


@dataclass(frozen=True, slots=True)
class EmulatedCounter:
    """Counts the operations of the larger model; asked as a `FlopCounter` is of the run's own.

    Attributes:
        counter: Of the larger model.
        places: The run's block that each of its blocks stands for, lowest first.
    """

    counter: FlopCounter
    places: tuple[int, ...]

    def batch(
        self, rows: int, tokens: int, active_blocks: Collection[int] | None = None, *, stored: int = 0
    ) -> float:
        """Returns the operations of one batch; see `FlopCounter.batch`, whose blocks are the run's here."""
        active = None
        if active_blocks is not None:
            ran = {*active_blocks}
            active = [block for block, place in enumerate(self.places) if place in ran]
        return self.counter.batch(rows, tokens, active, stored=self._below(stored))

    def prefix(self, rows: int, tokens: int, cut: int) -> float:
        """Returns the operations of a forward pass through what stands for the lowest blocks of the run's."""
        return self.counter.prefix(rows, tokens, self._below(cut))

    def _below(self, cut: int) -> int:
        return sum(place < cut for place in self.places)


class EmulatedModel:
    """The larger model.

    Args:
        build: Returns it, without weights; called once, when something is counted.
    """

    def __init__(self, build: Callable[[], Model]) -> None:
        self._build = build
        self._counters: dict[tuple[frozenset[str], AdapterSize | None], EmulatedCounter] = {}

    def counter(
        self, layout: Layout, trainable: Collection[str], size: AdapterSize | None
    ) -> EmulatedCounter:
        """Returns what counts batches while parameters of the run's own model train.

        Args:
            layout: Of the run's own model.
            trainable: Names of its parameters that train.
            size: How much of the adapters the device has; all of them if none.
        """
        key = (frozenset(trainable), size)
        if key not in self._counters:
            self._counters[key] = self._counter(layout, key[0], size)
        return self._counters[key]

    @cached_property
    def _model(self) -> Model:
        return self._build()

    def _counter(
        self, layout: Layout, trainable: frozenset[str], size: AdapterSize | None
    ) -> EmulatedCounter:
        model = self._model
        own = model.layout
        places = tuple(block * len(layout.blocks) // len(own.blocks) for block in range(len(own.blocks)))
        pairs = [(own.blocks[block], layout.blocks[place]) for block, place in enumerate(places)]
        pairs += [
            (own.embedding, layout.embedding),
            (own.final_norm, layout.final_norm),
            (own.head, layout.head),
        ]

        def alike(chosen: frozenset[str]) -> frozenset[str]:
            found = (_alike(names, chosen.intersection(like)) for names, like in pairs)
            return frozenset[str]().union(*found)

        learns = alike(trainable)
        if size is not None:
            size = AdapterSize(size.rank, alike(size.absent))
        counter = FlopCounter(model.module, own, learns, lambda name, tensor: held(name, tensor, size))
        return EmulatedCounter(counter, places)


def _alike(names: Collection[str], chosen: Collection[str]) -> set[str]:
    """Returns those of a part's parameters that are what the chosen ones of the part it stands for are."""
    parts = {adapter_part(name) for name in chosen}
    return {name for name in names if adapter_part(name) in parts}

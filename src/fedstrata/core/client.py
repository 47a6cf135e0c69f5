"""One client, as the client half of a method sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fedstrata.core.model import Model
from fedstrata.core.types import Message, Tensors, Work

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter

    from fedstrata.core.settings.devices import Device
    from fedstrata.core.settings.federation import CorruptSettings
    from fedstrata.core.settings.training import TrainingSettings
    from fedstrata.core.task import Task


Feed: TypeAlias = "Callable[[Mapping[str, Tensor]], int]"
"""Told each batch, on the CPU, before the model is called with it; returns how many blocks will not run."""


class Store(Protocol):
    """A client's private tensors: they persist between rounds and never travel."""

    def read(self) -> Message:
        """Returns what was last written; an empty message at first."""

    def write(self, message: Message) -> None:
        """Replaces the content; durable once the round is committed."""


class PrefixCache(Protocol):
    """Where a client keeps what its frozen blocks give; see `fedstrata.models.prefix_cache`."""

    @property
    def serving(self) -> str | None:
        """A fingerprint of the states that were served last; none if none were."""

    def serve(
        self,
        model: Model,
        cut: int,
        batches: Callable[[], Iterable[Mapping[str, Tensor]]],
        run: Callable[[Mapping[str, Tensor]], Tensor],
        arithmetic: str,
    ) -> AbstractContextManager[Feed]:
        """Lets stored states stand in for the first `cut` blocks within the block."""


class PrivateTraining(Protocol):
    """How a client trains under differential privacy by units; see `fedstrata.privacy.clipping`.

    Nothing of it depends on the client's data but which units `draws` gives, and the gradient made of them.
    """

    @property
    def steps(self) -> int:
        """How many steps its local training takes."""

    @property
    def declared(self) -> int:
        """How many units it declares, which its update weighs."""

    def secret(self) -> int:
        """Draws a number of 63 bits: what is drawn in training must not be known to the server.

        Masks of dropout that the server knew would make one unit's the next one's, were a unit not there.
        """

    def enter(self, tensors: Tensors) -> None:
        """Hears what trains, as it is before the first step."""

    def leave(self, tensors: Tensors) -> None:
        """Hears what it has come to after the last step; of each, the gradient was noised.

        Nothing else may leave the client, but what follows from it.
        """

    def draws(self) -> Iterator[Sequence[Sequence[Any]]]:
        """Yields for each step the examples of every unit that is drawn; there may be none."""

    def gradients(
        self,
        client: Client,
        drawn: Sequence[Any],
        parameters: Sequence[Parameter],
        *,
        feed: Feed | None,
        leave_out: Callable[[], Collection[int] | None],
        tally: Any,
    ) -> tuple[float, float]:
        """Leaves the noised gradient of a step behind; returns the mean loss, which stays at the client.

        The arguments are those of `fedstrata.train.local.accumulate`, but for what `draws` gave in place of
        batches. The second number returned is that of the units.
        """


class Line(Protocol):
    """A client's line to the server while its handler runs (`Cohort.converse`).

    Messages come in the order in which they were sent, each once.
    """

    def send(self, message: Message) -> None:
        """Sends a message to the server's half of the method; does not wait for what it says to it."""

    def receive(self) -> Message:
        """Waits for the next message.

        Raises:
            LineError: None will come.
        """


@dataclass(slots=True)
class Client:
    """One client in its turn, as the client half of a method sees it.

    Attributes:
        id: The client's name.
        model: Its model, holding base weights: what arrived in earlier rounds is not in it, the store is.
        task: What it learns.
        examples: Its encoded training examples.
        training: How it trains.
        store: Its private tensors.
        report: Told of progress within the local training.
        cache: Where it keeps what its frozen blocks give; none to run them every time.
        corruption: What it does to what it sends; none if it is honest, or corrupt in its examples only.
        validate: Scores the model as it is on the client's validation documents: the score a run is judged
            by. Its sign is changed where less is better, so that more always is. None where it has no
            documents.
        device: The device that it is emulated on in this round; none without emulation.
        work: What it has computed in this turn; none without emulation.
        line: Its line to the server; none for a handler that no conversation runs.
        secret: What the server must not know is drawn from this in place of the run's seed, which it knows.
            None in a simulation, whose numbers are to be the same every time.
        privacy: How it trains under differential privacy; none without.
        rank: How many ranks of each adapter it has; all of them if none.
    """

    id: str
    model: Model
    task: Task
    examples: Sequence[Any]
    training: TrainingSettings
    store: Store
    report: Callable[[Mapping[str, float]], None]
    cache: PrefixCache | None = None
    corruption: CorruptSettings | None = None
    validate: Callable[[], float | None] = lambda: None
    device: Device | None = None
    work: Work | None = None
    line: Line | None = None
    secret: int | None = None
    privacy: PrivateTraining | None = None
    rank: int | None = None

    @property
    def size(self) -> int:
        """n_k, which its updates weigh: its training examples; if private the units that it declares."""
        return len(self.examples) if self.privacy is None else self.privacy.declared

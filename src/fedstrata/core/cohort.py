"""The clients of a round, as the server half of a method sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedstrata.core.model import Model
from fedstrata.core.types import ClientInfo, LossMean, Message, Plan, Tensors, Update

if TYPE_CHECKING:
    from torch import Tensor

    from fedstrata.core.cut import Cut
    from fedstrata.core.errors import FedstrataError
    from fedstrata.core.settings.training import TrainingSettings


class Service(Protocol):
    """The server's half of a method while clients converse with it."""

    @property
    def together(self) -> bool:
        """Whether an answer may wait for messages of other clients, so that all must be there at once."""

    @property
    def ordered(self) -> bool:
        """Whether what a client hears depends on those before it, so that each must end before the next."""

    def hear(self, client: str, message: Message) -> Iterable[tuple[str, Message]]:
        """Takes a client's message; returns what is now said, and to whom.

        Raises:
            FrameError: The message is not what was agreed.
        """

    def leave(self, client: str, *, lost: bool = False) -> Iterable[tuple[str, Message]]:
        """Hears that a client has no more to say; returns what is now said to others, who waited for it.

        Args:
            client: Its name.
            lost: Whether it has failed instead of delivering its update.
        """


@dataclass(frozen=True, slots=True)
class Mean:
    """The result of a streaming weighted mean.

    Attributes:
        tensors: The mean of each tensor over the clients that sent it, float32 on the CPU.
        weights: The sum of the weights behind each tensor.
        values: The weighted mean of each number in the updates' values.
        counts: How many clients sent each tensor.
        clients: Whose updates are in it: a client that was lost is not among them.
    """

    tensors: dict[str, Tensor]
    weights: dict[str, float]
    values: dict[str, float]
    counts: dict[str, int]
    clients: tuple[str, ...] = ()


class Cohort(Protocol):
    """The clients sampled for one round, as the engine shows them to a method."""

    @property
    def clients(self) -> Sequence[ClientInfo]:
        """Who takes part."""

    @property
    def training(self) -> TrainingSettings:
        """How clients train, and the server's part of a divided model."""

    def mean(self, handler: str, plan_of: Callable[[ClientInfo], Plan]) -> Mean:
        """Runs a client handler everywhere and returns the weighted mean; works under secure aggregation."""

    def each(
        self, handler: str, plan_of: Callable[[ClientInfo], Plan]
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Runs a client handler everywhere and yields updates, each valid until the next is asked for."""

    def middle(self, cut: Cut) -> Model:
        """Returns the server's part of a model divided there, with parameters of its own, at base values."""

    def converse(
        self,
        handler: str,
        plan_of: Callable[[ClientInfo], Plan],
        service: Service,
        cut_of: Callable[[ClientInfo], Cut],
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Runs a client handler everywhere, on the ends of a divided model, while it talks with the server.

        Args:
            handler: Its name.
            plan_of: What each client is sent at first.
            service: Whom it talks with; one for all clients.
            cut_of: Where each client's model is divided.

        Yields:
            The updates, as `each` does: as they arrive where clients take turns, else once all have ended.
        """

    def server_loss(self, tensors: Tensors, over: LossMean = "terms") -> float:
        """Returns the mean loss of the shared model with these tensors in it, over terms or over records.

        It is that on the server's own documents (`data.split.server`), in evaluation mode. A method that asks
        for it (`Method.tries_updates`) works on no run without such documents.
        """

    def warn(self, message: str) -> None:
        """Tells whoever watches the run; its record does not hold it."""

    def reject(self, client: str, error: FedstrataError) -> None:
        """Does without a client's update, as if the client had failed with this error."""

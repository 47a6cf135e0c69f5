"""The protocols between the parts: methods see these, and never the engine behind them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from fedstrata.core.types import ClientInfo, Message, Plan, State, Tensors, Update, Work

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn import Parameter

    from fedstrata.core.config import MethodSettings, TrainingSettings
    from fedstrata.core.cut import Cut
    from fedstrata.core.devices import Device
    from fedstrata.core.errors import FedstrataError
    from fedstrata.core.federation import CorruptSettings
    from fedstrata.core.seeding import Seed
    from fedstrata.core.task import Task


Feed: TypeAlias = "Callable[[Mapping[str, Tensor]], int]"
"""Told each batch, on the CPU, before the model is called with it; returns how many blocks will not run."""


class Layout(Protocol):
    """Which parameters belong to which part of a model; see `fedstrata.models.blocks.Layout`."""

    @property
    def blocks_path(self) -> str:
        """Where the list of blocks is in the module."""

    @property
    def blocks(self) -> tuple[tuple[str, ...], ...]:
        """Parameter names of every block, lowest first."""

    @property
    def embedding(self) -> tuple[str, ...]:
        """Parameter names below the blocks, or shared by all of them."""

    @property
    def final_norm(self) -> tuple[str, ...]:
        """Parameter names of the norm after the last block."""

    @property
    def head(self) -> tuple[str, ...]:
        """Parameter names of the task head; empty when it is tied to the embedding."""

    @property
    def all(self) -> tuple[str, ...]:
        """Every name that can train, in model order: with an adapter, its parameters and the head's."""

    @property
    def frozen(self) -> tuple[str, ...]:
        """Every name that can never train: none without an adapter."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """How many numbers each parameter holds, by name."""


class Model(Protocol):
    """A model whose parameters can be read, set and trained by name; see `fedstrata.models.state.Model`."""

    @property
    def module(self) -> nn.Module:
        """The transformers model itself."""

    @property
    def layout(self) -> Layout:
        """Its parameter names by part."""

    def parameters(self, names: Collection[str]) -> list[Parameter]:
        """Returns the live parameters of these names."""

    def tensors(self, names: Collection[str]) -> dict[str, Tensor]:
        """Returns detached views of the live parameters: no copy, valid until the model changes."""

    def snapshot(self, names: Collection[str]) -> dict[str, Tensor]:
        """Returns copies on the CPU."""

    def is_changed(self, names: Collection[str]) -> bool:
        """Whether any of these parameters differs from its base value."""

    def fingerprint(self, names: Collection[str]) -> str:
        """Returns a hash of the present values of these parameters."""

    def load(self, tensors: Tensors) -> None:
        """Copies these values into the parameters of the same names."""

    def train_only(self, names: Collection[str]) -> None:
        """Makes exactly these parameters trainable."""


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


class Client(Protocol):
    """One client, as the client half of a method sees it."""

    @property
    def id(self) -> str:
        """The client's name."""

    @property
    def model(self) -> Model:
        """Its model, holding base weights: what arrived in earlier rounds is not in it, the store is."""

    @property
    def task(self) -> Task:
        """What it learns."""

    @property
    def examples(self) -> Sequence[Any]:
        """Its encoded training examples."""

    @property
    def training(self) -> TrainingSettings:
        """How it trains."""

    @property
    def corruption(self) -> CorruptSettings | None:
        """What it does to what it sends; none if it is honest, or corrupt in its examples only."""

    @property
    def store(self) -> Store:
        """Its private tensors."""

    @property
    def report(self) -> Callable[[Mapping[str, float]], None]:
        """Told of progress within the local training."""

    @property
    def validate(self) -> Callable[[], float | None]:
        """Scores the model as it is on the client's validation documents: the score a run is judged by.

        Its sign is changed where less is better, so that more always is. None where it has no documents.
        """

    @property
    def cache(self) -> PrefixCache | None:
        """Where it keeps what its frozen blocks give; none to run them every time."""

    @property
    def device(self) -> Device | None:
        """The device that it is emulated on in this round; none without emulation."""

    @property
    def work(self) -> Work | None:
        """What it has computed in this turn; none without emulation."""

    @property
    def line(self) -> Line | None:
        """Its line to the server; none for a handler that no conversation runs."""

    @property
    def secret(self) -> int | None:
        """What the server must not know is drawn from this in place of the run's seed, which it knows.

        None in a simulation, whose numbers are to be the same every time.
        """


class Mean(Protocol):
    """The result of a streaming weighted mean."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The mean of each tensor over the clients that sent it, float32 on the CPU."""

    @property
    def weights(self) -> dict[str, float]:
        """The sum of the weights behind each tensor."""

    @property
    def values(self) -> dict[str, float]:
        """The weighted mean of each number in the updates' values."""

    @property
    def counts(self) -> dict[str, int]:
        """How many clients sent each tensor."""

    @property
    def clients(self) -> tuple[str, ...]:
        """Whose updates are in it: a client that was lost is not among them."""


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
        """Returns the server's own part of the model, with parameters of its own, at their base values.

        Args:
            cut: Where the model is divided.
        """

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

    def server_loss(self, tensors: Tensors) -> float:
        """Returns the mean loss over all terms of the shared model with these tensors in it.

        It is that on the server's own documents (`data.split.server`), in evaluation mode. A method that asks
        for it works on no run without such documents (`fedstrata.engine.demands`).
        """

    def reject(self, client: str, error: FedstrataError) -> None:
        """Does without a client's update, as if the client had failed with this error."""


class Method(Protocol):
    """A federated method, both halves.

    `round` is the server half. The handlers it names in `cohort.mean` and `cohort.each` are the client
    half: methods of the same object with the signature of `train`. The class of its settings is `Settings`.
    """

    name: ClassVar[str]
    travels: ClassVar[str]
    """One line for people: what travels, in which direction."""
    pooled: ClassVar[bool]
    """Whether all training data is pooled into one client: the centralised baseline."""
    adapters: ClassVar[tuple[str, ...]]
    """The kinds of adapters it needs one of, the usual one first; empty if it does without, and with any."""
    Settings: ClassVar[type[MethodSettings]]
    """The class of its settings."""

    def __init__(self, settings: Any) -> None: ...

    @property
    def settings(self) -> MethodSettings:
        """Its settings."""

    @property
    def validates(self) -> bool:
        """Whether its clients score their models on validation documents of their own in the rounds."""

    @property
    def personal(self) -> bool:
        """Whether a client's model is the global one overlaid with its private store."""

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """Returns the names of all parameters that clients train, shared or private.

        Where that is decided as the run goes on, the most that can be.

        Raises:
            ConfigurationError: The settings do not fit this model; asked before anything is loaded.
        """

    def start(self, model: Model) -> State:
        """Returns the state before the first round."""

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Runs one round and returns the new state."""

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains one client."""

"""The protocols between the parts: methods see these, and never the engine behind them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from fedstrata.core.types import ClientInfo, Message, Plan, State, Tensors, Update, Work

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn
    from torch.nn import Parameter

    from fedstrata.core.config import MethodSettings, TrainingSettings
    from fedstrata.core.cut import Cut
    from fedstrata.core.devices import Device
    from fedstrata.core.documents import Document
    from fedstrata.core.errors import FedstrataError
    from fedstrata.core.federation import CorruptSettings
    from fedstrata.core.seeding import Seed


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


class Task(Protocol):
    """What the model learns: documents to examples, examples to a loss, outputs to scores.

    `Any` stands for the task's own example type. Of an example the others know its length, `len(example)`
    tokens, and `example.windows`: the token ids, (tokens,) each, of the rows that it fills in a batch. The
    rows of a batch are the windows of its examples, one after the other.
    """

    kind: ClassVar[str]
    """The transformers auto class: `token-classification`, `sequence-classification` or `causal-lm`."""
    lower_is_better: ClassVar[frozenset[str]]
    """Those of `metric_names` of which less is better; they are no fractions, the others are."""
    needs_annotations: ClassVar[bool]
    """Whether a document can be scored only against annotations; if not, its text is enough."""
    gives: ClassVar[tuple[str, ...]]
    """What of a document its answers may be: `spans`, `relations`, `labels`, `text_pair`."""
    reads_spans: ClassVar[bool]
    """Whether it learns mentions, or from them; if not, documents come without mentions and relations."""

    @property
    def packed(self) -> bool:
        """Whether documents that are encoded together are one text, so that their order matters."""

    @classmethod
    def from_documents(cls, settings: Any, clients: Mapping[str, Any]) -> Task:
        """Makes the task for a corpus.

        Args:
            settings: The task's settings.
            clients: Each client's documents by split.

        Raises:
            ConfigurationError: The documents do not have what the task learns from.
        """

    @classmethod
    def from_labels(cls, settings: Any, labels: Sequence[str]) -> Task:
        """Makes the task again for a saved model.

        Args:
            settings: The task's settings, as the run directory has them.
            labels: The model's output classes, in order.

        Raises:
            ConfigurationError: They are not those of such a model.
        """

    @property
    def settings(self) -> Any:
        """Its settings, with what `auto` stood for."""

    @property
    def metric(self) -> str:
        """The score a run is judged by, one of `metrics`."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every score that fully annotated documents always have in what `score` returns."""

    @property
    def problem_type(self) -> str | None:
        """What the saved model's configuration says of a sequence classifier, in transformers' words."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The model's output classes, in order."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Every score that `score` may return: those of `metrics`, then those of single labels."""

    def encode(self, documents: Sequence[Document], tokenizer: Any) -> list[Any]:
        """Turns documents into examples; an example knows the index of its document, or of each token's."""

    def training_examples(self, documents: Sequence[Document], tokenizer: Any) -> list[Any]:
        """Turns a client's documents into the examples that it trains on, the same ones each time."""

    def corrupt(self, examples: Sequence[Any], kind: str, tokenizer: Any, rng: Seed) -> list[Any]:
        """Returns a corrupt client's training examples, as many as before (`federation.corrupt`).

        Args:
            examples: The client's examples, at least one.
            kind: One of `core.federation.DATA_CORRUPTIONS`: `shuffled_labels` permutes the targets of all
                examples against their inputs; `shuffled_tokens` permutes the tokens of each window, special
                ones stay; `label_flips` puts for each class the next one, for the last the first.
            tokenizer: As for `encode`.
            rng: Seed of the permutations.
        """

    def collate(self, examples: Sequence[Any]) -> dict[str, Tensor]:
        """Pads examples to one batch.

        A batch with `input_ids` and `attention_mask`, (rows, tokens) padded on the right, can start from
        stored states of the frozen blocks, if the model is called with just these rows (`PrefixCache`).
        """

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the summed loss of a batch and the number of terms in the sum, both scalars."""

    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the model's answer for each example of the batch."""

    def decode(
        self, documents: Sequence[Document], examples: Sequence[Any], predictions: Sequence[np.ndarray]
    ) -> list[Any]:
        """Joins the answers to the examples of each document into one answer a document."""

    def score(self, documents: Sequence[Document], answers: Sequence[Any]) -> dict[str, float]:
        """Scores one answer a document; any subset of documents can be scored."""

    def known(self, document: Document) -> Document:
        """Returns the document with no annotations but those that an answer could be equal to."""

    def scorable(self, document: Document) -> bool:
        """Whether an answer can be scored against a document as `known` gives it."""

    def annotate(self, document: Document, answer: Any) -> Document:
        """Returns the document with the answer as its annotations, in place of its own."""


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

    def hear(self, client: str, message: Message) -> Iterable[tuple[str, Message]]:
        """Takes a client's message; returns what is now said, and to whom.

        Raises:
            FrameError: The message is not what was agreed.
        """

    def leave(self, client: str) -> Iterable[tuple[str, Message]]:
        """Hears that a client has no more to say; returns what is now said to others, who waited for it."""


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

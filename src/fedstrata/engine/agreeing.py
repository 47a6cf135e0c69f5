"""What server and clients of a divided model compare before they begin, each by its own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedstrata.core.errors import ConfigurationError, Problem, RefusedError
from fedstrata.core.sources import flatten
from fedstrata.core.types import ClientInfo
from fedstrata.methods.fl_llama import FLLLaMA
from fedstrata.split.partition import ends_of
from fedstrata.split.transport.agreement import Agreement, shapes_of

if TYPE_CHECKING:
    from fedstrata.core.cut import Cut
    from fedstrata.core.method import Method
    from fedstrata.core.types import JSON
    from fedstrata.engine.setup import Experiment
    from fedstrata.engine.sites import Site
    from fedstrata.models.state import Model
    from fedstrata.split.transport.hub import Greeting

_COMPARED = ("method.", "training.", "task.", "adapter.", "model.", "seed")
_LOCAL = ("training.cache", "model.name", "model.revision", "model.tokenizer")
"""Of these a side's own: places and memory; that the weights are the same is told by their hash."""
SCORE = "@score"
"""What a plan names when a client is to score its documents; no handler of a method has such a name."""
_UNKNOWN = 0
"""Stands for the largest batch until the client has named it."""


def divided_method(method: Method) -> FLLLaMA:
    """Returns a method that divides the model between client and server.

    Raises:
        ConfigurationError: This one does not.
    """
    if not isinstance(method, FLLLaMA):
        message = f"must be fl_llama, which divides the model between client and server, not {method.name}"
        raise ConfigurationError([Problem("method.name", message)])
    return method


def agreement_of(experiment: Experiment, ends: Model, cut: Cut, blocks: int, rows: int) -> Agreement:
    """Returns what one side takes as agreed with one client.

    Args:
        experiment: The side's own experiment.
        ends: The client's part of the model, at its base values.
        cut: Where the model is divided.
        blocks: How many the whole model has.
        rows: The most rows of a batch of this client.
    """
    settings, method = experiment.settings, divided_method(experiment.method)
    every = dict(flatten(settings.model_dump(mode="json")))
    compared: dict[str, JSON] = {
        path: value
        for path, value in every.items()
        if path.startswith(_COMPARED) and not path.startswith(_LOCAL)
    }
    compared["labels"] = list(experiment.task.labels)
    config: Any = ends.module.config
    return Agreement.of(
        compared,
        run=settings.name,
        cut=cut,
        blocks=blocks,
        fingerprint=ends.fingerprint([name for name, _ in ends.module.named_parameters()]),
        form=method.settings.wire,
        hidden=config.get_text_config().hidden_size,
        rows=rows,
        length=settings.task.max_length,
        ends=shapes_of(ends.tensors(ends.layout.all)),
    )


class Agreements:
    """What the server agrees on with each client; worked out before any of them comes.

    Args:
        experiment: The server's experiment, with the whole model.
        clients: Who may come.
        largest: Bytes that a message may have whatever a client says of its batches.
    """

    def __init__(self, experiment: Experiment, clients: tuple[str, ...], largest: int) -> None:
        method, model = divided_method(experiment.method), experiment.model
        model.restore()
        self._largest = largest
        self._of: dict[str, Agreement] = {}
        known: dict[Cut, Agreement] = {}
        for client in clients:
            cut = method.cut_of(client)
            if cut not in known:
                blocks = len(model.layout.blocks)
                known[cut] = agreement_of(experiment, ends_of(model, cut), cut, blocks, _UNKNOWN)
            self._of[client] = known[cut]

    def __call__(self, client: str, greeting: Greeting) -> Agreement:
        """Returns what is agreed with a client that greets so.

        Raises:
            RefusedError: What it holds does not fit; the message names both values.
        """
        theirs, rows = greeting.get("facts"), greeting.get("rows")
        if not isinstance(theirs, dict) or not isinstance(rows, int) or rows < 1:
            raise RefusedError(f"client {client!r} does not say what it holds")
        agreement = self._of[client].with_rows(rows)
        if different := agreement.differences(theirs, mine="the server", other=f"client {client!r}"):
            raise RefusedError(different)
        if agreement.largest > self._largest:
            raise RefusedError(
                f"client {client!r} has batches of {rows} rows: messages of {agreement.largest} bytes, where "
                f"the server takes {self._largest} at most; a smaller training.batch_size or eval_batch_size "
                "may help, or more for the server"
            )
        return agreement


def info_of(client: str, greeting: Mapping[str, JSON]) -> ClientInfo:
    """Returns what the server knows of a client by its greeting.

    Raises:
        RefusedError: It does not say how many examples it has.
    """
    examples = greeting.get("examples")
    if not isinstance(examples, int) or examples < 1:
        raise RefusedError(f"client {client!r} does not say how many training examples it has")
    return ClientInfo(client, examples)


def largest_batch(site: Site, batch_size: int, eval_batch_size: int) -> int:
    """Returns the most rows that a batch of a client can have."""
    documents = [*site.scored("validation"), *site.scored("test")]
    examples = [*site.encode(), *site.task.encode(documents, site.tokenizer)]
    return max((len(example.windows) for example in examples), default=1) * max(batch_size, eval_batch_size)

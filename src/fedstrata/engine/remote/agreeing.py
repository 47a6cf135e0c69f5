"""What a server and its clients compare before they begin, each by its own configuration."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from fedstrata.client.site import Site
from fedstrata.core.cut import Cut
from fedstrata.core.errors import ConfigurationError, Problem, RefusedError
from fedstrata.core.method import Method
from fedstrata.core.task import Task
from fedstrata.core.types import JSON, ClientInfo
from fedstrata.data.split import PARTS
from fedstrata.engine.agreed import SESSION, agreed
from fedstrata.engine.check import divided_method
from fedstrata.engine.model import load_model, outline
from fedstrata.engine.prepare import Experiment
from fedstrata.models.state import Model
from fedstrata.split.divide import leave_ends, leave_middle
from fedstrata.split.messages import is_count
from fedstrata.transport.agreement import WHOLE_HEADER_BYTES, Agreement, Conversation, shapes_of
from fedstrata.transport.members import Greeting
from fedstrata.transport.timing import MOST_MEGABYTES
from fedstrata.wire.frame import Shape

TRAINING, ANSWERS = "training", "answers"
"""What server and clients come together for."""
Weights: TypeAlias = Mapping[str, str]
"""A hash of every parameter of a model, or of a side of one, by name."""
_OF_ANSWERS = ("task.name", "adapter.", "model.", "seed", "labels", "tokenizer")
"""What must be the same for answers: how the paths begin."""
_MEGABYTE = 2**20


def agreement_of(
    experiment: Experiment,
    client: str,
    rows: int,
    length: int,
    purpose: str,
    trained: Mapping[str, Shape] | None = None,
    numbers: int | None = None,
) -> Agreement:
    """Returns what one side takes as agreed with one client.

    Args:
        experiment: The side's own experiment.
        client: The client.
        rows: The most rows of a batch of this client.
        length: The most columns of one.
        purpose: What they come together for, `TRAINING` or `ANSWERS`.
        trained: Dtype and shape of what the client trains; if none what the method says of this side.
        numbers: What `travelling` gives, if it is known already.
    """
    settings, model, method = experiment.settings, experiment.model, experiment.method
    compared = {
        path: value
        for path, value in agreed(experiment).items()
        if (path not in SESSION if purpose == TRAINING else path.startswith(_OF_ANSWERS))
    }
    conversation = None
    if (cut := method.divides(client)) is not None:
        divided = divided_method(method)
        config: Any = model.module.config
        conversation = Conversation(
            cut,
            form=divided.wire,
            hidden=config.get_text_config().hidden_size,
            rows=rows,
            length=length,
            in_flight=divided.in_flight if purpose == TRAINING else 1,
        )
    return Agreement(
        {"purpose": purpose, **compared},
        run=settings.name,
        blocks=len(model.layout.blocks),
        numbers=travelling(method, model, cut) if numbers is None else numbers,
        trained=_trained(method, model) if trained is None else trained,
        conversation=conversation,
    )


def _trained(method: Method, model: Model) -> dict[str, Shape]:
    """Returns dtype and shape of what a method trains of a model."""
    return shapes_of(model.tensors(method.trainable(model.layout)))


def travelling(method: Method, model: Model, cut: Cut | None) -> int:
    """Returns how many numbers a message may have: what trains, or is in a state; 0 of a divided model."""
    if cut is not None:
        return 0
    sizes = model.layout.sizes
    state = {name: tensor.numel() for name, tensor in method.start(model).tensors.items()}
    return sum((state | {name: sizes[name] for name in method.trainable(model.layout)}).values())


def too_large(method: str, numbers: int, largest: int) -> Problem | None:
    """Returns what is wrong if a message may not be as large as what a method sends; none if it may.

    Args:
        method: The method's name.
        numbers: How many numbers it sends, as `travelling` gives them.
        largest: Bytes that a message may have.
    """
    sent = numbers * torch.float32.itemsize
    least = -(-(sent + WHOLE_HEADER_BYTES) // _MEGABYTE)
    if not numbers or least * _MEGABYTE <= largest:
        return None
    what = f"{method} sends {sent:,} bytes of this model in one message"
    if least <= MOST_MEGABYTES:
        message = f"must be at least {least}, not {largest // _MEGABYTE}: {what}"
        return Problem("--megabytes", message, code="out_of_range")
    helps = "what helps: fewer blocks that train, an adapter, a smaller model, or fedstrata run (workers)"
    message = f"{what}, which carries at most {MOST_MEGABYTES:,} MB; {helps}"
    return Problem("method.name", message, code="too_large")


def held(experiment: Experiment) -> dict[str, JSON]:
    """Returns what a client says of the model that it holds, at its base values: `weights` and `trained`."""
    model = experiment.model
    weights = model.hashes(model.names_outside([]))
    return {"weights": {**weights}, "trained": _told(_trained(experiment.method, model))}


class Agreements:
    """What the server agrees on with each client.

    Nothing of it comes from a client: the first to come could be the one that is wrong. What the ends are
    called, and their shapes, the server works out from the model's configuration; it keeps the middle alone,
    and hashes of the weights of the ends, which it reads once.

    Args:
        experiment: The server's experiment; its model holds what any of the clients lacks.
        clients: Who may come.
        largest: Bytes that a message may have whatever a client says of its batches.
        known: Hashes of the ends that the run began with.
        purpose: What clients come for.

    Attributes:
        largest: Bytes that a message may have.
        known: Hashes of the ends that the run began with; may be set until the first client comes.

    Raises:
        ConfigurationError: No message may be as large as what the method sends of this model.
    """

    def __init__(
        self,
        experiment: Experiment,
        clients: tuple[str, ...],
        largest: int,
        *,
        known: Weights | None = None,
        purpose: str = TRAINING,
    ) -> None:
        self._experiment, self.largest, self._purpose = experiment, largest, purpose
        self.known: Weights = known or {}
        method, model = experiment.method, experiment.model
        self._cuts = {client: method.divides(client) for client in clients}
        of = (experiment.settings, experiment.task, method, model.tokenizer)
        self._outlines = [outline(*of), outline(*of, new_head=True)]
        model.restore()
        own = _hashes(experiment, [self._elsewhere(client, model) for client in clients])
        self._numbers = travelling(method, model, next(iter(self._cuts.values())))
        if problem := too_large(method.name, self._numbers, largest):
            raise ConfigurationError([problem])
        self._own = own

    def __call__(self, client: str, greeting: Greeting) -> Agreement:
        """Returns what is agreed with a client that greets so.

        Raises:
            RefusedError: What it holds does not fit; the message names both values.
        """
        said: Any = [greeting.get(name) for name in ("facts", "rows", "length", "trained", "weights")]
        theirs, rows, length, trained, weights = said
        maps = all(isinstance(each, dict) for each in (theirs, trained, weights))
        if not maps or not all(isinstance(each, int) and each > 0 for each in (rows, length)):
            raise RefusedError(f"client {client!r} does not say what it holds", code="missing")
        if self._purpose == TRAINING:
            info_of(client, greeting)
            for what in ("documents", "windows"):
                documents_of(client, greeting, what)
            length = self._experiment.task.max_length
            self._require_known(client, greeting)
        expected = self._shapes(client)
        shapes = next((own for own in expected if _told(own) == trained), expected[0])
        agreement = agreement_of(self._experiment, client, rows, length, self._purpose, shapes, self._numbers)
        # Settings first: other labels make another head, and are what there is to be said of it.
        if different := agreement.differences(theirs, client):
            raise RefusedError(different + self._who_decides(theirs), code="conflict")
        _require_equal(client, _told(shapes), trained)
        if agreement.largest > self.largest:
            least = -(-agreement.largest // _MEGABYTE)
            more = f", or --megabytes {least} at the server" if least <= MOST_MEGABYTES else ""
            raise RefusedError(
                f"client {client!r} has batches of {rows} rows of up to {length}: messages of "
                f"{agreement.largest} bytes, where the server takes {self.largest} at most; a smaller "
                f"training.batch_size or eval_batch_size may help{more}",
                code="too_large",
            )
        self._compare(client, weights)
        return agreement

    def _require_known(self, client: str, greeting: Greeting) -> None:
        """Refuses a client whose lock demands more clients in a sum than the run has."""
        if not self._experiment.privacy.settings.secure_aggregation:
            return
        from fedstrata.privacy.secure_sum.shares import threshold  # noqa: PLC0415 - for masks alone

        known, clients = greeting.get("known"), len(self._cuts)
        if not is_count(known) or not known:
            raise RefusedError(
                f"client {client!r} does not state how many sites its lock has", code="missing"
            )
        if (needed := threshold(known)) > threshold(clients):
            raise RefusedError(
                f"the lock of client {client!r} has {known} sites, so that it demands {needed} of them in "
                f"each sum; this run has {clients} sites. Its lock must name the sites of this run alone",
                code="out_of_range",
            )

    def _who_decides(self, theirs: Mapping[str, JSON]) -> str:
        """Says which settings labels go by, where a client has others."""
        task = self._experiment.task
        if theirs.get("labels") == list(task.classes) or not task.naming:
            return ""
        settings = " and ".join(f"task.{name}" for name in task.naming)
        return (
            f"; labels go by {settings}: where the server's configuration names them all, all have the same"
        )

    def _shapes(self, client: str) -> list[dict[str, Shape]]:
        """Returns dtype and shape of what a client trains: without a new task head, and with one."""
        sides, cut = [], self._cuts[client]
        for whole in self._outlines:
            names = set(whole.layout.all) if cut is None else {*cut.segments(whole.layout).ends}
            every = _trained(self._experiment.method, whole)
            sides.append({name: shape for name, shape in every.items() if name in names})
        return sides

    def _elsewhere(self, client: str, whole: Model) -> Collection[int]:
        """Returns the blocks that a client leaves to the server."""
        cut = self._cuts[client]
        return () if cut is None else cut.middle(len(whole.layout.blocks))

    def _compare(self, client: str, weights: Weights) -> None:
        """Refuses a client that does not hold the weights of its side of the model, and only these."""
        whole = self._outlines[0]
        own = whole.names_outside(self._elsewhere(client, whole))
        if lacking := [name for name in own if not isinstance(weights.get(name), str)]:
            raise RefusedError(
                f"client {client!r} does not say which weights it holds: {len(lacking)} hashes are not "
                f"there, that of {lacking[0]} for one",
                code="missing",
            )
        if more := sorted(weights.keys() - set(own)):
            message = f"client {client!r} says a hash of {more[0]}, which its side has not"
            raise RefusedError(message, code="unknown_name")
        for whose, said in (("the server", self._own), ("the beginning of the run", self.known)):
            if wrong := [name for name in own if said.get(name, weights[name]) != weights[name]]:
                raise RefusedError(
                    f"{len(wrong)} of the weights are not the same; the hash of {wrong[0]} is "
                    f"{weights[wrong[0]]} at client {client!r}, {said[wrong[0]]} at {whose}",
                    code="other_weights",
                )


def _hashes(experiment: Experiment, middles: Sequence[Collection[int]]) -> dict[str, str]:
    """Returns a hash of every weight that any client holds.

    What the server does not keep is read a block at a time, so that it never holds a whole model; one that is
    drawn at random is drawn as a whole anyway.

    Args:
        experiment: The server's experiment.
        middles: The blocks that each client leaves to the server.
    """
    own, last = experiment.model, len(experiment.model.layout.blocks) - 1
    if not any(middles):  # the server holds all of the model
        return dict(own.hashes(own.names_outside([])))
    elsewhere = [index for index in range(last + 1) if not any(index in middle for middle in middles)]
    parts: list[Any] = [partial(leave_ends, cut=Cut(0, 0))]
    parts += [partial(leave_middle, cut=Cut(index, last - index)) for index in elsewhere]
    if experiment.settings.model.init == "random":
        parts = [None]
    of = (experiment.settings, experiment.task, experiment.method, own.tokenizer)
    alone = set(range(last + 1)).intersection(*middles)
    found = dict(own.hashes(own.names_outside(alone)))
    for without in parts:
        part = load_model(*of, without=without).to(own.device)
        found |= part.hashes(part.names_outside(alone))
    return found


def _require_equal(client: str, expected: Mapping[str, JSON], trained: Mapping[str, JSON]) -> None:
    """Refuses a client that trains something else than what is expected of it."""
    if wrong := sorted(name for name in {*expected, *trained} if expected.get(name) != trained.get(name)):
        raise RefusedError(
            f"what trains is not the same; {wrong[0]} is {trained.get(wrong[0])} at client {client!r}, "
            f"{expected.get(wrong[0])} at the server",
            code="conflict",
        )


def _told(shapes: Mapping[str, Shape]) -> dict[str, JSON]:
    """Returns shapes as they are said."""
    return {name: [str(dtype).removeprefix("torch."), list(shape)] for name, (dtype, shape) in shapes.items()}


def info_of(client: str, greeting: Mapping[str, JSON]) -> ClientInfo:
    """Returns what the server knows of a client by its greeting.

    Raises:
        RefusedError: It does not say how many examples it has.
    """
    examples = greeting.get("examples")
    if not is_count(examples) or not examples:
        message = f"client {client!r} does not say how many training examples it has"
        raise RefusedError(message, code="missing")
    return ClientInfo(client, examples)


def documents_of(client: str, greeting: Mapping[str, JSON], what: str = "documents") -> dict[str, int]:
    """Returns how many documents, or `windows` of them, a client has of each part of the split.

    Raises:
        RefusedError: It does not say.
    """
    said = greeting.get(what)
    said = said if isinstance(said, dict) else {}
    if lacking := [part for part in PARTS if not is_count(said.get(part))]:
        message = f"client {client!r} does not say how many {what} it has of {', '.join(lacking)}"
        raise RefusedError(message, code="missing")
    return {part: count for part in PARTS if is_count(count := said[part])}


def windows_of(site: Site) -> dict[str, list[int]]:
    """Returns how many windows each example of a client has, of all parts of the split."""
    examples = {part: site.task.encode(site.scored(part), site.tokenizer) for part in PARTS[1:]}
    every = {PARTS[0]: site.encode(), **examples}
    return {part: [len(example.windows) for example in own] for part, own in every.items()}


def questions_in(windows: int, task: Task) -> int:
    """Returns how often a client may ask the server while it scores so many windows.

    Once for each, if it runs one at a time. Of a causal language model keys and values may be kept: a window
    is then begun, goes on token by token, and is ended, and the server may have forgotten it every time.
    """
    tokens = task.max_length if task.kind == "causal-lm" else 0
    return windows * (1 + bool(tokens) + 2 * tokens)

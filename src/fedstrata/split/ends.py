"""The client's side of a divided model: A and C, the loss, and the labels, which never leave.

Source: FL-LLaMA, section 3.1, equations 1 to 4. A training step is

    front = ends.front(call)                       # A
    h_b = server(front.states, front.rows)         # B, elsewhere
    (loss, terms), leaf = ends.back(front, h_b, call)      # C
    loss.backward()                                # C
    gradient = server(leaf.grad)                   # B, elsewhere
    front.backward(gradient)                       # A

where `call` is `lambda: task.loss(ends.module, batch)`: the task calls the model in its own way and knows
nothing of the cut. It is called twice. The first call is broken off at the middle. In the second the hidden
states from the server stand in for everything below C, so that of A no more than the embedding is looked up
again, which nothing reads. Any number of steps may be between their `front` and their `back`, and their
gradients add up, as in any training with several batches a step. Losses are sums, and so are gradients:
whoever takes an optimiser step divides by the number of terms. When the server has lost a step
(`StepLostError`) the client's turn has failed.

For scoring and for generating, `connected` makes the module a whole model again, whose middle block asks the
server: `task.predict`, and `generate` of transformers with a key-value cache on both sides, run as they are.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from itertools import count
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from fedstrata.core.cut import Cut
from fedstrata.core.errors import FedstrataError, FrameError, SessionLostError
from fedstrata.models.blocks import block_modules, family_of, is_empty, transformers_model
from fedstrata.models.prefix import answering, as_returned, replaced_prefix, run_prefix
from fedstrata.models.state import Model
from fedstrata.split.noise import Noise
from fedstrata.split.rows import Rows
from fedstrata.split.stand_ins import cache_of, note_tokens, noted_rows, states_of

Result = TypeVar("Result")


class Remote(Protocol):
    """The server's middle as a client sees it while nothing is learnt; see `split.kvcache.Sessions`."""

    def run(self, states: Tensor, rows: Rows) -> Tensor:
        """Returns what the middle gives for whole rows, (rows, length, hidden) to the same."""

    def open(self, session: str, states: Tensor, rows: Rows) -> Tensor:
        """Does the same and keeps keys and values; a session of that name is replaced."""

    def extend(self, session: str, states: Tensor, past: int, kept: Sequence[int] | None = None) -> Tensor:
        """Goes on behind `past` columns with the rows `kept`, (rows, columns, hidden) to the same."""

    def close(self, session: str) -> None:
        """Forgets a session, if there is one."""


class Front:
    """What A gave for one batch.

    Args:
        output: The hidden states with their graph, (rows, length, hidden).
        rows: The lengths of the rows.

    Attributes:
        rows: The lengths of the rows.
        states: The hidden states to be sent, without a graph; noise may be added to them.
        needs_gradient: Whether anything of A learns, so that their gradient is wanted.
    """

    def __init__(self, output: Tensor, rows: Rows) -> None:
        self.rows = rows
        self.states = output.detach()
        self.needs_gradient = output.requires_grad
        self._output: Tensor | None = output if output.requires_grad else None

    def backward(self, gradient: Tensor) -> None:
        """Adds to the gradients of A; once.

        Args:
            gradient: Of the summed loss by `states`, (rows, length, hidden).

        Raises:
            FrameError: It has another shape.
        """
        if gradient.shape != self.states.shape:
            raise FrameError(
                f"a gradient of shape {tuple(gradient.shape)} for states of {tuple(self.states.shape)}",
                code="wrong_shape",
            )
        if self._output is None:
            message = "nothing of A waits for a gradient: it has had it, or nothing of A learns"
            raise FedstrataError(message, code="out_of_order")
        torch.autograd.backward(self._output, gradient.to(self._output))
        self._output = None


class Ends:
    """The client's side.

    Args:
        model: What `leave_ends` left, with or without an adapter.
        cut: Where it was cut.

    Attributes:
        model: The model.
        cut: Where it was cut.
        module: Its module, which a task calls.
    """

    def __init__(self, model: Model, cut: Cut) -> None:
        self.model, self.cut, self.module = model, cut, model.module
        self._blocks = block_modules(self.module, model.layout)
        self._middle = cut.middle(len(self._blocks))
        empty = {index for index, block in enumerate(self._blocks) if is_empty(block)}
        if empty != set(self._middle):
            raise ValueError(f"the model lacks the blocks {sorted(empty)}, not {list(self._middle)}")
        self._inner = transformers_model(self.module)
        self._returns = family_of(self._inner).returns
        self._mask: Tensor | None = None
        self._sessions = count()

    def front(self, call: Callable[[], object]) -> Front:
        """Runs A.

        Args:
            call: Calls the model once, in whatever way its task does; broken off at the middle.

        Raises:
            FedstrataError: `call` did not call the model.
        """
        with self._seeing_masks():
            found = run_prefix(self.module, self.model.layout, self._middle.start + 1, call)
        if found is None:
            raise FedstrataError("the model was not called, so there is nothing to send", code="missing")
        return Front(found.states, self._rows(found.states))

    def back(self, front: Front, states: Tensor, call: Callable[[], Result]) -> tuple[Result, Tensor]:
        """Runs C.

        Args:
            front: What A gave for this batch.
            states: What B made of it, (rows, length, hidden).
            call: Calls the model as for `front`, and does with its output what the task does.

        Returns:
            What `call` returned, and the leaf of the graph: after the backward pass of a loss its `grad` is
            what the server is to be sent.

        Raises:
            FrameError: The states have another shape than those that were sent.
        """
        leaf = _received(states, front.states).requires_grad_()
        size = self._returns
        with replaced_prefix(self.module, self.model.layout, self._middle.stop, size) as use:
            use(leaf)
            return call(), leaf

    @contextmanager
    def connected(self, remote: Remote, name: str = "session", noise: Noise | None = None) -> Iterator[None]:
        """Makes the module a whole model within the block: its middle asks the server.

        Args:
            remote: The server's middle.
            name: What the names of this client's sessions begin with; unlike that of any other client.
            noise: Added to what is sent, if it is meant for inference.

        Raises:
            SessionLostError: The server lost a session, and lost it again while it was being made up for.
        """
        used = noise if noise is not None and noise.settings.inference else None
        asking = _Asking(remote, f"{name}/{next(self._sessions)}", used)
        answer: list[Tensor] = []

        def run(index: int, /, *args: Any, **kwargs: Any) -> Any:
            states, cache = states_of(args, kwargs), cache_of(args, kwargs)
            if index == self._middle.start:
                past = cache.get_seq_length(index) if cache is not None else 0
                if not past:
                    asking.begin(self._rows(states), keep=cache is not None)
                live = noted_rows(cache, index) if cache is not None and past else range(len(states))
                answer[:] = [asking.ask(states, past, live)]
            note_tokens(cache, index, states)
            return as_returned(answer[0], self._returns)

        blocks = [self._blocks[index] for index in self._middle]
        try:
            with self._seeing_masks(), answering(blocks, [partial(run, index) for index in self._middle]):
                yield
        finally:
            asking.close()

    def _rows(self, states: Tensor) -> Rows:
        """Returns the lengths of the rows of the present call of the model."""
        return Rows.of(self._mask, len(states), states.shape[1])

    def _seeing_masks(self) -> AbstractContextManager[None]:
        """Returns the context in which the mask of every call of the model is kept.

        Not by a hook: PEFT calls the `forward` of a model and not the model.
        """
        forward: Callable[..., Any] = self._inner.forward
        signature = inspect.signature(forward)

        @wraps(forward)
        def see(*args: Any, **kwargs: Any) -> Any:
            self._mask = signature.bind_partial(*args, **kwargs).arguments.get("attention_mask")
            return forward(*args, **kwargs)

        return answering([self._inner], [see])


class _Asking:
    """A client's questions to a server while it scores or generates.

    What was sent of a session is kept, so that a session that the server lost can be made up for: it is half
    of what one block with as many key heads as heads keeps of the same tokens.
    """

    def __init__(self, remote: Remote, name: str, noise: Noise | None) -> None:
        self._remote, self._name, self._noise = remote, name, noise
        self._number = 0
        self._rows = Rows(0, ())
        self._live: list[int] = []
        self._keep = False
        self._sent: list[Tensor] = []

    def begin(self, rows: Rows, *, keep: bool) -> None:
        """Begins with a new batch.

        Args:
            rows: The lengths of its rows.
            keep: Whether more columns will follow, so that the server is to keep keys and values.
        """
        self.close()
        self._number += 1
        self._rows, self._keep = rows, keep
        self._live = list(range(len(rows.padding)))

    def ask(self, states: Tensor, past: int, live: Sequence[int]) -> Tensor:
        """Returns what the middle gives for the columns behind `past`.

        Args:
            states: Of the rows that go on, (rows, columns, hidden).
            past: Columns that have been asked about.
            live: Which rows of the batch they are, by their indices when it began.
        """
        if torch.is_grad_enabled() and states.requires_grad:
            raise ValueError("a connected model learns nothing: use `front` and `back`, or torch.no_grad()")
        if past and (past != self._rows.length or not _goes_on(live, self._live)):
            raise ValueError("a connected model goes on from the last tokens alone, and with each row once")
        kept = self._only(live)
        self._rows = self._rows.longer(past + states.shape[1])
        sent = states.detach()
        if self._noise is not None:
            sent = self._noise.add(sent, self._rows, self._name, self._number, past)
        if not self._keep:
            return _received(self._remote.run(sent, self._rows), states)
        self._sent.append(sent)
        return _received(self._answer(sent, past, kept), states)

    def _only(self, live: Sequence[int]) -> list[int] | None:
        """Forgets what was sent of other rows; returns the indices of those that stay, none if all do."""
        if list(live) == self._live:
            return None
        kept = [self._live.index(row) for row in live]
        self._rows, self._live = self._rows.only(kept), list(live)
        self._sent = [torch.cat(self._sent, dim=1)[kept]]
        return kept

    def _answer(self, sent: Tensor, past: int, kept: list[int] | None) -> Tensor:
        if past:
            try:
                return self._remote.extend(self._session, sent, past, kept)
            except SessionLostError:
                everything = torch.cat(self._sent, dim=1)
                return self._remote.open(self._session, everything, self._rows)[:, past:]
        return self._remote.open(self._session, sent, self._rows)

    def close(self) -> None:
        """Ends the session, if one is open."""
        if self._sent:
            self._remote.close(self._session)
            self._sent.clear()

    @property
    def _session(self) -> str:
        return f"{self._name}/{self._number}"


def _goes_on(live: Sequence[int], before: Sequence[int]) -> bool:
    """Whether some of the rows go on, in the order they had; the server cannot go back, nor copy a row."""
    chosen = set(live)
    return list(live) == [row for row in before if row in chosen]


def _received(states: Tensor, sent: Tensor) -> Tensor:
    """Returns the server's answer as a tensor of this client, checked against what was sent."""
    if states.shape != sent.shape:
        message = f"states of shape {tuple(states.shape)} came back for {tuple(sent.shape)}"
        raise FrameError(message, code="wrong_shape")
    return states.detach().to(device=sent.device, dtype=sent.dtype)

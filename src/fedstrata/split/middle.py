"""The server's side of a divided model: B, which sees hidden states and lengths, no token and no label.

Source: FL-LLaMA, section 3.1, equation 2; masks and positions are made here from the lengths of the rows
    (section 3.4.1).

What comes in and goes out is plain tensors, `Rows` and a name for the step, so that any transport can stand
between this and `fedstrata.split.ends`. Several steps may be under way: the graph of each is kept until its
backward pass, or until it is dropped; how many there may be is for `fedstrata.split.protocol` to say. A step
of the optimiser changes the weights that the graphs of other steps were made with; these are then lost, and a
client is told so instead of getting a wrong gradient. So what may be under way at once is the batches of one
optimiser step.

One object serves one call at a time.
"""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from fedstrata.core.cut import Cut
from fedstrata.core.errors import ConfigurationError, FrameError, StepLostError, refused
from fedstrata.models.blocks import block_modules, family_of, is_empty, is_listed, transformers_model
from fedstrata.models.caching import cache_name
from fedstrata.models.prefix import answering, run_prefix
from fedstrata.models.state import Model
from fedstrata.split.rows import Rows
from fedstrata.split.stand_ins import hand_on
from fedstrata.train.local import train_mode


class Middle:
    """The server's side.

    Clients may be cut at different places: the server holds the blocks from the lowest to the highest that
    any of them lacks, and every call may name a narrower middle.

    Args:
        model: What `leave_middle` left, with or without an adapter.
        cut: Where it was cut.

    Attributes:
        model: The model.
    """

    def __init__(self, model: Model, cut: Cut) -> None:
        self.model, self._cut = model, cut
        self._blocks = block_modules(model.module, model.layout)
        held = {index for index, block in enumerate(self._blocks) if not is_empty(block)}
        self._held = cut.middle(len(self._blocks))
        if held != set(self._held):
            raise ValueError(f"the model holds the blocks {sorted(held)}, not {list(self._held)}")
        self.inner: PreTrainedModel = transformers_model(model.module)
        self._base: Any = self.inner.base_model
        self._takes = inspect.signature(self._base.forward).parameters
        self._keys = cache_name(self._base)
        self._weights = list(model.module.parameters())
        self._dtype = next(each.dtype for each in self._blocks.parameters() if each.is_floating_point())
        self._waiting: dict[str, tuple[Tensor, Tensor, int]] = {}  # leaf, output, version of the weights
        self._trusted = is_listed(self.inner)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The steps that wait for their backward pass, the oldest first."""
        return tuple(self._waiting)

    @property
    def keeps_cache(self) -> bool:
        """Whether the architecture can go on from keys and values."""
        return bool(self._keys)

    def run(self, states: Tensor, rows: Rows, cut: Cut | None = None, cache: Cache | None = None) -> Tensor:
        """Runs the middle in evaluation mode.

        Args:
            states: (rows, columns, hidden).
            rows: The lengths of the rows, with what the cache holds of them.
            cut: Where the client's model is cut, if elsewhere.
            cache: What earlier columns left; the present ones are added.

        Returns:
            (rows, columns, hidden).

        Raises:
            FrameError: The states do not fit.
            ConfigurationError: The middle of this cut is not held here, or the architecture cannot be
                divided.
        """
        if self.model.module.training:
            self.model.module.train(False)
        with torch.no_grad():
            return self._run(self._accepted(states, rows, cache), rows, cut, cache)

    def forward(
        self, step: str, states: Tensor, rows: Rows, *, needs_gradient: bool = True, cut: Cut | None = None
    ) -> Tensor:
        """Runs the middle in training mode and keeps the graph.

        Args:
            step: A name for the step, unlike that of any other client's; one that is waiting is replaced.
            states: (rows, length, hidden).
            rows: The lengths of the rows.
            needs_gradient: Whether the gradient by the states is wanted.
            cut: Where the client's model is cut, if elsewhere.

        Returns:
            (rows, length, hidden).

        Raises:
            FrameError, ConfigurationError: As for `run`.
        """
        self.drop(step)
        train_mode(self.model)
        leaf = self._accepted(states, rows, None).detach().requires_grad_(needs_gradient)
        with torch.enable_grad():
            output = self._run(leaf, rows, cut, None)
        self._waiting[step] = (leaf, output, self._version())
        return output.detach()

    def backward(self, step: str, gradient: Tensor) -> Tensor | None:
        """Adds to the gradients of the middle and forgets the step.

        Args:
            step: Its name.
            gradient: Of the summed loss by what `forward` returned, (rows, length, hidden).

        Returns:
            The gradient by the states that came, of the same shape; none if it was not wanted. Nothing is
            done where nothing of the middle, nor below it, learns.

        Raises:
            StepLostError: The step is not waiting, or the weights have changed since.
            FrameError: The gradient has another shape; the step goes on waiting.
        """
        waiting = self._waiting.get(step)
        if waiting is None:
            raise StepLostError(f"step {step!r} is not waiting for a gradient here; run it again")
        leaf, output, version = waiting
        if gradient.shape != output.shape:
            raise FrameError(
                f"step {step!r} waits for a gradient of shape {tuple(output.shape)}, not "
                f"{tuple(gradient.shape)}",
                code="wrong_shape",
            )
        self.drop(step)
        if not output.requires_grad:
            return None
        if version != self._version():
            message = f"the server's weights have changed since step {step!r} began; run it again"
            raise StepLostError(message, code="stale")
        train_mode(self.model)  # for what is computed again, should anything have run since
        torch.autograd.backward(output, gradient.to(output))
        return leaf.grad

    def drop(self, step: str) -> None:
        """Forgets a step whose backward pass will not come, if there is one of this name."""
        self._waiting.pop(step, None)

    def _run(self, states: Tensor, rows: Rows, cut: Cut | None, cache: Cache | None) -> Tensor:
        """Runs the blocks of a middle, whatever the model does around them."""
        middle = self._range(cut)
        idle = [index for index in self._held if index not in middle]
        returns = family_of(self.inner).returns

        def enter(
            block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": states})

        with ExitStack() as stack:
            entrance = self._blocks[middle.start].register_forward_pre_hook(enter, with_kwargs=True)
            stack.callback(entrance.remove)
            passing: list[Callable[..., Any]] = [partial(hand_on, index, returns) for index in idle]
            stack.enter_context(answering([self._blocks[index] for index in idle], passing))
            call = partial(self._call, states, rows, cache)
            try:
                # To the end: the empty blocks above note in the cache which tokens went by.
                found = run_prefix(self.model.module, self.model.layout, middle.stop, call, stop=False)
            except (AttributeError, RuntimeError, TypeError) as error:  # of an `Absent`
                if self._trusted:
                    raise
                raise self._undividable() from error
        assert found is not None  # noqa: S101 - every block of a model runs
        if not self._trusted and torch.isfinite(states).all() and not torch.isfinite(found.states).all():
            raise self._undividable()
        self._trusted = True
        return found.states

    def _call(self, states: Tensor, rows: Rows, cache: Cache | None) -> None:
        further: dict[str, Any] = {
            "position_ids": rows.positions(states.device, states.shape[1]),
            self._keys: cache,
            "use_cache": cache is not None,
        }
        known = {name: value for name, value in further.items() if name in self._takes}
        self._base(inputs_embeds=states, attention_mask=rows.mask(states.device), **known)

    def _range(self, cut: Cut | None) -> range:
        if cut is None:
            return self._held
        middle = cut.middle(len(self._blocks))
        if middle.start < self._held.start or middle.stop > self._held.stop:
            message = (
                f"a client cut at {cut.front} and {cut.back} needs blocks that this server, cut at "
                f"{self._cut.front} and {self._cut.back}, does not hold"
            )
            end = "front" if middle.start < self._held.start else "back"
            raise refused(f"{cut.section}.{end}", message, "out_of_range")
        return middle

    def _accepted(self, states: Tensor, rows: Rows, cache: Cache | None) -> Tensor:
        """Returns states that came as the model takes them; what does not fit is refused."""
        past = cache.get_seq_length(self._held.start) if cache is not None else 0
        width = self.inner.config.get_text_config().hidden_size
        positions = getattr(self.inner.config.get_text_config(), "max_position_embeddings", None)
        if positions is not None and rows.length > positions:
            message = f"rows of {rows.length} columns came, and the model knows {positions} positions"
            raise FrameError(message, code="out_of_range")
        expected = (len(rows.padding), rows.length - past, width)
        if states.shape != expected or not states.is_floating_point():
            came = f"states of shape {tuple(states.shape)} and {states.dtype} came"
            raise FrameError(f"{came}, not {expected} in floating point", code="wrong_shape")
        return states.to(device=self.model.device, dtype=self._dtype)

    def _undividable(self) -> ConfigurationError:
        """Returns the refusal of an architecture whose middle computes with layers that it does not have."""
        message = (
            f"a {self.inner.config.model_type} cannot be divided: its blocks compute with layers that lie "
            "outside them, and fedstrata does not know which"
        )
        return refused("model.name", message, "not_divisible")

    def _version(self) -> int:
        """Returns a number that changes when a weight does."""
        return sum(each._version for each in self._weights)

"""Which gradients the lowest block that trains has to pass, as a look at the model shows.

Nothing below that block needs a gradient, so neither do the inputs of its first layers: with LoRA in all
linear layers everything behind the first A does, with an adapter behind attention nothing of attention.
Which layers those are depends on the family, the adapter and what trains. So the model is called once, on two
tokens, with every block's input cut off from what is below it, and autograd is asked.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from fedstrata.core.model import Layout

TOKENS = 2
"""Of the text that the model is called on."""
ALL = (2.0, 1.0, 1.0)
"""What `Passed.products` has of a block of which all factors have a gradient."""
_PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
_ADDED_PRODUCTS = {torch.baddbmm, Tensor.baddbmm}
"""Products of two tensors, and those that are added to a first argument."""


@dataclass(slots=True)
class Passed:
    """Which gradients a block passes when nothing below it trains.

    Attributes:
        layers: The identities of the modules whose input has a gradient, of tokens.
        positions: The same where DeBERTa's relative positions are the input.
        products: For each block, how many of the two factors of attention's products have one, on average;
            and of its products with relative positions the first factor, the tokens, and the second. All
            where no product was seen, as with kernels that take all gradients at once.
    """

    layers: set[int] = field(default_factory=set)
    positions: set[int] = field(default_factory=set)
    products: list[tuple[float, float, float]] = field(default_factory=list)


def passed_by_lowest(module: nn.Module, layout: Layout, trainable: Collection[str]) -> Passed:
    """Looks at which gradients each block passes if it is the lowest that trains.

    The model is called in evaluation mode, so nothing is drawn, and is afterwards as before.

    Args:
        module: The transformers model, or a wrapper such as PEFT's around one.
        layout: Its parameters by part.
        trainable: Names of the parameters that train.
    """
    blocks = list(module.get_submodule(layout.blocks_path).children())
    passed = Passed(products=[ALL] * len(blocks))
    if not trainable:
        return passed
    watched = _Products()

    def begin(block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        watched.seen.clear()
        if inputs:
            return (inputs[0].detach(), *inputs[1:]), named
        return inputs, {**named, "hidden_states": named["hidden_states"].detach()}

    def end(index: int, block: nn.Module, inputs: Any, outputs: Any) -> None:
        passed.products[index] = watched.factors()

    def look(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].requires_grad:
            tokens = inputs[0].ndim < 2 or inputs[0].shape[-2] <= TOKENS
            (passed.layers if tokens else passed.positions).add(id(layer))

    handles = [block.register_forward_pre_hook(begin, with_kwargs=True) for block in blocks]
    handles += [block.register_forward_hook(partial(end, index)) for index, block in enumerate(blocks)]
    for block in blocks:
        handles += [part.register_forward_pre_hook(look) for part in block.modules() if part is not block]
    ids = torch.zeros((1, TOKENS), dtype=torch.long, device=next(module.parameters()).device)
    # Without numbers (a model on the meta device) nobody can ask a mask whether it hides anything, nor ids
    # whether they are padding.
    mask = {} if ids.is_meta else {"attention_mask": torch.ones_like(ids)}
    config: Any = next((part.config for part in module.modules() if isinstance(part, PreTrainedModel)), None)
    pad = getattr(config, "pad_token_id", None)
    try:
        if ids.is_meta and pad is not None:
            config.pad_token_id = None
        with _as_if_training(module, trainable), torch.enable_grad(), watched:
            module(input_ids=ids, **mask)
    finally:
        if pad is not None:
            config.pad_token_id = pad
        for handle in handles:
            handle.remove()
    return passed


class _Products(TorchFunctionMode):
    """Notes in `seen` which factors of attention's products need a gradient, until it is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, bool]] = []

    def factors(self) -> tuple[float, float, float]:
        """Returns how many factors of a product need a gradient; see `Passed.products`.

        The first product is that of queries and keys, the last that of scores and values; DeBERTa's with
        relative positions are between them.
        """
        if len(self.seen) < 2:
            return ALL
        first, *between, last = self.seen
        tokens, positions = zip(*between, strict=True) if between else ((True,), (True,))
        return (sum(first) + sum(last)) / 2.0, fmean(tokens), fmean(positions)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is functional.scaled_dot_product_attention:
            query, key, value = [
                *args,
                *(kwargs[name] for name in ("query", "key", "value") if name in kwargs),
            ][:3]
            scores = query.requires_grad or key.requires_grad
            self.seen += [(query.requires_grad, key.requires_grad), (scores, value.requires_grad)]
        elif function in _PRODUCTS or function in _ADDED_PRODUCTS:
            own = [*args, *kwargs.values()][int(function in _ADDED_PRODUCTS) :][:2]
            if not any(isinstance(each, nn.Parameter) for each in own) and own[0].ndim > 2:
                self.seen.append((own[0].requires_grad, own[1].requires_grad))
        return function(*args, **kwargs)


@contextmanager
def _as_if_training(module: nn.Module, trainable: Collection[str]) -> Iterator[None]:
    """Lets exactly these parameters need a gradient, in evaluation mode, within the block."""
    names = set(trainable)
    before = {parameter: parameter.requires_grad for parameter in module.parameters()}
    modes = {part: part.training for part in module.modules()}
    try:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in names)
        module.train(False)
        yield
    finally:
        for parameter, wanted in before.items():
            parameter.requires_grad_(wanted)
        for part, mode in modes.items():
            part.training = mode

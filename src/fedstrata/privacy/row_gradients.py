"""The gradient of every row of a batch at once, by the formulas of Opacus, where they are known to be right.

They are for plain layers that run once in a forward pass, each row by itself. Where something else trains
(DoRA's magnitudes), a layer is used twice (DeBERTa's shared keys, tied weights) or runs again in the backward
pass (checkpointing), the caller takes one row after the other instead.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from fedstrata.core.model import Model

BYTES_AT_A_TIME = 2**28
"""Gradients of single rows that are there at a time: 256 MiB."""

SHORTEST = 1e-38
"""In place of the norm of a gradient that is zero, by which one would divide."""

STRETCH = 2**12
"""Numbers whose norm float32 has to 1e-7."""


@dataclass(frozen=True, slots=True)
class TokenGradients:
    """The gradient of an embedding of every row, of the tokens alone that the row has.

    Attributes:
        count: How many rows there are, which is its length.
        rows: The row of each pair of a row and a token of it, (pairs,).
        tokens: The token, (pairs,).
        values: The gradient of the token's vector, (pairs, width).
    """

    count: int
    rows: Tensor
    tokens: Tensor
    values: Tensor

    def __len__(self) -> int:
        return self.count

    def dense(self, parameter: Parameter) -> Tensor:
        """Returns it with all tokens, (rows, tokens, width)."""
        whole = self.values.new_zeros(self.count, *parameter.shape)
        whole[self.rows, self.tokens] = self.values
        return whole


def rows_at_a_time(parameters: Sequence[Parameter]) -> int:
    """Returns of how many rows the gradients may be there at a time; below 2 nothing is gained."""
    return BYTES_AT_A_TIME // (4 * max(1, sum(parameter.numel() for parameter in parameters)))


def rows_together(model: Model, parameters: Sequence[Parameter]) -> int:
    """Returns how many rows share a pass by the hooks; 1 where each needs its own. See `hookable`."""
    if not hookable(model, parameters):
        return 1
    few = {id(layer.weight) for layer in _owners(model.module) if isinstance(layer, nn.Embedding)}
    return max(1, rows_at_a_time([own for own in parameters if id(own) not in few]))


def hookable(model: Model, parameters: Sequence[Parameter]) -> bool:
    """Returns whether all that trains belongs to plain layers, each parameter to one of them.

    An embedding is plain below the blocks, where it is called with the tokens of each row.

    Args:
        model: The model, of which nothing else requires a gradient.
        parameters: What trains.
    """
    owners = _owners(model.module)
    owned = [id(own) for layer in owners for own in layer.parameters(recurse=False) if own.requires_grad]
    below = {id(own) for own in model.parameters(model.layout.embedding)}
    plain = all(
        _is_plain_embedding(layer) and id(layer.weight) in below
        if isinstance(layer, nn.Embedding)
        else _is_plain(layer)
        for layer in owners
    )
    return plain and len(owned) == len(set(owned)) and set(owned) == {id(own) for own in parameters}


def _owners(module: nn.Module) -> list[nn.Module]:
    """Returns the layers that have parameters of their own that train."""
    every = ((layer, layer.parameters(recurse=False)) for layer in module.modules())
    return [layer for layer, own in every if any(parameter.requires_grad for parameter in own)]


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer is linear or a norm: of a few parameters, and nothing inside or beside them."""
    is_norm = all(own.ndim == 1 for own in layer.parameters(recurse=False))
    bare = not list(layer.children()) and not list(layer.buffers())
    return bare and (_is_linear(layer) or (is_norm and type(layer).__name__.endswith("Norm")))


def _is_plain_embedding(layer: nn.Embedding) -> bool:
    """Whether it looks up what it is called with; some of those derived from it make positions of it."""
    bare = type(layer) is nn.Embedding
    return bare and not (layer.sparse or layer.scale_grad_by_freq or layer.max_norm is not None)


def _is_linear(layer: nn.Module) -> bool:
    return type(layer).__name__ in {"Linear", "Conv1D"}  # the last: GPT-2's, whose weight is (in, out)


def linear(layer: nn.Module, given: Sequence[Tensor], gradient: Tensor) -> dict[Parameter, Tensor]:
    """Returns the gradients of a linear layer's parameters of every row, (rows, ...) each.

    Opacus' own takes an einsum of four times the time of this product.

    Args:
        layer: The layer.
        given: What it was called with: (rows, ..., in).
        gradient: That of what it returned, (rows, ..., out).
    """
    weight, bias = (getattr(layer, name, None) for name in ("weight", "bias"))
    out = gradient.reshape(len(gradient), -1, gradient.shape[-1])
    found = {}
    if weight is not None and weight.requires_grad:
        own = given[0].to(gradient.dtype).reshape(len(gradient), -1, given[0].shape[-1])
        one, other = (out, own) if type(layer).__name__ == "Linear" else (own, out)
        found[weight] = torch.bmm(one.transpose(1, 2), other)
    if bias is not None and bias.requires_grad:
        found[bias] = out.sum(1)
    return found


def embedding(
    layer: nn.Embedding, given: Sequence[Tensor], gradient: Tensor
) -> dict[Parameter, TokenGradients]:
    """Returns the gradients of an embedding of every row; Opacus' own has all tokens of the vocabulary.

    Args:
        layer: The layer.
        given: What it was called with: tokens, (rows, length).
        gradient: That of what it returned, (rows, length, width).
    """
    (tokens,), known = given, layer.num_embeddings
    used = tokens != (-1 if layer.padding_idx is None else layer.padding_idx)
    of_rows = tokens + known * torch.arange(len(tokens), device=tokens.device)[:, None]
    pairs, which = torch.unique(of_rows[used], return_inverse=True)
    values = gradient.new_zeros(len(pairs), gradient.shape[-1], dtype=torch.float32)
    values.index_add_(0, which, gradient[used].float())
    (weight,) = layer.parameters()
    return {weight: TokenGradients(len(tokens), pairs // known, pairs % known, values)}


def lengths(gradients: Tensor, kept: int) -> Tensor:
    """Returns L2 norms over all dimensions but the first so many, (first dimensions,) float64.

    Of every stretch of the last dimension in float32, where it is too short to lose digits, and of these in
    float64. In float32 alone that of a tensor of 10^7 numbers comes out too short by up to 7e-4, and what was
    clipped to it would be too long; in float64 alone it takes three to eighteen times as long.
    """
    if kept < gradients.ndim and gradients.shape[-1] <= STRETCH:
        gradients = torch.linalg.vector_norm(gradients.float(), dim=-1)
    together = gradients.reshape(*gradients.shape[:kept], -1)
    norms: Tensor = torch.linalg.vector_norm(together, dim=-1, dtype=torch.float64)
    return norms


RowGradients = Tensor | TokenGradients


class RowHooks:
    """The hooks of a model; made by `row_hooks`.

    While a layer runs, its parameters do not require a gradient, so that the backward pass makes that of the
    rows in place of the batch's and not beside it. Whatever gradient a parameter then still gets is of a use
    elsewhere, of which the hooks know nothing.

    Args:
        layers: The layers that have what trains.
        parameters: What trains.

    Attributes:
        rows: How many rows the next batch has.
    """

    def __init__(self, layers: Sequence[nn.Module], parameters: Sequence[Parameter]) -> None:
        from opacus.grad_sample import GradSampleModule  # noqa: PLC0415 - an extra
        from opacus.grad_sample.functorch import ft_compute_per_sample_gradient, prepare_layer  # noqa: PLC0415

        self.rows = 0
        self._parameters = parameters
        self._runs: Counter[nn.Module] = Counter()
        self._found: dict[Parameter, RowGradients] = {}
        self._own = {
            layer: [own for own in layer.parameters(recurse=False) if own.requires_grad] for layer in layers
        }
        samplers = GradSampleModule.GRAD_SAMPLERS | dict.fromkeys(
            map(type, filter(_is_linear, layers)), linear
        )
        samplers[nn.Embedding] = embedding
        self._sampler = {layer: samplers.get(type(layer), ft_compute_per_sample_gradient) for layer in layers}
        self._prepared = [layer for layer in layers if type(layer) not in samplers]
        for layer in self._prepared:  # before it has hooks: it is copied with them
            prepare_layer(layer)
        self._handles = [
            handle
            for layer in layers
            for handle in (
                layer.register_forward_pre_hook(self._enter),
                layer.register_forward_hook(self._leave),
            )
        ]

    def _enter(self, layer: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        self._runs[layer] += 1
        for parameter in self._own[layer]:
            parameter.requires_grad_(False)
        if isinstance(layer, nn.Embedding) and len(given[0]) == 1:  # positions, the same for all rows
            return (given[0].expand(self.rows, -1),)
        return None

    def _leave(self, layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        for parameter in self._own[layer]:
            parameter.requires_grad_(True)
        if torch.is_grad_enabled():
            if not output.requires_grad:  # the lowest layer that trains
                output.requires_grad_()
            sample = partial(self._sample, layer, given[0].detach())
            output.register_hook(sample)  # type: ignore[no-untyped-call]

    def _sample(self, layer: nn.Module, given: Tensor, gradient: Tensor) -> None:
        with torch.no_grad():
            self._found |= self._sampler[layer](layer, [given], gradient.detach())

    def take(self) -> list[RowGradients | None] | None:
        """Returns each parameter's gradient of every row, (rows, ...), and forgets it.

        Returns:
            None in place of a gradient where a layer did not run; none at all where the hooks may be wrong: a
            layer ran more than once, forward or for the backward pass, what it owns is used elsewhere too, or
            its first dimension is not that of rows.
        """
        once = all(count == 1 for count in self._runs.values())
        nowhere_else = all(parameter.grad is None for parameter in self._parameters)
        taken = [self._found.get(parameter) for parameter in self._parameters]
        by_row = all(len(own) == self.rows for own in taken if own is not None)
        self._runs.clear()
        self._found.clear()
        return taken if once and nowhere_else and by_row else None

    def remove(self) -> None:
        """Leaves the model as it was."""
        for handle in self._handles:
            handle.remove()
        for layer in self._prepared:
            del layer.ft_compute_sample_grad
        for parameter in self._parameters:  # after an error within a layer
            parameter.requires_grad_(True)


@contextmanager
def row_hooks(module: nn.Module, parameters: Sequence[Parameter]) -> Iterator[RowHooks]:
    """Lets the backward pass of a summed loss leave the gradient of every row, within the block.

    Args:
        module: A model that is `hookable`.
        parameters: What trains.
    """
    hooks = RowHooks(_owners(module), parameters)
    try:
        yield hooks
    finally:
        hooks.remove()


def _lengths(gradients: RowGradients) -> Tensor:
    """Returns the L2 norms of a parameter's gradient of every row, (rows,) float64."""
    if isinstance(gradients, Tensor):
        return lengths(gradients, 1)
    squares = lengths(gradients.values, 1).square()
    return squares.new_zeros(len(gradients)).index_add_(0, gradients.rows, squares).sqrt()


def norms_of_rows(gradients: Sequence[RowGradients]) -> Tensor:
    """Returns how long the gradients of rows are, over all parameters together, (rows,) float64."""
    norms: Tensor = torch.stack([_lengths(own) for own in gradients]).norm(dim=0)
    return norms


def of_row(gradients: RowGradients, row: int, shape: Sequence[int]) -> Tensor:
    """Returns a parameter's gradient of one row, float32 of its shape, where the gradients are."""
    if isinstance(gradients, Tensor):
        return gradients[row].float()
    here, whole = gradients.rows == row, gradients.values.new_zeros(tuple(shape))
    whole[gradients.tokens[here]] = gradients.values[here]
    return whole


def _add(total: Tensor, gradients: RowGradients, factors: Tensor) -> None:
    """Adds the gradients of rows, each times a factor, to a sum; nothing of those whose factor is 0."""
    used = factors != 0
    if isinstance(gradients, Tensor):
        usable = gradients if bool(used.all()) else gradients[used]
        total.add_(torch.tensordot(factors[used], usable.float(), dims=1))
        return
    here = used[gradients.rows]
    values = gradients.values[here] * factors[gradients.rows[here], None]
    total.index_add_(0, gradients.tokens[here], values)


@torch.no_grad()
def add_clipped_rows(
    sums: Sequence[Tensor], gradients: Sequence[RowGradients | None], scales: Tensor, clip: float
) -> Tensor:
    """Adds the gradients of rows, each clipped to a norm, to sums.

    Args:
        sums: One a parameter, float32.
        gradients: Of every row, (rows, ...) each; none of a parameter that has none.
        scales: What each row's is multiplied with before it is clipped, (rows,).
        clip: The most that one may be long, over all parameters together.

    Returns:
        How long they were, (rows,) float64; a row of which that is not finite was left out.
    """
    there = [(total, own) for total, own in zip(sums, gradients, strict=True) if own is not None]
    found = norms_of_rows([own for _, own in there]) * scales
    factors = scales * (clip / found.clamp(min=SHORTEST)).clamp(max=1.0)
    factors = torch.where(found.isfinite(), factors, 0.0).float()
    for total, own in there:
        _add(total, own, factors)
    return found

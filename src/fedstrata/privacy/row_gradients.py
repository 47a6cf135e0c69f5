"""The gradient of every row of a batch at once, by the hooks of Opacus, where they are known to be right.

They are for plain layers that run once in a forward pass, each row by itself. Where something else trains
(embeddings, DoRA's magnitudes), a layer is used twice (DeBERTa's shared keys, tied weights) or runs again in
the backward pass (checkpointing), the caller takes one row after the other instead.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import Parameter

BYTES_AT_A_TIME = 2**28
"""Gradients of single rows that are there at a time: 256 MiB."""


SHORTEST = 1e-38
"""In place of the norm of a gradient that is zero, by which one would divide."""


def rows_at_a_time(parameters: Sequence[Parameter]) -> int:
    """Returns of how many rows the gradients may be there at a time; below 2 nothing is gained."""
    return BYTES_AT_A_TIME // (4 * max(1, sum(parameter.numel() for parameter in parameters)))


def hookable(module: nn.Module, parameters: Sequence[Parameter]) -> bool:
    """Returns whether all that trains belongs to plain layers, each parameter to one of them.

    Args:
        module: The model, of which nothing else requires a gradient.
        parameters: What trains.
    """
    owners = _owners(module)
    owned = [id(own) for layer in owners for own in layer.parameters(recurse=False) if own.requires_grad]
    plain = all(_is_plain(layer) for layer in owners)
    return plain and len(owned) == len(set(owned)) and set(owned) == {id(own) for own in parameters}


def _owners(module: nn.Module) -> list[nn.Module]:
    """Returns the layers that have parameters of their own that train."""
    every = ((layer, layer.parameters(recurse=False)) for layer in module.modules())
    return [layer for layer, own in every if any(parameter.requires_grad for parameter in own)]


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer is linear or a norm: of a few parameters, and nothing inside or beside them."""
    is_norm = all(own.ndim == 1 for own in layer.parameters(recurse=False))
    name = type(layer).__name__
    is_linear = name in {"Linear", "NonDynamicallyQuantizableLinear", "Conv1D"}  # the last: GPT-2's
    bare = not list(layer.children()) and not list(layer.buffers())
    return bare and (is_linear or (is_norm and name.endswith("Norm")))


class RowHooks:
    """The hooks of a model; made by `row_hooks`.

    Args:
        layers: The layers that have what trains.
        parameters: What trains.
    """

    def __init__(self, layers: Sequence[nn.Module], parameters: Sequence[Parameter]) -> None:
        self._parameters = parameters
        self._runs: Counter[nn.Module] = Counter()
        self.handles = [layer.register_forward_hook(self._count) for layer in layers]

    def _count(self, layer: nn.Module, given: object, output: object) -> None:
        self._runs[layer] += 1

    def take(self) -> list[Tensor | None] | None:
        """Returns each parameter's gradient of every row, (rows, ...), and forgets it.

        Returns:
            None in place of a gradient where a layer did not run; none at all where one ran more than once,
            forward or for the backward pass, and the hooks may be wrong.
        """
        once = all(count == 1 for count in self._runs.values())
        self._runs.clear()
        taken: list[Tensor | None] = []
        for parameter in self._parameters:
            taken.append(parameter.grad_sample)  # type: ignore[attr-defined]
            parameter.grad_sample = parameter.grad = None  # type: ignore[attr-defined]
        return taken if once else None


@contextmanager
def row_hooks(module: nn.Module, parameters: Sequence[Parameter]) -> Iterator[RowHooks]:
    """Lets the backward pass of a summed loss leave the gradient of every row, within the block.

    Args:
        module: A model that is `hookable`.
        parameters: What trains.
    """
    from opacus.grad_sample.grad_sample_module import GradSampleHooks  # noqa: PLC0415 - an extra

    modes = [(layer, layer.training) for layer in _owners(module)]
    hooks = GradSampleHooks(module, strict=False, loss_reduction="sum")
    own = RowHooks([layer for layer, _ in modes], parameters)
    try:
        for layer, _ in modes:  # they listen to layers in training only, and these do the same in either mode
            layer.training = True
        with warnings.catch_warnings():
            # The lowest layer that trains has no input that requires a gradient, which is as it should be.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            yield own
    finally:
        hooks.cleanup()
        for handle in own.handles:
            handle.remove()
        for layer, training in modes:
            layer.training = training


@torch.no_grad()
def add_clipped_rows(
    sums: Sequence[Tensor], gradients: Sequence[Tensor | None], scales: Tensor, clip: float
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
    norms = [torch.linalg.vector_norm(own.flatten(1), dim=1, dtype=torch.float64) for _, own in there]
    lengths: Tensor = torch.stack(norms).norm(dim=0) * scales
    finite = lengths.isfinite()
    factors = (scales * (clip / lengths.clamp(min=SHORTEST)).clamp(max=1.0))[finite].float()
    for total, own in there:
        usable = own if bool(finite.all()) else own[finite]
        total.add_(torch.tensordot(factors, usable.float(), dims=1))
    return lengths

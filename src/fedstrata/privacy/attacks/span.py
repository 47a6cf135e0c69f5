"""Reading texts out of what the weight of one linear layer has changed by, knowing what lies below it.

The gradient of such a weight is a sum over tokens: what comes back to the layer times what the layer read. Of
an update that is made of fewer tokens than the input is wide, the row space is therefore the span of those
inputs. The input of a token that was trained on lies in it, and that of another token does not. In a causal
model an input depends on its token and those before it alone, so that whoever runs the public and frozen
blocks below finds texts token by token, and exactly. Only the space counts: the change after several steps of
SGD serves as well, and so does a sum over sites. What weight decay takes off is a multiple of weights that
the server knows, and is put back. Adam divides every number by its own size, and noise fills all directions:
both leave no such space.

Source: Petrov et al., "DAGER: Exact Gradient Inversion for Large Language Models", NeurIPS 2024, for the
first blocks of a model that trains whole; here for the lowest block that trains, through those frozen below.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from fedstrata.models.blocks import block_modules
from fedstrata.models.state import Model

LEAST_GAP = 10.0
"""Singular values of a space are at least this many times those of what is left, where there is a gap."""
ABOVE_FLOOR, LEAST_HEIGHT, FULLEST_WITHOUT_GAP = 3.0, 1e3, 0.75
"""Where there is none, since inputs moved from step to step: those of a space are this many times as large as
the floor that rounding leaves, which most of them lie at, the largest one is far above it, and they are no
more than this share of all."""
FULLEST = 0.95
"""Of all directions so many may be read: the last singular value of any matrix is small."""
SMALLEST = 1e-12
_SETTLED = 1e-9
"""What is found anew of it as a share of all of it, where looking on changes nothing."""
_TIMES, _UNREAD = 20, (0.0, 0.5, 0.2)
"""How often what weight decay took off is looked for, and by which shares of all directions; 0: not."""


class ReachedError(Exception):
    """The layer was reached, and what lies above it need not run."""


@dataclass(frozen=True, slots=True)
class Span:
    """The space of what a layer has read.

    Attributes:
        basis: Orthonormal, (width, rank) float64.
        gap: The last singular value of the space by the first one that is left out.
    """

    basis: Tensor
    gap: float

    @property
    def rank(self) -> int:
        """Its dimensions."""
        return self.basis.shape[1]

    def distances(self, inputs: Tensor) -> Tensor:
        """Returns how far inputs lie from it, as shares of their lengths, (...) float64.

        Args:
            inputs: (..., width).
        """
        inputs = inputs.double()
        apart = inputs - (inputs @ self.basis) @ self.basis.T
        shares: Tensor = apart.norm(dim=-1) / inputs.norm(dim=-1).clamp(min=SMALLEST)
        return shares


@dataclass(frozen=True, slots=True)
class Reader:
    """The linear layers of a block that read one and the same input, and whose weights travel.

    Those of queries alone do not tell of a text's first token: what attends to itself alone has no choice.

    Attributes:
        layers: Them, by the names of their weights; in the order in which they run.
        alone: Whether what they read of a token depends on it and its place alone, as in a first block.
        width: Numbers that they read of each token.
    """

    layers: Mapping[str, nn.Module]
    alone: bool
    width: int

    @property
    def directions(self) -> int:
        """How many dimensions the change of their weights can have: low-rank adapters have few rows."""
        return min(self.width, sum(own.shape[0] for own in self._weights()))

    def span_of(self, change: Mapping[str, Tensor]) -> Span | None:
        """Returns the space of what they have read; none if that fills all directions.

        Args:
            change: By the names of weights, which the layers hold as they were before.
        """
        spans = [span_of(self._rows(change, part)) for part in _UNREAD]
        return max((own for own in spans if own is not None), key=lambda own: own.gap, default=None)

    def inputs(self, run: Callable[[], Any]) -> Tensor:
        """Returns what they read while something runs that reaches them, (rows, tokens, width)."""
        seen: list[Tensor] = []

        def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen.append(inputs[0].detach())
            raise ReachedError

        hook = next(iter(self.layers.values())).register_forward_pre_hook(keep)
        try:
            with suppress(ReachedError):
                run()
        finally:
            hook.remove()
        return seen.pop()

    def _weights(self) -> list[Tensor]:
        """Returns their weights, (outputs, width) each."""
        return [_upright(own, own.get_parameter("weight").detach()) for own in self.layers.values()]

    def _rows(self, change: Mapping[str, Tensor], unread: float) -> Tensor:
        """Returns the changes of their weights, (outputs, width) float64, those of each layer as long."""
        weights = self._weights()
        found = torch.cat([_upright(own, change[name]).double() for name, own in self.layers.items()])
        if unread:
            found = undecayed(found, torch.cat(weights).double(), unread)
        own = torch.split(found, [len(each) for each in weights])
        return torch.cat([each / each.norm().clamp(min=SMALLEST) for each in own])


def _upright(module: nn.Module, weight: Tensor) -> Tensor:
    return weight.T if isinstance(module, Conv1D) else weight


def undecayed(change: Tensor, weight: Tensor, unread: float) -> Tensor:
    """Returns what weights have changed by without what weight decay has taken off.

    In directions in which nothing was read a change is a multiple of the weight and nothing else. Those are
    taken for such in which it is smallest; each time less of what was read is left in them. Where there are
    fewer outputs than inputs, those are directions of outputs.

    Args:
        change: (outputs, width) float64; of one layer, or of several that one rate and decay are of.
        weight: As it was before, of the same shape.
        unread: The share of directions that are taken for such.
    """
    if change.shape[0] < change.shape[1]:
        return undecayed(change.T, weight.T, unread).T
    left, off = change, 0.0
    for _ in range(_TIMES):
        least = torch.linalg.eigh(left.T @ left).eigenvectors[:, : max(1, int(unread * left.shape[1]))]
        one, other = left @ least, weight @ least
        part = float((one * other).sum() / (other * other).sum().clamp(min=SMALLEST))
        left, off = left - part * weight, off + part
        if abs(part) <= _SETTLED * abs(off):
            break
    return left


def readers_of(model: Model, names: Collection[str]) -> Iterator[Reader]:
    """Yields the layers of the lowest block that trains, from below; what they read can be computed.

    Where that is the first block, into which each token comes by itself, those of the next one follow.

    Args:
        model: The model, with the values of the plan.
        names: What an update holds.
    """
    paths = {module: name for name, module in model.module.named_modules()}
    found: list[Reader] = []
    for block in block_modules(model.module, model.layout):
        group = {
            f"{paths[module]}.weight": module
            for module in block.modules()
            if isinstance(module, nn.Linear | Conv1D) and f"{paths[module]}.weight" in names
        }
        found += _read_in(model, group) if group else []
        if any(not own.alone for own in found[:1]) or len({own.alone for own in found}) == 2:
            break
    yield from found


def _read_in(model: Model, modules: Mapping[str, nn.Module]) -> list[Reader]:
    """Returns some layers in the order in which they run, those together that read the same."""
    read: dict[str, Tensor] = {}

    def keep(name: str, own: Tensor) -> None:
        read[name] = own

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: keep(name, inputs[0]))
        for name, module in modules.items()
    ]
    try:
        with torch.inference_mode():
            model.module(input_ids=torch.tensor([[0, 0], [1, 0]], device=model.device))
    finally:
        for hook in hooks:
            hook.remove()
    groups: dict[int, dict[str, nn.Module]] = {}
    for name, own in read.items():
        groups.setdefault(id(own), {})[name] = modules[name]
    inputs = {id(own): own for own in read.values()}
    # One token behind two others.
    return [
        Reader(layers, torch.equal(inputs[key][0, 1], inputs[key][1, 1]), inputs[key].shape[-1])
        for key, layers in groups.items()
    ]


def span_of(rows: Tensor) -> Span | None:
    """Returns the space that the rows of a change span; none if they fill all directions.

    Args:
        rows: (outputs, width) float64.
    """
    _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
    if len(sizes) < 2 or not bool(sizes.isfinite().all()) or not sizes[0]:
        return None
    least = float(sizes[0]) * torch.finfo(torch.float64).eps
    kept = sizes.clamp(min=least)
    gaps = (kept[:-1] / kept[1:])[: int(FULLEST * len(sizes))]
    floor = float(kept[len(sizes) // 2 :].median())
    wide = torch.nonzero(gaps >= LEAST_GAP).flatten()
    rank = int(wide[-1]) + 1 if len(wide) else 0  # below the last one is rounding alone
    if not rank:
        rank = int((kept > ABOVE_FLOOR * floor).sum())
        if float(kept[0]) < LEAST_HEIGHT * floor or rank > FULLEST_WITHOUT_GAP * len(sizes):
            return None
    return Span(directions[:rank].T.contiguous(), float(gaps[rank - 1]))

"""Adapters of several ranks or widths in one federation: cut to a device's size, and padded back.

An adapter of rank r (LoRA) or width r (bottleneck) is one of a larger rank whose last rows and columns are
zero: it computes the same, and training leaves the zeros alone, since each factor's gradient is a multiple of
the other. So one model serves devices of every rank, and only what is sent is cut.
"""

import math
from collections.abc import Iterable, Mapping
from typing import cast

import torch
from torch import Tensor

from fedstrata.core.errors import Problem
from fedstrata.core.preflight import Facts
from fedstrata.core.seeding import Seed
from fedstrata.core.types import AdapterSize, ClientInfo, State

_AXES = {"lora_A": 0, "lora_B": 1, "bottleneck_down": 0, "bottleneck_up": 1}
"""Which axis of a tensor is the rank; the bias of `bottleneck_up` has none."""


def rank_axis(name: str, tensor: Tensor) -> int | None:
    """Returns the axis of a parameter that its adapter's rank is the length of; none if it has none."""
    axis = _AXES.get(adapter_part(name))
    return axis if axis is not None and axis < tensor.ndim else None


def adapter_part(name: str) -> str:
    """Returns which part of an adapter a parameter is, `lora_A` for one; empty if it is of none."""
    return next((part for part in _AXES if f".{part}." in name), "")


def is_first_factor(name: str) -> bool:
    """Whether a parameter is the A of a LoRA, which the input of its layer meets first."""
    return ".lora_A." in name


def is_lora(name: str) -> bool:
    """Whether a parameter is the A or the B of a LoRA, and no part of a task head."""
    return is_first_factor(name) or ".lora_B." in name


def largest_rank(tensors: Mapping[str, Tensor]) -> int:
    """Returns the largest rank (or width) of any adapter among these parameters."""
    axes = ((tensor, rank_axis(name, tensor)) for name, tensor in tensors.items())
    return max(tensor.shape[axis] for tensor, axis in axes if axis is not None)


def beyond_adapter(facts: Facts, setting: str, asked: int, size: str) -> list[Problem]:
    """Returns the problem that a method's setting asks for a larger rank, or width, than the adapter has.

    Args:
        facts: What is known of the run.
        setting: The setting of the method.
        asked: What it asks for, at most.
        size: What the adapter calls it, `rank` or `width`.
    """
    largest = asked if facts.adapter is None else int(getattr(facts.adapter, size))
    if asked <= largest:
        return []
    return [
        Problem(
            f"method.{setting}",
            f"must be at most adapter.{size}, {largest}, not {asked}",
            code="out_of_range",
        )
    ]


def of_several_sizes(method: str) -> str:
    """Returns what a plan says of a method whose clients send adapters of several ranks or widths."""
    return (
        f"with {method} clients send adapters of several sizes, which the run decides: bytes and times are "
        "those of the two clients that were rehearsed"
    )


def draw_ranks(state: State, clients: Iterable[ClientInfo], rng: Seed) -> dict[str, int]:
    """Returns the rank of every client, drawn for those that have none yet.

    Args:
        state: Its values say the ranks drawn before, `_ranks`, and those to draw from, `_choice`.
        clients: Those that need one.
        rng: Seed of the draw.
    """
    ranks = dict(cast("dict[str, int]", state.values["_ranks"]))
    choice = cast("list[int]", state.values["_choice"])
    for client in clients:
        if client.id not in ranks:
            ranks[client.id] = choice[int(rng.child("rank", client.id).numpy().integers(len(choice)))]
    return ranks


def cut(tensors: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """Returns the first ranks of every adapter; what has no rank as it is. No copy: views.

    Args:
        tensors: By parameter name.
        rank: How many are kept, at most those there are.
    """
    kept = dict(tensors)
    for name, tensor in tensors.items():
        axis = rank_axis(name, tensor)
        if axis is not None:
            kept[name] = tensor.narrow(axis, 0, min(rank, tensor.shape[axis]))
    return kept


def pad(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns tensors in the shapes of others, with zeros for the ranks that they lack.

    Args:
        tensors: By parameter name, cut.
        like: The same parameters in their whole size.
    """
    whole = {
        name: tensor
        if tensor.shape == like[name].shape
        else torch.zeros(like[name].shape, dtype=tensor.dtype)
        for name, tensor in tensors.items()
    }
    return written(whole, tensors)


def written(whole: Mapping[str, Tensor], part: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns parameters with the first of their ranks replaced; other parameters are replaced as they are.

    Args:
        whole: By parameter name, in their whole size; copied where a part of one is replaced.
        part: Some of the same parameters, cut or not; rounded to the dtype they had.
    """
    result = dict(whole)
    for name, tensor in part.items():
        before, axis = whole[name], rank_axis(name, whole[name])
        if axis is None or tensor.shape == before.shape:
            result[name] = tensor.to(before.dtype)
            continue
        result[name] = before.clone()
        result[name].narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
    return result


def held(name: str, tensor: Tensor, size: AdapterSize | None) -> float:
    """Returns the share of a parameter that a device has whose adapters may be smaller than the model's.

    Args:
        name: The parameter's name.
        tensor: The parameter in its whole size.
        size: How much of the adapters the device has; all of them if none.
    """
    if size is None:
        return 1.0
    if name in size.absent:
        return 0.0
    axis = rank_axis(name, tensor)
    return 1.0 if axis is None else min(size.rank, tensor.shape[axis]) / tensor.shape[axis]


def tails(tensors: Mapping[str, Tensor], start: int, end: int) -> list[tuple[Tensor, Tensor]]:
    """Returns, of every LoRA, the columns of B and the rows of A of some ranks, as views.

    Args:
        tensors: By parameter name.
        start: The first of the ranks.
        end: One past the last.
    """
    return [
        (second[:, start:end], tensors[name][start:end]) for name, second in _partners(tensors) if end > start
    ]


def product_norm(tensors: Mapping[str, Tensor]) -> float:
    """Returns the Frobenius norm of all products B A together (HetLoRA, section 3.2).

    ||B A||^2 is the trace of (B^T B)(A A^T), so no product of the size of a weight is ever made.
    """
    total = 0.0
    for name, second in _partners(tensors):
        first = tensors[name].float()
        total += float(((second.float().T @ second.float()) * (first @ first.T)).sum())
    return math.sqrt(max(total, 0.0))


def _partners(tensors: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
    """Yields the name of each A with its B."""
    for name in tensors:
        if is_first_factor(name):
            yield name, tensors[name.replace(".lora_A.", ".lora_B.")]

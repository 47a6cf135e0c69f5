"""Which blocks are merged: the best of each group of equal blocks, at random, or none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias, cast

import numpy as np
from pydantic import Field

from fedstrata.core.model import Model
from fedstrata.core.settings.base import Count, Fraction, Part, Settings
from fedstrata.core.types import Tensors


class Schedule(Settings):
    """Portions in turn: the next when the loss has not fallen by `threshold` for `patience` rounds.

    The paper's rule can be read in two ways, between which `waiting` chooses.
    """

    portions: Annotated[list[Fraction], Field(min_length=1)] = Field(
        default_factory=lambda: [0.75, 0.5, 0.25],
        description="Fractions of the blocks that are merged, in order.",
    )
    patience: Count = Field(default=10, description="Rounds without improvement before the next portion.")
    threshold: Part = Field(default=0.01, description="Minimum relative improvement of the loss.")
    waiting: Literal["since_best", "in_a_row"] = Field(
        default="since_best",
        description="`since_best` compares the loss with that of the last improvement; `in_a_row` with "
        "that of the previous round, so a slow and steady improvement moves to the next portion too.",
    )


def equal_blocks(blocks: Sequence[Sequence[str]], tensors: Tensors) -> list[list[int]]:
    """Groups blocks whose tensors have the same shapes in the same order (FedTLU, Algorithm 1, line 13)."""
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for index, names in enumerate(blocks):
        groups.setdefault(tuple(tuple(tensors[name].shape) for name in names), []).append(index)
    return list(groups.values())


Scored: TypeAlias = Literal["all", "matrices", "small"]
"""Which tensors of a block count in its score; small: biases and norms."""


def scored_tensors(blocks: Sequence[Sequence[str]], tensors: Tensors, scored: Scored = "all") -> list[str]:
    """Returns the names of the blocks' tensors that count in a score, of more than one number each."""
    return [
        name
        for block in blocks
        for name in block
        if tensors[name].numel() > 1 and scored in ("all", "matrices" if tensors[name].dim() > 1 else "small")
    ]


def tied_head(model: Model) -> list[str]:
    """Returns the name of the output embedding where it is the input embedding too; else none."""
    output = cast("Any", model.module).get_output_embeddings()
    tied = {id(parameter) for parameter in output.parameters()} if output is not None else set()
    embedding = zip(model.layout.embedding, model.parameters(model.layout.embedding), strict=True)
    return [name for name, parameter in embedding if id(parameter) in tied]


def kept_count(portion: float, blocks: int) -> int:
    """Returns S, how many blocks of a group are merged: a share of them, rounded half up, at least 1.

    Example:
        >>> kept_count(0.75, 6), kept_count(0.25, 6)
        (5, 2)
    """
    return max(1, math.floor(portion * blocks + 0.5))


def best_blocks(scores: Sequence[float], groups: Sequence[Sequence[int]], portion: float) -> list[int]:
    """Returns the blocks with the best scores of each group; of equal ones the lower.

    Example:
        >>> best_blocks([2.0, 5.0, 2.0, 1.0], [[0, 1, 2, 3]], 0.5)
        [0, 1]
    """
    best: list[int] = []
    for group in groups:
        ranked = sorted(group, key=lambda block: (-scores[block], block))
        best += ranked[: kept_count(portion, len(group))]
    return sorted(best)


def random_blocks(groups: Sequence[Sequence[int]], portion: float, rng: np.random.Generator) -> list[int]:
    """Returns as many blocks of each group, drawn without replacement."""
    drawn = [
        int(index)
        for group in groups
        for index in rng.choice(group, size=kept_count(portion, len(group)), replace=False)
    ]
    return sorted(drawn)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a schedule stands that steps a portion down when the loss no longer falls (FedTLU, section V.B).

    Attributes:
        step: Which portion holds, counted from 0.
        loss: The loss to fall below, with `in_a_row` that of the round before; none before the first round.
        waited: Rounds since it last fell.
    """

    step: int = 0
    loss: float | None = None
    waited: int = 0

    def after(self, loss: float, schedule: Schedule) -> Progress:
        """Returns the progress after a round.

        Args:
            loss: The clients' mean training loss in the round.
            schedule: The schedule, of which the last portion is kept.

        Example:
            >>> Progress(loss=1.0, waited=1).after(0.995, Schedule(patience=2))
            Progress(step=1, loss=0.995, waited=0)
        """
        if self.loss is None or loss < self.loss * (1.0 - schedule.threshold):
            return replace(self, loss=loss, waited=0)
        if self.waited + 1 < schedule.patience:
            goal = loss if schedule.waiting == "in_a_row" else self.loss
            return replace(self, loss=goal, waited=self.waited + 1)
        return Progress(min(self.step + 1, len(schedule.portions) - 1), loss, 0)

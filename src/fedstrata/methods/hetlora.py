"""HetLoRA: low-rank adapters of a rank for each device, cut to it on the way down and padded on the way up.

Source: Cho et al. 2024, "Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models",
    section 3: local training with rank self-pruning, sparsity-weighted aggregation, truncation; the
    "FedHetLoRA" rows of DropPEFT.
Travels: the first r_k rows of A and columns of B of every adapted layer and the task head, both ways.
Server half: the mean of the updates, padded with zeros to the largest rank and weighted by ||B_k A_k||_F;
    `weighting: examples` weighs by training examples. Ranks that no device of the round has stay as they
    were. Needs single updates: their shapes differ.
Client half: local training at its rank. With `prune` a penalty on the last ranks, lambda ||B|| ||A|| of
    their part, is added to the loss, and they are given up for good when these norms have fallen in a round.
Reduces to: FedLoRA with equal ranks, no pruning and `weighting: examples`.
Deviations: a device's rank is drawn once from `ranks`, where the paper goes by its resources. All ranks share
    one scale, alpha / the largest rank, so that a padded adapter computes what the device's does. The head is
    averaged with the same weights.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field
from torch import Tensor

from fedstrata.adapters.rank import (
    beyond_adapter,
    cut,
    draw_ranks,
    largest_rank,
    of_several_sizes,
    pad,
    product_norm,
    tails,
    written,
)
from fedstrata.aggregate.mean import StreamingMean
from fedstrata.core.client import Client
from fedstrata.core.cohort import Cohort
from fedstrata.core.errors import FrameError, Problem
from fedstrata.core.method import Method
from fedstrata.core.model import Layout, Model
from fedstrata.core.preflight import Facts
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Count, Positive, Settings
from fedstrata.core.types import JSON, ClientInfo, Plan, State, Tensors, Update, whole_number
from fedstrata.train.local import fit, update_of
from fedstrata.train.work import adapter_of


class PruneSettings(Settings):
    """How devices give up ranks."""

    keep: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        default=0.85, description="Fraction of its rank that a client keeps when it prunes (gamma)."
    )
    penalty: Positive = Field(
        default=5e-3, description="Weight of the norms of the last ranks in the loss (lambda)."
    )


_LARGEST_NORM = 1e18
"""Of adapters; a mean that one of more is in would overflow."""


class HetLoRA(Method):
    """The method; see the module's docstring. `adapter.rank` is the largest that there is."""

    name: Literal["hetlora"] = "hetlora"
    ranks: Annotated[list[Count], Field(min_length=1)] | None = Field(
        default=None,
        description="Ranks that clients draw from; if null, a quarter of `adapter.rank`, half of it and "
        "all of it.",
    )
    prune: PruneSettings | None = Field(
        default=None, description="Let clients prune ranks: {keep: 0.85, penalty: 0.005}."
    )
    weighting: Literal["norm", "examples"] = Field(
        default="norm",
        description="Weight of a client: the norm of its adapters, or its number of training examples.",
    )
    travels: ClassVar[str] = "low-rank adapters at each device's rank and the head, both ways"
    adapters: ClassVar[tuple[str, ...]] = ("lora",)
    told_privately: ClassVar[tuple[str, ...]] = ("rank",)  # made of noised adapters
    cautions: ClassVar[tuple[str, ...]] = (of_several_sizes("hetlora"),)  # ranks are drawn, and given up

    def problems(self, facts: Facts) -> list[Problem]:
        """A rank is larger than the adapter's."""
        return beyond_adapter(facts, "ranks", max(self.ranks or [0]), "rank")

    def not_private(self, mechanism: str) -> str:
        """Of noised adapters a device's norm and the ranks that it gives up may be known."""
        return "its server half weighs every device's update by itself" if mechanism == "central" else ""

    def not_summed(self) -> str:
        """Norms and ranks are each device's."""
        return "its server half weighs every device's update by itself; use fedlora"

    def start(self, model: Model) -> State:
        """The adapter at its largest rank, and the head."""
        tensors = model.snapshot(model.layout.all)
        largest = largest_rank(tensors)
        ranks = self.ranks or sorted({max(1, largest // 4), max(1, largest // 2), largest})
        values: dict[str, Any] = {"_choice": list(ranks), "_ranks": {}}
        return State(tensors, values)

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Averages padded adapters."""
        ranks = draw_ranks(state, cohort.clients, rng)

        def plan_of(client: ClientInfo) -> Plan:
            return Plan(cut(state.tensors, ranks[client.id]), {"rank": ranks[client.id]})

        mean, used = StreamingMean(), {}
        for client, update in cohort.each("train", plan_of):
            weight = update.weight
            if self.weighting == "norm":
                weight = max(product_norm(update.tensors), 1e-12)  # of an adapter that did not move
                if not weight <= _LARGEST_NORM:
                    told = f"its adapters have a norm of {weight:g}, beyond {_LARGEST_NORM:g}"
                    cohort.reject(client.id, FrameError(told, code="out_of_range"))
                    continue
            used[client.id], ranks[client.id] = ranks[client.id], cast("int", update.values["rank"])
            mean.add(Update(pad(update.tensors, state.tensors), weight=weight))
        # Ranks that no device of the round has keep their values: set to zero they could never train again.
        covered = max((ranks[client] for client in used), default=0)
        merged = written(state.tensors, cut(mean.finish().tensors, covered))
        values = {**state.values, "_ranks": dict[str, JSON](ranks), "ranks": dict[str, JSON](used)}
        return State(merged, values)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains at the device's rank, and gives up ranks that have become small."""
        model, names = client.model, client.model.layout.all
        rank = cast("int", plan.values["rank"])
        model.load(pad(plan.tensors, model.tensors(names)))
        adapter_of(client, rank)
        # A device with a single rank keeps it.
        start = max(1, int(rank * self.prune.keep)) if self.prune else rank
        penalty = _Penalty(model, start, rank, self.prune.penalty) if self.prune and start < rank else None
        loss = fit(client, names, rng, penalty=penalty.add if penalty else None)
        if penalty and penalty.has_fallen():
            rank = start
        sent = cut(model.tensors(names), rank)
        facts: dict[str, JSON] = {"loss": loss, "rank": rank}
        return update_of(client, sent, facts)

    def sends(
        self, handler: str, plan: Plan, values: Mapping[str, JSON], trained: Tensors, layout: Layout
    ) -> Tensors:
        """The adapter at the device's rank, of which it may have given up some, and the head."""
        largest = cast("int", plan.values["rank"])
        return cut(trained, whole_number(values.get("rank"), "rank", 1, largest))


class _Penalty:
    """The penalty on the last ranks of every adapter.

    Args:
        model: The device's.
        start: The first of these ranks.
        rank: One past the last.
        weight: Lambda.
    """

    def __init__(self, model: Model, start: int, rank: int, weight: float) -> None:
        self._model, self._start, self._rank, self._weight = model, start, rank, weight
        self._names = [name for block in model.layout.blocks for name in block]
        self._pairs = tails(model.tensors(self._names), start, rank)  # columns of B and rows of A, live
        self._before = _size(self._pairs)

    def add(self) -> None:
        """Adds the penalty's gradient: of ||B|| ||A|| by B it is B ||A|| / ||B||, and the same by A."""
        live = zip(self._names, self._model.parameters(self._names), strict=True)
        gradients = {name: cast("Tensor", parameter.grad) for name, parameter in live}
        own = tails(gradients, self._start, self._rank)
        for (second, first), (second_grad, first_grad) in zip(self._pairs, own, strict=True):
            left, right = float(second.norm()), float(first.norm())
            if left > 0 and right > 0:
                second_grad.add_(second, alpha=self._weight * right / left)
                first_grad.add_(first, alpha=self._weight * left / right)

    def has_fallen(self) -> bool:
        """Whether the ranks have become smaller, so that they are given up."""
        return _size(self._pairs) < self._before


def _size(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """Returns the sum of ||B|| ||A|| over some pairs."""
    return sum(float(second.norm()) * float(first.norm()) for second, first in pairs)

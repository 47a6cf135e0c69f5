"""FLoRA: clients' low-rank products are summed exactly, by stacking, and merged into everybody's weights.

Source: Wang et al. 2024, "FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank
    Adaptations", section 3.
Travels: up, A and B of every adapted layer at the client's rank and the task head. Down, the head, and the
    stacks of all rounds since the client last took part, each as large as the adapters of all clients of its
    round: it grows with their number. In the first round nothing of an adapter. A client that missed so many
    rounds that their stacks are larger than the adapted weights is sent these weights in their place.
Server half: stacks all A_k, and all B_k times p_k = n_k / sum n, and adds scale B A of the stacked factors to
    the weights, which is the weighted sum of the clients' products. The head is averaged with the same p_k.
    Needs single updates, all those of a round at once. No secure aggregation, which hides all but the sum.
Client half: adds what it was sent to its weights, which it keeps in its store; local training of a fresh
    adapter, A random and B zero, and of the head.
Reduces to: plain LoRA when there is one client and one round.
Deviations: with `ranks` clients draw ranks at random, and all have one scale, alpha / the largest rank. That
    weights are sent in place of many stacks is ours.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field
from torch import Tensor

from fedstrata.adapters.rank import (
    beyond_adapter,
    cut,
    draw_ranks,
    is_lora,
    largest_rank,
    of_several_sizes,
    pad,
)
from fedstrata.adapters.stack import AdaptedLayer, adapted_layers, fresh, stacked, with_product
from fedstrata.aggregate.mean import StreamingMean, replace
from fedstrata.core.client import Client
from fedstrata.core.cohort import Cohort
from fedstrata.core.errors import Problem, refused
from fedstrata.core.model import Layout, Model
from fedstrata.core.preflight import Facts, Growth
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Count
from fedstrata.core.types import JSON, ClientInfo, Message, Plan, State, Tensors, Update
from fedstrata.methods.averaging import LocalTraining
from fedstrata.methods.medlora import USUAL_ADAPTER
from fedstrata.train.work import adapter_of

STACK = "round {}/"
"""Before the name of an A or a B: that of all clients of a round, stacked."""


class FLoRA(LocalTraining):
    """The method; see the module's docstring. `adapter.rank` is the largest that there is."""

    name: Literal["flora"] = "flora"
    ranks: Annotated[list[Count], Field(min_length=1)] | None = Field(
        default=None,
        description="Ranks that clients draw from; `adapter.rank` for all if null.",
    )
    travels: ClassVar[str] = "low-rank adapters up; those of all clients, stacked, down; the head both ways"
    adapters: ClassVar[tuple[str, ...]] = ("lora",)
    usual_adapter: ClassVar[Mapping[str, float]] = USUAL_ADAPTER

    @property
    def cautions(self) -> tuple[str, ...]:
        """Ranks may be drawn."""
        return () if self.ranks is None else (of_several_sizes(self.name),)

    def problems(self, facts: Facts) -> list[Problem]:
        """A rank is larger than the adapter's, or nothing can be added to the weights."""
        if facts.model is None:
            return []
        if wrong := beyond_adapter(facts, "ranks", max(self.ranks or [0]), "rank"):
            return wrong
        adds = "with method flora, which adds adapters to the model's weights"
        if facts.model.quantization is not None:
            return [Problem("model.quantization", f"must be left out {adds}", code="conflict")]
        if facts.model.dtype != "float32":
            message = f"must be float32 {adds}: {facts.model.dtype} would round most of a sum away"
            return [Problem("model.dtype", message, code="conflict")]
        return []

    def not_private(self, mechanism: str) -> str:
        """Clients train as in any method; the server stacks their adapters one by one."""
        return "its server half stacks every client's adapters" if mechanism == "central" else ""

    def not_summed(self) -> str:
        """What is stacked is not summed."""
        return "its server half stacks every client's adapters; use fedlora"

    def held_updates(self, updates: int, size: int) -> tuple[int, int]:
        """All of a round, which are stacked."""
        return updates, 0

    def growth(
        self,
        model: Model,
        sizes: Mapping[str, int],
        sampled: Sequence[Sequence[str]],
        delivered: Sequence[Sequence[str]],
    ) -> Growth:
        """The stacks that clients lack, each as large as the adapters of all clients of its round.

        Where they are larger than the adapted weights, these are sent in their place, and a client stores its
        weights in every turn before which something was merged.
        """
        adapter = sum(size for name, size in sizes.items() if is_lora(name))
        layers = model.parameters([layer.weight for layer in adapted_layers(model.module)])
        weights = sum(own.nbytes for own in layers)
        kept: dict[int, int] = {}  # by the number of the merged round
        held: dict[str, int] = {}
        merged, sent, writes = 0, [], Counter[str]()
        for clients, there in zip(sampled, delivered, strict=True):
            missing = [range(held.get(client, 0) + 1, merged + 1) for client in clients]
            stacks = (
                sum(kept[number] for number in own) if all(number in kept for number in own) else weights
                for own in missing
            )
            sent.append(sum(stacks))
            if merged:
                writes.update(there)
            if there:
                held |= dict.fromkeys(there, merged)
                merged += 1
                kept[merged] = adapter * len(there)
                while sum(kept.values()) > weights:
                    del kept[min(kept)]
        return Growth(tuple(sent), sum(kept.values()), writes)

    def start(self, model: Model) -> State:
        """The adapted weights, to which adapters will be added, and the head.

        Raises:
            ConfigurationError: The weights are quantised.
        """
        layers = adapted_layers(model.module)
        tensors = model.snapshot([layer.weight for layer in layers])
        if not all(weight.is_floating_point() for weight in tensors.values()):
            message = "flora adds adapters to the model's weights, which cannot be quantised for that"
            raise refused("method.name", message, "conflict")
        head = [name for name in model.layout.all if not is_lora(name)]
        values: dict[str, Any] = {
            "_layers": [asdict(layer) for layer in layers],
            "_choice": list(self.ranks or [largest_rank(model.tensors(model.layout.all))]),
            "_ranks": {},
            "_merged": 0,
            "_held": {},
        }
        return State(tensors | model.snapshot(head), values)

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Stacks the adapters of the round and adds their product to the weights."""
        server, ranks = _Server(state), draw_ranks(state, cohort.clients, rng)
        head, adapters = StreamingMean(), {}
        for client, update in cohort.each("train", lambda client: server.plan(client, ranks[client.id])):
            rest = {name: tensor for name, tensor in update.tensors.items() if not is_lora(name)}
            head.add(Update(rest, weight=update.weight))
            own = {name: tensor.clone() for name, tensor in update.tensors.items() if is_lora(name)}
            adapters[client.id] = (update.weight, own)
        total = sum(weight for weight, _ in adapters.values())
        stack = stacked([(weight / total, own) for weight, own in adapters.values()])
        merged = {
            layer.weight: with_product(state.tensors[layer.weight], stack, layer) for layer in server.layers
        }
        used = {client: ranks[client] for client in adapters}
        now: dict[str, Any] = {
            "_ranks": ranks,
            "_merged": server.merged + 1,
            # A client that trained now holds what was sent to it, the weights before this round.
            "_held": server.held | dict.fromkeys(adapters, server.merged),
            "ranks": used,
            "stacked_rank": sum(used.values()),
        }
        tensors = replace(state.tensors, head.finish().tensors) | merged
        return State(server.remembered(tensors, stack), {**state.values, **now})

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Merges what came into the client's weights, and trains a fresh adapter."""
        model, rank = client.model, cast("int", plan.values["rank"])
        layers = adapted_layers(model.module)
        weights = [layer.weight for layer in layers]
        model.load({name: tensor for name, tensor in plan.tensors.items() if name in model.layout.sizes})
        for number in cast("list[int]", plan.values["stacks"]):
            stack = _stack(plan.tensors, number)
            for layer in layers:
                (weight,) = model.tensors([layer.weight]).values()
                model.load({layer.weight: with_product(weight, stack, layer)})
        whole = model.tensors([name for name in model.layout.all if is_lora(name)])
        adapter = pad(cut(fresh(whole, rng.child("adapter").torch()), rank), whole)
        adapter_of(client, rank)
        update = self.trained(Plan(adapter), client, rng)
        if model.is_changed(weights):
            client.store.write(Message(model.tensors(weights)))
        return Update(cut(update.tensors, rank), update.values, update.weight)

    def sends(
        self, handler: str, plan: Plan, values: Mapping[str, JSON], trained: Tensors, layout: Layout
    ) -> Tensors:
        """The adapter at the client's rank, and the head."""
        return cut(trained, cast("int", plan.values["rank"]))


class _Server:
    """What the server knows when a round begins.

    Args:
        state: The state.

    Attributes:
        layers: The adapted layers.
        merged: How many rounds are merged into the weights.
        held: How many of them are merged into those that a client holds; none for who holds the base.
    """

    def __init__(self, state: State) -> None:
        self._tensors = state.tensors
        self.layers = [AdaptedLayer(**each) for each in cast("list[Any]", state.values["_layers"])]
        self.merged = cast("int", state.values["_merged"])
        self.held = cast("dict[str, int]", state.values["_held"])
        self._weights = [layer.weight for layer in self.layers]

    def plan(self, client: ClientInfo, rank: int) -> Plan:
        """Returns what a client is sent: the head, and what its weights lack."""
        missing = range(self.held.get(client.id, 0) + 1, self.merged + 1)
        stacks = [_stack(self._tensors, number) for number in missing]
        news = {name: self._tensors[name] for name in self._weights}
        if there := all(stacks):
            news = {
                STACK.format(number) + name: tensor
                for number, stack in zip(missing, stacks, strict=True)
                for name, tensor in stack.items()
            }
        rest = {name: tensor for name, tensor in self._tensors.items() if not is_lora(name)}
        head = {name: tensor for name, tensor in rest.items() if name not in self._weights}
        return Plan(head | news, {"rank": rank, "stacks": [*missing] if there else []})

    def remembered(self, tensors: Mapping[str, Tensor], stack: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the new state's tensors: of the stacks the newest, as far as all are less than the weights.

        Args:
            tensors: The old state's, with new weights and head.
            stack: That of this round.
        """
        kept = {name: tensor for name, tensor in tensors.items() if not is_lora(name)}
        room = sum(tensors[name].numel() for name in self._weights)
        for number in range(self.merged + 1, 0, -1):
            own = _stack(tensors, number) if number <= self.merged else stack
            room -= sum(tensor.numel() for tensor in own.values())
            if not own or room < 0:
                break
            kept |= {STACK.format(number) + name: tensor for name, tensor in own.items()}
        return kept


def _stack(tensors: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """Returns the stack of a round by the names of its A and B; empty if it is not there."""
    prefix = STACK.format(number)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

"""FedAdaOPT: bottleneck adapters that grow deeper and wider while it pays.

Source: Cai et al. 2023, "Efficient Federated Learning for Modern NLP" (AdaFL, FedAdapter), sections 4.1 and
    4.2; the "FedAdaOPT" rows of DropPEFT.
Travels: the adapters of the top `depth` blocks at the present width, or one step more of either, and the task
    head, both ways.
Server half: every round tries three configurations on a third of its devices each: the present one, one block
    deeper, and wider by a step. That of the best mean accuracy on the devices' validation documents becomes
    the present one, with the mean of its own devices' adapters. Needs single updates, for the groups.
Client half: local training of the adapters of its configuration and the head.
Reduces to: FedAdapter on the top blocks, once neither depth nor width can grow.
Deviations: it starts at depth 0 (the head alone) and width 8 and judges by accuracy, as DropPEFT describes
    it; Cai et al. judge by accuracy over time and try only every few rounds. Sizes that are the same are
    tried once: two at depth 0, where a width means nothing, and wherever one cannot grow. A configuration
    that has lost all its devices, or whose devices have no validation documents, is not judged.
"""

from collections.abc import Mapping
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field
from torch import Tensor

from fedstrata.adapters.rank import beyond_adapter, cut, largest_rank, of_several_sizes, pad, written
from fedstrata.aggregate.mean import StreamingMean
from fedstrata.core.client import Client
from fedstrata.core.cohort import Cohort
from fedstrata.core.errors import Problem, refused
from fedstrata.core.method import Method
from fedstrata.core.model import Layout, Model
from fedstrata.core.preflight import Facts
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Count
from fedstrata.core.types import JSON, ClientInfo, Plan, State, Tensors, Update
from fedstrata.policies.share import blocks_in, noted_blocks
from fedstrata.train.local import fit, update_of
from fedstrata.train.work import adapter_of

CONFIGURATIONS = 3
"""How many a round tries: the present one, one deeper and one wider."""


class FedAdaOPT(Method):
    """The method; see the module's docstring. `adapter.width` is the largest that there is."""

    name: Literal["fedadaopt"] = "fedadaopt"
    depth: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Number of top blocks with adapters at the start."
    )
    width: Count = Field(default=8, description="Width of the adapters at the start.")
    depth_step: Count = Field(default=1, description="Number of blocks that a growth step adds.")
    width_step: Count = Field(default=8, description="Width that a growth step adds.")
    travels: ClassVar[str] = "the adapters of the top blocks, narrow at first, and the head, both ways"
    adapters: ClassVar[tuple[str, ...]] = ("bottleneck",)
    validates: ClassVar[bool] = True  # the best configuration is that of the best scores
    cautions: ClassVar[tuple[str, ...]] = (of_several_sizes("fedadaopt"),)  # they grow as the run goes on

    def problems(self, facts: Facts) -> list[Problem]:
        """Too few devices take part to try all configurations, or the adapters are too narrow."""
        if facts.sampled is not None and facts.sampled < CONFIGURATIONS:
            needs = f"fedadaopt tries {CONFIGURATIONS} configurations in a round, each on other clients"
            there = f"{facts.sampled} take part ({facts.sampling})"
            return [Problem("federation.sample", f"{needs}, and {there}", code="not_enough_data")]
        return beyond_adapter(facts, "width", self.width, "width")

    def not_private(self, mechanism: str) -> str:
        """Clients' scores decide how the adapters grow."""
        return "it goes by scores of clients' validation documents, which epsilon does not cover"

    def not_summed(self) -> str:
        """Clients' scores decide how the adapters grow."""
        return "it goes by scores of single clients; use fedadapter"

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """The adapters of all blocks, which they may grow to, and the head.

        Raises:
            ConfigurationError: More blocks are to have adapters than the model has.
        """
        if self.depth > len(layout.blocks):
            message = f"must be at most {len(layout.blocks)}, the number of blocks of the model, not"
            raise refused("method.depth", f"{message} {self.depth}", "out_of_range")
        return layout.all

    def start(self, model: Model) -> State:
        """All adapters, which change nothing yet, and the head."""
        tensors = model.snapshot(model.layout.all)
        values: dict[str, Any] = {
            **noted_blocks(model.layout),
            "_widest": largest_rank(tensors),
            "depth": self.depth,
            "width": self.width,
        }
        return State(tensors, values)

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Tries three configurations and keeps the best."""
        choices = self._choices(state)
        clients = [client.id for client in cohort.clients]
        if len(clients) < len(choices):
            choices = choices[:1]
        order = rng.child("groups").numpy().permutation(len(clients)).tolist()
        group = {clients[client]: place % len(choices) for place, client in enumerate(order)}

        def plan_of(client: ClientInfo) -> Plan:
            depth, width = choices[group[client.id]]
            return Plan(self._part(state, depth, width), {"depth": depth, "width": width})

        means = [StreamingMean() for _ in choices]
        scores: list[list[float]] = [[] for _ in choices]
        heard = set()
        for client, update in cohort.each("train", plan_of):
            number = group[client.id]
            heard.add(number)
            means[number].add(update)
            if isinstance(score := update.values.get("score"), float):
                scores[number].append(score)
        # Of equal scores the smaller configuration; one without scores cannot be judged.
        known = [number for number in sorted(heard) if scores[number]] or sorted(heard)
        best = max(known, key=lambda number: fmean(scores[number] or [0.0]))
        depth, width = choices[best]
        tensors = written(state.tensors, means[best].finish().tensors)
        tried = {
            f"{deep} deep, {wide} wide": fmean(own)
            for (deep, wide), own in zip(choices, scores, strict=True)
            if own
        }
        values = {**state.values, "depth": depth, "width": width, "tried": dict[str, JSON](tried)}
        return State(tensors, values)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains the adapters of the configuration that the plan holds, and the head."""
        model = client.model
        width = cast("int", plan.values["width"])
        names = [name for name in model.layout.all if name in plan.tensors]
        model.load(pad(plan.tensors, model.tensors(names)))
        adapter_of(client, width, absent=[name for name in model.layout.all if name not in plan.tensors])
        loss = fit(client, names, rng)
        values: dict[str, JSON] = {"loss": loss}
        if (score := client.validate()) is not None:
            values["score"] = score
        return update_of(client, cut(model.tensors(names), width), values)

    def sends(
        self, handler: str, plan: Plan, values: Mapping[str, JSON], trained: Tensors, layout: Layout
    ) -> Tensors:
        """The adapters of the configuration, at its width."""
        return cut(super().sends(handler, plan, values, trained, layout), cast("int", plan.values["width"]))

    def _choices(self, state: State) -> list[tuple[int, int]]:
        """Returns depth and width as they are, one step deeper and one step wider, where there are such."""
        depth, width = cast("int", state.values["depth"]), cast("int", state.values["width"])
        deeper = min(depth + self.depth_step, len(blocks_in(state)))
        wider = min(width + self.width_step, cast("int", state.values["_widest"]))
        # A width means nothing while no block has an adapter.
        tried = [(depth, width), (deeper, width), (depth, wider if depth else width)]
        return list(dict.fromkeys(tried))

    def _part(self, state: State, depth: int, width: int) -> dict[str, Tensor]:
        """Returns the adapters of the top blocks at a width, and the head."""
        blocks = blocks_in(state)
        below = {name for names in blocks[: len(blocks) - depth] for name in names}
        part = {name: tensor for name, tensor in state.tensors.items() if name not in below}
        return cut(part, width)

"""FedPepTAO: prefixes of which only the blocks that matter are shared, and a server with momentum.

Source: Che et al. 2023, "Federated Learning of Large Language Models with Parameter-Efficient Prompt Tuning
    and Adaptive Optimization", sections 3.2 and 3.3, and its published code.
Travels: the prefix of the k shared blocks and the task head, both ways; once, a number a block from each
    device.
Server half: before the first round the devices of it report the gradient norm of every block's prefix; the k
    blocks with the largest mean are shared, the others stay at their devices. The weighted mean of the
    updates is a step that goes through momentum: v = beta v + (1 - beta) step, w = w + eta v / (1 - beta^t).
Client half: local training of the whole prefix and the head with an optimiser that starts anew each round;
    the blocks that are not shared persist in the device's store.
Reduces to: FedAvg over prefixes with `shared_blocks: 1.0`, `momentum: 0` and `server_learning_rate: 1`.
Deviations: the paper finds k and the scores from the Hessian's spectrum; here k is set and a score is a
    gradient norm. The paper scores for each client; here all share the same blocks, those of the largest mean
    over the devices of the first round, so that every shared block is averaged over all who take part. The
    server's learning rate is 1 by default and not the paper's 0.05: with the momentum's start corrected a
    step is then the clients' mean change, of which 0.05 would take a twentieth a round. Its
    control variates, a tensor for each device at the server, are left out: such a state grows with the number
    of devices. The correction of the momentum's start, 1 - beta^t, is Adam's.
"""

from typing import ClassVar, Literal, cast

from pydantic import Field

from fedstrata.aggregate.changes import add
from fedstrata.core.client import Client
from fedstrata.core.cohort import Cohort
from fedstrata.core.model import Model
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Count, Fraction, Part, Positive
from fedstrata.core.types import JSON, Plan, State, Update
from fedstrata.methods.averaging import Probing, SomeBlocksShared
from fedstrata.policies.share import block_count, blocks_in, names_outside, noted_blocks
from fedstrata.train.probe import NORMS, asked_norms, send_norms

MOMENTUM = "momentum/"
"""Before the name of a parameter in the state: its momentum, and not its value."""


class FedPepTAO(SomeBlocksShared, Probing):
    """The method; see the module's docstring. The prefix has settings of its own, `adapter`."""

    name: Literal["fedpeptao"] = "fedpeptao"
    shared_blocks: Count | Fraction = Field(
        default=0.5,
        description="Blocks whose prefix is shared: a count, or a fraction of the model's blocks.",
    )
    momentum: Part = Field(default=0.9, description="Server momentum (beta).")
    server_learning_rate: Positive = Field(
        default=1.0, description="Server learning rate (eta); 1 takes the clients' mean."
    )
    batches: Count = Field(default=8, description="Batches of each client used to select blocks.")
    travels: ClassVar[str] = "the prefix of the blocks that matter and the head, both ways"
    adapters: ClassVar[tuple[str, ...]] = ("prefix",)

    def not_private(self, mechanism: str) -> str:
        """Its probe is that of its base."""
        return super().not_private(mechanism)

    def not_summed(self) -> str:
        """The choice of blocks goes by norms."""
        return f"{super().not_summed()}; use fedlora or fedadapter"

    def start(self, model: Model) -> State:
        """The whole prefix, as it was drawn, and the head."""
        layout = model.layout
        k = block_count(self.shared_blocks, layout)
        return State(model.snapshot(layout.all), {**noted_blocks(layout), "_k": k, "_steps": 0})

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """A step with momentum over what is shared; the first round chooses that before it."""
        if "shared_blocks" not in state.values:
            state = self._choose(state, cohort)
        values = {name: tensor for name, tensor in state.tensors.items() if not name.startswith(MOMENTUM)}
        mean = cohort.mean("train", lambda _: Plan(values, {"shared": state.values["shared_blocks"]}))
        steps, beta = cast("int", state.values["_steps"]) + 1, self.momentum
        change, momenta = {}, {}
        for name, now in mean.tensors.items():
            step = now - values[name].float()
            before = state.tensors.get(MOMENTUM + name)
            momentum = (1.0 - beta) * step if before is None else (1.0 - beta) * step + beta * before
            momenta[MOMENTUM + name] = momentum
            change[name] = momentum * (self.server_learning_rate / (1.0 - beta**steps))
        kept = {name: tensor for name, tensor in state.tensors.items() if name.startswith(MOMENTUM)}
        return State(add(values, change) | kept | momenta, {**state.values, "_steps": steps})

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains the whole prefix and the head; the blocks that are not shared go to the store."""
        shared = set(cast("list[int]", plan.values["shared"]))
        private = names_outside(client.model.layout.blocks, shared)
        return self.trained(plan, client, rng, private=private)

    def probe(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Reports the gradient norm of every block's prefix as it is before the first round."""
        return send_norms(client, self.batches, rng)

    def _choose(self, state: State, cohort: Cohort) -> State:
        """Returns the state without the prefixes of the blocks that are not shared."""
        norms = asked_norms(cohort)
        k = cast("int", state.values["_k"])
        shared = sorted(sorted(range(len(norms)), key=lambda block: (-norms[block], block))[:k])
        own = set(names_outside(blocks_in(state), shared))
        kept = {name: tensor for name, tensor in state.tensors.items() if name not in own}
        return State(kept, {**state.values, "shared_blocks": list[JSON](shared), NORMS: list[JSON](norms)})

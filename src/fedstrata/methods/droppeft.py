"""DropPEFT: adapters, blocks that sit out a batch, rates chosen by a bandit, and blocks that stay personal.

Source: Wang et al., "Efficient Federated Fine-Tuning of Large Language Models with Layer Dropout", sections
    3.2 (stochastic layer dropout, equations 2 to 4), 3.3 (the choice of rates, equation 5) and 4 (personal
    layers, equation 6).
Travels: up, the adapters of the k blocks with the smallest gradients and the task head; down, all but the
    device's personal blocks, so the whole adapter at first; a mean rate down, a reward up.
Server half: every block is averaged over the devices that sent it, if at least two did; else it stays as it
    was, and a device that sent it alone keeps its own value. The bandit chooses each device's mean rate and
    learns its reward. Needs single updates: which blocks a device shares, and its reward, are its own.
Client half: in each batch block l is left out with probability P_l, forward and backward; with `draw: exact`
    nearly the same number of blocks in every batch, which bounds its memory. A block's importance is its mean
    gradient norm over the steps in which it ran (with `training.accumulation`: of all their batches
    together). The more important blocks stay in the device's store. The reward is the gain in accuracy on the
    device's validation documents for each second of computing and transfer.
Reduces to: FedLoRA (FedAdapter) with `rates: 0` and `shared_blocks: 1.0`.
Deviations: the paper's Algorithm 1 did not survive in its text; the bandit's rule, the rates over the depth
    (linear) and the place of the head (always shared) are ours. So is what becomes of blocks that did not
    run: one that has never run at the device has no importance and is neither sent nor personal, and neither
    is one that came down in this turn and did not run: it holds nothing of the device, and would dilute the
    mean, or grow stale. A block that a device sent alone is the device's own from its next turn on; until
    then the device is scored with the server's. With all blocks shared one device is enough for a mean.
    Without emulated devices (`devices`) a second is the share of the blocks that ran.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

from pydantic import Field
from torch import Tensor

from fedstrata.aggregate.mean import StreamingMean, replace
from fedstrata.core.client import Client
from fedstrata.core.cohort import Cohort, Mean
from fedstrata.core.errors import FrameError, Problem, SettingError
from fedstrata.core.model import Layout, Model
from fedstrata.core.preflight import Facts
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Count, Fraction
from fedstrata.core.types import JSON, ClientInfo, Message, Plan, State, Tensors, Update, whole_number
from fedstrata.methods.averaging import SomeBlocksShared
from fedstrata.policies import share
from fedstrata.policies.bandit import Bandits, BanditSettings, Rate
from fedstrata.policies.dropout import USUAL_CAP, Distribution, Draw, LayerDropout, block_rates
from fedstrata.train.local import fit

SENT = "sent/"
"""Before the name of a tensor in a device's store: what it has sent, of which it may turn out to be alone."""


class DropPEFT(SomeBlocksShared):
    """The method; see the module's docstring. The adapter has settings of its own, `adapter`."""

    name: Literal["droppeft"] = "droppeft"
    rates: Rate | Literal["bandit"] | BanditSettings = Field(
        default="bandit",
        description="Mean dropout rate of a block: a number, `bandit`, or the settings of the bandit: "
        "{explore: 0.05, memory: 50}.",
    )
    distribution: Distribution = Field(
        default="incremental", description="Dropout rate by depth: increasing, uniform or decreasing."
    )
    draw: Draw = Field(
        default="independent",
        description="`independent` draws each block on its own, so nearly all blocks run in some batches. "
        "`exact` runs the same number of blocks in every batch, to within one, at the same rates.",
    )
    slope: Fraction | None = Field(
        default=None,
        description="Maximum difference between the rates of the last and the first block. If null, as "
        "large as keeps every rate between 0 and 0.8 (a mean above 0.8 gives all blocks the mean).",
    )
    bandit_of: Literal["everybody", "device"] = Field(
        default="everybody",
        description="Rewards that the bandit learns from: those of all devices (`everybody`), or each "
        "device's own, which needs many rounds.",
    )
    shared_blocks: Count | Fraction = Field(
        default=0.5,
        description="Maximum number of blocks that a device sends: a count or a fraction; 1.0 keeps no "
        "block personal.",
    )
    weighting: Literal["examples", "uniform"] = Field(
        default="examples",
        description="Weight of a device: its number of training examples, or the same for all devices.",
    )

    travels: ClassVar[str] = "the adapters of the less important blocks and the head, both ways"
    adapters: ClassVar[tuple[str, ...]] = ("lora", "bottleneck")
    begins_in_full: ClassVar[bool] = True
    told_privately: ClassVar[tuple[str, ...]] = ("shared", "personal")  # made of noised gradients

    def _misfits(self) -> Iterator[SettingError]:
        if isinstance(self.rates, float | int) and self.bandit_of != "everybody":
            yield SettingError(
                f"bandit_of has no meaning with a fixed rate, {self.rates}; leave it out", "no_effect"
            )
        if self.draw == "exact" and self.rates == 0.0:
            yield SettingError(
                "draw=exact has no meaning with rates 0: every block runs; leave it out", "no_effect"
            )
        if self.slope is not None and self.rates == 0.0:
            yield SettingError(
                f"slope={self.slope:g} has no meaning with rates 0: every block runs; leave it out",
                "no_effect",
            )
        flat = isinstance(self.rates, float | int) and self.rates >= USUAL_CAP and self.slope is None
        if flat and self.distribution == "decremental":
            yield SettingError(
                f"distribution=decremental has no meaning with a mean rate of {self.rates:g}: from "
                f"{USUAL_CAP:g} on all blocks have the mean, unless slope is set",
                "no_effect",
            )
        if self.slope is not None and self.distribution == "uniform":
            yield SettingError(
                f"slope={self.slope:g} has no meaning with distribution uniform; leave it out", "no_effect"
            )

    @property
    def validates(self) -> bool:
        """The bandit's rewards are scores on devices' validation documents."""
        return isinstance(self._bandit, BanditSettings)

    @property
    def cautions(self) -> tuple[str, ...]:
        """Which blocks run is drawn."""
        if self.rates == 0.0:
            return ()
        return (
            "with droppeft a device sends only blocks that have run, which the run's draws decide: bytes and "
            "times are those of the two clients that were rehearsed",
        )

    def problems(self, facts: Facts) -> list[Problem]:
        """Too few devices take part for a mean of what some of them keep to themselves."""
        if facts.sampled is None or facts.sampled >= 2 or not self.personal:
            return []
        needs = "droppeft averages a block where at least two devices of a round send it, while blocks stay"
        there = f"{facts.sampled} takes part ({facts.sampling})"
        message = f"{needs} personal, and {there}; method.shared_blocks 1.0 shares all"
        return [Problem("federation.sample", message, code="not_enough_data")]

    def not_private(self, mechanism: str) -> str:
        """The bandit goes by devices' scores, and the server asks for single updates."""
        if mechanism == "central":
            return "its server half takes every device's blocks by themselves"
        rewards = "devices report rewards, their scores before and after; give method.rates a number"
        return rewards if self.validates else ""

    def not_summed(self) -> str:
        """The server must know which blocks a device has sent."""
        return "each device shares blocks of its own choice; use fedlora or fedadapter"

    def start(self, model: Model) -> State:
        """The adapter, which changes nothing yet, and the head."""
        values = {**share.noted_blocks(model.layout), "_round": 0, "_personal": {}, "_alone": {}}
        values["_bandits"] = {}
        return State(model.snapshot(model.layout.all), values)

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Averages each block over the devices that send it."""
        number = cast("int", state.values["_round"]) + 1
        personal = cast("dict[str, list[int]]", state.values["_personal"])
        alone = cast("dict[str, list[int]]", state.values["_alone"])
        bandits, rates = self._choose(state, [client.id for client in cohort.clients], number, rng)

        def plan_of(client: ClientInfo) -> Plan:
            own = {name for block in personal.get(client.id, ()) for name in share.blocks_in(state)[block]}
            wanted = {name: tensor for name, tensor in state.tensors.items() if name not in own}
            lone = alone.get(client.id) or [0] * len(share.blocks_in(state))
            return Plan(wanted, {"rate": rates[client.id], "alone": list[JSON](lone)})

        mean, rewards = StreamingMean(), {}
        sent: dict[str, list[int]] = {}
        kept: dict[str, list[int]] = {}
        for client, update in cohort.each("train", plan_of):
            mean.add(update)
            sent[client.id] = cast("list[int]", update.values["shared"])
            kept[client.id] = cast("list[int]", update.values["personal"])
            if isinstance(reward := update.values.get("reward"), float):
                rewards[client.id] = (rates[client.id], reward)
        blocks = range(len(share.blocks_in(state)))
        shared_by = [sum(block in own for own in sent.values()) for block in blocks]
        if self.personal:
            alone = alone | {
                client: [int(block in own and shared_by[block] == 1) for block in blocks]
                for client, own in sent.items()
            }
        values: dict[str, Any] = {
            **state.values,
            "_round": number,
            "_personal": personal | kept,
            "_alone": alone,
            "_bandits": bandits.rewarded(rewards, number).to_json() if bandits else {},
            "rates": {client: rates[client] for client in sent},
            "rewards": {client: reward for client, (_, reward) in rewards.items()},
            "shared_by": shared_by,
        }
        return State(self._merged(state, mean.finish()), values)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains with blocks left out; keeps the important ones and sends the others."""
        model, layout = client.model, client.model.layout
        stored = client.store.read()
        model.load(plan.tensors)  # its personal blocks are in it
        lone = [block for block, own in enumerate(cast("list[int]", plan.values["alone"])) if own]
        alone = [name for block in lone for name in layout.blocks[block]]
        model.load({name: stored.tensors[SENT + name] for name in alone if SENT + name in stored.tensors})
        before = client.validate() if self.validates else None
        rate = cast("float", plan.values["rate"])
        rates = block_rates(rate, len(layout.blocks), self.distribution, self.slope)
        drawn = rng.child("blocks") if client.privacy is None else Seed(client.privacy.secret())
        dropout = LayerDropout(rates, drawn, self.draw)
        known = cast("list[float | None] | None", stored.values.get("importance"))
        k = share.block_count(self.shared_blocks, layout)
        came = [
            block
            for block, names in enumerate(layout.blocks)
            if block not in lone and not plan.tensors.keys().isdisjoint(names)
        ]

        def divided() -> tuple[list[int], list[int]]:
            """Returns the blocks that are sent and those that stay, which is known once training is over."""
            unchanged = [block for block in came if not dropout.batches[block]]
            return share.sent_and_kept(dropout.importance(known), k, unchanged)

        def unsent() -> list[str]:
            return share.names_outside(layout.blocks, divided()[0])

        loss = fit(client, layout.all, rng, private=unsent, dropout=dropout)
        shared, own = divided()
        if self.personal:
            mine = model.tensors([name for block in own for name in layout.blocks[block]])
            lent = model.tensors([name for block in shared for name in layout.blocks[block]])
            tensors = {**mine, **{SENT + name: tensor for name, tensor in lent.items()}}
            client.store.write(Message(tensors, {"importance": list[JSON](dropout.importance(known))}))
        sent = model.tensors([name for name in layout.all if name not in set(unsent())])
        values: dict[str, JSON] = {
            "loss": loss,
            "shared": list[JSON](shared),
            "personal": list[JSON](own),
        }
        if before is not None and (after := client.validate()) is not None:
            moved = [*plan.tensors.values(), *sent.values()]
            values["reward"] = (after - before) / _seconds(client, dropout, moved)
        return Update(sent, values, self.weighs(ClientInfo(client.id, client.size)))

    def sends(
        self, handler: str, plan: Plan, values: Mapping[str, JSON], trained: Tensors, layout: Layout
    ) -> Tensors:
        """The adapters of the blocks that it says are shared, and the head."""
        last = len(layout.blocks) - 1
        blocks: dict[str, list[int]] = {}
        for key in ("shared", "personal"):
            said = values.get(key)
            if not isinstance(said, list):
                raise FrameError(
                    f"an update says {key}={said!r:.40}, which is no list of blocks", code="wrong_type"
                )
            blocks[key] = [whole_number(each, key, 0, last) for each in said]
        kept = set(share.names_outside(layout.blocks, blocks["shared"]))
        return {name: tensor for name, tensor in trained.items() if name not in kept}

    def weighs(self, client: ClientInfo) -> float:
        """As `weighting` says."""
        return float(client.examples) if self.weighting == "examples" else 1.0

    def _merged(self, state: State, mean: Mean) -> dict[str, Any]:
        """Returns the global tensors with what enough devices sent."""
        least = 2 if self.personal else 1
        inside = {name for names in share.blocks_in(state) for name in names}
        enough = {
            name: tensor
            for name, tensor in mean.tensors.items()
            if name not in inside or mean.counts[name] >= least
        }
        return replace(state.tensors, enough)

    def _choose(
        self, state: State, clients: Sequence[str], number: int, rng: Seed
    ) -> tuple[Bandits | None, dict[str, float]]:
        """Returns the bandits, if there are any, and the mean rate of each device of the round."""
        settings = self._bandit
        if not isinstance(settings, BanditSettings):
            return None, dict.fromkeys(clients, settings)
        stored = cast("dict[str, JSON]", state.values["_bandits"])
        bandits = Bandits.from_json(stored, settings, each=self.bandit_of == "device")
        return bandits.choose(clients, number, rng)

    @property
    def _bandit(self) -> BanditSettings | float:
        rates = self.rates
        return BanditSettings() if rates == "bandit" else rates


def _seconds(client: Client, dropout: LayerDropout, moved: Sequence[Tensor]) -> float:
    """Returns how long a turn takes on the emulated device; without one the share of blocks that ran."""
    if client.device is None or client.work is None:
        return dropout.share_run
    size = sum(tensor.nbytes for tensor in moved)
    return client.device.compute_seconds(client.work.flops) + client.device.transfer_seconds(size)

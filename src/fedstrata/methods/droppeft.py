"""DropPEFT: adapters, blocks that sit out a batch, rates chosen by a bandit, and blocks that stay personal.

Source: Wang et al., "Efficient Federated Fine-Tuning of Large Language Models with Layer Dropout", sections
    3.2 (stochastic layer dropout, equations 2 to 4), 3.3 (the choice of rates, equation 5) and 4 (personal
    layers, equation 6).
Travels: up, the adapters of the k blocks with the smallest gradients and the task head; down, what the device
    sent when it last took part, the whole adapter at first; a mean rate down, a reward up.
Server half: every block is averaged over the devices that sent it, if at least two did; else it stays as it
    was. The bandit chooses each device's mean rate and learns its reward. Needs single updates: which blocks
    a device shares, and its reward, are its own.
Client half: in each batch block l is left out with probability P_l, forward and backward. A block's
    importance is its mean gradient norm over the steps in which it ran (with `training.accumulation`: of all
    their batches together). The more important blocks stay in
    the device's store. The reward is the gain in accuracy on the device's validation documents for each
    second of computing and transfer.
Reduces to: FedLoRA (FedAdapter) with `rates: 0` and `shared_blocks: 1.0`.
Deviations: the paper's Algorithm 1 did not survive in its text; the bandit's rules, the rates over the depth
    (linear) and the place of the head (always shared) are ours. Without emulated devices (`devices`) a second
    is the share of the blocks that ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import Field, model_validator

from fedstrata.aggregate.mean import MeanResult, StreamingMean, replace
from fedstrata.core.config import MethodSettings
from fedstrata.core.settings import Count, Fraction
from fedstrata.core.types import JSON, ClientInfo, Message, Plan, State, Update
from fedstrata.policies.bandit import Bandit, BanditSettings, Rate
from fedstrata.policies.dropout import Distribution, LayerDropout, block_rates, least_important
from fedstrata.policies.share import block_count, keeps_some, names_outside
from fedstrata.train.local import fit

if TYPE_CHECKING:
    from torch import Tensor

    from fedstrata.core.method import Client, Cohort, Layout, Model
    from fedstrata.core.seeding import Seed

EVERYBODY = ""
"""Under which the bandit that all devices share is kept; no client has this name."""


class DropPEFTSettings(MethodSettings):
    """Settings of DropPEFT; the adapter has its own, `adapter`."""

    name: Literal["droppeft"] = "droppeft"
    rates: Rate | Literal["bandit"] | BanditSettings = Field(
        default="bandit",
        description="Mean chance of a block to be left out of a batch: a number, `bandit`, or how the bandit "
        "chooses: {explore: [0.2, 0.05], memory: 10}.",
    )
    distribution: Distribution = Field(
        default="incremental", description="How rates go with the depth: growing, equal or falling."
    )
    bandit_of: Literal["everybody", "device"] = Field(
        default="everybody",
        description="Whose rewards a bandit learns from; each device's own needs many rounds.",
    )
    shared_blocks: Count | Fraction = Field(
        default=0.5, description="Blocks that a device sends, a count or a share; 1.0 keeps none personal."
    )
    weighting: Literal["examples", "uniform"] = Field(
        default="examples", description="How much a device counts: its training examples, or all the same."
    )

    @model_validator(mode="after")
    def _bandit_only_where_used(self) -> DropPEFTSettings:
        if isinstance(self.rates, float | int) and self.bandit_of != "everybody":
            raise ValueError(f"bandit_of has no meaning with a fixed rate, {self.rates}; leave it out")
        return self


class DropPEFT:
    """The method; see the module's docstring."""

    name: ClassVar[str] = "droppeft"
    travels: ClassVar[str] = "the adapters of the less important blocks and the head, both ways"
    pooled: ClassVar[bool] = False
    adapters: ClassVar[tuple[str, ...]] = ("lora", "bottleneck")
    Settings: ClassVar[type[MethodSettings]] = DropPEFTSettings

    def __init__(self, settings: DropPEFTSettings) -> None:
        self.settings = settings

    @property
    def personal(self) -> bool:
        """Whether devices keep blocks of their own."""
        return keeps_some(self.settings.shared_blocks)

    @property
    def validates(self) -> bool:
        """The bandit's rewards are scores on devices' validation documents."""
        return isinstance(self._bandit, BanditSettings)

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """The adapter and the head.

        Raises:
            ConfigurationError: More blocks are to be shared than the model has.
        """
        block_count(self.settings.shared_blocks, layout)
        return layout.all

    def start(self, model: Model) -> State:
        """The adapter, which changes nothing yet, and the head."""
        blocks = [list(names) for names in model.layout.blocks]
        values: dict[str, Any] = {"_blocks": blocks, "_round": 0, "_shares": {}, "_bandits": {}}
        return State(model.snapshot(model.layout.all), values)

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Averages each block over the devices that send it."""
        number = cast("int", state.values["_round"]) + 1
        shares = dict(cast("dict[str, list[int]]", state.values["_shares"]))
        bandits, rates = self._choose(state, cohort.clients, number, rng)

        def plan_of(client: ClientInfo) -> Plan:
            return Plan(self._wanted(state, shares.get(client.id)), {"rate": rates[client.id]})

        mean, rewards, sent = StreamingMean(), {}, {}
        for client, update in cohort.each("train", plan_of):
            mean.add(update)
            sent[client.id] = cast("list[int]", update.values["shared"])
            if isinstance(reward := update.values.get("reward"), float):
                rewards[client.id] = (rates[client.id], reward)
        merged = self._merged(state, mean.finish())
        values: dict[str, Any] = {
            **state.values,
            "_round": number,
            "_shares": shares | sent,
            "_bandits": self._learn(bandits, rewards, number),
            "rates": {client: rates[client] for client in sent},
            "rewards": {client: reward for client, (_, reward) in rewards.items()},
            "shared_by": [
                sum(block in own for own in sent.values()) for block in range(len(self._blocks(state)))
            ],
        }
        return State(merged, values)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains with blocks left out; keeps the important ones and sends the others."""
        model, layout = client.model, client.model.layout
        model.load(plan.tensors)  # its personal blocks are in it
        before = client.validate() if isinstance(self._bandit, BanditSettings) else None
        rate = cast("float", plan.values["rate"])
        rates = block_rates(rate, len(layout.blocks), self.settings.distribution)
        dropout = LayerDropout(rates, rng.child("blocks"))
        known = cast("list[float] | None", client.store.read().values.get("importance"))
        k = block_count(self.settings.shared_blocks, layout)

        def kept() -> list[str]:
            """Returns the names of the blocks that stay, which is known once the training is over."""
            return names_outside(layout.blocks, least_important(dropout.importance(known), k))

        result = fit(client, layout.all, rng, private=kept, dropout=dropout)
        importance, own = dropout.importance(known), set(kept())
        if own:
            stored = [name for name in layout.all if name in own]
            client.store.write(Message(model.tensors(stored), {"importance": list[JSON](importance)}))
        sent = model.tensors([name for name in layout.all if name not in own])
        values: dict[str, JSON] = {"loss": result.loss, "shared": list[JSON](least_important(importance, k))}
        if before is not None and (after := client.validate()) is not None:
            moved = [*plan.tensors.values(), *sent.values()]
            values["reward"] = (after - before) / _seconds(client, dropout, moved)
        weight = float(len(client.examples)) if self.settings.weighting == "examples" else 1.0
        return Update(sent, values, weight)

    def _wanted(self, state: State, shared: Sequence[int] | None) -> Mapping[str, Any]:
        """Returns what a device downloads: all but its personal blocks."""
        if shared is None or not self.personal:
            return state.tensors
        own = set(names_outside(self._blocks(state), shared))
        return {name: tensor for name, tensor in state.tensors.items() if name not in own}

    def _merged(self, state: State, mean: MeanResult) -> dict[str, Any]:
        """Returns the global tensors with what enough devices sent."""
        least = 2 if self.personal else 1
        inside = {name for names in self._blocks(state) for name in names}
        enough = {
            name: tensor
            for name, tensor in mean.tensors.items()
            if name not in inside or mean.counts[name] >= least
        }
        return replace(state.tensors, enough)

    def _choose(
        self, state: State, clients: Sequence[ClientInfo], number: int, rng: Seed
    ) -> tuple[dict[str, Bandit], dict[str, float]]:
        """Returns the bandits and the mean rate of each device of the round."""
        settings = self._bandit
        if not isinstance(settings, BanditSettings):
            return {}, dict.fromkeys((client.id for client in clients), settings)
        stored = cast("dict[str, JSON]", state.values["_bandits"])
        bandits = {name: Bandit.from_json(values, settings) for name, values in stored.items()}
        rates: dict[str, float] = {}
        groups: dict[str, list[str]] = {}
        for client in clients:
            groups.setdefault(self._owner(client.id), []).append(client.id)
        for owner, members in groups.items():
            known = bandits.get(owner) or Bandit.from_json(None, settings)
            draws = rng.child("rates", owner).numpy()
            turn = _turn(owner, known, number)
            bandits[owner], chosen = known.choose(settings, turn, len(members), draws)
            rates |= dict(zip(members, chosen, strict=True))
        return bandits, rates

    def _learn(
        self, bandits: dict[str, Bandit], rewards: Mapping[str, tuple[float, float]], number: int
    ) -> dict[str, Any]:
        """Returns the bandits after a round, as JSON."""
        settings = self._bandit
        if not isinstance(settings, BanditSettings):
            return {}
        given: dict[str, list[tuple[float, float]]] = {}
        for client, reward in rewards.items():
            given.setdefault(self._owner(client), []).append(reward)
        learnt = {
            owner: bandits[owner].rewarded(settings, _turn(owner, bandits[owner], number, after=1), own)
            for owner, own in given.items()
        }
        return {owner: bandit.to_json() for owner, bandit in (bandits | learnt).items()}

    def _owner(self, client: str) -> str:
        return client if self.settings.bandit_of == "device" else EVERYBODY

    @property
    def _bandit(self) -> BanditSettings | float:
        rates = self.settings.rates
        return BanditSettings() if rates == "bandit" else rates

    def _blocks(self, state: State) -> list[list[str]]:
        return cast("list[list[str]]", state.values["_blocks"])


def _turn(owner: str, bandit: Bandit, number: int, after: int = 0) -> int:
    """Returns what a bandit's memory counts in: rounds; a device's own counts that device's turns.

    Args:
        owner: Whose it is.
        bandit: The bandit.
        number: The round.
        after: How many choices it has made in this round.
    """
    return number if owner == EVERYBODY else bandit.choices - after + 1


def _seconds(client: Client, dropout: LayerDropout, moved: Sequence[Tensor]) -> float:
    """Returns how long a turn takes on the emulated device; without one the share of blocks that ran."""
    if client.device is None or client.work is None:
        return dropout.share_run
    size = sum(tensor.nbytes for tensor in moved)
    return client.device.compute_seconds(client.work.flops) + client.device.transfer_seconds(size)

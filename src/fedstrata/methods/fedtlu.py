"""FedTLU: the server merges only the blocks whose averaged change stands out from its noise.

Source: Park and Joe-Wong, "FedTLU: Federated Learning with Targeted Layer Updates", Algorithm 1 and section
    III; the schedule is that of section V.B. `selection: sketched` is ours.
Travels: with `selection: exact` every parameter's change up and the whole model down, as published: no byte
    is saved. With `selection: sketched` the tensors outside the blocks, a sketch of `width` numbers and a
    sum for each tensor of the blocks, and then the picked blocks only; down go tensors that changed since
    the client last took part.
Server half: the weighted mean of the changes, or what `aggregation` names in its place; a score for every
    tensor of a block, summed over the block; of each group of equal blocks the best are merged, the others
    stay as they were. Tensors outside the blocks are always merged. `scored` leaves matrices, or biases and
    norms, out of the score. `update: random` draws the blocks, `last` merges only what follows them, `full`
    all; `worst` merges those of lowest score, a control.
Client half: local training of every parameter (`mu` and `proximal` are FedProx's). Sketched, the client
    keeps its last change, of which it uploads what it is asked for, and a copy of the global model to which
    it adds what arrives.
Reduces to: FedAvg (FedProx) with portion 1 or `update: full`. Sketched with a width no tensor exceeds picks
    what exact does.
Deviations: changes travel and not weights, since a small change would drown in the rounding of a mean of
    weights (the paper's SGD rate of 1e-4 is such a case). The paper does not say what "last" is: here the
    final norm and the head, which is the embedding where they are tied. Tensors of one number have no
    standard deviation and no part in a score; a tensor that did not change has the score 1, its limit. With
    AdamW the score is made by biases and norms, a few hundredths of a block's numbers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field

from fedstrata.aggregate.changes import add
from fedstrata.aggregate.robust import FACTS, robust_change
from fedstrata.aggregate.rules import MeanRule
from fedstrata.core.client import Client
from fedstrata.core.cohort import Cohort
from fedstrata.core.errors import (
    FrameError,
    SettingError,
    TrainingError,
    refused,
)
from fedstrata.core.model import Layout, Model
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Count, Fraction, NotNegative, idle_settings
from fedstrata.core.types import JSON, ClientInfo, Message, Plan, State, Tensors, Update
from fedstrata.methods.averaging import HOW_IT_ACTS, Averaging, Coupling, without_a_term
from fedstrata.policies import select
from fedstrata.policies.scores import (
    ABOVE_NOISE,
    LEAST_SCORED,
    ChangeSums,
    above_noise,
    block_scores,
    change_sums,
    estimated_sums,
    is_rounding,
    noise_score,
    noise_scores,
    score,
    sketch_all,
    sketch_size,
)
from fedstrata.policies.select import Progress, Schedule
from fedstrata.policies.share import blocks_in, names_outside, noted_blocks
from fedstrata.train.local import fit, update_of

CHANGE = "change/"
"""Before the name of a tensor in a client's store: its change, and not its value."""
SUMS, SKETCHES = "sums", "sketches"
_ALIKE = (
    "the scores of equal blocks lie {:.1f} times as far from each other as those of pure noise would, so "
    "that which of them are merged is chance in this round; the record says it of each round (above_noise)"
)


class FedTLU(Averaging):
    """The method; see the module's docstring."""

    name: Literal["fedtlu"] = "fedtlu"
    update: Literal["targeted", "worst", "random", "last", "full"] = Field(
        default="targeted",
        description="Blocks that are merged: those with the highest scores (`targeted`), the lowest "
        "(`worst`, a control) or random ones; `last` merges only the final norm and the head, `full` "
        "everything.",
    )
    scored: select.Scored = Field(
        default="all",
        description="Tensors that count in scores: all, matrices, or small (biases, norms).",
    )
    portion: Fraction | Literal["schedule"] | Schedule = Field(
        default="schedule",
        description="Fraction of the blocks that is merged, `schedule` (75, 50, 25 % as the loss stops "
        "falling), or a custom schedule: {portions: [0.75, 0.5, 0.25], patience: 10, threshold: 0.01}.",
    )
    mu: NotNegative = Field(default=0.0, description="Weight of FedProx's proximal term; 0 is FedAvg.")
    proximal: Coupling = Field(default="coupled", description=HOW_IT_ACTS)
    selection: Literal["exact", "sketched"] = Field(
        default="exact",
        description="`exact`: clients send all blocks. `sketched`: clients send sketches first, then only "
        "the blocks that are merged.",
    )
    width: Count = Field(default=1024, description="Numbers per sketch of a tensor (selection: sketched).")

    sends_changes: ClassVar[bool] = True
    travels: ClassVar[str] = (
        "every change up, the model down; sketched: sketches, then the merged blocks only"
    )

    def _misfits(self) -> Iterator[SettingError]:
        yield from without_a_term(self.mu, self.proximal)
        if self.selection == "sketched" and not self._ranks:
            yield SettingError(
                f"selection sketched chooses by scores, which update {self.update} does not use", "no_effect"
            )
        if self.selection == "sketched" and not isinstance(self.aggregation, MeanRule):
            yield SettingError(
                f"aggregation {self.aggregation.rule} compares whole changes; sketched sends parts",
                "conflict",
            )
        by_update = {"portion": ["targeted", "worst", "random"], "scored": ["targeted", "worst"]}
        unused = idle_settings(self, self.update, by_update)
        unused |= idle_settings(self, self.selection, {"width": ["sketched"]})
        for name in unused:
            what = f"update {self.update} and selection {self.selection}"
            yield SettingError(f"{name} has no meaning with {what}; leave it out", "no_effect")

    def not_private(self, mechanism: str) -> str:
        """A schedule goes by clients' losses; and a server that selects looks at more than a mean."""
        if mechanism == "central":
            return "it selects by what single tensors changed, from more than one mean a round"
        if self._schedule and self._chooses:
            return "its schedule goes by clients' losses; give method.portion a number"
        return super().not_private(mechanism)

    def not_summed(self) -> str:
        """Sketched, each client is sent what changed since it last took part."""
        if self._sketched:
            return "with method.selection sketched clients are sent different plans; use selection: exact"
        return super().not_summed()

    def not_joint(self) -> str:
        """Its clients send changes, of which it keeps some."""
        return (
            "it merges some blocks of what clients have changed, and they change nothing; use layer_skipping"
        )

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """Every parameter: which ones are merged is decided after they were trained.

        Raises:
            ConfigurationError: Nothing would ever be merged.
        """
        outside = (*layout.embedding, *layout.final_norm, *layout.head)
        if self.update == "last" and not outside:
            message = "'last' merges what follows the blocks, and under this adapter nothing of that trains"
            raise refused("method.update", message, "no_effect")
        return layout.all

    def start(self, model: Model) -> State:
        """The whole model, and what the server half must know of it by name."""
        layout = model.layout
        values: dict[str, Any] = {**noted_blocks(layout)}
        tensors = dict(zip(layout.all, model.parameters(layout.all), strict=True))
        if self._ranks and not select.scored_tensors(layout.blocks, tensors, self.scored):
            message = f"{self.scored!r} leaves nothing to score: no such tensor of a block trains"
            raise refused("method.scored", message, "no_effect")
        if self._schedule and self._chooses:
            values["schedule"] = asdict(Progress())
        if self.update == "last":
            last = (*layout.final_norm, *layout.head, *select.tied_head(model))
            values["_last"] = [name for name in last if name in set(layout.all)]
        if self._sketched:
            values |= {"_round": 0, "_changed": dict.fromkeys(layout.all, 0), "_visits": {}}
        return State(model.snapshot(layout.all), values)

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Averages the changes, and merges those of some blocks."""
        return (self._sketched_round if self._sketched else self._exact_round)(state, cohort, rng)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains every parameter; sends the changes, or sketches of those of the blocks."""
        model, names = client.model, client.model.layout.all
        model.load(plan.tensors)
        before = model.snapshot(names)
        loss = fit(client, names, rng, proximal=self.mu, decoupled=self.proximal == "decoupled")
        change = {
            name: now.float().cpu() - before[name].float() for name, now in model.tensors(names).items()
        }
        facts = {"loss": loss}
        if not self._sketched:
            return update_of(client, change, facts)
        client.store.write(Message(before | {CHANGE + name: value for name, value in change.items()}))
        inside = {name: change[name] for name in self._scored(model.layout.blocks, change)}
        outside = {name: value for name, value in change.items() if name not in inside}
        sums, sketches = sketch_all(inside, self.width, cast("int", plan.values["seed"]))
        return update_of(client, outside | {SUMS: sums, SKETCHES: sketches}, facts)

    def upload(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Sends the changes that the server asks for."""
        store = client.store.read().tensors
        names = cast("list[str]", plan.values["names"])
        return update_of(client, {name: store[CHANGE + name] for name in names})

    def sends(
        self, handler: str, plan: Plan, values: Mapping[str, JSON], trained: Tensors, layout: Layout
    ) -> Tensors:
        """The change of all that trains, as float32; or sketches, and then the changes that are asked for."""
        change = {name: tensor.float() for name, tensor in trained.items()}
        if handler == "upload":
            return {name: change[name] for name in cast("list[str]", plan.values["names"])}
        if self._schedule and self._chooses and not isinstance(values.get("loss"), float):
            raise FrameError("an update says no loss", code="missing")
        if not self._sketched:
            return change
        inside = {name: change[name] for name in self._scored(layout.blocks, change)}
        outside = {name: tensor for name, tensor in change.items() if name not in inside}
        if not any(tensor.is_meta for tensor in inside.values()):
            sums, sketches = sketch_all(inside, self.width, cast("int", plan.values["seed"]))
            return outside | {SUMS: sums, SKETCHES: sketches}
        size = sum(sketch_size(tensor.numel(), self.width) for tensor in inside.values())
        sums = torch.empty(len(inside), dtype=torch.float64, device="meta")
        return outside | {SUMS: sums, SKETCHES: torch.empty(size, device="meta")}

    def _exact_round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """One exchange: the whole model, and every change of it."""
        rule, plan = self.aggregation, Plan(state.tensors)
        facts: dict[str, Any] = {}
        if isinstance(rule, MeanRule):
            mean = cohort.mean("train", lambda _: plan)
            change, loss = mean.tensors, mean.values.get("loss", math.nan)
        else:
            nothing = {name: torch.zeros_like(tensor) for name, tensor in state.tensors.items()}
            change, facts[FACTS], loss = robust_change(nothing, plan, cohort, rule, state.values)
        scored = self._scored(blocks_in(state), state.tensors) if self._ranks else []
        sums = {name: change_sums(change[name]) for name in scored}
        if scored:
            facts["moved_numbers"] = {name: int(torch.count_nonzero(change[name])) for name in scored}
        values, names = self._decide(state, sums, loss, cohort, rng)
        return State(add(state.tensors, {name: change[name] for name in names}), values | facts)

    def _sketched_round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Two exchanges: sketches, then the blocks they pick."""
        number = cast("int", state.values["_round"]) + 1
        changed = cast("dict[str, int]", state.values["_changed"])
        visits = cast("dict[str, int]", state.values["_visits"])

        def plan_of(client: ClientInfo) -> Plan:
            since = visits.get(client.id, 0)
            news = {name: tensor for name, tensor in state.tensors.items() if changed[name] > since}
            return Plan(news, {"seed": rng.child("signs").integer()})

        mean = cohort.mean("train", plan_of)
        inside = self._scored(blocks_in(state), state.tensors)
        sizes = {name: state.tensors[name].numel() for name in inside}
        sums = estimated_sums(sizes, self.width, mean.tensors[SUMS], mean.tensors[SKETCHES])
        values, merged = self._decide(state, sums, mean.values.get("loss", math.nan), cohort, rng)
        wanted = [name for name in merged if name not in mean.tensors]
        uploaded = cohort.mean("upload", lambda _: Plan(values={"names": list[JSON](wanted)}))
        everything = mean.tensors | uploaded.tensors
        change = {name: everything[name] for name in merged}
        values |= {
            "_round": number,
            # A client that trained now holds what was sent to it, the state before this round.
            "_visits": visits | dict.fromkeys(uploaded.clients, number - 1),
            "_changed": changed | dict.fromkeys(merged, number),
        }
        return State(add(state.tensors, change), values)

    def _decide(
        self, state: State, sums: Mapping[str, ChangeSums], loss: float, cohort: Cohort, rng: Seed
    ) -> tuple[dict[str, Any], list[str]]:
        """Returns the state's new values, and the names of the tensors that are merged."""
        blocks, update = blocks_in(state), self.update
        values: dict[str, Any] = dict(state.values)
        groups, kept = select.equal_blocks(blocks, state.tensors), list(range(len(blocks)))
        if self._chooses:
            values["portion"] = self.portion
            if schedule := self._schedule:
                progress = Progress(**values["schedule"])
                values["portion"] = schedule.portions[progress.step]
                values["schedule"] = asdict(progress.after(loss, schedule))
        if self._ranks:
            values |= _ranked(state, sums, groups, cohort)
            sign = -1.0 if update == "worst" else 1.0
            ranked = [sign * score for score in values["block_scores"]]
            kept = select.best_blocks(ranked, groups, values["portion"])
        elif update == "random":
            kept = select.random_blocks(groups, values["portion"], rng.child("blocks").numpy())
        elif update == "last":
            kept = []
        left_out = set(names_outside(blocks, kept))
        merged: list[str] = values.get("_last", [name for name in state.tensors if name not in left_out])
        return values | {"merged_blocks": kept}, merged

    @property
    def _sketched(self) -> bool:
        return self.selection == "sketched"

    @property
    def _chooses(self) -> bool:
        """Whether some blocks are merged and others not."""
        return self._ranks or self.update == "random"

    @property
    def _ranks(self) -> bool:
        """Whether blocks are merged by their scores."""
        return self.update in ("targeted", "worst")

    def _scored(self, blocks: Sequence[Sequence[str]], tensors: Tensors) -> list[str]:
        return select.scored_tensors(blocks, tensors, self.scored)

    @property
    def _schedule(self) -> Schedule | None:
        portion = self.portion
        return Schedule() if portion == "schedule" else portion if isinstance(portion, Schedule) else None


def _ranked(
    state: State, sums: Mapping[str, ChangeSums], groups: Sequence[Sequence[int]], cohort: Cohort
) -> dict[str, Any]:
    """Returns the scores of blocks and of tensors, beside those that a change of pure noise would have.

    Warns in the first round in which blocks cannot be told apart by them. A change that is no larger than the
    rounding of float32 counts there as noise.

    Raises:
        TrainingError: A score is not finite.
    """
    sizes = {name: state.tensors[name].numel() for name in sums}
    scores = {name: score(sizes[name], *own) for name, own in sums.items()}
    if wrong := [name for name, score in scores.items() if not math.isfinite(score)]:
        message = f"the clients' mean change of {wrong[0]} is not finite, so blocks cannot be ranked"
        raise TrainingError(message, code="not_finite")
    blocks = blocks_in(state)
    noise = noise_scores(sizes, blocks)
    ranked = block_scores(scores, blocks)
    rounded = [name for name, own in sums.items() if is_rounding(state.tensors[name], own)]
    as_noise = {name: noise_score(sizes[name])[0] for name in rounded if sizes[name] >= LEAST_SCORED}
    above = above_noise(block_scores(scores | as_noise, blocks), noise, groups)
    alike = above <= ABOVE_NOISE and len(blocks) > len(groups)
    if alike and not state.values.get("_warned"):
        cohort.warn(_ALIKE.format(above))
    return {
        "tensor_scores": dict(scores),
        "block_scores": ranked,
        "noise_scores": [list(own) for own in noise],
        "above_noise": above,
        "rounding": rounded,
        "_warned": alike or state.values.get("_warned", False),
    }

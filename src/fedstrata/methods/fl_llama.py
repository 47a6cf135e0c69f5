"""FL-LLaMA: a language model of which clients hold the ends and the server holds the middle.

Source: Zhang et al., "FL-LLaMA", sections 3.1 to 3.5; `front` is the paper's p, `back` its q.
Travels: in every training step the hidden states behind the first p blocks and the gradient by them, both
    ways, four tensors of (rows, tokens, hidden); and, with `average_ends`, what clients train of their ends.
    Tokens, labels and attention masks stay at the client, the middle at the server.
Server half: B with its optimiser. `sequential`: clients take turns, round by round or step by step (`turns`);
    `client_batch`: one joint step for all; `hierarchical`: a copy of B for each client, averaged.
Client half: A and C with their optimiser, each clipped by itself (`training.clip_norm`); Gaussian noise on
    what leaves A, or on the gradients that leave C (`noise`). The training loop is everybody's, `fit`; only
    where a step's gradient comes from is different (`fedstrata.split.client_step`).
Reduces to: with one client, without noise and clipping, training the whole model; with `client_batch` and one
    step each the step is that of the mean over all clients' terms.
Deviations: optimisers begin anew in every round, as all methods' do here. A and C share one, which changes
    nothing: Adam's steps go by each number alone. Segments with an adapter have the same one. The paper adds
    the clients' gradients up in client-batch; here B's is their mean, or B would step M times too far. What
    blocks of every depth share (DeBERTa's and MPNet's relative positions) learns from the gradient of the
    client's blocks alone where all weights train.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field
from torch import Tensor

from fedstrata.aggregate.mean import StreamingMean, replace
from fedstrata.core.client import Client
from fedstrata.core.cohort import Cohort
from fedstrata.core.cut import Cut
from fedstrata.core.errors import Problem, SettingError
from fedstrata.core.model import Layout, Model
from fedstrata.core.preflight import Facts
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Count, Settings, idle_settings
from fedstrata.core.types import JSON, ClientInfo, Message, Plan, State, Update
from fedstrata.methods.divided import Divided
from fedstrata.split.client_step import Exchange, rounding_in
from fedstrata.split.ends import Ends
from fedstrata.split.messages import Form
from fedstrata.split.middle import Middle
from fedstrata.split.modes import ClientBatch, Hierarchical, Mode, Sequential
from fedstrata.split.noise import NoiseSettings
from fedstrata.split.protocol import Course
from fedstrata.split.replica import Replica
from fedstrata.train.batches import steps_in_round
from fedstrata.train.local import fit, update_of

Segment = Literal["front", "middle", "back"]
Blocks = Annotated[int, Field(ge=0)]


class CutSettings(Settings):
    """Where one client's model is divided."""

    front: Blocks
    back: Blocks


class FLLLaMA(Divided):
    """The method; see the module's docstring."""

    name: Literal["fl_llama"] = "fl_llama"
    front: Blocks = Field(
        default=1, description="Number of blocks at the client before the server's blocks, p."
    )
    back: Blocks = Field(
        default=1, description="Number of blocks at the client after the server's blocks, q."
    )
    cuts: dict[str, CutSettings] = Field(
        default_factory=dict, description="Values of p and q for single clients."
    )
    full: list[Segment] = Field(
        default_factory=list, description="Segments that train all weights, where `adapter` is LoRA."
    )
    mode: Literal["sequential", "client_batch", "hierarchical"] = Field(
        default="sequential",
        description="Train clients one after the other (`sequential`), on their joined batches "
        "(`client_batch`), or each with a copy of the server's blocks (`hierarchical`).",
    )
    turns: Literal["round", "step"] = Field(
        default="round", description="Length of a client's turn in sequential mode."
    )
    mean: Literal["terms", "clients"] = Field(
        default="terms",
        description="Reduction of the gradient of the server's blocks in client_batch mode: the mean over "
        "all terms (tokens), or over clients.",
    )
    average_every: Count | None = Field(
        default=None,
        description="Steps between averages of the copies of the server's blocks in hierarchical mode; at "
        "the end of a round if null.",
    )
    average_ends: Literal["round", "never", "hand_on"] | Count = Field(
        default="round",
        description="When the clients' blocks are averaged: after each round, never, or also every N "
        "steps. `hand_on` does not average; each client continues from the weights of the previous "
        "client.",
    )
    in_flight: Count = Field(
        default=1, description="Batches of a step (`training.accumulation`) that may be processed at once."
    )
    wire: Form = Field(
        default="float32", description="Number format of transferred hidden states and gradients."
    )
    noise: NoiseSettings | None = Field(
        default=None, description="Gaussian noise on transferred hidden states or gradients."
    )
    travels: ClassVar[str] = "hidden states and their gradients, both ways, in every step"

    def _misfits(self) -> Iterator[SettingError]:
        modes = {"average_every": ["hierarchical"], "turns": ["sequential"], "mean": ["client_batch"]}
        for name, (mode,) in idle_settings(self, self.mode, modes).items():
            yield SettingError(
                f"{name}={getattr(self, name)} has no meaning with mode {self.mode}, only with {mode}",
                "no_effect",
            )
        if isinstance(self.average_ends, int) and self.mode == "sequential":
            needs = "needs clients that step side by side: mode client_batch or hierarchical, not sequential"
            yield SettingError(f"average_ends={self.average_ends} {needs}", "conflict")
        if self.average_ends == "hand_on" and (self.mode, self.turns) != ("sequential", "round"):
            yield SettingError(
                "average_ends=hand_on needs clients that train one after the other: sequential, turns round",
                "conflict",
            )
        if self.average_ends == "hand_on" and self.cuts:
            yield SettingError(
                "average_ends=hand_on: a client that is divided elsewhere could not go on; leave cuts out",
                "conflict",
            )
        if self.in_flight > 1 and self.mode == "client_batch":
            yield SettingError(
                f"in_flight={self.in_flight}: with client_batch all wait for all; it must be 1",
                "out_of_range",
            )
        if self.cuts and self.mode == "client_batch":
            yield SettingError(
                "cuts: clients of one batch are all divided at one place; use another mode", "conflict"
            )
        if self.full and self.cuts:
            yield SettingError(
                "full: with cuts a block may be of one segment here and of another there", "conflict"
            )
        if len({*self.full}) == len(get_args(Segment)):
            yield SettingError(
                "full: all segments train in full without an adapter; leave both out", "no_effect"
            )

    @property
    def personal(self) -> bool:
        """Whether clients keep their ends to themselves."""
        return self.average_ends == "never"

    @property
    def full_setting(self) -> str | None:
        """The setting that names whole segments."""
        return "method.full" if self.full else None

    def problems(self, facts: Facts) -> list[Problem]:
        """A step has too few batches, or too many; there is no such client, device or adapter."""
        found = super().problems(facts)
        found += [] if facts.training is None else self._unfit_steps(facts.training.accumulation)
        known = self.cuts if facts.clients is None else facts.clients
        found += [
            Problem(
                f"method.cuts.{name}",
                f"there is no client {name!r}; there are: {', '.join(known)}",
                code="unknown_name",
            )
            for name in self.cuts
            if name not in known
        ]
        if facts.devices is not None:
            whole = "emulated devices compute with the whole model"
            found.append(
                Problem("devices", f"{whole}, and {self.name} leaves a part to the server", code="conflict")
            )
        kind = "without an adapter" if facts.adapter is None else facts.adapter.kind
        if facts.model is not None and self.full and kind != "lora":
            only = "has a meaning with adapter.kind lora only, which the other segments then have"
            found.append(Problem("method.full", f"{only}, not {kind}", code="no_effect"))
        return found

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """Everything, or the adapter, the head and the segments that train in full."""
        for cut in (self.divides(""), *map(self.divides, self.cuts)):
            cut.middle(len(layout.blocks))
        return layout.all

    def start(self, model: Model) -> State:
        """All weights that train, as they are: those of the middle if the model holds no more."""
        return State(model.snapshot(self.trainable(model.layout)))

    def not_private(self, mechanism: str) -> str:
        """Its clients send what those of every divided model do."""
        return super().not_private(mechanism)

    def not_summed(self) -> str:
        """As for `not_private`."""
        return super().not_summed()

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Serves the clients' training; averages their ends where that is wanted, or hands them on."""
        cuts = {client.id: self.divides(client.id) for client in cohort.clients}
        widest = self.widest(cuts)
        layout = cohort.middle(widest).layout
        middles = {client: set(cut.segments(layout).middle) for client, cut in cuts.items()}
        service = self._service(state, cohort, widest, rng)
        mean, arrived, handed = StreamingMean(), list[ClientInfo](), dict[str, Tensor]()
        hands_on = self.average_ends == "hand_on"

        def plan_of(client: ClientInfo) -> Plan:
            tensors = {**state.tensors, **handed}
            ends = {name: tensor for name, tensor in tensors.items() if name not in middles[client.id]}
            return Plan({} if self.personal else ends)

        for client, update in cohort.converse("train", plan_of, service, lambda client: cuts[client.id]):
            if hands_on:  # what arrives may alias a model
                handed |= {name: tensor.clone() for name, tensor in update.tensors.items()}
            own = {} if hands_on else update.tensors
            mean.add(Update(own, rounding_in(update), weight=update.weight))
            arrived.append(client)
        learnt = service.tensors
        for names in layout.blocks:  # the server may hold one for some clients alone
            if served := sum(client.examples for client in arrived if middles[client.id].issuperset(names)):
                mean.add(Update({name: learnt[name] for name in names}, weight=float(served)))
        found = mean.finish()
        rounding: dict[str, JSON] = {**found.values}
        values = {**state.values, "rounding": rounding} if rounding else state.values
        # A server that holds the middle alone begins without the ends: they come with the first updates.
        tensors = {**found.tensors, **handed}
        return State(replace({**tensors, **state.tensors}, tensors), values)

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        """Trains the ends through the server."""
        model: Any = client.model
        cut, names = self.divides(client.id), model.layout.all
        model.load(plan.tensors)
        noise = self.noise_of(rng if client.secret is None else Seed(client.secret, rng.path))
        if client.line is None:
            raise TypeError("a divided model is trained in a conversation")
        every = self.average_ends if isinstance(self.average_ends, int) else None
        exchange = Exchange(Ends(model, cut), client.line, self.wire, noise, self.in_flight, every)
        own = cut.segments(model.layout)
        loss = fit(client, names, rng, gradients=exchange.gradients, segments=[own.front, own.back])
        if self.personal:
            client.store.write(Message(model.tensors(names)))
        sent = {} if self.personal else model.tensors(names)
        values: dict[str, JSON] = {"loss": loss}
        if exchange.rounding:
            values["rounding"] = exchange.rounding
        return update_of(client, sent, values)

    def _service(self, state: State, cohort: Cohort, cut: Cut, rng: Seed) -> Mode:
        """Returns the server's half of a round, with B as the state has it."""
        training = cohort.training
        weights = {client.id: float(client.examples) for client in cohort.clients}
        steps = {client.id: steps_in_round(client.examples, training) for client in cohort.clients}
        every = self.average_ends if isinstance(self.average_ends, int) else None
        own = (self.in_flight, every)
        clients = {
            client: Course(self.wire, self.divides(client), *own, steps=most, batches=training.accumulation)
            for client, most in steps.items()
        }

        def replica(total: int, cut: Cut, *names: str) -> Replica:
            model: Any = cohort.middle(cut)
            model.load({name: state.tensors[name] for name in model.layout.all})
            return Replica(Middle(model, cut), training, total, rng.child("server", *names))

        if self.mode == "sequential":
            return Sequential(replica(sum(steps.values()), cut), clients, by_step=self.turns == "step")
        if self.mode == "client_batch":
            return ClientBatch(replica(max(steps.values()), cut), clients, weights, self.mean)
        copies = {client: replica(steps[client], self.divides(client), client) for client in clients}
        return Hierarchical(copies, clients, weights, self.average_every, average_ends=every is not None)

    def divides(self, client: str) -> Cut:
        """Returns where a client's model is divided."""
        own = self.cuts.get(client)
        if own is None:
            return Cut(self.front, self.back)
        return Cut(own.front, own.back, f"method.cuts.{client}")

    def full_parts(self, layout: Layout) -> tuple[str, ...]:
        """The weights of the segments that `full` names."""
        segments = self.divides("").segments(layout)
        return tuple(chain.from_iterable(getattr(segments, name) for name in self.full))

    def _unfit_steps(self, batches: int) -> list[Problem]:
        """Returns the problem that a step has too few batches for what is wanted, or too many."""
        if batches == 1:
            if self.in_flight == 1:
                return []
            wanted = f"{self.in_flight} has no meaning with training.accumulation 1: what may be under way at"
            return [
                Problem("method.in_flight", f"{wanted} once are the batches of one step", code="no_effect")
            ]
        if (self.mode, self.mean) != ("client_batch", "clients"):
            return []
        why = "the server goes back through a batch before it knows how many terms a client's whole step has"
        return [
            Problem(
                "method.mean",
                f"'clients' needs training.accumulation 1, not {batches}: {why}",
                code="conflict",
            )
        ]

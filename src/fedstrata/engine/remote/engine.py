"""The engine of a run whose clients are other processes: `fedstrata serve`.

Clients come and go. Scores are computed where the documents are, and only what they are made of travels. Of a
divided model no side has all, so that none is saved here.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from fedstrata.adapters.attach import plain_where_needed
from fedstrata.client.failures import kind_of, message_of
from fedstrata.client.turn import Failed, Order
from fedstrata.core.cohort import Service
from fedstrata.core.errors import LineError
from fedstrata.core.handlers import SCORE, is_exchange, is_scoring, only_says
from fedstrata.core.types import JSON, ClientInfo, Plan, State, Tensors, Update
from fedstrata.engine.agreed import SESSION, agreed
from fedstrata.engine.book import Attendance, Book
from fedstrata.engine.cohort import RoundCohort
from fedstrata.engine.facts import document_counts
from fedstrata.engine.floors import told_by_sites
from fedstrata.engine.model import outline
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.protocol import Engine, Turns
from fedstrata.engine.remote.agreeing import documents_of, info_of, questions_in
from fedstrata.engine.remote.scoring import gathered, summed
from fedstrata.engine.remote.turns import (
    NobodySpeaks,
    RemoteTurns,
    TurnsBegun,
    check_trained,
    check_update,
    tell_failed,
)
from fedstrata.methods.divided import Divided
from fedstrata.models.state import Model
from fedstrata.record.history import start_of
from fedstrata.record.log import Listener, committed_rounds, read_events
from fedstrata.split.inference import Answering
from fedstrata.split.kvcache import Sessions
from fedstrata.split.middle import Middle
from fedstrata.train.processor import give_freed_memory_back
from fedstrata.transport.hub import Hub
from fedstrata.transport.members import Greeting
from fedstrata.wire import frame
from fedstrata.wire.meter import Meter


class RemoteEngine(Engine):
    """Has clients compute over a hub.

    Args:
        experiment: What to run.
        folder: The run directory; exists.
        listen: Told of what fails while clients score.
        names: Who takes part, in order.
        cache_bytes: Memory for keys and values while documents are scored, all clients together.
        patience: Seconds to wait for clients that are not there at the beginning of a round. One for which
            they have passed is not waited for again before it has come.

    Attributes:
        weights: Hashes of the ends that a run that goes on began with.
        id: Tells the run from every other one, so that clients keep apart what is theirs of each.
    """

    command = "fedstrata serve"

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        listen: Listener,
        *,
        names: Sequence[str],
        cache_bytes: int,
        patience: float,
    ) -> None:
        self._experiment, self._folder, self._listen = experiment, folder, listen
        method = experiment.method
        self._method = method
        self._divided = method if isinstance(method, Divided) else None
        self._names, self._cache_bytes, self._patience = tuple(names), cache_bytes, patience
        events = read_events(folder / "record.jsonl")
        started = start_of(events)
        begun = started if committed_rounds(events) else None
        self.weights: Mapping[str, str] = begun.get("ends", {}) if begun else {}
        # Though nothing was committed: what sites have released of a sum, or spent, was for this run.
        self.id: str | None = started.get("id") if started else secrets.token_hex(8)
        self.sums = self.id or ""
        self._recorded: set[str] | None = set(begun["clients"]) if begun else None
        self._given_up: set[str] = set()
        self._hub: Hub | None = None
        self._known: dict[str, ClientInfo] = {}
        self._greetings: dict[str, Greeting] = {}
        self._begun = TurnsBegun(_turns_begun(events))
        self._committed = 0  # the last round that is
        self._counted = _rounds_of(events)  # the rounds that each client has delivered in
        self._here: Sequence[str] | None = None
        self._under_way = 0
        self._lost: set[str] = set()  # to the round under way
        self._delivered: set[str] = set()  # in it
        self._at_work: set[str] = set()  # a turn of theirs goes on, which is lost with its session
        self._last: dict[str, tuple[int, bool]] = {}  # each client's last turn, and whether it scored

    @property
    def hub(self) -> Hub:
        """The lines to the clients."""
        if self._hub is None:
            raise LineError("nobody can be reached yet")
        return self._hub

    def connect(self, hub: Hub) -> None:
        """Takes the lines to the clients."""
        self._hub = hub
        if self._divided is None:
            give_freed_memory_back()

    def welcome(self, client: str) -> dict[str, JSON]:
        """Returns what a client is told when it joins: what it keeps must fit what is committed."""
        self._listen("joined", {"client": client})
        counts = client in self._delivered and client not in self._at_work
        delivered = self._under_way if counts else None
        rounds = [number for number in self._counted.get(client, ()) if number <= self._committed]
        return {
            "run": self.id,
            "counted": max(rounds, default=0),
            "delivered": delivered,
            "settings": self._session_settings,
        }

    @cached_property
    def _session_settings(self) -> dict[str, JSON]:
        """The values of `SESSION`, worked out once: what is agreed holds a hash of the tokenizer."""
        return {path: value for path, value in agreed(self._experiment).items() if path in SESSION}

    @cached_property
    def whole(self) -> Model:
        """The whole model; without its values where no side has all of them."""
        experiment = self._experiment
        if self._divided is None:
            return experiment.model
        return outline(experiment.settings, experiment.task, experiment.method, experiment.model.tokenizer)

    def facts(self) -> dict[str, Any]:
        """Returns what the record's `run` event says of the clients and of what they hold."""
        every = [self._facts_of(client) for client in self._known]
        self._recorded = set(self._known)
        return {
            "id": self.id,
            **self._ends(every),
            "labels": list(self._experiment.task.classes),
            "task_settings": self._experiment.settings.model_dump(mode="json")["task"],
            "data": None,
            "server_documents": [document.id for document in self._experiment.server],
            "corrupt": None,
            "clients": {own["client"]: own["documents"] for own in every},
        }

    def _ends(self, clients: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns hashes of the ends that clients came with; nothing where the server has the whole model."""
        if self._divided is None:
            return {}
        return {"ends": {name: value for own in clients for name, value in own["ends"].items()}}

    def _facts_of(self, client: str) -> dict[str, Any]:
        """Returns what the record says of a client: its documents, and hashes of the ends it came with."""
        greeting = self._greetings[client]  # compared when it joined
        ends = {} if self._divided is None else {"ends": greeting["weights"]}
        documents = document_counts(documents_of(client, greeting), self._experiment, served=True)
        return {"client": client, "documents": documents, **ends}

    def wait(self, needed: int | None) -> None:
        """Waits for the clients; where fewer are enough it goes on with those who have come.

        Raises:
            LineError: Too few have come.
        """
        here: list[str] = []
        self._given_up -= set(self.hub.present)
        try:
            self.hub.wait_for([name for name in self._names if name not in self._given_up], self._patience)
        except LineError:
            if needed is None or len(self.hub.present) < needed:
                raise
        for client in self.hub.present:
            with suppress(LineError):  # it has left again
                self._greetings[client] = self.hub.greeting(client)
                here.append(client)
        if len(here) < max(1, len(self._names) if needed is None else needed):
            message = f"of the clients that are needed only {', '.join(here) or 'nobody'} is here"
            raise LineError(message, code="clients_lost")
        self._here = [name for name in self._names if name in here]
        self._given_up = set(self._names) - set(here)
        for client in self._here:
            self._known[client] = info_of(client, self._greetings[client])
            if self._recorded is not None and client not in self._recorded:
                self._recorded.add(client)
                self._listen("client_joined", self._facts_of(client))

    def wait_for(self, clients: Sequence[str]) -> None:
        """Waits until these clients are there again, for `patience` at most."""
        with suppress(LineError):
            self.hub.wait_for(list(clients), self._patience)

    def clients(self) -> Sequence[str]:
        """Returns the names of those that the last wait has found; of all that may come before it."""
        return self._names if self._here is None else self._here

    def info(self, client: str) -> ClientInfo:
        """Returns what is known of a client by its greeting."""
        return self._known[client]

    def turns_begun(self, client: str) -> int:
        """Returns in how many turns a client has begun to train privately, by what it says and has sent."""
        return max(self._begun[client], len(self._counted.get(client, ())) + (client in self._delivered))

    def turns(self, orders: Iterable[Order]) -> Turns:
        """Has clients compute at once."""
        return self._turns(iter(orders), NobodySpeaks(), Meter())

    def converse(self, orders: Iterable[Order], service: Service, meter: Meter) -> Turns:
        """Has clients compute that talk with a service, at once if they may; their cuts are agreed."""
        # One by one, since what a client is sent may depend on what the one before it has brought.
        for group in ([one] for one in orders) if service.ordered else [list(orders)]:
            yield from self._turns(iter(group), service, meter)

    def _turns(self, orders: Iterator[Order], service: Service, meter: Meter) -> Turns:
        if (first := next(orders, None)) is None:
            return
        scoring = is_scoring(first.handler) or only_says(first.handler)
        if not scoring and first.round != self._under_way:
            self._under_way = first.round
            self._lost, self._delivered = set(), set()
        self._at_work = set()

        def begun() -> Iterator[Order]:
            for order in chain([first], orders):
                if not scoring:
                    self._at_work.add(order.client)
                yield order

        def delivered(client: str, turn: int) -> None:
            self._last[client] = (turn, is_scoring(first.handler))
            if not scoring:
                self._delivered.add(client)
                self._at_work.discard(client)

        def heard(client: str, begun: int) -> None:
            if self._begun.hear(client, begun):
                what = f"{client} has begun to count its private turns anew: what it kept of the run is lost"
                self._listen("warning", {"message": f"{what}; those from before are counted as well"})

        trained = sum(self.whole.layout.sizes[name] for name in self._trained)
        stays = self._divided is None
        turns = RemoteTurns(self.hub, service, meter, self._check, delivered, trained, heard, stays)
        for order, result in turns.run(begun()):
            if isinstance(result, Failed) and not scoring:
                self._lost.add(order.client)
                self._delivered.discard(order.client)  # in an earlier handler of the round
            yield order, result

    def _check(self, order: Order, update: Update) -> None:
        """Looks at an update before anything is done with it.

        Raises:
            FrameError: It is not what the method expects.
        """
        if is_exchange(order.handler):
            return  # whoever makes the sum looks at it
        if order.handler != SCORE:
            method = self._method
            said: Any = self.hub.greeting(order.client)["trained"]  # compared when it joined
            trained = {name: own for name, own in self._trained.items() if name in said}
            plan = frame.decode(order.plan, Plan)
            due = method.sends(order.handler, plan, update.values, trained, self.whole.layout)
            check_trained(update, method.weighs(self.info(order.client)), due)
        else:
            check_trained(update, update.weight, {})
        check_update(update)

    @cached_property
    def _trained(self) -> Tensors:
        """What the method trains of the whole model, without values."""
        names = self._method.trainable(self.whole.layout)
        return {name: tensor.to("meta") for name, tensor in self.whole.tensors(names).items()}

    def undo(self, client: str, number: int, error: Exception) -> None:
        """Tells a client that its last turn does not count."""
        if client not in self._last:  # nothing was asked of it, by this process
            self._delivered.discard(client)
            return
        turn, scoring = self._last.pop(client)
        tell_failed(self.hub, client, turn, message_of(error) or kind_of(error))
        if not scoring:
            self._delivered.discard(client)
            self._lost.add(client)

    def committed(self, number: int, lost: Iterable[str]) -> None:
        """Notes what a client that comes back is told."""
        for client in self._delivered.difference(lost):
            self._counted.setdefault(client, []).append(number)
        self._committed = number
        self._under_way, self._delivered, self._lost, self._at_work = 0, set(), set(lost), set()

    def delivered(self, number: int, clients: Iterable[str]) -> None:
        """Notes what a client that comes back is told of the round under way."""
        self._under_way, self._delivered = number, set(clients)

    def score(self, number: int, state: State, part: str, *, final: bool) -> dict[str, Any]:
        """Has every client score its documents, with what is shared; only counts come back.

        At the end clients keep what they are sent. A client that is lost here has no scores, and the record
        says why. With `federation.min_clients` that ends no run: what was learnt is there whoever scores it.
        """
        known, present = [name for name in self._names if name in self._known], self.hub.present
        here = [self.info(name) for name in known if name in present or name not in self._lost]
        cohort = self._scoring_cohort(number, here, part)
        documents = {name: documents_of(name, self._greetings[name])[part] for name in known}
        if not final and not any(documents.values()):
            return {}
        asked: dict[str, JSON] = {"part": part, "final": final}
        asked |= {"floors": True} if final and told_by_sites(self._experiment.settings) else {}
        one_model = self._divided is not None or not self._method.personal
        metric = self._experiment.metric if "floors" in asked else None
        gather = partial(
            gathered, self._experiment.task, documents=documents, reject=cohort.reject, metric=metric
        )
        if self._divided is not None:
            converse = self._converse_scores(self._divided, cohort, state, asked)
            return gather(converse, one_model=one_model)
        parameters = set(self.whole.names_outside([]))
        plan = Plan({name: value for name, value in state.tensors.items() if name in parameters}, asked)
        if self.counting is None or self._experiment.privacy.settings.scores == "none":
            return gather(cohort.each(SCORE, lambda info: plan), one_model=one_model)
        found = summed(self._experiment.task, self.counting, cohort, plan, documents)
        if final:  # who is not in the sum keeps what was learnt, too, and tells nothing
            cohort.clients = [info for info in cohort.clients if info.id not in found.clients]
            list(cohort.each(SCORE, lambda info: plan))
        return found.scores

    def _converse_scores(
        self, method: Divided, cohort: RoundCohort, state: State, asked: Mapping[str, JSON]
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Has clients score that hold the ends of the model, and ask its middle here."""
        cuts = {info.id: method.divides(info.id) for info in cohort.clients}
        widest = method.widest(cuts)
        model = cohort.middle(widest)
        model.load({name: state.tensors[name] for name in model.layout.all})
        sessions = Sessions(Middle(model, widest), self._cache_bytes, self._experiment.settings.training)
        most = {
            name: questions_in(
                documents_of(name, self._greetings[name], "windows")[str(asked["part"])],
                self._experiment.task,
            )
            for name in cuts
        }
        service = Answering(sessions, method.wire, method.divides, most=most)

        def plan_of(info: ClientInfo) -> Plan:
            if method.personal:
                return Plan({}, asked)
            theirs = cuts[info.id].segments(model.layout).middle
            return Plan({name: value for name, value in state.tensors.items() if name not in theirs}, asked)

        return cohort.converse(SCORE, plan_of, service, lambda info: cuts[info.id])

    def _scoring_cohort(self, number: int, infos: Sequence[ClientInfo], part: str) -> RoundCohort:
        """Returns the clients that score a part of their documents."""
        experiment = self._experiment
        needed = experiment.settings.federation.min_clients

        def told(event: str, facts: Mapping[str, Any]) -> None:
            if event in ("client_failed", "warning"):
                self._listen(event, {**facts, "part": part})

        attendance = Attendance([info.id for info in infos], min_clients=needed if needed is None else 0)
        return RoundCohort(
            method=experiment.method,
            model=experiment.model,
            engine=self,
            clients=infos,
            training=experiment.settings.training,
            book=Book(number, self._folder, told, attendance, self.command),
        )

    def save(self, number: int, state: State) -> None:
        """Saves the shared model, where there is one and all of it is here."""
        if self._divided is not None or self._method.personal:
            return
        model = self._experiment.model
        model.restore()
        model.load_known(state.tensors)
        model.save(self._folder / "model", plain=plain_where_needed(model))


def _rounds_of(events: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Returns the committed rounds of a run that each client has delivered in, but for abandoned ones."""
    found: dict[str, list[int]] = {}
    rounds = [event for event in committed_rounds(events) if not event.get("abandoned")]
    failed = {event["round"]: set(event["failed"]) for event in rounds}
    for event in (each for each in events if each["event"] == "client" and each["round"] in failed):
        if event["client"] not in failed[event["round"]]:
            found.setdefault(event["client"], []).append(event["round"])
    return found


def _turns_begun(events: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Returns in how many turns each client had begun to train privately when a round was last committed."""
    rounds = [event["privacy"]["clients"] for event in committed_rounds(events) if event.get("privacy")]
    return {client: own["turns"] for client, own in rounds[-1].items()} if rounds else {}

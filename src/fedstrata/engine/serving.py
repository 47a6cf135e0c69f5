"""A run whose clients are other processes: `fedstrata split serve`.

The rounds, the record and the checkpoints are those of a run in one process (`fedstrata.engine.rounds`). What
is different: clients come and go; scores are computed where the documents are, and only the scores travel, so
a global score is the mean of the clients', weighted by their documents; and the model cannot be saved as one,
since no side has all of it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata.core.errors import (
    FedstrataError,
    FrameError,
    LineError,
    printable,
)
from fedstrata.core.types import JSON, ClientInfo, Plan, State, Update
from fedstrata.engine.agreeing import SCORE, documents_of, info_of
from fedstrata.engine.check import divided_method
from fedstrata.engine.checkpoint import Checkpoints
from fedstrata.engine.facts import model_facts
from fedstrata.engine.failures import RoundAbandonedError
from fedstrata.engine.model import outline
from fedstrata.engine.remote import RemoteCohort
from fedstrata.engine.rounds import RECORDED, due_for_scoring
from fedstrata.engine.sites import sample
from fedstrata.metrics.cost import peak_memory
from fedstrata.record.log import RecordLog, committed_rounds, read_events
from fedstrata.record.summary import mean_of, summarise, write_summary
from fedstrata.split.inference import Answering
from fedstrata.split.kvcache import Sessions
from fedstrata.split.messages import MOST, is_number
from fedstrata.split.middle import Middle

if TYPE_CHECKING:
    from fedstrata.engine.prepare import Experiment
    from fedstrata.models.state import Model
    from fedstrata.record.log import Listener
    from fedstrata.split.transport.hub import Hub

Scores = Mapping[str, float]
_LARGEST_SCORE = 1e290


class Serving:
    """The server's side of a run.

    Args:
        experiment: What to run.
        clients: Who takes part, in order.
        folder: The run directory; exists.
        listen: Told of every event.
        cache_bytes: Memory for keys and values while documents are scored, all clients together.

    Attributes:
        committed: The last round that is committed.
        weights: Hashes of the ends that a run that goes on began with.
        id: Tells the run from every other one, so that clients keep apart what is theirs of each.
    """

    def __init__(
        self,
        experiment: Experiment,
        clients: Sequence[str],
        folder: Path,
        listen: Listener,
        *,
        cache_bytes: int,
    ) -> None:
        self.experiment, self.folder, self._cache_bytes = experiment, folder, cache_bytes
        self._method = divided_method(experiment.method)
        self._clients, self._listen = tuple(clients), listen
        self._checkpoints = Checkpoints(folder / "checkpoints")
        self._log = RecordLog(folder / "record.jsonl")
        rounds = committed_rounds(read_events(folder / "record.jsonl"))
        begun = [event for event in read_events(folder / "record.jsonl") if event["event"] == "run"]
        self.weights: Mapping[str, str] = begun[-1].get("ends", {}) if rounds else {}
        self.id: str | None = begun[-1].get("id") if rounds else secrets.token_hex(8)
        self.committed, self._state = 0, State()
        self._lost: Collection[str] = ()  # to the last round, which need not be committed yet
        self._without: Collection[str] = ()  # to the committed one
        self._under_way: RemoteCohort | None = None
        if rounds:
            self.committed, self._state = self._checkpoints.load(rounds[-1]["round"])
            self._without = rounds[-1]["failed"]

    def welcome(self, client: str) -> dict[str, JSON]:
        """Returns what a client is told when it joins: what it keeps must fit what is committed."""
        under_way = self._under_way
        delivered = under_way.number if under_way is not None and client in under_way.delivered else None
        lost = client in self._without
        return {"run": self.id, "committed": self.committed, "lost": lost, "delivered": delivered}

    def execute(self, hub: Hub, *, patience: float) -> dict[str, Any]:
        """Runs all rounds that are not yet committed and returns the summary.

        Args:
            hub: The lines to the clients; listens.
            patience: Seconds to wait for clients that are not there at the beginning of a round.

        Raises:
            FedstrataError: A client is lost that the round needs; what was committed stays.
        """
        rounds = self.experiment.settings.federation.rounds
        try:
            infos = self._wait(hub, patience)
            if self.committed:
                self._emit("resumed", self._resumed())
            else:
                self._state = self._method.start(self.experiment.model)
                self._emit("run", self._facts(hub))
            for number in range(self.committed + 1, rounds + 1):
                self._round(hub, number, self._wait(hub, patience))
            return self._finish(hub, rounds, infos)
        except FedstrataError as error:
            self._emit("failed", {"error": type(error).__name__, "message": str(error)})
            raise
        except BaseException as error:  # its text may quote a note
            self._emit("failed", {"error": type(error).__name__, "message": None})
            raise
        finally:
            self._log.close()

    def _wait(self, hub: Hub, patience: float) -> list[ClientInfo]:
        """Waits for the clients; with `federation.min_clients` goes on with those who have come."""
        try:
            hub.wait_for(self._clients, patience)
        except LineError:
            needed = self.experiment.settings.federation.min_clients
            if needed is None or len(hub.present) < needed:
                raise
        here = [client for client in self._clients if client in hub.present]
        return [info_of(client, hub.greeting(client)) for client in here]

    def _round(self, hub: Hub, number: int, infos: Sequence[ClientInfo]) -> None:
        started = time.perf_counter()
        experiment, federation = self.experiment, self.experiment.settings.federation
        rng = experiment.seed.child("round", number)
        cohort = self._cohort(hub, number, sample(infos, federation.sample, rng.child("sample")))
        self._under_way, clients = cohort, len(cohort.infos)
        self._emit("round_started", {"round": number, "rounds": federation.rounds, "clients": clients})
        abandoned = False
        try:
            self._state = self._method.round(self._state, cohort, rng.child("method"))
        except RoundAbandonedError:
            abandoned = True
        before_scoring = time.perf_counter()
        self._lost = cohort.roll.attendance.lost
        scores = self._score(hub, number, infos, "validation") if due_for_scoring(number, federation) else {}
        evaluate_seconds = time.perf_counter() - before_scoring
        self._checkpoints.save(number, self._state)  # before the event, which commits the round
        values, layout = self._state.values.items(), self._whole.layout
        facts = {
            "round": number,
            "loss": cohort.roll.loss,
            **scores,
            "trained": None,
            "state": {name: value for name, value in values if not name.startswith("_")},
            "trainable_parameters": sum(layout.sizes[name] for name in self._method.trainable(layout)),
            "simulated_seconds": None,
            "joules": None,
            "failed": list(cohort.roll.attendance.lost),
            "abandoned": abandoned,
            "exchanges": cohort.roll.meter.exchanges(),
            "groups_up": {},
            "seconds": time.perf_counter() - started,
            "train_seconds": cohort.train_seconds,
            "serve_seconds": cohort.roll.serve_seconds,
            "evaluate_seconds": evaluate_seconds,
            **peak_memory(experiment.model.device),  # in every round: a run may go through several processes
        }
        self._emit("round", facts)
        self.committed, self._without, self._under_way = number, self._lost, None
        self._checkpoints.prune()

    def _finish(self, hub: Hub, rounds: int, infos: Sequence[ClientInfo]) -> dict[str, Any]:
        """Has the test split scored and writes the summary."""
        started = time.perf_counter()
        self._emit("finishing", {})
        facts = {
            **self._score(hub, rounds, infos, "test"),
            "seconds": time.perf_counter() - started,
            **peak_memory(self.experiment.model.device),
        }
        self._emit("final", facts)
        summary = summarise(read_events(self.folder / "record.jsonl"))
        write_summary(summary, self.folder / "summary.json")
        return summary

    def _score(self, hub: Hub, number: int, infos: Sequence[ClientInfo], part: str) -> dict[str, Any]:
        """Has every client score its documents, with what is shared of its ends; only scores come back.

        A client that is lost here has no scores, and the record says why. With `federation.min_clients` that
        ends no run: what was learnt is there whoever scores it.
        """
        cuts = {info.id: self._method.divides(info.id) for info in infos}
        widest = self._method.widest(cuts)
        here = [info for info in infos if info.id in hub.present or info.id not in self._lost]
        cohort = self._cohort(hub, number, here, part)
        model = cohort.middle(widest)
        model.load({name: self._state.tensors[name] for name in model.layout.all})
        training = self.experiment.settings.training
        sessions = Sessions(Middle(model, widest), self._cache_bytes, training)
        service = Answering(sessions, self._method.wire, self._method.divides)

        def plan_of(info: ClientInfo) -> Plan:
            if self._method.personal:
                return Plan({}, {"part": part})
            theirs = cuts[info.id].segments(model.layout).middle
            ends = {name: value for name, value in self._state.tensors.items() if name not in theirs}
            return Plan(ends, {"part": part})

        clients: dict[str, Scores | None] = dict.fromkeys(cuts)
        weights: dict[str, float] = {}
        for info, update in cohort.converse(SCORE, plan_of, service, lambda info: cuts[info.id]):
            try:
                clients[info.id] = _scores_in(update)
            except FrameError as error:
                cohort.reject(info.id, error)
            weights[info.id] = update.weight
        return {
            "global": _weighted(clients, weights),
            "clients": clients,
            "mean_client": mean_of(list(clients.values())),
            "external": {},
        }

    def _cohort(
        self, hub: Hub, number: int, infos: Sequence[ClientInfo], part: str | None = None
    ) -> RemoteCohort:
        """Returns the clients of a round, or those that score a part of their documents."""
        experiment = self.experiment
        needed = experiment.settings.federation.min_clients

        def failed(event: str, facts: Mapping[str, Any]) -> None:
            if event == "client_failed":
                self._emit(event, {**facts, "part": part})

        return RemoteCohort(
            method=self._method,
            model=experiment.model,
            hub=hub,
            infos=infos,
            training=experiment.settings.training,
            folder=self.folder,
            number=number,
            listen=self._emit if part is None else failed,
            min_clients=needed if part is None or needed is None else 0,
        )

    def _resumed(self) -> dict[str, Any]:
        rounds = committed_rounds(read_events(self.folder / "record.jsonl"))
        return {
            "round": self.committed,
            "rounds": self.experiment.settings.federation.rounds,
            "metric": self.experiment.metric,
            "pooled": False,
            "bytes_sent": sum(
                sum(client.values()) for event in rounds for client in event["exchanges"].values()
            ),
        }

    def _facts(self, hub: Hub) -> dict[str, Any]:
        """What the record's `run` event says of the whole run."""
        return {
            **model_facts(self.experiment, self._whole),
            "id": self.id,
            "ends": _weights_of(hub),
            "labels": list(self.experiment.task.classes),
            "task_settings": self.experiment.settings.model_dump(mode="json")["task"],
            "data": None,
            "server_documents": [],
            "corrupt": None,
            "devices": None,
            "clients": {client: documents_of(client, hub.greeting(client)) for client in hub.present},
        }

    @cached_property
    def _whole(self) -> Model:
        """The whole model without its values, of which no side has all."""
        experiment = self.experiment
        return outline(experiment.settings, experiment.task, experiment.method, experiment.model.tokenizer)

    def _emit(self, event: str, facts: Mapping[str, Any]) -> None:
        if event in RECORDED:
            self._log.append(event, facts, durable=event == "round")
        self._listen(event, facts)


def _scores_in(update: Update) -> Scores | None:
    """Returns what a client says of its documents; none if it has none.

    Raises:
        FrameError: It is no scores.
    """
    match update.values.get("scores"):
        case None:
            return None
        case dict(own) if (
            0 < update.weight <= MOST
            and all(map(_is_score, own.values()))
            and all(name == printable(name, 100) for name in own)
        ):
            return {name: float(value) for name, value in own.items()}  # type: ignore[arg-type]
        case _:
            raise FrameError(f"scores came that are no numbers, or of {update.weight:g} documents")


def _is_score(value: object) -> bool:
    """Whether a value is a number that can be averaged; a perplexity is large long before it is infinite."""
    return is_number(value, _LARGEST_SCORE)


def _weights_of(hub: Hub) -> dict[str, Any]:
    """Returns the hashes of the ends that the clients begin with; they were compared when they joined."""
    said: list[Any] = [hub.greeting(client)["weights"] for client in hub.present]
    return {name: value for weights in said for name, value in weights.items()}


def _weighted(clients: Mapping[str, Scores | None], weights: Mapping[str, float]) -> dict[str, float] | None:
    """Returns the mean of each score over the clients that have it, weighted by their documents."""
    names = dict.fromkeys(name for scores in clients.values() for name in scores or {})
    means = {}
    for name in names:
        own = [
            (scores[name], weights[client]) for client, scores in clients.items() if scores and name in scores
        ]
        means[name] = sum(score * weight for score, weight in own) / sum(weight for _, weight in own)
    return means or None

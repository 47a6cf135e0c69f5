"""The rounds of a run: sample, let the method do its round, score, record, commit.

A round is committed when its `round` event is in the record, which is written after its checkpoint. A
killed run therefore loses at most the round under way, and a resumed one goes on to the same numbers: every
random decision is derived from the seed and its name (`core.seeding`), never from a generator's past.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata.adapters.attach import plain_where_needed
from fedstrata.core.errors import ConfigurationError, FedstrataError, Problem
from fedstrata.core.settings.federation import DATA_CORRUPTIONS, FEW_CLIENTS
from fedstrata.core.types import State
from fedstrata.data.choices import choices_of
from fedstrata.data.split import PARTS, Split
from fedstrata.engine.caching import ClientCaches
from fedstrata.engine.checkpoint import Checkpoints, client_folder, discard_uncommitted
from fedstrata.engine.devices import Fleet, last_stored_states
from fedstrata.engine.facts import by_group, model_facts
from fedstrata.engine.failures import RoundAbandonedError, drop_outs
from fedstrata.engine.scoring import Scorer, ServerDocuments
from fedstrata.engine.simulate import SimulatedCohort
from fedstrata.engine.sites import Site, corrupt_clients, sample
from fedstrata.metrics.cost import peak_memory
from fedstrata.record.log import Listener, RecordLog, committed_rounds, read_events
from fedstrata.record.summary import summarise, trained_scores, write_summary

if TYPE_CHECKING:
    from fedstrata.core.documents import Document
    from fedstrata.core.settings.federation import FederationSettings
    from fedstrata.engine.prepare import Experiment

RECORDED = frozenset({"run", "resumed", "client", "client_failed", "cache", "round", "final", "failed"})
"""Events that go into the record; the others only concern whoever watches."""


class Run:
    """One run of an experiment in a run directory.

    Args:
        experiment: What to run.
        folder: The run directory; exists.
        listen: Told of every event.
    """

    def __init__(self, experiment: Experiment, folder: Path, listen: Listener) -> None:
        self.experiment, self.folder = experiment, folder
        self._listen = listen
        self._log = RecordLog(folder / "record.jsonl")
        self._checkpoints = Checkpoints(folder / "checkpoints")
        self._sites, self._trainers = sites_of(experiment)
        self._caches = ClientCaches(folder, experiment.settings, self._emit)
        self._fleet = fleet_of(experiment, [site.id for site in self._trainers])
        self._stored_states: dict[str, str | None] = {}

    def execute(self, *, resume: bool = False) -> dict[str, Any]:
        """Runs all rounds that are not yet committed and returns the summary.

        Raises:
            FedstrataError: A client failed that the round needs; the record says so, and what was committed
                stays.
        """
        try:
            committed, state = self._resume() if resume else (0, None)
            if state is None:
                state = self.experiment.method.start(self.experiment.model)
                self._emit("run", self._facts())
            scorer = self._scorer("validation")
            for number in range(committed + 1, self.experiment.settings.federation.rounds + 1):
                state = self._round(number, state, scorer)
            summary = self._finish(state)
            self._report()
            return summary
        except FedstrataError as error:
            self._emit("failed", {"error": type(error).__name__, "message": str(error)})
            raise
        except BaseException as error:  # its text may quote a note
            self._emit("failed", {"error": type(error).__name__, "message": None})
            raise
        finally:
            self._log.close()

    def _resume(self) -> tuple[int, State | None]:
        """Returns the last committed round and its state; round 0 and no state if none was committed."""
        events = read_events(self.folder / "record.jsonl")
        rounds = committed_rounds(events)
        self._require_same(events)
        loaded = self._checkpoints.load(rounds[-1]["round"]) if rounds else None
        discard_uncommitted(self.folder, loaded[0] if loaded else 0)
        if loaded is None:
            return 0, None
        self._stored_states = last_stored_states(events, loaded[0])
        settings = self.experiment.settings
        self._emit(
            "resumed",
            {
                "round": loaded[0],
                "rounds": settings.federation.rounds,
                "metric": self.experiment.metric,
                "pooled": self.experiment.method.pooled,
                "bytes_sent": sum(
                    sum(client.values())
                    for event in rounds
                    if event["round"] <= loaded[0]
                    for client in event["exchanges"].values()
                ),
            },
        )
        return loaded

    def _require_same(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Refuses to go on with other data, or to fewer rounds than are committed."""
        begun = [event["data"] for event in events if event["event"] == "run"]
        if begun and begun[-1] != _fingerprint(self._sites, self.experiment.server):
            message = "the documents are not those the run began with; a run cannot change its data"
            raise ConfigurationError([Problem("data", message)])
        committed, wanted = len(committed_rounds(events)), self.experiment.settings.federation.rounds
        if wanted < committed:
            message = f"must be at least {committed}, the rounds already committed, not {wanted}"
            raise ConfigurationError([Problem("federation.rounds", message)])

    def _round(self, number: int, state: State, scorer: Scorer) -> State:
        started = time.perf_counter()
        settings, method = self.experiment.settings, self.experiment.method
        rng = self.experiment.seed.child("round", number)
        cohort = self._cohort(number, sample(self._trainers, settings.federation.sample, rng.child("sample")))
        cohort.score_trained = self._score_trained(number, scorer)
        self._emit(
            "round_started",
            {"round": number, "rounds": settings.federation.rounds, "clients": len(cohort.sites)},
        )
        abandoned = False
        try:
            state = method.round(state, cohort, rng.child("method"))
        except RoundAbandonedError:
            abandoned = True  # the state stays what it was
        before_scoring = time.perf_counter()
        due = due_for_scoring(number, settings.federation)
        scores = self._score(scorer, cohort, state, final=False) if due and scorer.has_documents else {}
        evaluate_seconds = time.perf_counter() - before_scoring + cohort.score_seconds
        self._checkpoints.save(number, state)  # before the event, which commits the round
        facts = {
            "round": number,
            "loss": cohort.roll.loss,
            **scores,
            "trained": trained_scores(cohort.trained_scores),
            "state": {name: value for name, value in state.values.items() if not name.startswith("_")},
            "trainable_parameters": cohort.trained_parameters,
            **self._simulated(cohort),
            "failed": list(cohort.roll.attendance.lost),
            "abandoned": abandoned,
            "exchanges": cohort.roll.meter.exchanges(),
            "groups_up": by_group(cohort.roll.meter.tensors_up, self.experiment.model.layout),
            "seconds": time.perf_counter() - started,
            "train_seconds": cohort.train_seconds,
            "serve_seconds": cohort.roll.serve_seconds,
            "evaluate_seconds": evaluate_seconds,
            **peak_memory(
                self.experiment.model.device
            ),  # in every round: a run may go through several processes
        }
        self._emit("round", facts)
        self._checkpoints.prune()
        return state

    def _simulated(self, cohort: SimulatedCohort) -> dict[str, Any]:
        """Returns what a round took on the emulated devices; nothing without any."""
        if self._fleet is None:
            return {"simulated_seconds": None, "joules": None, "device_memory": None}
        return cohort.clock.facts(cohort.roll.attendance.lost)

    def _finish(self, state: State) -> dict[str, Any]:
        """Scores the test split, saves what was learnt and writes the summary."""
        started = time.perf_counter()
        self._emit("finishing", {})
        rounds = self.experiment.settings.federation.rounds
        cohort = self._cohort(rounds, self._trainers)
        scores = self._score(self._scorer("test"), cohort, state, final=True)
        self._save_models(cohort, state)
        facts = {
            **scores,
            "seconds": time.perf_counter() - started,
            **peak_memory(self.experiment.model.device),
        }
        self._emit("final", facts)
        self._caches.remove()  # before the summary, with which a run counts as finished
        summary = summarise(read_events(self.folder / "record.jsonl"))
        write_summary(summary, self.folder / "summary.json")
        return summary

    def _report(self) -> None:
        """Writes the report; it only shows what the record holds, so no run fails if it cannot be written."""
        try:
            from fedstrata.record.report import write_report  # noqa: PLC0415 - matplotlib, heavy

            write_report([self.folder], self.folder / "report.html")
        except Exception as error:
            reason = f"the report could not be written ({type(error).__name__})"
            self._emit("warning", {"message": f"{reason}; try again with: fedstrata report {self.folder}"})

    def _score(self, scorer: Scorer, cohort: SimulatedCohort, state: State, *, final: bool) -> dict[str, Any]:
        if not self.experiment.method.personal:
            return scorer.shared(state)
        sites = {site.id: site for site in self._sites}
        everywhere = scores_everywhere(self.experiment)

        def enter(client: str) -> None:
            cohort.enter(sites[client], state)

        return scorer.personal(enter, pooled=final and everywhere)

    def _score_trained(self, number: int, scorer: Scorer) -> Callable[[], dict[str, Any]] | None:
        """Returns what scores a client's just-trained model in this round, if anything is to."""
        federation = self.experiment.settings.federation
        if not federation.score_clients:
            return None
        scorers = {"validation": scorer} if due_for_scoring(number, federation) else {}
        if number == federation.rounds:
            scorers["test"] = self._scorer("test")
        due = {part: own for part, own in scorers.items() if own.has_documents}
        return (lambda: {part: own.pooled() for part, own in due.items()}) if due else None

    def _save_models(self, cohort: SimulatedCohort, state: State) -> None:
        model = self.experiment.model
        if self.experiment.method.personal:  # there is no model that is everybody's
            for site in self._trainers:
                cohort.enter(site, state)
                model.save(client_folder(self.folder, site.id) / "model", plain=plain_where_needed(model))
            return
        model.restore()
        model.load_known(state.tensors)
        model.save(self.folder / "model", plain=plain_where_needed(model))

    def _cohort(self, number: int, sites: list[Site]) -> SimulatedCohort:
        experiment = self.experiment
        return SimulatedCohort(
            method=experiment.method,
            model=experiment.model,
            sites=sites,
            training=experiment.settings.training,
            folder=self.folder,
            number=number,
            rng=experiment.seed.child("round", number),
            listen=self._emit,
            cache_of=self._caches.of,
            metric=experiment.metric,
            device_of=lambda client: self._fleet.device(client, number) if self._fleet else None,
            stored_states=self._stored_states,
            server=ServerDocuments(
                experiment.server, experiment.model, experiment.task, experiment.settings.training
            ),
            dropped=dropped(experiment, number, [site.id for site in sites]),
            min_clients=None if experiment.method.pooled else experiment.settings.federation.min_clients,
        )

    def _scorer(self, part: str) -> Scorer:
        experiment = self.experiment
        own = (self._sites, part, experiment.model, experiment.task, experiment.settings.training)
        bootstrap = experiment.settings.federation.bootstrap if part == "test" else None
        rng = experiment.seed.child("bootstrap")
        seen_by = experiment.method.seen_by(experiment.model, experiment.seed.child("scores"))
        return Scorer(*own, bootstrap=bootstrap, rng=rng, seen_by=seen_by)

    def _facts(self) -> dict[str, Any]:
        """What the record's `run` event says of the whole run."""
        experiment = self.experiment
        return {
            **model_facts(experiment, experiment.model),
            "data": _fingerprint(self._sites, experiment.server),
            "server_documents": [document.id for document in experiment.server],
            "corrupt": self._corrupt(),
            "devices": self._fleet.profiles if self._fleet else None,
            "clients": {
                site.id: {part: len(getattr(site.documents, part)) for part in PARTS} for site in self._sites
            },
        }

    def _corrupt(self) -> dict[str, Any] | None:
        """Who is corrupt, and how; none if nobody is."""
        corrupt = {site.id: site.corruption.settings for site in self._sites if site.corruption}
        if not corrupt:
            return None
        settings = next(iter(corrupt.values()))
        return {"clients": list(corrupt), "kind": settings.kind, "strength": settings.strength_used}

    def _emit(self, event: str, facts: Mapping[str, Any]) -> None:
        if event in RECORDED:
            self._log.append(event, facts, durable=event == "round")
        self._listen(event, facts)


def sites_of(experiment: Experiment) -> tuple[list[Site], list[Site]]:
    """Returns all sites, and the clients that train: those not held out, or one that holds everything."""
    task, tokenizer = experiment.task, experiment.model.tokenizer
    names = [name for name, data in experiment.clients.items() if data.train]
    settings, pooled = experiment.settings.federation.corrupt, experiment.method.pooled
    corrupt = corrupt_clients(names, settings, experiment.seed.child("corrupt"))
    if pooled and settings.kind not in DATA_CORRUPTIONS:
        corrupt = {}  # nobody sends an update
    sites = [
        Site(name, data, task, tokenizer, corrupt.get(name)) for name, data in experiment.clients.items()
    ]
    clients = [site for site in sites if site.documents.train]
    return sites, [_pool(clients)] if pooled else clients


def dropped(experiment: Experiment, number: int, clients: Sequence[str]) -> frozenset[str]:
    """Returns which of a round's clients drop out; pooled data has no client to lose."""
    chance = 0.0 if experiment.method.pooled else experiment.settings.federation.dropout
    return drop_outs(clients, chance, experiment.seed.child("round", number, "dropout"))


def scores_everywhere(experiment: Experiment) -> bool:
    """Whether clients' own models are at the end scored on all clients' documents."""
    asked = experiment.settings.federation.score_everywhere
    clients = sum(bool(own.train) for own in experiment.clients.values())
    return clients <= FEW_CLIENTS if asked == "auto" else asked


def fleet_of(experiment: Experiment, clients: Sequence[str]) -> Fleet | None:
    """Returns the emulated devices of these clients; none where pooled data lies on no client's device."""
    settings = experiment.settings.devices
    if settings is None or experiment.method.pooled:
        return None
    return Fleet(settings, clients, experiment.seed.child("devices"))


def due_for_scoring(number: int, settings: FederationSettings) -> bool:
    """Whether the validation split is scored after this round."""
    return number % settings.evaluate_every == 0 or number == settings.rounds


def _fingerprint(sites: Sequence[Site], server: Sequence[Document]) -> str:
    """Returns a hash of all documents, their annotations, whose they are and their splits."""
    digest = hashlib.sha256()
    parts = ((site.id, part, getattr(site.documents, part)) for site in sites for part in PARTS)
    owned = [(owner, part, document) for owner, part, documents in parts for document in documents]
    task = sites[0].task
    for owner, part, document in [*owned, *(("", "server", document) for document in server)]:
        facts = (owner, part, document.id, *document.texts, document.spans, document.labels)
        learnt = task.known(document).relations  # and no others: runs are as old as their data
        told = () if task.scorable(document) else ("not scored",)
        digest.update(repr((*facts, *learnt, *choices_of(document).items(), *told)).encode())
    return digest.hexdigest()


def _pool(sites: list[Site]) -> Site:
    """Returns one client that holds all training documents; scores stay those of the sites."""
    documents = tuple(document for site in sites for document in site.documents.train)
    return Site("pooled", Split(train=documents), sites[0].task, sites[0].tokenizer, parts=sites)

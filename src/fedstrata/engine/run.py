"""The rounds of a run: sample, let the method do its round, score, record, commit; whatever the engine.

A round is committed when its `round` event is in the record, which is written after its checkpoint. A
killed run therefore loses at most the round under way, and a resumed one goes on to the same numbers: every
random decision is derived from the seed and its name (`core.seeding`), never from a generator's past.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedstrata.core.errors import FedstrataError, refused
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.yaml import as_yaml
from fedstrata.core.types import State
from fedstrata.engine.book import Attendance, Book, RoundAbandonedError
from fedstrata.engine.checkpoint import Checkpoints, discard_uncommitted
from fedstrata.engine.cohort import RoundCohort, secure_aggregation_of
from fedstrata.engine.devices import fleet_of, last_stored_states
from fedstrata.engine.facts import by_group, model_facts, peaks, privacy_facts, saved_weights, sum_facts
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.protocol import Engine
from fedstrata.engine.sampling import sample
from fedstrata.engine.scoring import ServerDocuments, due_for_scoring, scored_when_trained
from fedstrata.engine.sites import drop_outs
from fedstrata.privacy.central import NoisedMeans
from fedstrata.privacy.groups import epsilon_at_two
from fedstrata.privacy.ledger_summary import write_privacy_statement
from fedstrata.privacy.randomness import randomness_of
from fedstrata.privacy.sampling import poisson
from fedstrata.record.log import Listener, RecordLog, committed_rounds, read_events
from fedstrata.record.summary import summarise, trained_scores, write_summary

EngineType = TypeVar("EngineType", bound=Engine)
RECORDED = frozenset(
    {
        *("run", "resumed", "client", "client_joined", "client_failed", "cache", "round", "final", "failed"),
        *("noised", "privacy"),
    }
)
"""Events that go into the record; the others only concern whoever watches."""


class Run(Generic[EngineType]):
    """One run of an experiment in a run directory.

    Args:
        experiment: What to run.
        folder: The run directory; exists.
        listen: Told of every event.
        engine_of: Returns the engine, given what is run, its directory, and what it tells of progress.

    Attributes:
        engine: Where the clients are.
        committed: The last round that is committed.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        listen: Listener,
        engine_of: Callable[[Experiment, Path, Listener], EngineType],
    ) -> None:
        self.experiment, self.folder = experiment, folder
        self.committed = 0
        self._listen = listen
        self._log = RecordLog(folder / "record.jsonl")
        self._noised = NoisedMeans(experiment.privacy, lambda number: self._emit("noised", {"round": number}))
        self._checkpoints = Checkpoints(folder / "checkpoints")
        with ExitStack() as failed:  # of a run that cannot be made nothing stays locked or at work
            failed.callback(self._log.close)
            self.engine = engine_of(experiment, folder, self._emit)
            failed.callback(self.engine.close)
            self._sums = self.engine.counting = secure_aggregation_of(experiment, self.engine, folder)
            self._fleet = fleet_of(experiment, self.engine.clients())
            failed.pop_all()
        self._stored_states: dict[str, str | None] = {}
        self._server = ServerDocuments(
            experiment.server, experiment.model, experiment.task, experiment.settings.training
        )
        self._state: State | None = None
        self._resumed = 0  # how often the run has gone on

    def execute(self, *, resume: bool = False) -> dict[str, Any]:
        """Runs all rounds that are not yet committed and returns the summary.

        Args:
            resume: Whether to go on with what the directory holds, if nothing has been loaded yet.

        Raises:
            FedstrataError: A client failed that the round needs; the record says so, and what was committed
                stays.
        """
        federation = self.experiment.settings.federation
        try:
            if resume:
                self.load()
            if self.committed < federation.rounds:
                self.engine.reserve()
            self.engine.wait(federation.min_clients)
            state = self._begin()
            for number in range(self.committed + 1, federation.rounds + 1):
                state = self._round(number, state)
            summary = self._finish(state)
        except FedstrataError as error:
            self._emit("failed", {"error": type(error).__name__, "message": str(error)})
            raise
        except BaseException as error:  # its text may quote a note
            self._emit("failed", {"error": type(error).__name__, "message": None})
            raise
        finally:
            self._tell_privacy()
            self._close()
        self._report()  # once nothing else holds memory or computes
        return summary

    def load(self) -> None:
        """Looks for what the directory holds of a run that goes on; what is not committed is dropped.

        Raises:
            ConfigurationError: It is no run of this experiment, or has more rounds already.
            FedstrataError: No checkpoint can be read.
        """
        if self._state is not None:
            return
        events = read_events(self.folder / "record.jsonl")
        rounds = committed_rounds(events)
        try:
            self._require_same(events)
            loaded = self._checkpoints.load(rounds[-1]["round"]) if rounds else None
        except FedstrataError:
            self._close()
            raise
        self._resumed = sum(event["event"] in {"run", "resumed"} for event in events)
        self._noised.load(events)
        last = loaded[0] if loaded else 0
        counted = self._sums.load(last, self._resumed) if self._sums else ()
        discard_uncommitted(self.folder, last, counted)
        if loaded is not None:
            self.committed, self._state = loaded
            self._stored_states = last_stored_states(events, self.committed)
            failed = {event["round"]: event["failed"] for event in rounds}
            self.engine.committed(self.committed, failed[self.committed])
        self.engine.delivered(last + 1, counted)

    def _close(self) -> None:
        self.engine.close()
        self._log.close()

    def _require_same(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Refuses to go on with another run, or to fewer rounds than are committed."""
        begun = [event for event in events if event["event"] == "run"]
        if begun:
            self.engine.require_same(begun[-1])
            self._require_same_noise(begun[-1].get("privacy"))
        committed, wanted = len(committed_rounds(events)), self.experiment.settings.federation.rounds
        if wanted < committed:
            message = f"must be at least {committed}, the rounds already committed, not {wanted}"
            raise refused("federation.rounds", message, "out_of_range")

    def _require_same_noise(self, begun: Mapping[str, Any] | None) -> None:
        """Refuses to go on with other noise: what was spent was spent with the noise that there was."""
        now = privacy_facts(self.experiment.privacy)
        for name in (begun or now or {}).keys() & {"mechanism", "unit", "sigma", "clip", "noise", "joint"}:
            before, wanted = (begun or {}).get(name), (now or {}).get(name)
            if before != wanted:
                why = "noise is for as many rounds as the run began with"
                message = (
                    f"{name} was {as_yaml(before)} and would be {as_yaml(wanted)}: {why}; begin another run"
                )
                raise refused("privacy", message, "changed")

    def _begin(self) -> State:
        """Tells that the run begins, or goes on, and returns the state that it does so with."""
        if self._state is None:
            state = self.experiment.method.start(self.experiment.model)
            self._emit("run", self._facts())
            return state
        rounds = committed_rounds(read_events(self.folder / "record.jsonl"))
        facts = {
            "round": self.committed,
            "rounds": self.experiment.settings.federation.rounds,
            "metric": self.experiment.metric,
            "workers": self.experiment.workers,
            "pooled": self.experiment.method.pooled,
            "privacy": privacy_facts(self.experiment.privacy),
            **{
                way: sum(
                    client[way]
                    for event in rounds
                    if event["round"] <= self.committed
                    for client in event["exchanges"].values()
                )
                for way in ("bytes_up", "bytes_down")
            },
        }
        self._emit("resumed", facts)
        return self._state

    def _round(self, number: int, state: State) -> State:
        started = time.perf_counter()
        settings, method = self.experiment.settings, self.experiment.method
        self.engine.wait(settings.federation.min_clients)
        rng = self.experiment.seed.child("round", number)
        cohort = self._cohort(number, self._drawn(rng))
        cohort.scored = scored_when_trained(number, settings.federation)
        begun = {"round": number, "rounds": settings.federation.rounds, "clients": len(cohort.clients)}
        self._emit("round_started", begun)
        abandoned = False
        try:
            state = method.round(state, cohort, rng.child("method"))
        except RoundAbandonedError as error:
            abandoned = True  # the state stays what it was
            if reason := str(error):
                self._emit("warning", {"message": f"round {number} changes nothing: {reason}"})
        before_scoring = time.perf_counter()
        due = due_for_scoring(number, settings.federation)
        scores = self._score(number, state, "validation", final=False) if due else {}
        scoring_seconds = time.perf_counter() - before_scoring
        if self._sums is not None:
            self._sums.save(number)
        self._checkpoints.save(number, state)  # before the event, which commits the round
        book, layout = cohort.book, self.engine.whole.layout
        seconds = time.perf_counter() - started
        facts = {
            "round": number,
            "loss": book.loss,
            **scores,
            "trained": trained_scores(cohort.trained_scores),
            "state": {name: value for name, value in state.values.items() if not name.startswith("_")},
            "trainable_parameters": book.trained_parameters,
            **self._simulated(cohort),
            **self._privacy_spent(cohort),
            **({"secure_aggregation": self._sums.facts(book)} if self._sums else {}),
            "failed": list(book.attendance.lost),
            "abandoned": abandoned,
            "exchanges": book.meter.exchanges(),
            "groups_up": by_group(book.meter.tensors_up, layout),
            "seconds": seconds,
            "train_seconds": cohort.train_seconds,
            "serve_seconds": book.serve_seconds,
            "evaluate_seconds": scoring_seconds + cohort.score_seconds,
            "engine_overhead_seconds": seconds - scoring_seconds - cohort.worked_seconds,
            # In every round: a run may go through several processes.
            **peaks(self.experiment.model.device, self.engine.memory()),
        }
        self._emit("round", facts)
        self.committed = number
        self.engine.committed(number, book.attendance.lost)
        if self._sums is not None:
            self._sums.committed(number)
        self._checkpoints.prune()
        return state

    def _drawn(self, rng: Seed) -> list[str]:
        """Draws the clients of a round; where whole clients are private each by itself, and maybe none.

        Raises:
            BudgetSpentError: The noise of the server allows for no more rounds.
        """
        clients, share = list(self.engine.clients()), self.experiment.settings.federation.sample
        if (privacy := self.experiment.privacy).mechanism != "central":
            return sample(clients, share, rng.child("sample"))
        self._noised.require_room()
        chance = randomness_of(privacy.settings, rng.child("sample"))
        return [clients[index] for index in poisson(len(clients), share, chance)]

    def _simulated(self, cohort: RoundCohort) -> dict[str, Any]:
        """Returns what a round took on the emulated devices; nothing without any."""
        if self._fleet is None:
            return {"simulated_seconds": None, "joules": None, "device_memory": None}
        return cohort.clock.facts(cohort.book.attendance.lost)

    def _privacy_spent(self, cohort: RoundCohort) -> dict[str, Any]:
        """Returns what every client's turns have spent so far; nothing without privacy."""
        if self.experiment.privacy.mechanism == "none":
            return {}
        clients = self.experiment.privacy.spent(self._turns())
        return {"privacy": {"clients": clients, "clipped": dict(cohort.clipped)}}

    def _turns(self) -> dict[str, int]:
        """Returns the turns that each client has begun, or, of the server, the means that were noised."""
        clients = self.engine.clients()
        if self.experiment.privacy.mechanism == "central":
            return dict.fromkeys(clients, self._noised.count)
        return {client: self.engine.turns_begun(client) for client in clients}

    def _tell_privacy(self) -> None:
        """Records what was spent, however the run has ended, and writes it down for people.

        More may have been spent than the last round knows of: by turns that were begun after it. The turns
        are recorded first, so that what was spent is known if its epsilon cannot be worked out.
        """
        privacy = self.experiment.privacy
        if privacy.mechanism == "none":
            return
        turns, pooled = self._turns(), self.experiment.method.pooled
        facts: dict[str, Any] = {"round": self.committed, "at_two": None, "budget": None}
        unknown = {client: {"turns": count, "epsilon": None} for client, count in turns.items()}
        self._log.append("privacy", {**facts, "clients": unknown}, durable=True)
        try:
            both = epsilon_at_two(privacy, turns, pooled=pooled) if privacy.settings.by_unit else None
            facts |= {"clients": privacy.spent(turns), "at_two": both}
            self._emit("privacy", {**facts, "budget": self.engine.budget()})
            write_privacy_statement(self.folder)
        except Exception as error:  # the run's own end must not be hidden by this one
            kind = type(error).__name__
            message = f"what was spent is not worked out, or privacy.md is not written ({kind})"
            self._emit("warning", {"message": f"{message}; the turns that were begun are in record.jsonl"})

    def _finish(self, state: State) -> dict[str, Any]:
        """Scores the test split, saves what was learnt and writes the summary."""
        started = time.perf_counter()
        self._emit("finishing", {})
        rounds = self.experiment.settings.federation.rounds
        scores = self._score(rounds, state, "test", final=True)
        self._save(rounds, state)
        facts = {
            **scores,
            "saved": saved_weights(self.folder),
            "seconds": time.perf_counter() - started,
            **peaks(self.experiment.model.device, self.engine.memory()),
        }
        self._emit("final", facts)
        if self._sums is not None:  # of the test scores
            self._sums.committed(rounds)
        self.engine.end()  # before the summary, with which a run counts as finished
        summary = summarise(read_events(self.folder / "record.jsonl"))
        write_summary(summary, self.folder / "summary.json")
        return summary

    def _score(self, number: int, state: State, part: str, *, final: bool) -> dict[str, Any]:
        return self.engine.score(number, state, part, final=final)

    def _save(self, number: int, state: State) -> None:
        self.engine.save(number, state)

    def _report(self) -> None:
        """Writes the report; it only shows what the record holds, so no run fails if it cannot be written."""
        try:
            from fedstrata.record.report import write_report  # noqa: PLC0415 - matplotlib, heavy

            write_report([self.folder], self.folder / "report.html")
        except Exception as error:
            reason = f"the report could not be written ({type(error).__name__})"
            self._emit("warning", {"message": f"{reason}; try again with: fedstrata report {self.folder}"})

    def _cohort(self, number: int, clients: Sequence[str]) -> RoundCohort:
        experiment = self.experiment
        pooled, noised, needed = experiment.method.pooled, None, experiment.settings.federation.min_clients
        if (privacy := experiment.privacy).mechanism == "central":
            expected = experiment.settings.federation.sample * len(self.engine.clients())
            rng = experiment.seed.child("round", number, "noise")
            chance = randomness_of(privacy.settings, rng)
            noised = partial(self._noised.mean, number, expected=expected, randomness=chance)
            needed = needed if clients else 0
        attendance = Attendance(
            clients,
            drop_outs(experiment, number, clients),
            None if pooled else needed,
        )
        return RoundCohort(
            method=experiment.method,
            model=experiment.model,
            engine=self.engine,
            clients=[self.engine.info(client) for client in clients],
            training=experiment.settings.training,
            book=Book(number, self.folder, self._emit, attendance, self.engine.command),
            device_of=lambda client: self._fleet.device(client, number) if self._fleet else None,
            stored_states=self._stored_states,
            server=self._server,
            noised=noised,
            secure=self._sums,
        )

    def _facts(self) -> dict[str, Any]:
        """What the record's `run` event says of the whole run."""
        return {
            **model_facts(self.experiment, self.engine.whole),
            **self.engine.facts(),
            "privacy": privacy_facts(self.experiment.privacy),
            "secure_aggregation": sum_facts(self.experiment.privacy, len(self.engine.clients())),
            "devices": self._fleet.profiles if self._fleet else None,
        }

    def _emit(self, event: str, facts: Mapping[str, Any]) -> None:
        if event in RECORDED:
            self._log.append(event, facts, durable=event in {"round", "noised"})
        self._listen(event, facts)

"""A rehearsal: rounds of the real engine on a few batches in a folder that is thrown away.

Nothing here knows any method: frames, steps, scoring, checkpoints and saved models are the engine's own, and
are counted and timed where a run counts and times them. The first round warms up (and fills caches); the
later ones are measured.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

from fedstrata.client.site import Site
from fedstrata.core.documents import Document
from fedstrata.core.errors import ClientsLostError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.federation import FederationSettings
from fedstrata.core.settings.privacy import PrivacySettings
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.site_database import SITE_DATABASE
from fedstrata.core.task import Task
from fedstrata.core.types import State
from fedstrata.data.split import Split
from fedstrata.engine.cohort import RoundCohort
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.run import Run
from fedstrata.engine.sites import sites_of
from fedstrata.models.state import Model
from fedstrata.planning.measurements import Rehearsed, RoundCost, Timed, Turn
from fedstrata.planning.survey import BATCHES, Samples
from fedstrata.planning.watched_task import WatchedTask
from fedstrata.privacy.ledger_verification import LEDGER
from fedstrata.privacy.mechanism import NO_PRIVACY, Privacy
from fedstrata.privacy.randomness import SecureRandomness, SeededRandomness
from fedstrata.record.log import read_events
from fedstrata.wire import frame
from fedstrata.wire.meter import Meter

if TYPE_CHECKING:
    from fedstrata.planning.secure_sums import WatchedSums  # for masks alone

SECONDS = 10.0
"""How long rounds are measured, unless told otherwise: the faster a step, the more of them."""
_OF_SUMS = ("colluders", "range", "ring", "survivors")
"""Settings that have no meaning without masked sums."""
MOST_ROUNDS = 20
PRIVATE_STEPS = 3
"""Steps of a rehearsed turn under differential privacy: optimisers have their moments from the second on."""
NOT_REHEARSED = frozenset({"federation", "devices", "report_to"})
"""Sections a rehearsal has of its own: everybody takes part in every round, without an emulated device, and
no tracker hears of it."""


def rehearse(
    experiment: Experiment, samples: Samples, *, seconds: float = SECONDS, place: Path | None = None
) -> Rehearsed:
    """Runs a few rounds on samples and says what they cost; the model is as before afterwards.

    Args:
        experiment: The run to rehearse.
        samples: What to run on.
        seconds: How long to measure; one round after the first is always measured.
        place: A folder on the disk that the run will write to; the system's temporary folder if none.

    Raises:
        FedstrataError: A client failed, as it would in the run.
    """
    watched = WatchedTask(experiment.task)
    privacy = _rehearsed_privacy(experiment)
    settings = {name: value for name, value in experiment.settings if name not in NOT_REHEARSED}
    settings["privacy"] = privacy.settings
    small = RunSettings(**settings, federation=FederationSettings(rounds=MOST_ROUNDS))
    with tempfile.TemporaryDirectory(prefix=".fedstrata-plan-", dir=place) as folder:
        method, task = experiment.method.rehearsed(), cast("Task", watched)
        rehearsed = replace(experiment, settings=small, task=task, method=method, workers=1, privacy=privacy)
        secure = experiment.privacy.settings.noise == "secure"
        summing = _watched_sums(experiment)
        run = Rehearsal(rehearsed, Path(folder), samples, watched, secure=secure, summing=summing)
        try:
            run.execute_for(seconds)
        except ClientsLostError as error:  # there is no run to go on with: the client's own error says more
            raise error.__cause__ or error from None
        finally:
            experiment.model.train_only(())
            experiment.model.restore()
    return run.measured


def _rehearsed_privacy(experiment: Experiment) -> Privacy:
    """Returns the mechanism of a rehearsal: a few steps, in which every unit of the samples is drawn.

    Its noise is drawn from the seed, so that a rehearsal comes out the same every time; nothing of it is
    kept or sent. Of noise at the server, once a round and soon drawn, nothing is rehearsed.
    """
    if not experiment.privacy.settings.by_unit:
        return NO_PRIVACY
    settings, rates = experiment.privacy.settings, experiment.privacy.rates
    assert rates is not None and settings.expected_batch is not None  # noqa: S101 - private runs have them
    changed: dict[str, Any] = {
        "steps": PRIVATE_STEPS,
        "noise": "seeded",
        "mechanism": "local",  # with joint noise units are clipped and rounded as in the run, and not summed:
        "secure_aggregation": False,  # two clients cannot hide each other
        **{name: PrivacySettings.model_fields[name].default for name in _OF_SUMS},
        "epsilon": None,
        "budget": None,
        "sigma": experiment.privacy.sigma,
    }
    names, batch = _names(experiment), max(settings.expected_batch, BATCHES)  # no fewer than there are
    changed |= {"expected_batch": batch, "units": dict.fromkeys(names, batch)}
    own = settings.model_copy(update=changed)
    rates = {name: rates.get(name, max(rates.values())) for name in names}
    return replace(experiment.privacy, settings=own, rates=rates, turns=MOST_ROUNDS * MOST_ROUNDS)


def _watched_sums(experiment: Experiment) -> WatchedSums | None:
    """Returns what notes which means will be masked sums; none of a run without."""
    if not experiment.privacy.settings.secure_aggregation:
        return None
    from fedstrata.planning.secure_sums import WatchedSums  # noqa: PLC0415 - for masks alone

    return WatchedSums(experiment)


def _names(experiment: Experiment) -> list[str]:
    """Returns the names of the two clients of a rehearsal."""
    names = [site.id for site in sites_of(experiment)[1]]
    return [*names, f"{names[0]}-again"][:2]


@dataclass
class RehearsedSite(Site):
    """A client that trains on given examples, or on given units of them."""

    examples: Sequence[Any] = ()
    units: Sequence[Sequence[Any]] | None = None

    def encoded_units(self) -> list[Sequence[Any]]:
        """Returns the given examples."""
        return [self.examples] if self.units is None else list(self.units)


def _documents(experiment: Experiment, samples: Samples, index: int) -> Split:
    """Returns what one rehearsed client is scored on; a client without training documents is held out.

    The one that stands for those it trains on has what a template may ask of them.
    """
    scored = {part: tuple(documents[index]) for part, documents in samples.scored.items()}
    like = next((own.train[0] for own in experiment.clients.values() if own.train), Document("", ""))
    pair = None if like.text_pair is None else ""
    return Split(train=(Document("rehearsal", "", metadata=like.metadata, text_pair=pair),), **scored)


@dataclass(slots=True)
class TensorMeter(Meter):
    """A meter that also notes the bytes of every tensor, by direction."""

    sizes_up: dict[str, int] = field(default_factory=dict)
    sizes_down: dict[str, int] = field(default_factory=dict)

    def count_down(self, client: str, sent: frame.Frame) -> int:
        """Counts a plan and returns its bytes."""
        self.sizes_down |= sent.tensor_bytes()
        return Meter.count_down(self, client, sent)

    def count_up(self, client: str, sent: frame.Frame) -> int:
        """Counts an update and returns its bytes."""
        self.sizes_up |= sent.tensor_bytes()
        return Meter.count_up(self, client, sent)


class Rehearsal(Run[LocalEngine]):
    """A run of two clients, the first with the largest batch and the second with typical ones.

    Args:
        experiment: What to run; its settings say how many rounds at most, its task is the watched one.
        folder: The run directory.
        samples: The examples and documents.
        watched: The task of the experiment.
        secure: Whether the run's noise is drawn from the operating system's secrets.
        summing: Notes which means will be masked sums; none where none will.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        samples: Samples,
        watched: WatchedTask,
        *,
        secure: bool = False,
        summing: WatchedSums | None = None,
    ) -> None:
        examples = (samples.largest, samples.typical)
        declared = experiment.privacy.settings.units or {}
        sites = [
            RehearsedSite(
                name,
                _documents(experiment, samples, index),
                experiment.task,
                experiment.model.tokenizer,
                declared=declared.get(name, 0),
                examples=examples[index],
                units=samples.units and samples.units[index],
            )
            for index, name in enumerate(_names(experiment))
        ]
        self._clients = len(sites)
        super().__init__(
            experiment, folder, lambda event, facts: None, partial(LocalEngine, sites=(sites, sites))
        )
        self.measured = Rehearsed()
        self._watched, self._summing = watched, summing
        if summing is not None:
            self.measured.sums = summing.rounds
        self._turn, self._marked, self._counted, self._served = Turn(1), 0.0, 0, 0.0
        self._passed, self._private, self._secure = 0, samples.units is not None, secure
        self._round_began = self._last_client = 0.0
        self._meter = TensorMeter()

    def execute_for(self, seconds: float) -> None:
        """Runs a round to warm up and others until this time is over, and finishes as a run does."""
        try:
            state = self._round(1, self._begin())
            end = time.perf_counter() + seconds
            for number in range(2, MOST_ROUNDS + 1):
                state = self._round(number, state)
                if time.perf_counter() > end:
                    break
            self._measure_clients()
            if self._private and self._secure:
                self.measured.noise_seconds = _noise_seconds(self.experiment.model, self.measured.trainable)
            self._measure_files(self._finish(state))
        finally:
            self._log.close()

    def _cohort(self, number: int, clients: Sequence[str]) -> RoundCohort:
        cohort = super()._cohort(number, clients)
        cohort.book.meter = self._meter = TensorMeter()
        self._book = cohort.book
        cohort.secure = self._summing
        return cohort

    def _score(self, number: int, state: State, part: str, *, final: bool) -> dict[str, Any]:
        self._watched.reset()
        started = time.perf_counter()
        scores = super()._score(number, state, part, final=final)
        if scores:
            self.measured.scorings.append(Timed(self._watched.tokens, time.perf_counter() - started))
        return scores

    def _save(self, number: int, state: State) -> None:
        started = time.perf_counter()
        super()._save(number, state)
        models = self._clients if self.experiment.method.personal else 1
        self.measured.save_seconds = (time.perf_counter() - started) / models

    def _emit(self, event: str, facts: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        super()._emit(event, facts)
        if event == "round_started":
            self._round_began = now
            self._begin_turn(facts["round"])
        elif event == "client_progress":
            self._note_step(now)
        elif event == "client":
            self._last_client = now
            self._end_turn(facts)
        elif event == "round":
            self._note_round(facts)

    def _begin_turn(self, number: int) -> None:
        self._turn, self._marked, self._counted, self._passed = Turn(number), 0.0, 0, 0
        self._served = self._book.serve_seconds
        self._watched.reset()

    def _note_step(self, now: float) -> None:
        began = self._marked or self._watched.began or now
        served = self._book.serve_seconds - self._served
        passes = self._watched.passes - self._passed if self._private else 0
        seconds = max(0.0, now - began - served)
        self._turn.steps.append(Timed(self._watched.tokens - self._counted, seconds, passes))
        self._marked, self._counted, self._served = now, self._watched.tokens, self._book.serve_seconds
        self._passed = self._watched.passes

    def _end_turn(self, facts: Mapping[str, Any]) -> None:
        self._turn.client = facts["client"]
        # Where the model is divided the parts of it train, and it does not.
        model = self.experiment.model
        self.measured.trainable = model.trainable or self.experiment.method.trainable(model.layout)
        self._turn.fixed_seconds = facts["seconds"] - sum(step.seconds for step in self._turn.steps)
        self.measured.turns.append(self._turn)
        self._begin_turn(facts["round"])

    def _note_round(self, facts: Mapping[str, Any]) -> None:
        exchanges = facts["exchanges"].values()
        clients = max(1, len(exchanges))
        worked = facts["train_seconds"] + facts["serve_seconds"]
        per_client = (self._last_client - self._round_began - worked) / clients
        turns = [turn for turn in self.measured.turns if turn.round == facts["round"]]
        tokens = max(1, sum(step.tokens for turn in turns for step in turn.steps))
        meter = self._meter
        cost = RoundCost(
            (sum(client["bytes_up"] for client in exchanges) - meter.said_up) / clients,
            (sum(client["bytes_down"] for client in exchanges) - meter.said_down) / clients,
            max(0.0, per_client),
            max(0.0, facts["engine_overhead_seconds"] - per_client * clients),
            meter.said_up / tokens,
            meter.said_down / tokens,
            facts["serve_seconds"] / tokens,
        )
        self.measured.rounds.append(cost)
        self.measured.up, self.measured.down = self._meter.sizes_up, self._meter.sizes_down

    def _measure_clients(self) -> None:
        """Looks at what clients keep between rounds: private tensors, and what grows with their examples."""
        files = [path for path in (self.folder / "clients").rglob("*") if path.is_file()]
        stores = [path for path in files if path.match("store-*.safetensors")]
        self.measured.store_bytes = max((path.stat().st_size for path in stores), default=0)
        releases = [
            path for path in files if path.match("release-*.safetensors") or path.name == SITE_DATABASE
        ]
        self.measured.release_bytes = _size(releases) // self._clients
        turns = max(1, len({(turn.round, turn.client) for turn in self.measured.turns}))
        ledgers = [path for path in files if path.name == LEDGER]
        said = sum(len(line) for line in _lines(ledgers) if json.loads(line)["what"] == "message")
        self.measured.ledger_bytes = (_size(ledgers) - said) / turns
        tokens = sum(step.tokens for turn in self.measured.turns for step in turn.steps)
        self.measured.ledger_bytes_said = said / max(1, tokens)
        kept = {*stores, *releases, *ledgers}
        self.measured.cache_bytes = _size(path for path in files if path not in kept)

    def _measure_files(self, summary: Mapping[str, Any]) -> None:
        checkpoints = (self.folder / "checkpoints").glob("*")
        self.measured.checkpoint_bytes = max((path.stat().st_size for path in checkpoints), default=0)
        models = [self.folder / "model", *(self.folder / "clients").glob("*/model")]
        sizes = [_size(model.rglob("*")) for model in models if model.is_dir()]
        self.measured.model_bytes = max(sizes, default=0)
        sizes_of: dict[str, list[int]] = {}
        for event in read_events(self.folder / "record.jsonl"):
            sizes_of.setdefault(event["event"], []).append(len(json.dumps(event)) + 1)
        self.measured.event_bytes = {kind: fmean(sizes) for kind, sizes in sizes_of.items()}
        self.measured.peak_rss_bytes = summary["memory"]["peak_rss_bytes"]
        self.measured.peak_gpu_bytes = summary["memory"]["peak_gpu_bytes"]


def _noise_seconds(model: Model, trainable: Sequence[str]) -> float:
    """Returns how much longer the noise of a step takes from the operating system's secrets."""
    numbers = sum(parameter.numel() for parameter in model.parameters(trainable))
    tried = min(numbers, 2**20)
    seconds = []
    for source in (SeededRandomness(Seed(0)), SecureRandomness()):
        source.normal(tried)
        started = time.perf_counter()
        source.normal(tried)
        seconds.append(time.perf_counter() - started)
    return max(0.0, seconds[1] - seconds[0]) * numbers / max(1, tried)


def _lines(paths: Iterable[Path]) -> Iterator[bytes]:
    for path in paths:
        yield from path.read_bytes().splitlines(keepends=True)


def _size(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())

"""The compute half of a turn: what one client does with the plan that it has got, wherever that is.

In a simulation and at a site of its own a turn is the same: the model is put back to its base values, the
client's store laid over them, the method's handler run, and what it returns made a frame. All that is drawn
comes from the run's seed and the turn's name, so that it is the same wherever it is computed.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedstrata.client.accounts import TurnAccount
from fedstrata.client.failures import is_client_failure, release_memory
from fedstrata.client.releases import Release, ReleaseRecord
from fedstrata.client.site import Examples, Site
from fedstrata.client.store import ClientStore, client_folder
from fedstrata.core.client import Client, Line, PrefixCache
from fedstrata.core.cut import Cut
from fedstrata.core.errors import NotReleasedError, TrainingError
from fedstrata.core.method import Method
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.devices import Device
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.core.site_database import SITE_DATABASE
from fedstrata.core.types import ClientInfo, Plan, Tensors, Update, Work
from fedstrata.models.state import Model
from fedstrata.privacy import ledger
from fedstrata.privacy.clipping import UnitGradients
from fedstrata.privacy.ledger import Ledger, Turn
from fedstrata.privacy.mechanism import NO_PRIVACY, Privacy
from fedstrata.privacy.randomness import randomness_of
from fedstrata.privacy.released import Released
from fedstrata.record.log import Listener
from fedstrata.split.divide import ends_of
from fedstrata.train.evaluate import answer
from fedstrata.train.work import counted_passes
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame

_HANDLER = ("plan", "client", "rng")
"""The arguments of a handler of a method."""


def is_handler(method: Method, name: str) -> bool:
    """Whether a server may name it: a handler of the method, and nothing else that the method has."""
    found = None if name.startswith("_") else getattr(method, name, None)
    return inspect.ismethod(found) and tuple(inspect.signature(found).parameters) == _HANDLER


@dataclass(frozen=True, slots=True)
class Order:
    """All that a client is told to do in one turn.

    Attributes:
        client: Whose turn it is.
        round: The round, counted from 1.
        handler: The handler that runs.
        call: How often that handler was called in the round, this time included; with the round, the client
            and the handler the path of the turn's seed.
        plan: What the client is sent.
        cut: Where its model is divided; none where it has all of it.
        device: The device that it is emulated on; none without emulation.
        stored_states: Which output of its frozen blocks that device holds.
        scored: The parts of the split that what it has trained is scored on, by everybody's documents.
    """

    client: str
    round: int
    handler: str
    call: int
    plan: Frame
    cut: Cut | None = None
    device: Device | None = None
    stored_states: str | None = None
    scored: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a turn.

    Attributes:
        update: What the client sends; its tensors alias the model until that is used again.
        seconds: How long its handler worked, without waiting for the server, and what it gave was masked.
        trained: How many numbers it trained.
        work: What an emulated device has computed; none without emulation.
        scores: Scores of what was trained, by part; none where they were not asked for.
        score_seconds: How long these took.
        clipped: The share of the units of a private training whose gradient was clipped; none without. It
            does not leave a client that is a process of its own.
    """

    update: Frame
    seconds: float
    trained: int = 0
    work: Work | None = None
    scores: Mapping[str, Any] | None = None
    score_seconds: float = 0.0
    clipped: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Why nothing came of a turn.

    Attributes:
        error: The error, which is the client's own (`failures.is_client_failure`).
        seconds: How long its handler worked until then.
        update: What the client sent all the same, which is of no use; it has travelled.
    """

    error: Exception
    seconds: float = 0.0
    update: Frame | None = None


@dataclass(slots=True)
class Workplace:
    """Where clients compute, one at a time: a model, and what they keep beside it.

    Attributes:
        method: Whose handlers run.
        model: The model, at its base values whenever a turn begins.
        training: How clients train.
        metric: The score that clients validate by; the task's if none.
        seed: Root of all seeds of the run.
        folder: Where clients keep their stores.
        listen: Told of progress within a turn.
        cache_of: Returns the cache of the client of this name.
        secret: Draws what the server must not know; none where all is drawn from the run's seed.
        score: Scores the model as it is on parts of everybody's documents; none where there is nothing to
            score.
        privacy: The mechanism under which clients train.
        run: The id of the run; none in a simulation, and as long as nobody has said it.
        apart: Whether it is a process of its own, so that what clients send leaves the machine.
        home: The folder in which a site keeps what outlives a run; none in a simulation.
        agreed: SHA-256 of all that the sites of a run must agree on (`engine.agreed`), hexadecimal.
        allow_without: Sites whose update this site's operator has agreed to reveal, each with the hash of the
            one sum that does (`ReleaseGuard`), empty as long as none does.
        reserve: Has a site's budget reserve the run, before a turn; in a simulation the run itself does.
        permit: Holds an order against a site's policy, before anything is computed for it.
    """

    method: Method
    model: Model
    training: TrainingSettings
    metric: str | None
    seed: Seed
    folder: Path
    listen: Listener
    cache_of: Callable[[str], PrefixCache | None] = lambda client: None
    secret: Callable[[], int] | None = None
    score: Callable[[Sequence[str]], Mapping[str, Any] | None] = lambda parts: None
    privacy: Privacy = NO_PRIVACY
    run: str | None = None
    apart: bool = False
    home: Path | None = None
    agreed: str = "00" * 32
    allow_without: dict[str, str] = field(default_factory=dict)
    reserve: Callable[[], None] = lambda: None
    permit: Callable[[Order], None] = lambda order: None

    @property
    def learnt(self) -> tuple[str, ...]:
        """All that the method ever trains: what sides of a divided model hold for themselves."""
        return self.method.trainable(self.model.layout)

    def database(self, client: str) -> Path:
        """Returns the file that records what a client has released: one per site, whatever the run."""
        return (self.home or client_folder(self.folder, client)) / SITE_DATABASE

    def releases(self, client: str) -> ReleaseRecord:
        """Returns the record of a client's private turns."""
        return ReleaseRecord(self.database(client), client, self.run)

    def store(self, client: str, number: int) -> ClientStore:
        """Returns a client's store in a round."""
        return ClientStore(client_folder(self.folder, client), number)

    def enter(self, client: str, number: int, shared: Tensors | None = None) -> ClientStore:
        """Makes the model this client's own: base values, what is shared, if given, and its store.

        What a store holds under other names than those of parameters is no part of the model.

        Args:
            client: The client.
            number: The round.
            shared: The global values of what is shared.

        Returns:
            The client's store.
        """
        store = self.store(client, number)
        self.model.restore()
        self.model.load_known(shared or {})
        self.model.load_known(store.read().tensors)
        return store

    def ledger(self, client: str, number: int = 0, handler: str = "", call: int = 0) -> Ledger:
        """Returns what takes down what a client sends in a turn, or in none."""
        turn = Turn(client, self.run, number, handler, call)
        hashed = self.apart or self.privacy.settings.secure_aggregation  # where heads are signed
        return Ledger(client_folder(self.folder, client), turn, durable=self.apart, hashed=hashed)

    def compute(
        self,
        order: Order,
        site: Site,
        line: Line | None = None,
        handle: Callable[..., Update] | None = None,
        mask: Callable[[Update, UnitGradients | None], Update] | None = None,
        diverged: Callable[[TrainingError], Update] | None = None,
    ) -> Done | Failed:
        """Runs one turn; of one that fails nothing is left but what the client's ledger says of it.

        Args:
            order: What is to be done.
            site: The client's documents.
            line: Its line to the server; none for a handler that no conversation runs.
            handle: What runs and keeps nothing; the method's handler of the order's name if none.
            mask: Makes of what the handler gives, and of how it trained if privately, what leaves the client;
                what it gives itself leaves if none.
            diverged: Makes an update in place of one whose training without privacy has diverged; the turn
                fails if none.
        """
        self.permit(order)
        with self.ledger(order.client, order.round, order.handler, order.call) as book:
            return self._computed(order, site, line, handle, mask, diverged, book)

    def _computed(
        self,
        order: Order,
        site: Site,
        line: Line | None,
        handle: Callable[..., Update] | None,
        mask: Callable[[Update, UnitGradients | None], Update] | None,
        diverged: Callable[[TrainingError], Update] | None,
        book: Ledger,
    ) -> Done | Failed:
        rng = self.seed.child("round", order.round).child("client", order.client, order.handler, order.call)
        run = handle or getattr(self.method, order.handler)
        waited = getattr(line, "waited", 0.0)
        started, seconds = time.perf_counter(), 0.0
        # What scores and keeps nothing trains nothing, and has its own rule of what it tells.
        release = self._release(order) if handle is None else None
        store = self.store(order.client, order.round)
        try:
            examples = Examples(site)
            private = self._private(site, examples, rng, release)
            client = self._client(order, site, examples, book.line(line) if line else None, private)
            started = time.perf_counter()
            try:
                before = release.finished(store) if release else None
                update = before or run(frame.decode(order.plan, Plan), client, rng)
            except TrainingError as error:
                if diverged is None or private is not None:
                    raise
                self.undo(order.client, order.round)
                update = diverged(error)
            finally:
                seconds = time.perf_counter() - started - (getattr(line, "waited", 0.0) - waited)
            trained = self.model.trainable if order.cut is None else self.learnt  # there, and at the server
            numbers = sum(self.model.layout.sizes[name] for name in trained)
            ended = time.perf_counter()
            # No later moment has its weights; a distorted model is no result of any training.
            learnt = isinstance(update.values.get("loss"), float) or before is not None
            sound = learnt and client.corruption is None
            scores = self.score(order.scored) if order.scored and sound else None
            took, clipped = time.perf_counter() - ended, None
            if release is not None and private is not None:
                update = update if before else self._released(order, update, private, release)
                release.finish(update, store)
                clipped = private.clipped_share
            update = mask(update, private) if mask else update
            sent = frame.encode(update)
            protected, spent = self._protected(order, release)
            book.append(
                "scores" if handle else "update",
                update,
                sent,
                ledger.masked(protected) if mask else protected,
                spent,
            )
            seconds += time.perf_counter() - ended - took
            return Done(sent, seconds, numbers * learnt, client.work, scores, took, clipped)
        except Exception as error:
            if handle is None:
                self.undo(order.client, order.round)
            if not is_client_failure(error):
                raise
            release_memory(error)
            return Failed(error, seconds)

    def undo(self, client: str, number: int) -> None:
        """Drops what a client's turn in a round has left in the model and in its store."""
        self.model.restore()
        self.store(client, number).discard()

    def _client(
        self,
        order: Order,
        site: Site,
        examples: Examples,
        line: Line | None,
        private: UnitGradients | None,
    ) -> Client:
        """Returns the client as its handler sees it, with the ends of the model alone if it is divided."""

        def report(progress: Mapping[str, float]) -> None:
            self.listen("client_progress", {"round": order.round, "client": order.client, **progress})

        store, cut = self.enter(order.client, order.round), order.cut
        work = Work(stored_states=order.stored_states) if order.device else None
        return Client(
            order.client,
            self.model if cut is None else ends_of(self.model, cut, self.learnt),
            site.task,
            examples,
            self.training,
            store,
            report,
            self.cache_of(order.client) if cut is None else None,  # the blocks that run are not all of them
            site.distortion,
            lambda: self._validate(site, work),
            order.device,
            work,
            line,
            self.secret() if self.secret else None,
            private,
        )

    def _protected(self, order: Order, release: Release | None) -> tuple[str, float | None]:
        """Returns how an update is protected, and what its client has spent with it."""
        if release is None or not self.privacy.sigma:
            return ledger.UNPROTECTED, None
        turns = self.releases(order.client).turns_begun
        kind = ledger.JOINT if self.privacy.joint else ledger.LOCAL
        kind = ledger.SEEDED if self.privacy.settings.noise == "seeded" else kind
        return kind, self.privacy.epsilon(order.client, turns)

    def _release(self, order: Order) -> Release | None:
        """Returns what keeps the book of a turn's privacy; none where clients are not private."""
        if not self.privacy.settings.by_unit:
            return None
        self.reserve()
        turn, folder = (order.round, order.handler, order.call), client_folder(self.folder, order.client)
        account = TurnAccount.of(self.privacy, order.client, folder)
        # A share of joint noise is drawn for one roster, so that a sum is never sent again.
        keeps = self.privacy.joint is None
        noise = self.privacy.noise_of(order.client)
        record, allowed = self.releases(order.client), self.privacy.turns
        return Release(record, folder, turn, order.plan, allowed, account, noise=noise, keeps=keeps)

    def _released(self, order: Order, update: Update, private: UnitGradients, release: Release) -> Update:
        """Returns what may leave of an update of private training."""
        told = update.values.keys() & set(self.method.told_privately)
        due = self.method.weighs(ClientInfo(order.client, private.declared))
        if update.weight != due:  # an exact count, for example
            message = (
                f"{order.handler!r} returns a weight of {update.weight:g}, not {due:g}, its declared one"
            )
            raise NotReleasedError(f"method {self.method.name}: {message}; nothing was sent")
        update = replace(update, values={name: update.values[name] for name in sorted(told)})
        plan, layout = frame.decode(order.plan, Plan), self.model.layout
        earlier = self.releases(order.client).unsent(order.round)
        unsent = private.released.require(self.method, order.handler, plan, update, layout, earlier)
        own = set(self.method.private(layout))
        release.unsent = [hashed for name, hashed in unsent.items() if name not in own]
        return update

    def _private(
        self, site: Site, examples: Examples, rng: Seed, release: Release | None
    ) -> UnitGradients | None:
        """Returns how a client trains under differential privacy; none without."""
        if release is None:
            return None
        drawn = randomness_of(self.privacy.settings, rng.child("privacy"))
        kind = UnitGradients if self.privacy.joint is None else _joint_gradients()
        released = Released(self.method.sends_changes)
        return kind(self.privacy, site.declared, drawn, lambda: examples.units, release.begin, released)

    def _validate(self, site: Site, work: Work | None) -> float | None:
        """Scores the model as it is on a client's validation documents; more is better.

        The passes are the device's own work and are counted as such.
        """
        documents = site.scored("validation")
        if not documents:
            return None
        with counted_passes(self.model, work):
            answers = answer(self.model, site.task, documents, self.training)
        metric = self.metric or site.task.metric
        score = site.task.score(documents, answers).get(metric)  # a label may have no examples here
        return -score if score is not None and metric in site.task.falling else score


def _joint_gradients() -> type[UnitGradients]:
    """Returns the gradients of joint noise, which only a run with masks loads."""
    from fedstrata.privacy.joint_gradients import JointGradients  # noqa: PLC0415 - for masks alone

    return JointGradients

"""A client as a process of its own: it holds its documents, the model or the ends of it, and what it keeps.

It waits for plans, runs the handler that a plan names, and sends the result when the server asks for it, over
one line. At the end it keeps what was learnt. Of a divided model the middle is never loaded.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from fedstrata.client.caches import ClientCaches
from fedstrata.client.failures import describe, is_client_failure, kind_of
from fedstrata.client.turn import Failed, Order, Workplace, is_handler
from fedstrata.core.errors import (
    FrameError,
    LineError,
    PolicyError,
    SessionOverError,
    TrainingError,
    printable,
    refused,
)
from fedstrata.core.files import private_folder
from fedstrata.core.handlers import SCORE, is_exchange, is_scoring, only_says
from fedstrata.core.settings.source import Source
from fedstrata.core.types import JSON, Message, Update
from fedstrata.data.split import PARTS
from fedstrata.engine.agreed import agreed, agreed_hash
from fedstrata.engine.budgets import SiteBudget, with_budget
from fedstrata.engine.check import check_settings
from fedstrata.engine.facts import least_survivors
from fedstrata.engine.prepare import Experiment, prepare_client
from fedstrata.engine.remote.agreeing import TRAINING, agreement_of, held, windows_of
from fedstrata.engine.remote.joined_runs import JoinedRuns
from fedstrata.engine.remote.shared_settings import lasting_settings, with_shared
from fedstrata.engine.remote.site_identity import secure_turns_of
from fedstrata.engine.remote.site_policy import PolicyGuard
from fedstrata.engine.remote.site_scoring import SiteScoring
from fedstrata.engine.sites import sites_of
from fedstrata.record.corpus import data_lines
from fedstrata.record.log import Listener
from fedstrata.transport.header import Header, Kind
from fedstrata.transport.membership import Membership, TurnLine, TurnOverError
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame


class RemoteClient:
    """One client.

    Args:
        experiment: What `prepare_client` gave.
        client: Its name, one of the experiment's clients.
        home: Where it keeps a store for each run.
        listen: Told of its progress.
        identity: Where its identity lies, with secure aggregation.
        lock: Where it says whom it sums with.
        policy: What its site allows; the defaults if none.
        allow_without: Sites of which this site's operator accepts that the server learns a single update.
        runs: How many runs its people have accepted, one after the other.

    Raises:
        ConfigurationError: There is no client of this name in the data, or it has not what secure aggregation
            needs, or has it in vain.
    """

    def __init__(
        self,
        experiment: Experiment,
        client: str,
        home: Path,
        listen: Listener,
        *,
        identity: Path | None = None,
        lock: Path | None = None,
        policy: PolicyGuard | None = None,
        allow_without: Collection[str] = (),
        runs: int = 1,
    ) -> None:
        self._experiment, self._home, self._listen = experiment, home, listen
        self._trained, self._failure = 0, ""
        self._done: Header | None = None  # the plan of the last turn, if it came to an update
        self._update: Frame | None = None  # that update, as long as the server may fetch it
        sites = {site.id: site for site in sites_of(experiment)[1]}
        if client not in sites:
            message = f"the data has no client {client!r} with training documents; it has: {', '.join(sites)}"
            raise refused("--client", message, "unknown_name")
        self.id, self._site = client, sites[client]
        private_folder(home)  # what it keeps there is nobody else's
        training = experiment.settings.training
        self._workplace = Workplace(
            method=experiment.method,
            model=experiment.model,
            training=training,
            metric=experiment.metric,
            seed=experiment.seed,
            folder=home,
            listen=listen,
            # Anew for every turn: from two that are sent with equal noise it could be subtracted.
            secret=lambda: secrets.randbits(63),
            privacy=experiment.privacy,
            apart=True,
            home=home,
            allow_without=dict.fromkeys(allow_without, ""),
        )
        self._runs, guard = JoinedRuns(home, client, runs), policy or PolicyGuard()
        rounds = experiment.settings.federation.rounds
        self._workplace.permit = lambda order: guard.permit(order, self._runs, rounds, listen)
        self._budget = SiteBudget(experiment, self._workplace, self._site, listen)
        self._scoring = SiteScoring(experiment, self._workplace, self._site, listen)
        for line in data_lines(self._scoring.corpus):
            listen("warning", {"message": line})
        files = (identity, lock)
        self._secure = secure_turns_of(experiment, self._workplace, client, files, self._scoring)
        windows, documents = self._told_of_documents()
        most = max((count for counts in windows.values() for count in counts), default=1)
        rows = most * max(training.batch_size, training.eval_batch_size)
        length = experiment.task.max_length
        self.agreement = agreement_of(experiment, client, rows, length, TRAINING)
        self.greeting: Mapping[str, JSON] = {
            "examples": self._site.count,
            "rows": rows,
            "length": length,
            "documents": {**documents},
            "windows": {part: sum(counts) for part, counts in windows.items()},
            **held(experiment),
            **self._known(),
        }
        self._lasting = lasting_settings(experiment, self.agreement, self.greeting["weights"])
        self._take_down("greeting", Message({}, {**self.greeting, "facts": dict(self.agreement.facts)}))

    def _known(self) -> dict[str, JSON]:
        """Returns how many sites this site's lock has, from which the threshold that it demands follows."""
        if self._secure is None:
            return {}
        known = len(self._secure.pinned(self.id)[1])
        self._listen("hidden", {"least": least_survivors(self._experiment.privacy, known), "known": known})
        return {"known": known}

    def _told_of_documents(self) -> tuple[dict[str, list[int]], dict[str, int]]:
        """Returns the windows of examples, and how many documents there are, by part, as the server hears it.

        Of private training that is what is declared; and of what is scored, which is all that can be, nothing
        unless counts are told.
        """
        site = self._site
        told = {PARTS[0]: site.declared if self._private else len(site.documents.train)}
        told |= {part: len(site.scored(part)) if self._scoring.tells else 0 for part in PARTS[1:]}
        if self._private:
            return {part: [] for part in PARTS}, told
        return {part: own if told[part] else [] for part, own in windows_of(site).items()}, told

    def take_part(self, session_of: Callable[[RemoteClient], Membership]) -> None:
        """Runs turns until the run is complete, over as many sessions as that takes.

        Args:
            session_of: Returns the next session.

        Raises:
            LineError: The server cannot be reached, or refuses this client.
            TrainingError: See `serve`.
        """
        while True:
            with session_of(self) as membership:
                self._listen("joined", {"client": self.id})
                try:
                    return self.serve(membership)
                except SessionOverError as error:
                    self._listen("session_over", {"message": str(error)})

    def serve(self, membership: Membership) -> None:
        """Runs turns until the server ends.

        Raises:
            LineError: The session is over; with `SessionOverError` a new one may be begun.
            RefusedError: See `enter`.
            TrainingError: The run is complete, and this client has failed whenever it was to train.
        """
        self.enter(membership.welcome)
        while True:
            header, content = membership.receive(patient=True)
            if header.kind == Kind.END:
                if frame.decode(content, Message).values.get("complete"):
                    self._caches.remove(self.id)
                    self._budget.end()
                    return self._require_trained()
                raise SessionOverError("the server has stopped, and the run is not complete")
            if header.kind == Kind.PLAN:
                self._turn(membership, header, content)
            elif header.kind == Kind.FETCH:
                self._deliver(membership, header)
            elif header.kind == Kind.FAILED:
                self._refused(header, content)

    def enter(self, welcome: Mapping[str, JSON]) -> None:
        """Begins a session with what the server says of the run when it starts.

        Raises:
            FrameError: The server names no run.
            RefusedError: It names another run than the one that was joined, or has changed its settings
                (`JoinedRuns.enter`).
        """
        folder = self._workplace.folder = self._runs.enter(welcome.get("run"), self._lasting)
        self._workplace.run = self._runs.run
        if self._secure is not None:
            settings = welcome.get("settings")
            said = settings if isinstance(settings, Mapping) else {}
            self._workplace.agreed = agreed_hash(agreed(self._experiment, said))
        self._caches = ClientCaches(folder, self._experiment.settings, self._listen)
        self._workplace.cache_of = self._caches.of
        self._keep_what_counts(welcome)

    def _keep_what_counts(self, welcome: Mapping[str, JSON]) -> None:
        """Drops what is kept of rounds that are not committed, or were without this client.

        A round that has its update and still goes on counts until there is another welcome.
        """
        counted, delivered = welcome.get("counted"), welcome.get("delivered")
        plan, self._done, self._update = self._done, None, None
        if not isinstance(counted, int):
            return
        last = max(counted, delivered) if isinstance(delivered, int) else counted
        self._workplace.store(self.id, last).discard_after(last)
        if plan is not None and not is_scoring(plan.handler) and plan.round > last:
            self._take_back(plan, "the line broke, and the round does not count what was sent")

    def _turn(self, membership: Membership, header: Header, content: Frame) -> None:
        """Runs one handler, and sends what it gives, or why it failed.

        With a whole model it says only that it is done; the update lies here until it is fetched.
        """
        before, self._done, self._update = self._done, None, None
        if not is_scoring(header.handler):  # of which it tells the part of the split
            self._listen("turn", {"round": header.round, "handler": printable(header.handler, 80)})
        order = Order(self.id, header.round, header.handler, header.call, content)
        try:
            if self._secure is not None and is_exchange(order.handler):
                result = self._secure.compute(order, self._site)
            else:
                own, line = self._handler(header.handler), TurnLine(membership, header.turn)
                result = self._workplace.compute(order, self._site, line, own)
            if isinstance(result, Failed):
                raise result.error
            # How long a private turn took would tell how many of its units were drawn.
            seconds = 0.0 if self._private else result.seconds
            said = Header(
                Kind.UPDATE, turn=header.turn, seconds=seconds, trained=result.trained, begun=self._begun
            )
            if self._experiment.method.divides(self.id) is None:
                self._update = result.update
                membership.send(replace(said, kind=Kind.READY), frame.encode(Message()))
            else:
                membership.send(said, result.update)
        except LineError as error:
            self._give_up(header, before)
            self._tell_failed(header, str(error))
            if not isinstance(error, TurnOverError):
                raise
        except Exception as error:
            self._give_up(header, before)
            told = Message({}, {"message": kind_of(error)})
            if is_client_failure(error):
                self._tell_failed(header, describe(error))
            failed = Header(Kind.FAILED, turn=header.turn, begun=self._begun)
            membership.send(failed, self._take_down("failure", told, header))
            if not is_client_failure(error):
                raise
        else:
            self._done = header
            self._trained += _learns(header)

    @property
    def _private(self) -> bool:
        """Whether it trains under differential privacy, so that little is told of its documents."""
        return self._experiment.privacy.settings.by_unit

    @property
    def _begun(self) -> int:
        """In how many turns it has begun to train privately."""
        return self._workplace.releases(self.id).turns_begun if self._private else 0

    def _deliver(self, membership: Membership, header: Header) -> None:
        """Sends the update of the last turn, which its tensors in the model still are."""
        update, self._update = self._update, None
        if update is not None and self._done is not None and self._done.turn == header.turn:
            membership.send(Header(Kind.UPDATE, turn=header.turn), update)

    def _take_down(self, what: str, told: Message, header: Header | None = None) -> Frame:
        """Puts into the ledger what is said in a turn, or in none, and returns it as it is to be sent."""
        sent = frame.encode(told)
        turn = (header.round, header.handler, header.call) if header else ()
        with self._workplace.ledger(self.id, *turn) as ledger:
            ledger.append(what, told, sent)
        return sent

    def _give_up(self, header: Header, before: Header | None) -> None:
        """Drops what was learnt in a turn that has failed; what was sent under masks before it may count."""
        if only_says(header.handler):
            self._done = before
        else:
            self._undo(header)

    def _undo(self, header: Header) -> None:
        """Drops what was learnt in a turn; what was learnt before it in the round stays when scores fail."""
        if not is_scoring(header.handler):
            self._workplace.undo(self.id, header.round)

    def _refused(self, header: Header, content: Frame) -> None:
        """Hears that a turn has failed at the server: the last one, if its update was sent."""
        plan = self._done
        if plan is not None and plan.turn == header.turn:  # and none that has failed here already
            self._done, self._update = None, None
            reason = frame.decode(content, Message).values.get("message")
            self._take_back(plan, printable(f"the server cannot use what it was sent: {reason}"))

    def _take_back(self, plan: Header, why: str) -> None:
        """Does without what was learnt in a turn whose update was sent."""
        self._undo(plan)
        self._trained -= _learns(plan)
        self._tell_failed(plan, why)

    def _tell_failed(self, header: Header, message: str) -> None:
        if not is_scoring(header.handler):
            self._failure = message
        self._listen("turn_failed", {"round": header.round, "message": message})

    def _require_trained(self) -> None:
        """Raises TrainingError if this client was to train and never did; it may never have been asked."""
        if self._failure and not self._trained:
            message = (
                f"the run is complete without client {self.id!r}, which has failed in each of its rounds"
            )
            raise TrainingError(f"{message}: {self._failure}")

    def _handler(self, name: str) -> Callable[..., Update] | None:
        """Returns what scores if a plan asks for that; none if it names a handler of the method.

        Raises:
            FrameError: It names neither.
        """
        if name == SCORE:
            return self._scoring.score
        if self._secure is not None:
            message = f"the server asks for {name!r} in the clear, and this client sums under masks"
            raise FrameError(message, code="conflict")
        if not is_handler(self._experiment.method, name):
            message = f"the server asks for {name!r}, which no client of this method runs"
            raise FrameError(message, code="unknown_name")
        return None


def _learns(header: Header) -> bool:
    """Whether a plan is one by which a client trains."""
    return not is_scoring(header.handler) and not only_says(header.handler)


def join_run(
    source: Source,
    client: str,
    settings_of: Callable[[bool], Mapping[str, JSON]],
    session_of: Callable[[RemoteClient], Membership],
    home: Path,
    listen: Listener,
    *,
    identity: Path | None = None,
    lock: Path | None = None,
    guard: PolicyGuard | None = None,
    allow_without: Collection[str] = (),
    runs: int = 1,
) -> None:
    """Takes part in the run of a server, to its end.

    Args:
        source: The site's own configuration.
        client: Its name.
        settings_of: Returns what the server says of the run; or tells it that the client does not join.
        session_of: Returns the next session.
        home: Where it keeps a store for each run.
        listen: Told of its progress.
        identity: Where its identity lies, with secure aggregation.
        lock: Where it says whom it sums with.
        guard: What its site allows; the defaults if none.
        allow_without: Sites of which this site's operator accepts that the server learns a single update.
        runs: How many runs its people have accepted, one after the other.

    Raises:
        ConfigurationError: What the site and the server say does not fit together, or the site's policy does
            not allow it, which the server is told.
        FedstrataError: See `RemoteClient.take_part`.
    """
    guard, told = guard or PolicyGuard(), settings_of(False)
    try:
        source = with_shared(source, told, guard)
        guard.require_settings(check_settings(source).settings)
        experiment = prepare_client(source, client)
        guard.require_experiment(experiment, client)
        experiment = with_budget(experiment, client, home, guard.policy, listen)
    except PolicyError:
        settings_of(True)
        raise
    remote = RemoteClient(
        experiment,
        client,
        home,
        listen,
        identity=identity,
        lock=lock,
        policy=guard,
        allow_without=allow_without,
        runs=runs,
    )
    rounds, most = experiment.settings.federation.rounds, guard.policy
    bounds = {"rounds": min(rounds, most.rounds or rounds), "scorings": most.scorings}
    listen("bounds", bounds)
    remote.take_part(session_of)

"""The exchanges of masked sums at clients: handlers that each has, whatever the method.

A mean is one sum (`privacy.secure_sum.mean`). What clients elsewhere have counted of their documents is one
too, by exchanges of other names (`exchange_for`). What a client has begun lies in its process alone, so that
one whose process is lost has dropped out.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from pydantic import BaseModel
from torch import Tensor

from fedstrata.client.failures import is_client_failure, release_memory
from fedstrata.client.site import Site
from fedstrata.client.store import client_folder
from fedstrata.client.turn import Done, Failed, Order, Workplace, is_handler
from fedstrata.core.client import Client
from fedstrata.core.errors import ConfigurationError, FrameError, Problem, TrainingError
from fedstrata.core.handlers import EXCHANGE, FIRST_EXCHANGE, INPUT, SCORE, is_scoring
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.privacy import LEAST_SITES
from fedstrata.core.types import ClientInfo, Message, Plan, Tally, Tensors, Update
from fedstrata.data.split import PARTS
from fedstrata.privacy.clipping import UnitGradients
from fedstrata.privacy.federation_lock import Lock, read_lock
from fedstrata.privacy.identity import Identity
from fedstrata.privacy.joint_gradients import JointGradients
from fedstrata.privacy.joint_terms import joint_elements, require_carriers, require_own_terms
from fedstrata.privacy.ledger import EXCHANGED, Ledger
from fedstrata.privacy.ledger_witness import witness
from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.mean import SummedUpdate, counted_elements, hash_of_frame, subject_of
from fedstrata.privacy.secure_sum.messages import (
    ConsistencyProof,
    DeliveredShares,
    KeyBundle,
    MaskedInput,
    MeanTerms,
    OpenedShares,
    Roster,
    SentShares,
    Sharers,
    Survivors,
    canonical,
    unpack,
)
from fedstrata.privacy.secure_sum.quantization import packed
from fedstrata.privacy.secure_sum.refusals import SessionLost, WrongSum
from fedstrata.privacy.secure_sum.release_guard import ReleaseGuard
from fedstrata.wire import frame

KEYS = EXCHANGE + FIRST_EXCHANGE
SHARES, DELIVERY = (EXCHANGE + name for name in ("shares", "delivery"))
CONSISTENCY, UNMASK = (EXCHANGE + name for name in ("consistency", "unmask"))
COUNTED = {part: f"scores/{part}" for part in PARTS[1:]}
"""The names of the sums of what was counted, by part of the split."""

Said = TypeVar("Said", bound=BaseModel)
Answer = TypeVar("Answer", bound=BaseModel)


def exchange_for(terms: MeanTerms, exchange: str) -> str:
    """Returns the name of an exchange in this sum: those of scores train nothing, whatever they are asked."""
    return f"{SCORE}/{exchange.removeprefix(EXCHANGE)}" if terms.counts else exchange


def said_of(said: BaseModel) -> dict[str, Any]:
    """Returns a message of a sum as the values of a plan or an update."""
    return {"sum": said.model_dump(mode="json")}


def read_said(
    values: Mapping[str, Any],
    kind: type[Said],
    tensors: Tensors | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Said:
    """Returns the message of a sum that came as the values of a plan or an update.

    Args:
        values: The values.
        kind: What it has to be.
        tensors: What came with it.
        shapes: The tensors that it has to hold; none if none.

    Raises:
        FrameError: It is not that.
    """
    said = values.get("sum")
    if not isinstance(said, Mapping):
        raise FrameError("a message of a masked sum has no fields")
    return cast("Said", unpack(Message(tensors or {}, said), cast("Any", kind), shapes))


@dataclass(slots=True)
class _Session:
    """What a client has begun of one sum."""

    terms: MeanTerms
    client: SumClient
    roster: Roster | None = None
    diverged: bool = False


class SecureTurns:
    """Answers the orders of masked sums for the clients of one process.

    Args:
        workplace: Where they compute.
        files_of: Returns where a client has its identity, and where its lock.
        score: Scores a client's documents for a masked sum; none where nothing is told of them.
    """

    def __init__(
        self,
        workplace: Workplace,
        files_of: Callable[[str], tuple[Path, Path]],
        score: Callable[[Plan, Client, Seed], Update] | None = None,
    ) -> None:
        self._workplace, self._files_of, self._score = workplace, files_of, score
        self._model = ""
        self._pinned: dict[str, tuple[Identity, Lock]] = {}
        self._sessions: dict[str, _Session] = {}
        self._answers: Mapping[str, Callable[[Order], BaseModel]] = {
            KEYS: self._keys,
            SHARES: self._shares,
            DELIVERY: self._delivery,
            CONSISTENCY: lambda order: self._said(order, Survivors, SumClient.sign),
            UNMASK: lambda order: self._said(order, ConsistencyProof, SumClient.unmask),
        }

    def compute(self, order: Order, site: Site) -> Done | Failed:
        """Runs one exchange of a client's; one that fails gives nothing away."""
        started = time.perf_counter()
        try:
            exchange = order.handler.replace(f"{SCORE}/", EXCHANGE, 1)
            if exchange == INPUT:
                return self._input(order, site)
            if exchange not in self._answers:
                message = f"the server asks for {order.handler!r}, which is no exchange of a sum"
                raise FrameError(message, code="unknown_name")
            said = Update({}, said_of(self._answers[exchange](order)))
            sent = frame.encode(said)
            with self._ledger(order) as ledger:
                ledger.append("exchange", said, sent, EXCHANGED)
            return Done(sent, time.perf_counter() - started)
        except Exception as error:
            if not is_client_failure(error):
                raise
            release_memory(error)
            return Failed(error, time.perf_counter() - started)

    def pinned(self, client: str) -> tuple[Identity, Lock]:
        """Returns a client's identity and its lock, which are read once.

        Raises:
            ConfigurationError: They cannot be read, or the lock has another identity for the client.
        """
        if client not in self._pinned:
            own, known = self._files_of(client)
            identity, lock = Identity.read(own), read_lock(known)
            if lock.get(client) != identity.public:
                raise ConfigurationError([_wrong_identity(client, identity, own, lock, known)])
            self._pinned[client] = identity, lock
        return self._pinned[client]

    def _keys(self, order: Order) -> KeyBundle:
        """Begins a sum, which has to be what the order says that it is: by its name it is released once."""
        terms = unpack(Message({}, frame.decode(order.plan, Plan).values), MeanTerms)
        run = self._workplace.run or terms.sum.run
        own = run, order.round, order.call, is_scoring(order.handler)
        if own != _place_of(terms) or not self._is_summed(terms):
            raise WrongSum(
                f"a sum is to begin as {terms.sum}, and what is asked for is run {own[0]}, round {own[1]}, "
                f"call {own[2]} of {'scores' if terms.counts else 'a handler of the method'}; nothing was "
                "begun",
                code="not_agreed",
            )
        if not terms.counts:
            require_own_terms(terms, self._workplace.privacy)
        self._workplace.permit(order if terms.counts else replace(order, handler=terms.sum.handler))
        self._workplace.reserve()  # a site without room drops out before others count on its share
        identity, lock = self.pinned(order.client)
        with self._ledger(order) as ledger:
            head = ledger.head()
        client = SumClient(
            terms.sum,
            order.client,
            identity,
            lock,
            subject_of(terms, self._hash(), self._workplace.agreed),
            self._guard(order.client),
            minimum=self._workplace.privacy.settings.survivors or LEAST_SITES,
            ledger_head=head,
        )
        keys = client.keys()
        self._sessions[order.client] = _Session(terms, client)  # one that is refused ends none before it
        return keys

    def _guard(self, client: str) -> ReleaseGuard:
        return ReleaseGuard(self._workplace.database(client), client, self._workplace.allow_without)

    def _shares(self, order: Order) -> SentShares:
        """Answers to the roster, and keeps what the others have signed of their ledgers."""
        session = self._session(order)
        roster = read_said(frame.decode(order.plan, Plan).values, Roster)
        if (noise := self._workplace.privacy.joint) is not None and not session.terms.counts:
            require_carriers(roster, noise)
        sent = session.client.shares(roster)
        if self._has_refused(order, session):
            return sent  # nothing was shared, and nothing is witnessed of strangers
        session.roster = roster
        others = [bundle for bundle in roster.bundles if bundle.site != order.client]
        witness(client_folder(self._workplace.folder, order.client), others)
        return sent

    def _delivery(self, order: Order) -> OpenedShares:
        """Takes the others' shares, and warns this site's operator of those that do not open."""
        opened = self._said(order, DeliveredShares, SumClient.receive)
        self._has_refused(order, self._session(order))
        return opened

    def _has_refused(self, order: Order, session: _Session) -> bool:
        """Whether there are clients whose keys or shares were refused; this site's people are told why."""
        for error in session.client.refusals.values():
            told = f"round {order.round}: {order.client}: {type(error).__name__}: {error}"
            self._workplace.listen("warning", {"message": told})
        return bool(session.client.refusals)

    def _said(self, order: Order, kind: type[Said], answer: Callable[[SumClient, Said], Answer]) -> Answer:
        """Answers to what the server says of the sum."""
        session = self._session(order)
        return answer(session.client, read_said(frame.decode(order.plan, Plan).values, kind))

    def _input(self, order: Order, site: Site) -> Done | Failed:
        """Trains as the method does, or scores, and masks what comes of it, tensor by tensor."""
        session, came = self._session(order), frame.decode(order.plan, Plan)
        sharers = read_said(came.values, Sharers)
        values = came.values.get("values")
        plan = Plan(came.tensors, values if isinstance(values, Mapping) else {})
        sent, handler = frame.encode(plan), session.terms.sum.handler
        if hash_of_frame(sent) != session.terms.plan:
            raise WrongSum(f"the plan that came is not the one that {session.terms.sum} was begun with")
        if not all(tensor.isfinite().all() for tensor in plan.tensors.values()):
            raise WrongSum(
                f"the plan of {session.terms.sum} holds numbers that are not finite", code="not_finite"
            )
        session.client.require_new(self._summed(order.client, session.terms, plan), sharers)
        if session.client.again and plan.tensors and not session.terms.counts:
            self._workplace.store(order.client, order.round).discard()  # what it learnt for that attempt

        def mask(trained: Update, private: UnitGradients | None) -> Update:
            if session.terms.counts:
                masked = self._counted(session, sharers, plan, trained, site)
            elif isinstance(private, JointGradients):
                masked = self._noised(session, sharers, private)
            else:
                if not all(tensor.isfinite().all() for tensor in trained.tensors.values()):
                    self._workplace.undo(order.client, order.round)
                    trained = diverged(TrainingError("what was trained is not finite", code="diverged"))
                masked = self._masked(order, session, sharers, plan, trained)
            return Update(masked, said_of(MaskedInput(sum=sharers.sum, site=order.client)))

        def diverged(error: TrainingError) -> Update:
            told = f"{error}. It sends no change in this round, and the server learns how many clients do not"
            self._workplace.listen("warning", {"message": f"round {order.round}: {order.client}: {told}"})
            session.diverged = True
            zeros = {each.name: torch.zeros(each.shape) for each in session.terms.tensors}
            info = ClientInfo(order.client, site.count)
            return Update(zeros, {}, self._workplace.method.weighs(info))

        asked, score = replace(order, handler=handler, plan=sent), self._score
        if session.terms.counts:
            return self._workplace.compute(asked, site, handle=score, mask=mask)
        return self._workplace.compute(asked, site, mask=mask, diverged=diverged)

    def _summed(self, client: str, terms: MeanTerms, plan: Plan) -> str:
        """Returns a hash of what a sum is of, by which it is recognised under any name.

        It is of the handler, the model, and those of the tensors that came that change the model, in the
        model's own order and dtype. What else a server can vary gives the same or nearly the same update:
        values and other tensors beside them, tensors that are what the model has already. A plan without
        tensors continues from those that came before it.
        """
        model = self._workplace.model
        model.restore()
        names = [name for name in model.layout.sizes if name in plan.tensors]
        base, changed = model.tensors(names), dict[str, Tensor]()
        for name in names:
            own = base[name].cpu()
            came = plan.tensors[name].to(own.dtype)
            if came.shape != own.shape or not came.equal(own):
                changed[name] = came
        tensors = hash_of_frame(frame.encode(Plan(changed)))
        if not terms.counts:
            tensors = self._guard(client).trained_on(terms.sum.handler, tensors if names else None)
        return hashlib.sha256(canonical([terms.sum.handler, self._hash(), tensors])).hexdigest()

    def _masked(
        self,
        order: Order,
        session: _Session,
        sharers: Sharers,
        plan: Plan,
        trained: Update,
    ) -> dict[str, Tensor]:
        """Returns a client's input under its masks."""
        place, handler = self._workplace, session.terms.sum.handler
        seed = place.seed.child("round", order.round).child("client", order.client, handler, order.call)
        equal = place.privacy.settings.weights == "uniform"
        own = SummedUpdate(
            replace(trained, weight=1.0) if equal else trained,
            {} if place.method.sends_changes or session.diverged else plan.tensors,
            session.terms,
            seed.child("rounding"),
            diverged=session.diverged,
        )
        masked = session.client.mask(sharers, own.elements())
        return {name: packed(elements, session.terms.ring) for name, elements in masked}

    def _noised(self, session: _Session, sharers: Sharers, private: JointGradients) -> dict[str, Tensor]:
        """Returns a client's sum of gradients with its share of the noise, under its mask."""
        assert session.roster is not None  # noqa: S101 - a session that is asked for its input has one
        elements = joint_elements(private, self._workplace.model, session.terms, session.roster)
        return dict(session.client.mask(sharers, elements))

    def _counted(
        self,
        session: _Session,
        sharers: Sharers,
        plan: Plan,
        counted: Update,
        site: Site,
    ) -> dict[str, Tensor]:
        """Returns under its mask what a client has counted, by names that all of the sum have agreed on."""
        names, tally = sorted(site.task.counted([], [])), cast("Tally", counted.values["tally"])
        if plan.values.get("names") != names or tally.keys() != set(names):
            raise WrongSum(f"{session.terms.sum} is of other counts than this site's task has")
        elements = counted_elements(tally, names, counted.weight)
        return dict(session.client.mask(sharers, elements))

    def _is_summed(self, terms: MeanTerms) -> bool:
        """Whether a sum of this name may be asked for: of updates, or of scores where these are told."""
        method, name = self._workplace.method, terms.sum
        if terms.counts:
            return self._score is not None and name.handler in COUNTED.values() and name.call == 1
        return is_handler(method, name.handler) and 1 <= name.call <= method.sums_a_round

    def _ledger(self, order: Order) -> Ledger:
        return self._workplace.ledger(order.client, order.round, order.handler, order.call)

    def _session(self, order: Order) -> _Session:
        session = self._sessions.get(order.client)
        run = self._workplace.run or (session.terms.sum.run if session else "")
        own = run, order.round, order.call, is_scoring(order.handler)
        if session is None or own != _place_of(session.terms):
            raise SessionLost(
                f"the process of {order.client} has nothing of this sum: it has begun none, or another one, "
                "or was started again since; it has dropped out of it"
            )
        return session

    def _hash(self) -> str:
        """Returns the hash of the model as all have it before anything is learnt."""
        if not self._model:
            model = self._workplace.model
            model.restore()
            self._model = model.fingerprint(model.names_outside(()))
        return self._model


def _wrong_identity(client: str, identity: Identity, own: Path, lock: Lock, known: Path) -> Problem:
    """Says why an identity is not the one that a lock has for a client, and what helps."""
    others = [site for site, public in lock.items() if public == identity.public]
    if others:
        message = (
            f"{own} is the identity of {others[0]!r} in {known}, and not that of {client!r}; give the "
            f"identity of {client!r} (--identity), or join as {others[0]!r} (--client)"
        )
        return Problem("", message, code="conflict")
    message = f"{known} has not the identity in {own} under {client!r}; write its public half there"
    return Problem("", message, code="not_found")


def _place_of(terms: MeanTerms) -> tuple[str, int, int, bool]:
    """Returns the run, the round and the call of a sum, and whether it is of what was counted."""
    return terms.sum.run, terms.sum.round, terms.sum.call, terms.counts

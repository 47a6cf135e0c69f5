"""The server's half of a mean under secure aggregation: five exchanges over the turns of any engine.

A sum that cannot be unmasked costs its round, which changes nothing, and the run goes on with the next: after
a share has left no site ever begins the same sum again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

from pydantic import BaseModel

from fedstrata.client.secure_turns import CONSISTENCY, KEYS, SHARES, UNMASK, read_said, said_of
from fedstrata.client.turn import INPUT
from fedstrata.core.cohort import Mean
from fedstrata.core.errors import FedstrataError, FrameError
from fedstrata.core.files import write_atomically
from fedstrata.core.method import Method
from fedstrata.core.settings.privacy import LEAST_SITES
from fedstrata.core.types import ClientInfo, Plan, Tensors, Update
from fedstrata.engine.book import Book, RoundAbandonedError
from fedstrata.engine.server_steps import ServerSteps
from fedstrata.models.state import Model
from fedstrata.privacy.joint_terms import bound_of, noise_terms, require_carriers
from fedstrata.privacy.mechanism import EVERYBODY, Privacy
from fedstrata.privacy.secure_sum.mean import (
    CHANGES,
    SATURATED,
    SummedMean,
    hash_of_frame,
    mean_from,
    names_of,
    require_unsaturated,
    subjects_of,
)
from fedstrata.privacy.secure_sum.messages import (
    ConsistencySignature,
    KeyBundle,
    MaskedInput,
    MeanTerms,
    ReleasedShares,
    SentShares,
    SummedTensor,
    SumName,
)
from fedstrata.privacy.secure_sum.refusals import NotFinished, SecureSumRefusal, TooManySaturated
from fedstrata.privacy.secure_sum.server import SumServer
from fedstrata.privacy.secure_sum.unmasking import SumUnmasking
from fedstrata.wire import frame

FOLDER = "secure_sums"
"""In the run directory: sums that are not committed yet, and the ranges of the next."""
STEPS = ".safetensors"
"""The ending of what the optimiser keeps, beside the ranges."""
WIDER = 16.0
"""How much larger the ranges are after a round in which too many values were cut."""

Said = TypeVar("Said", bound=BaseModel)


class Exchanging(Protocol):
    """The clients of a round, as the server's half of a sum asks them."""

    clients: Sequence[ClientInfo]
    book: Book

    def exchange(
        self,
        turn: str,
        call: int,
        clients: Sequence[str],
        message_of: Callable[[str], Plan],
        *,
        counted: bool = False,
    ) -> Iterator[tuple[str, Update]]:
        """Runs an exchange at these clients, and yields what they say.

        Args:
            turn: The built-in handler.
            call: How often the handler that is summed was called, this time included.
            clients: Who is asked.
            message_of: What each is sent.
            counted: Whether their updates are summed already, so that who is lost now is not lost to the
                round.
        """

    def inputs(
        self, turn: str, handler: str, plan_of: Callable[[ClientInfo], Plan]
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Has everybody train and mask, and yields the masked updates."""

    def reject(self, client: str, error: FedstrataError) -> None:
        """Does without a client."""

    def take_back(self, error: FedstrataError) -> None:
        """Has everybody who is left drop what the round has brought."""


@dataclass
class SecureAggregation:
    """The masked sums of a run.

    Attributes:
        privacy: The run's.
        run: Its id, which all sums are named by.
        folder: The run directory.
        method: The method.
        model: The server's model.
        steps: Takes the step of a round whose clients send gradients, with joint noise; none without.
        attempt: How often the run has gone on: a sum that was begun before is begun under a higher number.
    """

    privacy: Privacy
    run: str
    folder: Path
    method: Method
    model: Model
    steps: ServerSteps | None = None
    attempt: int = 0
    _facts: dict[str, Any] = field(default_factory=dict)
    _bounds: dict[str, dict[str, float]] = field(default_factory=dict)  # by handler and tensor
    _hash: str = ""

    def mean(self, cohort: Exchanging, handler: str, plan: Plan) -> Mean:
        """Returns the weighted mean of what a handler returns everywhere, and sees nothing of any client's.

        Args:
            cohort: The clients of the round.
            handler: The handler.
            plan: What all of them are sent.

        Raises:
            RoundAbandonedError: The sum could not be made or unmasked; the message says why.
        """
        terms = self._terms(cohort, handler, plan)
        self._facts = {"asked": len(cohort.clients), "survivors": [], "refused": None}
        place = self.folder / FOLDER / f"{terms.sum.round:05d}-{handler}-{terms.sum.call}"
        place.parent.mkdir(mode=0o700, exist_ok=True)  # shares that were released lie there
        try:
            unmasking = self._left(place) or self._begun(cohort, plan, terms, place)
            survivors = unmasking[CHANGES].survivors.sites
            self._facts |= {"survivors": list(survivors)}
            if SATURATED in unmasking:
                self._unmask(cohort, terms, unmasking[SATURATED], SATURATED)
                total = unmasking[SATURATED].finish()
                self._facts["saturated"] = require_unsaturated(total, terms, len(survivors))
            if not unmasking[CHANGES].ready:
                self._unmask(cohort, terms, unmasking[CHANGES], CHANGES)
            base = {} if self.method.sends_changes or self.steps else plan.tensors
            total = unmasking[CHANGES].finish()
            found = mean_from(total, base, terms, survivors, self.privacy.settings.range)
        except SecureSumRefusal as error:
            self._refuse(cohort, handler, terms, error)
        self._take(cohort, handler, terms, found)
        if self.steps is not None:
            stepped = self.steps.step(terms.sum.round, plan.tensors, found.mean.tensors)
            return replace(found.mean, tensors=stepped)
        return found.mean

    def facts(self, book: Book) -> dict[str, Any]:
        """Returns, once, what the record says of a round's sum."""
        told, self._facts = self._facts, {}
        return {**told, "bytes_up": book.meter.said_up, "bytes_down": book.meter.said_down}

    def load(self, committed: int, attempt: int) -> None:
        """Goes on after a round with the ranges that there were.

        Args:
            committed: The round.
            attempt: How often the run has gone on.
        """
        self.attempt = attempt
        path = self._path(committed)
        self._bounds = json.loads(path.read_text()) if path.exists() else {}
        if self.steps is not None:
            self.steps.load(path.with_suffix(STEPS))

    def save(self, number: int) -> None:
        """Keeps the ranges of the next round, before this one is committed."""
        (self.folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
        if self.steps is not None:
            self.steps.save(self._path(number).with_suffix(STEPS))
        write_atomically(self._path(number), [json.dumps(self._bounds).encode()])

    def committed(self, number: int) -> None:
        """Removes what only a round that is not committed needs: with the shares goes what could unmask."""
        for path in (self.folder / FOLDER).glob(f"{number:05d}-*"):
            shutil.rmtree(path)
        kept = {self._path(number).stem, self._path(number - 1).stem}
        for path in (self.folder / FOLDER).glob("ranges-*"):
            if path.stem not in kept:
                path.unlink()

    def _path(self, number: int) -> Path:
        return self.folder / FOLDER / f"ranges-{number:05d}.json"

    def _terms(self, cohort: Exchanging, handler: str, plan: Plan) -> MeanTerms:
        """Returns what this mean is made of; the same if it is asked for again after a crash."""
        book, layout = cohort.book, self.model.layout
        names = self.method.trainable(layout)
        trained = {name: tensor.to("meta") for name, tensor in self.model.tensors(names).items()}
        sent: Tensors = self.method.sends(handler, plan, {"loss": 0.0}, trained, layout)
        bounds, noise, least = self._bounds.get(handler, {}), noise_terms(self.privacy), self._range
        weights = [int(self.method.weighs(info)) for info in cohort.clients] if noise is None else [1]
        return MeanTerms(
            sum=SumName(
                run=self.run,
                round=book.number,
                handler=handler,
                call=book.calls[handler] + 1,
                attempt=self.attempt,
            ),
            plan=hash_of_frame(frame.encode(plan)),
            tensors=tuple(
                SummedTensor(name=name, shape=tuple(each.shape), bound=bounds.get(name, least))
                for name, each in sent.items()
            ),
            scale=max(weights),
            loss=self.privacy.mechanism == "none",  # under differential privacy none leaves its client
            noise=noise,
        )

    @property
    def _range(self) -> float:
        """What bounds a change of which nothing is known, and what makes integers of gradients."""
        noise = noise_terms(self.privacy)
        return self.privacy.settings.range if noise is None else bound_of(noise)

    def _left(self, place: Path) -> Mapping[str, SumUnmasking] | None:
        """Returns the sum that a killed server has left, with all that unmasks it; none if there is none.

        Raises:
            NotFinished: Shares have left, and not enough: the sites' sessions were lost with their processes.
        """
        if not place.exists():
            return None
        if not any(place.glob("*/proof.safetensors")):  # no share can have left
            shutil.rmtree(place)
            return None
        if (place / CHANGES / "proof.safetensors").exists():
            unmasking = SumUnmasking.resume(place / CHANGES)
            if unmasking.ready:
                return {CHANGES: unmasking}
        raise NotFinished(
            "the run was interrupted while a sum was unmasked: shares have left, and too few to finish. No "
            "site begins it again, since two sums could be subtracted from each other"
        )

    def _begun(
        self, cohort: Exchanging, plan: Plan, terms: MeanTerms, place: Path
    ) -> Mapping[str, SumUnmasking]:
        """Runs the exchanges up to the signatures; returns the two masked sums, which lie on the disk."""
        minimum, names = self.privacy.settings.survivors or LEAST_SITES, names_of(terms)
        subjects = subjects_of(terms, self._model_hash())
        servers = {which: SumServer(names[which], subjects[which], minimum=minimum) for which in names}
        lost = cohort.book.attendance.lost
        present = [info.id for info in cohort.clients if info.id not in lost]
        begin = Plan(values=terms.model_dump(mode="json"))
        bundles = self._said(cohort, terms, KEYS, present, lambda _: begin, KeyBundle)
        roster = {which: each.roster(_of(which, bundles)) for which, each in servers.items()}
        if (noise := self.privacy.joint) is not None:
            require_carriers(roster[CHANGES], noise)  # each site would refuse it too, and be lost
        agree = Plan(values=said_of(roster))
        sent = self._said(cohort, terms, SHARES, list(bundles), lambda _: agree, SentShares)
        boxes = {which: each.deliver(_of(which, sent)) for which, each in servers.items()}

        def plan_of(info: ClientInfo) -> Plan:
            delivered = said_of({which: box[info.id] for which, box in boxes.items()})
            return Plan(plan.tensors, {**delivered, "values": dict(plan.values)})

        shapes = {which: subject.shapes for which, subject in subjects.items()}
        for info, update in cohort.inputs(INPUT, terms.sum.handler, plan_of):
            said = _heard(cohort, info.id, update, MaskedInput, servers, shapes)
            for which, own in said.items():
                servers[which].add(own, update.tensors)
        unmasking = {which: server.close(place / which) for which, server in servers.items()}
        survivors = {which: each.survivors for which, each in unmasking.items()}
        asked = survivors[CHANGES].sites
        signed = self._said(
            cohort, terms, CONSISTENCY, asked, lambda _: Plan(values=said_of(survivors)), ConsistencySignature
        )
        for which, each in unmasking.items():
            each.prove(_of(which, signed))
        return unmasking

    def _unmask(self, cohort: Exchanging, terms: MeanTerms, unmasking: SumUnmasking, which: str) -> None:
        """Asks for the shares of one of the sums."""
        assert unmasking.proof is not None  # noqa: S101 - it was made before
        signers = [each.site for each in unmasking.proof.signatures]
        proof = Plan(values=said_of({which: unmasking.proof}))
        for own in self._said(
            cohort, terms, UNMASK, signers, lambda _: proof, ReleasedShares, [which]
        ).values():
            unmasking.take(own[which])

    def _said(
        self,
        cohort: Exchanging,
        terms: MeanTerms,
        turn: str,
        clients: Sequence[str],
        message_of: Callable[[str], Plan],
        kind: type[Said],
        sums: Collection[str] | None = None,
    ) -> dict[str, dict[str, Said]]:
        """Returns what each client says of each sum in one exchange; who is lost is not among them."""
        found, counted, sums = {}, turn in (CONSISTENCY, UNMASK), sums or names_of(terms)
        for client, update in cohort.exchange(turn, terms.sum.call, clients, message_of, counted=counted):
            if said := _heard(cohort, client, update, kind, sums):
                found[client] = said
        return found

    def _refuse(
        self, cohort: Exchanging, handler: str, terms: MeanTerms, error: SecureSumRefusal
    ) -> NoReturn:
        """Ends a round whose sum is not there; what clients have stored of it does not count either.

        Raises:
            RoundAbandonedError: Always.
        """
        cohort.take_back(error)
        self._facts |= {"refused": type(error).__name__}
        if isinstance(error, TooManySaturated):
            self._bounds[handler] = {each.name: WIDER * each.bound for each in terms.tensors}
        raise RoundAbandonedError(str(error)) from error

    def _take(self, cohort: Exchanging, handler: str, terms: MeanTerms, found: SummedMean) -> None:
        """Takes down what a sum has brought."""
        error = found.error
        if (noise := self.privacy.joint) is None:
            self._bounds[handler] = found.bounds
            self._facts |= {"range": max(each.bound for each in terms.tensors)}
        else:
            settings, sites = self.privacy.settings, found.mean.clients
            most = sum(settings.declared(site) for site in sites)
            error = noise.error(len(sites) * (settings.expected_batch or 1), most)
        self._facts |= {"error": error.largest, "deviation": error.deviation}
        cohort.book.calls[handler] = terms.sum.call  # one that a crash has left was asked for before
        if "loss" in found.mean.values:
            weight = next(iter(found.mean.weights.values()))
            cohort.book.losses[EVERYBODY] = (found.mean.values["loss"], weight)

    def _model_hash(self) -> str:
        """Returns the hash of the model as all have it before anything is learnt."""
        if not self._hash:
            self.model.restore()
            self._hash = self.model.fingerprint(self.model.names_outside(()))
        return self._hash


def _of(which: str, said: Mapping[str, Mapping[str, Said]]) -> list[Said]:
    """Returns what all clients say of one of the sums."""
    return [own[which] for own in said.values()]


def _heard(
    cohort: Exchanging,
    client: str,
    update: Update,
    kind: type[Said],
    sums: Collection[str],
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None,
) -> dict[str, Said]:
    """Returns what a client says of these sums; nothing of one that says something else, which is lost."""
    try:
        said = read_said(update.values, kind, update.tensors, shapes)
        if set(said) != set(sums) or any(getattr(each, "site", client) != client for each in said.values()):
            raise FrameError("what came is of other sums than were asked for, or of another site")
    except FrameError as error:
        cohort.reject(client, error)
        return {}
    return said

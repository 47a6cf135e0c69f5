"""The server's half of a mean under secure aggregation: five exchanges over the turns of any engine.

A sum that cannot be unmasked costs its round, which changes nothing, and the run goes on with the next: after
a share has left no site ever begins the same sum again. A server that was killed in between goes on with what
lies on its disk: it asks those sites for their shares whose processes still have what they have begun.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

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
from fedstrata.engine.protocol import Exchanging
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
TERMS, PROOF = "terms.json", "proof.safetensors"
"""Files of a sum: what it is made of, and in the folder of each of its two, what its sites have signed."""
STEPS = ".safetensors"
"""The ending of what the optimiser keeps, beside the ranges."""
WIDER = 16.0
"""How much larger the ranges are after a round in which too many values were cut."""

Said = TypeVar("Said", bound=BaseModel)


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
            left = self._left(place, terms)
            terms, unmasking = left or (terms, self._begun(cohort, plan, terms, place))
            survivors = unmasking[CHANGES].survivors.sites
            self._facts |= {"survivors": list(survivors)}
            if SATURATED in unmasking:
                counted = self._unmasked(cohort, terms, unmasking[SATURATED], SATURATED)
                self._facts["saturated"] = require_unsaturated(counted, terms, len(survivors))
            total = self._unmasked(cohort, terms, unmasking[CHANGES], CHANGES)
            base = {} if self.method.sends_changes or self.steps else plan.tensors
            found = mean_from(total, base, terms, survivors, self.privacy.settings.range)
        except (SecureSumRefusal, FrameError) as error:  # a file that is damaged, or shares that are none
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

    def load(self, committed: int, attempt: int) -> set[str]:
        """Goes on after a round with the ranges that there were.

        Args:
            committed: The round.
            attempt: How often the run has gone on.

        Returns:
            Whose updates of the next round are in a sum that can still be finished, so that they count.
        """
        self.attempt = attempt
        path = self._path(committed)
        self._bounds = json.loads(path.read_text()) if path.exists() else {}
        if self.steps is not None:
            self.steps.load(path.with_suffix(STEPS))
        counted = set[str]()
        for place in filter(_signed, (self.folder / FOLDER).glob(f"{committed + 1:05d}-*")):
            with suppress(FrameError):  # which the round will say
                counted.update(SumUnmasking.resume(place / CHANGES).survivors.sites)
        return counted

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
        book = cohort.book
        name = SumName(
            run=self.run,
            round=book.number,
            handler=handler,
            call=book.calls[handler] + 1,
            attempt=self.attempt,
        )
        bounds = self._bounds.get(handler, {})
        return mean_terms(self.privacy, self.method, self.model, name, plan, cohort.clients, bounds)

    def _left(self, place: Path, terms: MeanTerms) -> tuple[MeanTerms, Mapping[str, SumUnmasking]] | None:
        """Returns the sum that a killed server has left, and its terms; none if it may be begun anew.

        Its terms are of those who were there when it began, whoever is here now.

        Raises:
            NotFinished: It is of another plan than the round has now.
            FrameError: A file is damaged; the message names it.
        """
        if not place.exists():
            return None
        if not _signed(place):
            shutil.rmtree(place)  # nobody was asked for a share before
            return None
        left = _terms_in(place / TERMS)
        if left.plan != terms.plan:
            raise NotFinished(
                f"the masked sum in {place} was begun with another plan than the round has now; no client "
                "begins it again, since two sums could be subtracted from each other"
            )
        return left, {which: SumUnmasking.resume(place / which) for which in names_of(left)}

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
        place.mkdir(exist_ok=True)
        write_atomically(place / TERMS, [terms.model_dump_json().encode()])
        unmasking = {which: server.close(place / which) for which, server in servers.items()}
        survivors = {which: each.survivors for which, each in unmasking.items()}
        asked = survivors[CHANGES].sites
        signed = self._said(
            cohort, terms, CONSISTENCY, asked, lambda _: Plan(values=said_of(survivors)), ConsistencySignature
        )
        for which, each in unmasking.items():
            each.prove(_of(which, signed))
        return unmasking

    def _unmasked(self, cohort: Exchanging, terms: MeanTerms, unmasking: SumUnmasking, which: str) -> Tensors:
        """Asks those who have signed for what is not there yet of the shares of one of the sums.

        Raises:
            NotFinished: Too few are there then.
        """
        assert unmasking.proof is not None  # noqa: S101 - it was made before
        if not unmasking.ready:
            waiting = set(unmasking.waiting)
            signers = [each.site for each in unmasking.proof.signatures if each.site in waiting]
            proof = Plan(values=said_of({which: unmasking.proof}))
            for own in self._said(
                cohort, terms, UNMASK, signers, lambda _: proof, ReleasedShares, [which]
            ).values():
                unmasking.take(own[which])
        if not unmasking.ready:
            sites = len(unmasking.survivors.sites)
            raise NotFinished(
                f"the sum of {sites} clients cannot be unmasked: {sites - len(unmasking.waiting)} have "
                "released their shares, and that is too few. No client begins it again, since two sums could "
                "be subtracted from each other"
            )
        return unmasking.finish()

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

    def _refuse(self, cohort: Exchanging, handler: str, terms: MeanTerms, error: FedstrataError) -> NoReturn:
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


def mean_terms(
    privacy: Privacy,
    method: Method,
    model: Model,
    name: SumName,
    plan: Plan,
    clients: Sequence[ClientInfo],
    bounds: Mapping[str, float],
) -> MeanTerms:
    """Returns what a mean is made of.

    Args:
        privacy: The run's.
        method: The method, whose handler the name says.
        model: The server's model.
        name: The sum's.
        plan: What all clients are sent.
        clients: Who is asked.
        bounds: Of tensors whose changes are known; what is not in it has the range of the settings.
    """
    trained = {
        each: tensor.to("meta") for each, tensor in model.tensors(method.trainable(model.layout)).items()
    }
    sent: Tensors = method.sends(name.handler, plan, {"loss": 0.0}, trained, model.layout)
    noise = noise_terms(privacy)
    least = privacy.settings.range if noise is None else bound_of(noise)
    weights = [int(method.weighs(info)) for info in clients] if noise is None else [1]
    return MeanTerms(
        sum=name,
        plan=hash_of_frame(frame.encode(plan)),
        tensors=tuple(
            SummedTensor(name=each, shape=tuple(tensor.shape), bound=bounds.get(each, least))
            for each, tensor in sent.items()
        ),
        scale=max(weights),
        loss=privacy.mechanism == "none",  # under differential privacy none leaves its client
        noise=noise,
    )


def _signed(place: Path) -> bool:
    """Whether a mean has all signatures, so that shares of it may have left."""
    terms = place / TERMS
    return terms.exists() and all((place / which / PROOF).exists() for which in names_of(_terms_in(terms)))


def _terms_in(path: Path) -> MeanTerms:
    return MeanTerms.model_validate_json(path.read_bytes())


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
        said = read_said(update.values, kind, sums, update.tensors, shapes)
        if any(getattr(each, "site", client) != client for each in said.values()):
            raise FrameError("what came is of another site")
    except FrameError as error:
        cohort.reject(client, error)
        return {}
    return said

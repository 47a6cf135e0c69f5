"""One masked sum at the server: six exchanges over the turns of any engine, and what lies on the disk of it.

A sum that a killed server has left is finished: it asks those sites for their shares whose processes still
have what they have begun. After a share has left no site ever begins the same sum again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from fedstrata.client.failures import describe
from fedstrata.client.secure_turns import (
    CONSISTENCY,
    DELIVERY,
    KEYS,
    SHARES,
    UNMASK,
    exchange_for,
    read_said,
    said_of,
)
from fedstrata.core.errors import FedstrataError, FrameError
from fedstrata.core.files import write_atomically
from fedstrata.core.handlers import INPUT
from fedstrata.core.settings.privacy import LEAST_SITES
from fedstrata.core.types import Plan, Tensors, Update
from fedstrata.engine.protocol import Exchanging
from fedstrata.models.state import Model
from fedstrata.privacy.joint_terms import require_carriers
from fedstrata.privacy.mechanism import Privacy
from fedstrata.privacy.secure_sum.mean import (
    CHANGES,
    SATURATED,
    names_of,
    require_unsaturated,
    subjects_of,
)
from fedstrata.privacy.secure_sum.messages import (
    ConsistencySignature,
    KeyBundle,
    MaskedInput,
    MeanTerms,
    OpenedShares,
    ReleasedShares,
    SentShares,
    Sharers,
    SumName,
)
from fedstrata.privacy.secure_sum.quantization import unpacked
from fedstrata.privacy.secure_sum.refusals import ForgedKeys, ForgedShares, NotFinished, SharesDoNotFit
from fedstrata.privacy.secure_sum.server import SumServer, left_out
from fedstrata.privacy.secure_sum.transcript import Subject
from fedstrata.privacy.secure_sum.unmasking import SumUnmasking

TERMS, PROOF = "terms.json", "proof.safetensors"
"""Files of a sum: what it is made of, and in the folder of each of its two, what its sites have signed."""

Said = TypeVar("Said", bound=BaseModel)


@dataclass
class MaskedSums:
    """Makes and unmasks the sums of a run.

    Attributes:
        privacy: The run's.
        folder: Where sums lie that are not committed yet.
        model: The server's model.
        false_dealers: Clients that have dealt shares of other secrets than their own: a sum was lost by it,
            which nobody could see before, and they are in none any more.
    """

    privacy: Privacy
    folder: Path
    model: Model
    false_dealers: set[str] = field(default_factory=set)
    _hash: str = ""

    def run(
        self, cohort: Exchanging, plan: Plan, terms: MeanTerms, told: dict[str, Any]
    ) -> tuple[MeanTerms, tuple[str, ...], Tensors]:
        """Makes and unmasks a sum, or finishes the one that a killed server has left.

        Args:
            cohort: The clients.
            plan: What they are sent.
            terms: What it is made of.
            told: Filled with what the record says of it.

        Returns:
            Its terms, whose inputs are in it, and the sum of their ring elements.

        Raises:
            SecureSumRefusal, FrameError: There is none.
        """
        label = terms.sum.handler.replace("/", "-")
        place = self.folder / f"{terms.sum.round:05d}-{label}-{terms.sum.call}"
        place.parent.mkdir(mode=0o700, exist_ok=True)  # shares that were released lie there
        terms, unmasking = self._left(place, terms) or self._begun(cohort, plan, terms, place)
        survivors = unmasking[CHANGES].survivors.sites
        told |= {"survivors": list(survivors)}
        if SATURATED in unmasking:
            counted = self._unmasked(cohort, terms, unmasking[SATURATED], SATURATED)
            told["saturated"] = require_unsaturated(counted, terms, len(survivors))
        return terms, survivors, self._unmasked(cohort, terms, unmasking[CHANGES], CHANGES)

    def counted_after(self, committed: int) -> set[str]:
        """Returns whose updates are in a sum of the next round that can still be finished.

        Args:
            committed: The last round that is.
        """
        counted = set[str]()
        for place in filter(_signed, self.folder.glob(f"{committed + 1:05d}-*")):
            with suppress(FrameError):  # which the round will say
                if not _terms_in(place / TERMS).counts:
                    counted.update(SumUnmasking.resume(place / CHANGES).survivors.sites)
        return counted

    def remove(self, number: int) -> None:
        """Removes what is left of the sums of a round: with the shares goes what could unmask."""
        for path in self.folder.glob(f"{number:05d}-*"):
            shutil.rmtree(path)

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
    ) -> tuple[MeanTerms, Mapping[str, SumUnmasking]]:
        """Runs the exchanges up to the signatures; returns the two masked sums, which lie on the disk."""
        while (begun := self._shared(cohort, terms)) is None:  # somebody is lost each time
            higher = terms.sum.model_copy(update={"attempt": terms.sum.attempt + 1})
            terms = terms.model_copy(update={"sum": higher})
        servers, sharers = begun
        agreed = Plan(plan.tensors, {**said_of(sharers), "values": dict(plan.values)})
        names, shapes = names_of(terms), {which: each.shapes for which, each in self._subjects(terms).items()}
        for info, update in cohort.inputs(exchange_for(terms, INPUT), terms.sum.handler, lambda _: agreed):
            if (masked := _unpacked(cohort, info.id, update, shapes, terms.ring)) is None:
                continue
            for which, own in _heard(cohort.reject, info.id, masked, MaskedInput, names, shapes).items():
                servers[which].add(own, masked.tensors)
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
        return terms, unmasking

    def _shared(
        self, cohort: Exchanging, terms: MeanTerms
    ) -> tuple[Mapping[str, SumServer], Mapping[str, Sharers]] | None:
        """Runs the exchanges up to the shares that all have got; none if some do not know each other's keys.

        Whoever is to blame for that is lost, so that it can be begun again: nothing was shared.
        """
        minimum, names = self.privacy.settings.survivors or LEAST_SITES, names_of(terms)
        servers = {
            which: SumServer(names[which], subject, minimum=minimum)
            for which, subject in self._subjects(terms).items()
        }
        lost = cohort.book.attendance.lost
        present = [info.id for info in cohort.clients if info.id not in lost]
        begin = Plan(values=terms.model_dump(mode="json"))
        bundles = self._said(cohort, terms, KEYS, present, lambda _: begin, KeyBundle)
        for client in sorted(self.false_dealers & bundles.keys()):
            told = f"{client} has dealt false shares in this run, and takes part in no sum of it any more"
            cohort.reject(client, SharesDoNotFit(told))
            del bundles[client]
        roster = {which: each.roster(_of(which, bundles)) for which, each in servers.items()}
        if (noise := self.privacy.joint) is not None and not terms.counts:
            require_carriers(roster[CHANGES], noise)  # each site would refuse it too, and be lost
        agree = Plan(values=said_of(roster))
        sent = self._said(cohort, terms, SHARES, list(bundles), lambda _: agree, SentShares)
        distrusted = {site: _named(own, "distrusted") for site, own in sent.items()}
        if any(distrusted.values()):
            _without_strangers(cohort, roster[CHANGES].sites, distrusted)
            return None
        for which, server in servers.items():
            for client, error in server.unusable(_of(which, sent)).items():
                cohort.reject(client, error)
                del sent[client]
        boxes = {which: each.deliver(_of(which, sent)) for which, each in servers.items()}
        opened = self._said(
            cohort,
            terms,
            DELIVERY,
            list(sent),
            lambda client: Plan(values=said_of({which: box[client] for which, box in boxes.items()})),
            OpenedShares,
        )
        unopened = {site: _named(own, "unopened") for site, own in opened.items()}
        forgers = left_out(unopened, len(opened)) & opened.keys()
        for client in sorted(forgers):
            cohort.reject(client, ForgedShares(f"what {client} has sent as shares the others cannot open"))
        got = opened.keys() - forgers
        return servers, {which: each.sharers(got) for which, each in servers.items()}

    def _subjects(self, terms: MeanTerms) -> Mapping[str, Subject]:
        return subjects_of(terms, self._model_hash())

    def _unmasked(self, cohort: Exchanging, terms: MeanTerms, unmasking: SumUnmasking, which: str) -> Tensors:
        """Asks those who have signed for what is not there yet of the shares of one of the sums.

        Raises:
            NotFinished: Too few are there then.
        """
        if not unmasking.ready:
            self._ask(cohort, terms, unmasking, which)
        if not unmasking.ready:
            sites = len(unmasking.survivors.sites)
            raise NotFinished(
                f"the sum of {sites} clients cannot be unmasked: {sites - len(unmasking.waiting)} have "
                "released their shares, and that is too few. No client begins it again, since two sums could "
                "be subtracted from each other"
            )
        try:
            return self._finished(cohort, unmasking)
        except SharesDoNotFit:
            if not self._ask(cohort, terms, unmasking, which):
                raise
            return self._finished(cohort, unmasking)  # others than those that a crash has left

    def _ask(self, cohort: Exchanging, terms: MeanTerms, unmasking: SumUnmasking, which: str) -> bool:
        """Asks whoever has signed and not answered so far for its shares; returns whether any came."""
        assert unmasking.proof is not None  # noqa: S101 - it was made before
        waiting = set(unmasking.waiting)
        signers = [each.site for each in unmasking.proof.signatures if each.site in waiting]
        proof = Plan(values=said_of({which: unmasking.proof}))
        said = self._said(cohort, terms, UNMASK, signers, lambda _: proof, ReleasedShares, [which])
        for client, own in said.items():
            try:
                unmasking.take(own[which])
            except FrameError as error:
                _warn(cohort, client, error)
        return bool(said)

    def _finished(self, cohort: Exchanging, unmasking: SumUnmasking) -> Tensors:
        """Takes the masks off; remembers who has dealt false shares, and tells of who released one."""
        try:
            total = unmasking.finish()
        except SharesDoNotFit as error:
            self.false_dealers |= {error.dealer} if error.dealer else set()
            raise
        for client in sorted(unmasking.false):
            _warn(cohort, client, SharesDoNotFit("it has released shares that are none"))
        return total

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
        found, counted = {}, turn in (CONSISTENCY, UNMASK)
        names = {which: name for which, name in names_of(terms).items() if which in (sums or (which,))}
        own, call = exchange_for(terms, turn), terms.sum.call
        for client, update in cohort.exchange(own, call, clients, message_of, counted=counted):
            lose = partial(_warn, cohort) if counted else cohort.reject
            if said := _heard(lose, client, update, kind, names):
                found[client] = said
        return found

    def _model_hash(self) -> str:
        """Returns the hash of the model as all have it before anything is learnt."""
        if not self._hash:
            self.model.restore()
            self._hash = self.model.fingerprint(self.model.names_outside(()))
        return self._hash


def _signed(place: Path) -> bool:
    """Whether a mean has all signatures, so that shares of it may have left."""
    terms = place / TERMS
    return terms.exists() and all((place / which / PROOF).exists() for which in names_of(_terms_in(terms)))


def _terms_in(path: Path) -> MeanTerms:
    return MeanTerms.model_validate_json(path.read_bytes())


def _unpacked(
    cohort: Exchanging,
    client: str,
    update: Update,
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]],
    bits: int,
) -> Update | None:
    """Returns a masked input with its elements as they were masked; nothing of a client that is so lost."""
    known = {name: shape for own in shapes.values() for name, shape in own.items()}
    try:
        if strangers := update.tensors.keys() - known.keys():
            raise FrameError(f"{len(strangers)} tensors came that are not summed")
        tensors = {name: unpacked(sent, known[name], bits) for name, sent in update.tensors.items()}
    except FrameError as error:
        cohort.reject(client, error)
        return None
    return replace(update, tensors=tensors)


def _of(which: str, said: Mapping[str, Mapping[str, Said]]) -> list[Said]:
    """Returns what all clients say of one of the sums."""
    return [own[which] for own in said.values()]


def _named(own: Mapping[str, BaseModel], field: str) -> set[str]:
    """Returns the sites that one names in what it says of any of the sums."""
    return {site for each in own.values() for site in getattr(each, field)}


def _without_strangers(cohort: Exchanging, sites: Sequence[str], distrusted: Mapping[str, set[str]]) -> None:
    """Loses those whose keys so many do not accept that it is theirs to mend, and those who alone do not."""
    strangers = left_out(distrusted, len(sites)) & set(sites)
    for client in sorted(strangers - cohort.book.attendance.lost.keys()):
        by = ", ".join(site for site, own in distrusted.items() if client in own)
        cohort.reject(client, ForgedKeys(f"its keys are not signed as {by} know it (federation.lock)"))
    for client, own in distrusted.items():
        if client not in strangers and (unknown := ", ".join(sorted(own - strangers))):
            told = f"it refuses the keys of {unknown}, which others take: look at its federation.lock"
            cohort.reject(client, ForgedKeys(told))


def _warn(cohort: Exchanging, client: str, error: FedstrataError) -> None:
    """Tells of a client that was of no help after what it sent was summed, and counts."""
    told = f"round {cohort.book.number}: what {client} said after its input was summed was of no use"
    cohort.book.warn(f"{told} ({describe(error)})")


def _heard(
    lose: Callable[[str, FedstrataError], None],
    client: str,
    update: Update,
    kind: type[Said],
    names: Mapping[str, SumName],
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None,
) -> dict[str, Said]:
    """Returns what a client says of these sums; nothing of one that says something else."""
    try:
        if update.values.keys() != {"sums"}:
            raise FrameError("more came than what is said of a sum")  # as a loss it would count
        said = read_said(update.values, kind, names, update.tensors, shapes)
        for which, each in said.items():
            of = getattr(each, "sum", None), getattr(each, "site", client)
            if of != (names[which], client):
                raise FrameError("what came is of another site, or of another sum")
    except FrameError as error:
        lose(client, error)
        return {}
    return said

"""One masked sum at the server: six exchanges over the turns of any engine, and what lies on the disk of it.

The masked total is stored before the first signature is asked for. A sum of which shares may have left is
never dropped for another one: it is finished, or made again with the same clients, since sites accept no
others. Where that is not possible now the run stops, and tries again when it is resumed.
"""

from __future__ import annotations

import json
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
from fedstrata.core.files import private_folder, write_atomically
from fedstrata.core.handlers import INPUT
from fedstrata.core.settings.privacy import LEAST_SITES
from fedstrata.core.types import Plan, Tensors, Update
from fedstrata.engine.protocol import Exchanging
from fedstrata.models.state import Model
from fedstrata.privacy.joint_terms import require_carriers
from fedstrata.privacy.mechanism import Privacy
from fedstrata.privacy.secure_sum.mean import subject_of
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
from fedstrata.privacy.secure_sum.refusals import (
    ForgedKeys,
    ForgedShares,
    NotFinished,
    SharesDoNotFit,
    UnusableSum,
)
from fedstrata.privacy.secure_sum.server import SumServer, left_out
from fedstrata.privacy.secure_sum.transcript import Subject
from fedstrata.privacy.secure_sum.unmasking import PROOF, SumUnmasking

TERMS, SURVIVORS = "terms.json", "survivors.json"
AGAIN, UNUSABLE = "again", "unusable"
"""Files of a sum: what it is made of, whose inputs are in it; whether these have to make it again; and why it
cannot be used."""
FALSE_DEALERS = "false_dealers.json"

Said = TypeVar("Said", bound=BaseModel)


@dataclass
class MaskedSums:
    """Makes and unmasks the sums of a run.

    Attributes:
        privacy: The run's.
        folder: Where sums lie that are not committed yet.
        model: The server's model.
        agreed: SHA-256 of all that the sites of the run must agree on (`engine.agreed`).
        known: How many clients the run has, from which the threshold of shares follows.
        false_dealers: Clients that have dealt shares of other secrets than their own: a sum was lost by it,
            which nobody could see before, and they are in none any more.
    """

    privacy: Privacy
    folder: Path
    model: Model
    agreed: str
    known: int
    false_dealers: set[str] = field(default_factory=set)
    _hash: str = ""

    def __post_init__(self) -> None:
        if (path := self.folder / FALSE_DEALERS).exists():
            self.false_dealers = set(json.loads(path.read_bytes()))

    def run(
        self, cohort: Exchanging, plan: Plan, terms: MeanTerms, told: dict[str, Any]
    ) -> tuple[MeanTerms, tuple[str, ...], Tensors]:
        """Makes and unmasks a sum, or finishes the one that a stopped server has left.

        Args:
            cohort: The clients.
            plan: What they are sent.
            terms: What it is made of.
            told: Filled with what the record says of it.

        Returns:
            Its terms, whose inputs are in it, and the sum of their ring elements.

        Raises:
            NotFinished, UnusableSum: Shares may have left and there is no sum; no other may take its place.
            SecureSumRefusal, FrameError: There is no sum, and no share has left.
        """
        place = self._place(terms)
        private_folder(place.parent)  # shares that were released lie there
        if (place / UNUSABLE).exists():
            shutil.rmtree(place)  # sites decide with whom they make another one
        if _signed(place):
            with suppress(NotFinished, FrameError):  # sessions of clients are lost, or a file is damaged
                left, unmasking = self._left(place, terms)
                told |= {"survivors": list(unmasking.survivors.sites)}
                return left, unmasking.survivors.sites, self._unmasked(cohort, left, unmasking)
        again = _made_again(cohort, place) if _signed(place) or (place / AGAIN).exists() else None
        for path in place.glob("*.safetensors"):
            path.unlink()
        terms, unmasking = self._begun(cohort, plan, terms, place, again)
        told |= {"survivors": list(unmasking.survivors.sites)}
        return terms, unmasking.survivors.sites, self._unmasked(cohort, terms, unmasking)

    def unusable(self, terms: MeanTerms, why: str) -> None:
        """Records that a sum was released and cannot be used, so that it is not finished again."""
        write_atomically(self._place(terms) / UNUSABLE, [why.encode()])

    def counted_after(self, committed: int) -> set[str]:
        """Returns whose updates are in a sum of the next round that can still be finished.

        Args:
            committed: The last round that is.
        """
        counted = set[str]()
        for place in filter(_signed, self.folder.glob(f"{committed + 1:05d}-*")):
            with suppress(FrameError):  # which the round will say
                if not _terms_in(place / TERMS).counts:
                    counted.update(SumUnmasking.resume(place).survivors.sites)
        return counted

    def remove(self, number: int) -> None:
        """Removes what is left of the sums of a round: with the shares goes what could unmask."""
        for path in self.folder.glob(f"{number:05d}-*"):
            shutil.rmtree(path)

    def _place(self, terms: MeanTerms) -> Path:
        label = terms.sum.handler.replace("/", "-")
        return self.folder / f"{terms.sum.round:05d}-{label}-{terms.sum.call}"

    def _left(self, place: Path, terms: MeanTerms) -> tuple[MeanTerms, SumUnmasking]:
        """Returns the sum that a stopped server has left, and its terms.

        Its terms are of those who were there when it began, whoever is here now.

        Raises:
            UnusableSum: It is of another plan than the round has now.
            FrameError: A file is damaged; the message names it.
        """
        left = _terms_in(place / TERMS)
        if left.plan != terms.plan:
            raise UnusableSum(
                f"the masked sum in {place} was begun with another plan than the round has now: the run "
                "directory was put together from several"
            )
        return left, SumUnmasking.resume(place)

    def _begun(
        self,
        cohort: Exchanging,
        plan: Plan,
        terms: MeanTerms,
        place: Path,
        again: tuple[str, ...] | None = None,
    ) -> tuple[MeanTerms, SumUnmasking]:
        """Runs the exchanges up to the signatures; returns the masked sum, which lies on the disk.

        Args:
            cohort: The clients.
            plan: What they are sent.
            terms: What the sum is made of.
            place: Its folder.
            again: The clients that have to be in it, and no others; any if None.
        """
        while (begun := self._shared(cohort, terms, again)) is None:  # somebody is lost each time
            higher = terms.sum.model_copy(update={"attempt": terms.sum.attempt + 1})
            terms = terms.model_copy(update={"sum": higher})
        server, sharers = begun
        agreed = Plan(plan.tensors, {**said_of(sharers), "values": dict(plan.values)})
        shapes = self._subject(terms).shapes
        for info, update in cohort.inputs(exchange_for(terms, INPUT), terms.sum.handler, lambda _: agreed):
            if (masked := _unpacked(cohort, info.id, update, shapes, terms.ring)) is None:
                continue
            if own := _heard(cohort.reject, info.id, masked, MaskedInput, terms.sum, shapes):
                server.add(own, masked.tensors)
        _require_again(again, server.came)
        private_folder(place)
        write_atomically(place / TERMS, [terms.model_dump_json().encode()])
        unmasking = server.close(place)
        survivors = unmasking.survivors
        write_atomically(place / SURVIVORS, [json.dumps(list(survivors.sites)).encode()])
        signed = self._said(
            cohort,
            terms,
            CONSISTENCY,
            survivors.sites,
            lambda _: Plan(values=said_of(survivors)),
            ConsistencySignature,
        )
        unmasking.prove(list(signed.values()))
        return terms, unmasking

    def _shared(
        self, cohort: Exchanging, terms: MeanTerms, again: tuple[str, ...] | None
    ) -> tuple[SumServer, Sharers] | None:
        """Runs the exchanges up to the shares that all have got; None if some do not know each other's keys.

        Whoever is to blame for that is lost, so that it can be begun again: nothing was shared.
        """
        minimum = self.privacy.settings.survivors or LEAST_SITES
        server = SumServer(terms.sum, self._subject(terms), minimum=minimum, known=self.known)
        lost = cohort.book.attendance.lost
        present = [
            info.id for info in cohort.clients if info.id not in lost and info.id in (again or {info.id})
        ]
        begin = Plan(values=terms.model_dump(mode="json"))
        bundles = self._said(cohort, terms, KEYS, present, lambda _: begin, KeyBundle)
        for client in sorted(self.false_dealers & bundles.keys()):
            told = f"{client} has dealt false shares in this run, and takes part in no sum of it any more"
            cohort.reject(client, SharesDoNotFit(told))
            del bundles[client]
        _require_again(again, bundles)
        roster = server.roster(list(bundles.values()))
        if (noise := self.privacy.joint) is not None and not terms.counts:
            require_carriers(roster, noise)  # each site would refuse it too, and be lost
        agree = Plan(values=said_of(roster))
        sent = self._said(cohort, terms, SHARES, list(bundles), lambda _: agree, SentShares)
        distrusted = {site: set(own.distrusted) for site, own in sent.items()}
        if any(distrusted.values()):
            _without_strangers(cohort, roster.sites, distrusted)
            return None
        for client, error in server.unusable(list(sent.values())).items():
            cohort.reject(client, error)
            del sent[client]
        boxes = server.deliver(list(sent.values()))
        opened = self._said(
            cohort,
            terms,
            DELIVERY,
            list(sent),
            lambda client: Plan(values=said_of(boxes[client])),
            OpenedShares,
        )
        forgers = left_out({site: own.unopened for site, own in opened.items()}, len(opened)) & opened.keys()
        for client in sorted(forgers):
            cohort.reject(client, ForgedShares(f"what {client} has sent as shares the others cannot open"))
        return server, server.sharers(opened.keys() - forgers)

    def _subject(self, terms: MeanTerms) -> Subject:
        if not self._hash:  # of the model as all have it before anything is learnt
            self.model.restore()
            self._hash = self.model.fingerprint(self.model.names_outside(()))
        return subject_of(terms, self._hash, self.agreed)

    def _unmasked(self, cohort: Exchanging, terms: MeanTerms, unmasking: SumUnmasking) -> Tensors:
        """Asks those who have signed for what is not there yet of their shares, and takes the masks off.

        Raises:
            NotFinished: Too few have answered, also after those that are gone were waited for.
            UnusableSum: The shares do not fit.
        """
        if not unmasking.ready:
            self._ask(cohort, terms, unmasking)
        if not unmasking.ready:
            cohort.wait_for(unmasking.waiting)
            self._ask(cohort, terms, unmasking)
        if not unmasking.ready:
            sites = unmasking.survivors.sites
            raise NotFinished(
                f"the sum of {', '.join(sites)} cannot be unmasked yet: "
                f"{len(sites) - len(unmasking.waiting)} of {len(sites)} clients have released their shares, "
                f"and that is too few; {', '.join(unmasking.waiting)} did not answer. No other sum may take "
                "its place, since two sums could be subtracted from each other"
            )
        try:
            return self._finished(cohort, unmasking)
        except SharesDoNotFit:
            if self._ask(cohort, terms, unmasking):
                with suppress(SharesDoNotFit):
                    return self._finished(cohort, unmasking)  # others than those that a crash has left
        dealers = " and ".join(sorted(self.false_dealers)) or "a client, which cannot be determined,"
        raise UnusableSum(f"{dealers} has dealt false shares; the sum cannot be unmasked")

    def _ask(self, cohort: Exchanging, terms: MeanTerms, unmasking: SumUnmasking) -> bool:
        """Asks whoever has signed and not answered so far for its shares; returns whether any came."""
        assert unmasking.proof is not None  # noqa: S101 - it was made before
        waiting = set(unmasking.waiting)
        signers = [each.site for each in unmasking.proof.signatures if each.site in waiting]
        proof = Plan(values=said_of(unmasking.proof))
        said = self._said(cohort, terms, UNMASK, signers, lambda _: proof, ReleasedShares)
        for client, own in said.items():
            try:
                unmasking.take(own)
            except FrameError as error:
                _warn(cohort, client, error)
        return bool(said)

    def _finished(self, cohort: Exchanging, unmasking: SumUnmasking) -> Tensors:
        """Takes the masks off; remembers who has dealt false shares, and tells of who released one."""
        try:
            total = unmasking.finish()
        except SharesDoNotFit as error:
            if error.dealer:
                self.false_dealers.add(error.dealer)
                listed = json.dumps(sorted(self.false_dealers)).encode()
                write_atomically(self.folder / FALSE_DEALERS, [listed])
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
    ) -> dict[str, Said]:
        """Returns what each client says in one exchange; who is lost is not among them."""
        found, counted = {}, turn in (CONSISTENCY, UNMASK)
        own, call = exchange_for(terms, turn), terms.sum.call
        for client, update in cohort.exchange(own, call, clients, message_of, counted=counted):
            lose = partial(_warn, cohort) if counted else cohort.reject
            if said := _heard(lose, client, update, kind, terms.sum):
                found[client] = said
        return found


def _made_again(cohort: Exchanging, place: Path) -> tuple[str, ...]:
    """Returns the clients that have to make a sum again, since they accept it with no others.

    Raises:
        NotFinished: Some of them are not here; what is stored stays.
    """
    sites = tuple(json.loads((place / SURVIVORS).read_bytes()))
    here = {info.id for info in cohort.clients} - cohort.book.attendance.lost.keys()
    if missing := sorted(set(sites) - here):
        raise NotFinished(
            f"shares of the sum of {', '.join(sites)} may have left, and it cannot be finished; it can only "
            f"be made again with the same clients, and {', '.join(missing)} did not come"
        )
    write_atomically(place / AGAIN, [b""])
    cohort.take_back(NotFinished("the sum is made again"))  # they train from what they had before
    return sites


def _require_again(again: Sequence[str] | None, came: Collection[str]) -> None:
    """Checks that a sum that is made again has the clients that it had.

    Raises:
        NotFinished: One is missing.
    """
    if missing := sorted(set(again or ()) - set(came)):
        raise NotFinished(f"a sum that is made again needs the same clients; {', '.join(missing)} is missing")


def _signed(place: Path) -> bool:
    """Whether a sum has all signatures, so that shares of it may have left."""
    return (place / TERMS).exists() and (place / PROOF).exists()


def _terms_in(path: Path) -> MeanTerms:
    return MeanTerms.model_validate_json(path.read_bytes())


def _unpacked(
    cohort: Exchanging, client: str, update: Update, shapes: Mapping[str, tuple[int, ...]], bits: int
) -> Update | None:
    """Returns a masked input with its elements as they were masked; nothing of a client that is so lost."""
    try:
        if strangers := update.tensors.keys() - shapes.keys():
            raise FrameError(f"{len(strangers)} tensors came that are not summed", code="not_agreed")
        tensors = {name: unpacked(sent, shapes[name], bits) for name, sent in update.tensors.items()}
    except FrameError as error:
        cohort.reject(client, error)
        return None
    return replace(update, tensors=tensors)


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
    name: SumName,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Said | None:
    """Returns what a client says of a sum; None, and it is lost, if it says something else."""
    try:
        if update.values.keys() != {"sum"}:
            # as a loss it would count
            raise FrameError("more came than what is said of a sum", code="not_agreed")
        said = read_said(update.values, kind, update.tensors, shapes)
        if (getattr(said, "sum", None), getattr(said, "site", client)) != (name, client):
            raise FrameError("what came is of another site, or of another sum", code="wrong_sum")
    except FrameError as error:
        lose(client, error)
        return None
    return said

"""Sites that make masked sums with each other, without a network: what a test of them needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel
from torch import Tensor

from fedstrata.core.types import Message
from fedstrata.privacy.federation_lock import Lock
from fedstrata.privacy.identity import Identity
from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.messages import (
    HEADER_LIMIT,
    RING,
    DeliveredShares,
    MaskedInput,
    ReleasedShares,
    Roster,
    Sharers,
    SumName,
    pack,
    unpack,
)
from fedstrata.privacy.secure_sum.release_guard import ReleaseGuard
from fedstrata.privacy.secure_sum.server import SumServer, left_out
from fedstrata.privacy.secure_sum.transcript import Subject
from fedstrata.privacy.secure_sum.unmasking import SumUnmasking
from fedstrata.wire import frame

NAME = SumName(run="0123456789abcdef", round=3, handler="train", call=0, attempt=0)
SHAPES = {"w": (5, 3), "b": (7,), "empty": (0, 2)}
SUBJECT = Subject(agreed="99" * 32, model="aa" * 32, plan="bb" * 32, shapes=SHAPES)
NEXT = NAME.model_copy(update={"attempt": 1})
SITES = tuple(f"site-{number:02d}" for number in range(64))
FIVE = SITES[:5]
IDENTITIES = {site: Identity(Ed25519PrivateKey.generate()) for site in SITES}

Said = TypeVar("Said", bound=BaseModel)


class NoGuard(ReleaseGuard):
    """Writes nothing: for tests of what has nothing to do with it, since a disk takes its time."""

    def __init__(self) -> None:
        super().__init__(Path("none"), "none")

    def begin(self, name: SumName) -> bool:
        return False

    def require_same(self, name: SumName, summed: str, sites: Collection[str]) -> None:
        pass

    def release(self, name: SumName, summed: str, survivors: Iterable[str]) -> None:
        pass


def lock_of(sites: Iterable[str]) -> Lock:
    """The lock of a federation of these sites."""
    return {site: IDENTITIES[site].public for site in sites}


def over_the_wire(said: Said, tensors: Mapping[str, Tensor] | None = None) -> Said:
    """What the other side reads."""
    data = frame.encode(pack(said, tensors)).tobytes()
    read = frame.decode(frame.split(data, HEADER_LIMIT), Message)
    return unpack(read, type(said), SHAPES if tensors else None)


def ring_input(seed: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> dict[str, Tensor]:
    """Ring elements of 26 bits, the extremes among them."""
    generator = torch.Generator().manual_seed(seed)
    largest = 2**25 - 1
    drawn = {
        name: torch.randint(-largest, largest + 1, shape, dtype=RING, generator=generator)
        for name, shape in shapes.items()
    }
    for tensor in drawn.values():
        tensor.view(-1)[:1] = largest
        tensor.view(-1)[1:2] = -largest
    return drawn


def plain_sum(sites: Collection[str]) -> dict[str, Tensor]:
    """What the sum of these sites' inputs is, computed in 64 bits."""
    inputs = [ring_input(SITES.index(site)) for site in sites]
    return {name: torch.stack([each[name].long() for each in inputs]).sum(0) for name in SHAPES}


@dataclass
class Federation:
    """Clients and a server of one sum, driven exchange by exchange; all `known` sites are in their locks."""

    sites: Sequence[str]
    folder: Path
    name: SumName = NAME
    guards: Mapping[str, ReleaseGuard] = field(default_factory=dict)
    subjects: Mapping[str, Subject] = field(default_factory=dict)
    minimum: int = 3
    known: Collection[str] = ()
    subject: Subject = SUBJECT

    def __post_init__(self) -> None:
        self.lock = lock_of(self.known or self.sites)
        self.clients = {site: self.client(site) for site in self.sites}
        self.server = SumServer(self.name, self.subject, minimum=self.minimum, known=len(self.lock))

    def client(self, site: str) -> SumClient:
        return SumClient(
            self.name,
            site,
            IDENTITIES[site],
            self.lock,
            self.subjects.get(site, self.subject),
            self.guards.get(site, NoGuard()),
            minimum=self.minimum,
        )

    def keys(self, lost: Collection[str] = ()) -> Roster:
        bundles = [over_the_wire(self.clients[site].keys()) for site in self.sites if site not in lost]
        self.present = [bundle.site for bundle in bundles]
        return over_the_wire(self.server.roster(bundles))

    def shares(self, roster: Roster, lost: Collection[str] = ()) -> dict[str, DeliveredShares]:
        self.present = [site for site in self.present if site not in lost]
        sent = [over_the_wire(self.clients[site].shares(roster)) for site in self.present]
        self.unusable = self.server.unusable(sent)
        self.present = [site for site in self.present if site not in self.unusable]
        sent = [each for each in sent if each.site not in self.unusable]
        return {site: over_the_wire(each) for site, each in self.server.deliver(sent).items()}

    def delivery(self, delivered: Mapping[str, DeliveredShares], lost: Collection[str] = ()) -> Sharers:
        self.present = [site for site in self.present if site not in lost]
        opened = [over_the_wire(self.clients[site].receive(delivered[site])) for site in self.present]
        forgers = left_out({each.site: each.unopened for each in opened}, len(opened))
        self.present = [site for site in self.present if site not in forgers]
        return over_the_wire(self.server.sharers(self.present))

    def masked(self, site: str, sharers: Sharers) -> dict[str, Tensor]:
        return dict(self.clients[site].mask(sharers, ring_input(SITES.index(site)).items()))

    def inputs(self, sharers: Sharers, lost: Collection[str] = ()) -> SumUnmasking:
        self.present = [site for site in self.present if site not in lost]
        for site in self.present:
            tensors = self.masked(site, sharers)
            self.server.add(over_the_wire(MaskedInput(sum=self.name, site=site), tensors), tensors)
        return self.server.close(self.folder)

    def consistency(self, unmasking: SumUnmasking, lost: Collection[str] = ()) -> None:
        self.present = [site for site in self.present if site not in lost]
        survivors = over_the_wire(unmasking.survivors)
        unmasking.prove([over_the_wire(self.clients[site].sign(survivors)) for site in self.present])

    def unmask(self, unmasking: SumUnmasking, lost: Collection[str] = ()) -> dict[str, Tensor]:
        proof = over_the_wire(unmasking.proof)
        for site in self.present:
            if site not in lost:
                unmasking.take(over_the_wire(self.clients[site].unmask(proof)))
        return unmasking.finish()

    def masked_sum(self, lost: Mapping[str, Collection[str]] | None = None) -> SumUnmasking:
        """Everything up to the masked sum, with those lost who are, by exchange."""
        lost = lost or {}
        delivered = self.shares(self.keys(lost.get("keys", ())), lost.get("shares", ()))
        sharers = self.delivery(delivered, lost.get("delivery", ()))
        return self.inputs(sharers, lost.get("input", ()))

    def proven(self, lost: Mapping[str, Collection[str]] | None = None) -> SumUnmasking:
        """Everything up to the proof that all have signed the same survivors."""
        unmasking = self.masked_sum(lost)
        self.consistency(unmasking, (lost or {}).get("consistency", ()))
        return unmasking

    def released_by(self, site: str, unmasking: SumUnmasking) -> ReleasedShares:
        return self.clients[site].unmask(unmasking.proof)

    def run(self, lost: Mapping[str, Collection[str]] | None = None) -> dict[str, Tensor]:
        """The whole sum."""
        return self.unmask(self.proven(lost), (lost or {}).get("unmasking", ()))


def equal(total: Mapping[str, Tensor], sites: Collection[str]) -> bool:
    """Whether a sum is that of these sites, to the last bit."""
    expected = plain_sum(sites)
    return total.keys() == expected.keys() and all(
        torch.equal(total[name].long(), expected[name]) for name in expected
    )

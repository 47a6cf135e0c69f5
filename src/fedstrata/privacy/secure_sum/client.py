"""A site's half of one masked sum; see the package for the six exchanges.

Source: Bonawitz et al. 2017, figure 4. A session lives in the site's process and is lost with it, which is a
drop-out: all that outlives it is which sums are begun and released (`ReleaseGuard`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from fedstrata.core.errors import FrameError
from fedstrata.core.settings.privacy import LEAST_SITES
from fedstrata.privacy.federation_lock import Lock
from fedstrata.privacy.identity import Identity, is_signed
from fedstrata.privacy.secure_sum.keys import public_half
from fedstrata.privacy.secure_sum.masks import MaskStream, pairwise, self_mask
from fedstrata.privacy.secure_sum.messages import (
    RING,
    ConsistencyProof,
    ConsistencySignature,
    DeliveredShares,
    KeyBundle,
    OpenedShares,
    OpenShare,
    ReleasedShares,
    Roster,
    SealedShares,
    SentShares,
    Sharers,
    SumName,
    Survivors,
)
from fedstrata.privacy.secure_sum.refusals import (
    BothShares,
    ForgedShares,
    OutOfOrder,
    RosterChanged,
    SecureSumRefusal,
    TooFewSignatures,
    TranscriptMismatch,
    UnpinnedSite,
    WrongSum,
)
from fedstrata.privacy.secure_sum.release_guard import ReleaseGuard
from fedstrata.privacy.secure_sum.roster import distrusted, require_enough, require_sound
from fedstrata.privacy.secure_sum.shares import SECRET_BYTES, seal, split, unseal
from fedstrata.privacy.secure_sum.transcript import (
    Subject,
    context_of,
    signed_consistency,
    signed_keys,
    transcript_of,
)

NO_LEDGER = bytes(32).hex()
"""The ledger head of a site that keeps none."""
Exchange = Literal["keys", "shares", "delivery", "input", "consistency", "unmasking"]


class SumClient:
    """One site in one masked sum. A refusal changes nothing: what was to leave has not.

    Args:
        name: The sum.
        site: This site's name.
        identity: What it signs with.
        lock: The sites that it knows, itself included.
        subject: What it sums, as it knows it by itself.
        guard: What it has begun and released.
        minimum: How many sites it wants in the sum, at least 3 whatever is said.
        ledger_head: Hash of the last line of its egress ledger, hexadecimal.

    Raises:
        UnpinnedSite: The lock has another identity for this site, or none.
    """

    def __init__(
        self,
        name: SumName,
        site: str,
        identity: Identity,
        lock: Lock,
        subject: Subject,
        guard: ReleaseGuard,
        *,
        minimum: int = LEAST_SITES,
        ledger_head: str = NO_LEDGER,
    ) -> None:
        if lock.get(site) != identity.public:
            raise UnpinnedSite(
                f"federation.lock has not the identity of this site under {site!r}; write its own public "
                "half there",
                code="self_not_pinned",
            )
        self._name, self._site, self._identity, self._lock = name, site, identity, lock
        self._subject, self._guard, self._ledger_head = subject, guard, ledger_head
        self._minimum = max(LEAST_SITES, minimum)
        self._next: Exchange | None = "keys"
        self._held: dict[str, bytes] = {}  # of each site: a share of its own mask's seed, one of its mask key
        self._sharers: tuple[str, ...] = ()
        self._survivors: Survivors | None = None
        self._summed = subject.plan
        self.again = False
        """Whether another attempt of the sum was begun here before, for which the site may have trained."""
        self.refusals: dict[str, SecureSumRefusal] = {}
        """Sites whose keys or shares were refused, and why; the message is for this site's people."""

    def keys(self) -> KeyBundle:
        """Begins the attempt, durably, and returns fresh keys.

        Raises:
            RoundNotNew: A later round was released before.
            AttemptNotHigher: The attempt, or a higher one, was begun before.
        """
        self._require("keys")
        self.again = self._guard.begin(self._name)
        self._next = "shares"
        self._mask_key, self._share_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = os.urandom(SECRET_BYTES)
        fields: dict[str, Any] = {
            "kind": "keys",
            "sum": self._name.model_dump(),
            "site": self._site,
            "mask_key": public_half(self._mask_key).hex(),
            "share_key": public_half(self._share_key).hex(),
            "seed_commitment": hashlib.sha256(self._seed).hexdigest(),
            "ledger_head": self._ledger_head,
        }
        signature = self._identity.sign(signed_keys(fields)).hex()
        self._bundle = KeyBundle.model_validate({**fields, "signature": signature})
        return self._bundle

    def shares(self, roster: Roster) -> SentShares:
        """Returns shares of this site's two secrets for every other site.

        With a site in the roster that this one does not know by its keys nothing is shared; the answer names
        it, so that the others can begin again without it.

        Raises:
            SecureSumRefusal: The roster is not one that this site can be hidden in; see
                `roster.require_sound`.
            RosterChanged: It has shared in a roster of this sum already.
        """
        if self._next not in ("keys", "shares"):
            raise RosterChanged(
                f"site {self._site!r} has answered to a roster of {self._name}; a sum has one; nothing was "
                "released",
                code="second_roster",
            )
        self._require("shares", roster.sum)
        require_sound(roster, self._bundle, self._minimum, len(self._lock))
        context = context_of(self._subject, roster)
        self.refusals = distrusted(roster, self._share_key, self._lock)
        if self.refusals:
            strangers = tuple(sorted(self.refusals))
            return SentShares(
                sum=self._name, site=self._site, context=context.hex(), shares=(), distrusted=strangers
            )
        seeds = split(self._seed, len(roster.sites), roster.threshold)
        keys = split(self._mask_key.private_bytes_raw(), len(roster.sites), roster.threshold)
        own = {site: seed + key for site, seed, key in zip(roster.sites, seeds, keys, strict=True)}
        sealed = [
            SealedShares(
                site=peer.site,
                sealed=seal(
                    self._share_key,
                    bytes.fromhex(peer.share_key),
                    self._name,
                    self._site,
                    peer.site,
                    own[peer.site],
                ).hex(),
            )
            for peer in roster.bundles
            if peer.site != self._site
        ]
        self._roster, self._context = roster, context
        self._held[self._site] = own[self._site]
        self._next = "delivery"
        return SentShares(
            sum=self._name, site=self._site, context=context.hex(), shares=tuple(sealed), distrusted=()
        )

    def receive(self, delivered: DeliveredShares) -> OpenedShares:
        """Takes the others' shares, and says whose it could not open.

        Raises:
            TooFewSites: So few have sent shares that the sum could not be unmasked.
            WrongSum: Shares are for another site, or of none of the roster.
        """
        self._require("delivery", delivered.sum)
        senders = {each.site for each in delivered.shares}
        if delivered.site != self._site or not senders < set(self._roster.sites):
            raise WrongSum(
                f"shares for site {self._site!r} have to be from others of the roster, and for it",
                code="not_agreed",
            )
        require_enough(len(senders) + 1, self._needed, "sent shares")
        for each in delivered.shares:
            public = bytes.fromhex(self._roster.bundle(each.site).share_key)
            sealed = bytes.fromhex(each.sealed)
            try:
                self._held[each.site] = unseal(
                    self._share_key, public, self._name, each.site, self._site, sealed
                )
            except ForgedShares as refusal:
                self.refusals[each.site] = refusal
        self._senders = senders
        self._next = "input"
        return OpenedShares(sum=self._name, site=self._site, unopened=tuple(sorted(self.refusals)))

    def require_new(self, summed: str, sharers: Sharers) -> None:
        """Checks, before anything is computed, that what is summed was not released with other sites.

        Args:
            summed: Hash of what is summed; by it the site recognises the same sum under another name. Without
                this call it is the plan's.
            sharers: Who masks with each other.

        Raises:
            AlreadyReleased: It was.
        """
        self._summed = summed
        self._guard.require_same(self._name, summed, sharers.sites)

    def mask(self, sharers: Sharers, elements: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yields this site's input under all its masks.

        Args:
            sharers: Who masks with each other.
            elements: Each tensor of ring elements, int32 and contiguous, in the subject's order; masked in
                place, one at a time, so that they may be made while this goes on. Masks are used once:
                whoever stops in the middle has dropped out.

        Raises:
            TooFewSites: They are so few that the sum could not be unmasked.
            WrongSum: This site is not among them, or one is that has sent it no shares.
            FrameError: A tensor is not the one that the subject has in its place.
        """
        self._require("input", sharers.sum)
        others = [site for site in sharers.sites if site != self._site]
        if len(others) == len(sharers.sites) or not set(others) <= self._senders:
            raise WrongSum(
                f"site {self._site!r} masks with sites that have sent it shares, and is one of them itself",
                code="not_agreed",
            )
        require_enough(len(sharers.sites), self._needed, "sent shares")
        masks = [self_mask(self._seed, self._site, self._context)]
        for peer in others:
            public = bytes.fromhex(self._roster.bundle(peer).mask_key)
            masks.append(pairwise(self._mask_key, self._site, public, peer, self._context))
        self._sharers = sharers.sites
        self._next = None
        del self._seed, self._mask_key, self._share_key  # masks are made once
        return self._masked(MaskStream(masks), elements)

    def _masked(
        self, stream: MaskStream, elements: Iterable[tuple[str, Tensor]]
    ) -> Iterator[tuple[str, Tensor]]:
        came = iter(elements)
        for name, shape in self._subject.shapes.items():
            found, tensor = next(came, (None, None))
            if tensor is None or found != name or tensor.shape != shape or tensor.dtype != RING:
                raise FrameError(
                    f"the input of a secure sum must have {name}, int32 of shape {shape}, in this place",
                    code="wrong_shape",
                )
            stream.add_to(tensor.view(-1).numpy().view(np.uint32))
            yield name, tensor
        if next(came, None) is not None:
            raise FrameError(
                f"the input of a secure sum has more than its {len(self._subject.shapes)} tensors",
                code="too_long",
            )
        self._next = "consistency"

    def sign(self, survivors: Survivors) -> ConsistencySignature:
        """Returns this site's signature of all that it knows of the sum; the same if it is asked again.

        Raises:
            BothShares: It has signed another set of survivors: with two, both shares of a site would leave.
            TooFewSites: The survivors are fewer than this site's minimum, or than the threshold.
            WrongSum: They are not sites that it has masked with, itself among them.
        """
        if self._survivors is not None and survivors != self._survivors:
            raise BothShares(
                f"site {self._site!r} has signed who survived in {self._name}, and is told of others now: of "
                "a site that is in one set alone both shares would leave, and its update with them; nothing "
                "more leaves"
            )
        if self._next != "unmasking":
            self._require("consistency", survivors.sum)
        require_enough(len(survivors.sites), self._needed, "sent their updates")
        if self._site not in survivors.sites or not set(survivors.sites) <= set(self._sharers):
            raise WrongSum(
                f"the survivors of {self._name} must be sites that {self._site!r} has masked with, and it "
                "itself; nothing was released",
                code="not_agreed",
            )
        self._survivors, self._next = survivors, "unmasking"
        self._transcript = transcript_of(self._context, self._sharers, survivors.sites)
        signature = self._identity.sign(signed_consistency(self._name, self._transcript)).hex()
        return ConsistencySignature(
            sum=self._name, site=self._site, transcript=self._transcript, signature=signature
        )

    def unmask(self, proof: ConsistencyProof) -> ReleasedShares:
        """Releases the sum, durably, and returns one share of each site; the same if it is asked again.

        Raises:
            TranscriptMismatch: So many have signed something else than this one that the others are too few.
            TooFewSignatures: Fewer sites than the threshold have signed, or not this one.
            AttemptNotHigher: A higher attempt was begun meanwhile.
            AlreadyReleased: The same was released with other survivors.
        """
        self._require("unmasking", proof.sum)
        survivors = self._require_signed(proof)
        self._guard.release(self._name, self._summed, survivors)
        dropped = [site for site in self._sharers if site not in survivors]
        return ReleasedShares(
            sum=self._name,
            site=self._site,
            self_masks=self._open(survivors, slice(SECRET_BYTES)),
            mask_keys=self._open(dropped, slice(SECRET_BYTES, None)),
        )

    def _require_signed(self, proof: ConsistencyProof) -> tuple[str, ...]:
        """Returns the survivors, once enough of them have signed what this site knows.

        A signature of something else counts for nothing, and against nobody: or one site could keep all
        others from their sum.
        """
        survivors = self._survivors.sites if self._survivors else ()
        said = signed_consistency(self._name, self._transcript)
        signers = {
            each.site
            for each in proof.signatures
            if each.site in survivors
            and is_signed(self._lock[each.site], bytes.fromhex(each.signature), said)
        }
        if len(signers) < self._roster.threshold or self._site not in signers:
            if others := [each.site for each in proof.signatures if each.site not in signers]:
                raise TranscriptMismatch(
                    f"site {others[0]!r} has not signed what site {self._site!r} knows of {self._name}: it "
                    "has other settings, another roster, model, plan, shape or set of survivors, or its "
                    "signature is of another sum; nothing was released"
                )
            raise TooFewSignatures(
                f"{len(signers)} sites have signed {self._name}, and {self._roster.threshold} have to, site "
                f"{self._site!r} among them, before a share leaves; nothing was released"
            )
        return survivors

    def _open(self, sites: Iterable[str], part: slice) -> tuple[OpenShare, ...]:
        held = ((site, self._held[site]) for site in sites if site in self._held)
        return tuple(OpenShare(site=site, share=share[part].hex()) for site, share in held)

    @property
    def _needed(self) -> int:
        return max(self._minimum, self._roster.threshold)

    def _require(self, exchange: Exchange, name: SumName | None = None) -> None:
        if name not in (None, self._name):
            raise WrongSum(f"a message of {name} came to the session of {self._name}; nothing was released")
        if self._next != exchange:
            raise OutOfOrder(
                f"{exchange} of {self._name} cannot be answered: it is the turn of "
                f"{self._next or 'nothing'}; a session that stopped in the middle of its input has dropped "
                "out"
            )

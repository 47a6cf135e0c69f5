"""Takes the masks off a sum, over any number of crashes of the server: it always finishes the same unmasking.

A server that began anew without one site could subtract one sum from the other. So the masked sum lies on the
disk before anyone is asked for a signature, and each site's shares before the next is asked; sites that have
released a sum release the same again with the same survivors alone (`release_guard`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from fedstrata.core.errors import FrameError
from fedstrata.core.files import private_folder
from fedstrata.core.types import Message
from fedstrata.privacy.secure_sum.keys import public_half
from fedstrata.privacy.secure_sum.masks import Mask, MaskStream, pairwise, self_mask
from fedstrata.privacy.secure_sum.messages import (
    ConsistencyProof,
    ConsistencySignature,
    ReleasedShares,
    Roster,
    StoredSum,
    SumName,
    Survivors,
    pack,
    unpack,
)
from fedstrata.privacy.secure_sum.refusals import (
    OutOfOrder,
    SharesDoNotFit,
    TooFewSignatures,
    TranscriptMismatch,
    WrongSum,
)
from fedstrata.privacy.secure_sum.shares import combine
from fedstrata.privacy.secure_sum.transcript import Subject, context_of
from fedstrata.wire import frame

_SUM, PROOF = "masked-sum.safetensors", "proof.safetensors"


class MaskedSum(NamedTuple):
    """A sum of masked inputs.

    Attributes:
        roster: Who took part, with keys.
        subject: What is summed.
        sharers: Who sent shares: whose pairwise masks are in the inputs.
        survivors: Whose input is in the sum.
        tensors: The sum, int32 by name.
    """

    roster: Roster
    subject: Subject
    sharers: tuple[str, ...]
    survivors: tuple[str, ...]
    tensors: dict[str, Tensor]


class SumUnmasking:
    """What is left to do of a masked sum; made by `SumServer.close`, or by `resume` after a crash.

    Args:
        folder: Where it is kept.
        masked: The sum.
        proof: The signatures, if they have come.
        released: What sites have released so far, by site.
    """

    def __init__(
        self,
        folder: Path,
        masked: MaskedSum,
        proof: ConsistencyProof | None = None,
        released: dict[str, ReleasedShares] | None = None,
    ) -> None:
        self._folder, self._masked, self.proof = folder, masked, proof
        self._released = released or {}
        self._unmasked = False
        self.false: set[str] = set()
        """Sites that released shares which are none."""

    @classmethod
    def begin(cls, folder: Path, masked: MaskedSum) -> SumUnmasking:
        """Stores a masked sum durably.

        Raises:
            OutOfOrder: The folder holds one already, which has to be finished.
        """
        if (folder / _SUM).exists():
            raise OutOfOrder(
                f"{folder} holds a masked sum that was not finished; resume it, and make no other",
                code="exists",
            )
        private_folder(folder)
        stored = StoredSum(
            roster=masked.roster,
            agreed=masked.subject.agreed,
            model=masked.subject.model,
            plan=masked.subject.plan,
            sharers=masked.sharers,
            survivors=masked.survivors,
        )
        frame.encode(pack(stored, masked.tensors)).write(folder / _SUM)
        return cls(folder, masked)

    @classmethod
    def resume(cls, folder: Path) -> SumUnmasking:
        """Returns what a server that was killed has stored.

        Raises:
            FrameError: A file is missing or damaged; the message names it.
        """
        message = frame.decode(frame.read(folder / _SUM), Message)
        shapes = {name: tuple(tensor.shape) for name, tensor in message.tensors.items()}
        stored = unpack(message, StoredSum, shapes)
        subject = Subject(stored.agreed, stored.model, stored.plan, shapes)
        masked = MaskedSum(stored.roster, subject, stored.sharers, stored.survivors, dict(message.tensors))
        proof = None
        if (folder / PROOF).exists():
            proof = unpack(frame.decode(frame.read(folder / PROOF), Message), ConsistencyProof)
        found = [
            unpack(frame.decode(frame.read(path), Message), ReleasedShares)
            for path in sorted(folder.glob("shares-*.safetensors"))
        ]
        return cls(folder, masked, proof, {each.site: each for each in found})

    @property
    def survivors(self) -> Survivors:
        """What sites are asked to sign."""
        return Survivors(sum=self._masked.roster.sum, sites=self._masked.survivors)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Survivors that have released no shares so far; none is needed once `ready`."""
        return tuple(site for site in self._masked.survivors if site not in self._released)

    @property
    def ready(self) -> bool:
        """Whether enough shares have come."""
        return len(self._released) >= self._masked.roster.threshold

    def prove(self, signatures: Sequence[ConsistencySignature]) -> ConsistencyProof:
        """Puts together the signatures of all who have signed the same, and stores them.

        Raises:
            TranscriptMismatch: So few agree on what is summed that nobody would release a share; the message
                names who differs.
            TooFewSignatures: Fewer have signed than the threshold.
            WrongSum: A signature is of another sum, or of no survivor, or a site sent two.
        """
        roster, sites = self._masked.roster, [each.site for each in signatures]
        for each in signatures:
            self._require_survivor(each)
        if len(set(sites)) != len(sites):
            raise WrongSum(f"a site has signed {roster.sum} twice", code="duplicate")
        if len(sites) < roster.threshold:
            raise TooFewSignatures(
                f"{len(sites)} sites have signed {roster.sum}, and {roster.threshold} have to; nothing was "
                "unmasked. No share has left, so that another attempt may be made"
            )
        signed = {each.site: each.transcript for each in signatures}
        others = told_apart(signed, roster.threshold, roster.sum)
        ordered = sorted((each for each in signatures if each.site not in others), key=lambda each: each.site)
        self.proof = ConsistencyProof(sum=roster.sum, signatures=tuple(ordered))
        frame.encode(pack(self.proof)).write(self._folder / PROOF)
        return self.proof

    def take(self, released: ReleasedShares) -> None:
        """Takes what one site released; it is on the disk when this returns.

        Raises:
            WrongSum: It is of another sum, or of no survivor.
            FrameError: It has shares that this sum does not need.
        """
        self._require_survivor(released)
        dropped = sorted(set(self._masked.sharers) - set(self._masked.survivors))
        for came, needed in ((released.self_masks, self._masked.survivors), (released.mask_keys, dropped)):
            if not {share.site for share in came} <= set(needed):
                raise FrameError(
                    f"site {released.site!r} released shares of other sites than this sum needs",
                    code="not_agreed",
                )
        place = self._masked.roster.sites.index(released.site)
        frame.encode(pack(released)).write(self._folder / f"shares-{place:02d}.safetensors")
        self._released[released.site] = released

    def finish(self) -> dict[str, Tensor]:
        """Takes all masks off, in place.

        Returns:
            The sum of the survivors' ring elements, int32 by name.

        Raises:
            OutOfOrder: Too few shares have come.
            SharesDoNotFit: Shares do not give what a site has committed itself to, whichever of those that
                released them is left out.
        """
        if not self.ready:
            needed = self._masked.roster.threshold
            raise OutOfOrder(f"{len(self._released)} sites have released shares, and {needed} have to")
        if not self._unmasked:
            stream = MaskStream([Mask(mask.seed, not mask.added) for mask in self._masks()])
            for tensor in self._masked.tensors.values():
                stream.add_to(tensor.view(-1).numpy().view(np.uint32))
            self._unmasked = True
        return self._masked.tensors

    def _masks(self) -> Iterator[Mask]:
        """Yields every mask that is left in the sum, as it was added."""
        roster, context = self._masked.roster, context_of(self._masked.subject, self._masked.roster)
        seeds, keys = (
            {
                holder: {share.site: bytes.fromhex(share.share) for share in getattr(each, field)}
                for holder, each in self._released.items()
            }
            for field in ("self_masks", "mask_keys")
        )
        for site in self._masked.survivors:
            said = roster.bundle(site).seed_commitment
            seed = self._secret(site, seeds, lambda found, said=said: _commitment(found) == said)  # type: ignore[misc]
            yield self_mask(seed, site, context)
        for site in sorted(set(self._masked.sharers) - set(self._masked.survivors)):
            said = roster.bundle(site).mask_key
            secret = self._secret(site, keys, lambda found, said=said: _public_half(found) == said)  # type: ignore[misc]
            key = X25519PrivateKey.from_private_bytes(secret)
            for other in self._masked.survivors:
                mask = pairwise(key, site, bytes.fromhex(roster.bundle(other).mask_key), other, context)
                yield Mask(mask.seed, not mask.added)  # what the survivor did, not who dropped out

    def _secret(
        self, site: str, shares: Mapping[str, Mapping[str, bytes]], fits: Callable[[bytes], bool]
    ) -> bytes:
        """Returns a secret of a site; one of those that hold shares of it may have released a false one.

        Args:
            site: Whose it is.
            shares: Of each site, by holder.
            fits: Whether it is what the site has committed itself to.
        """
        sites = self._masked.roster.sites
        held = {holder: own[site] for holder, own in shares.items() if site in own}
        trusted = {holder: share for holder, share in held.items() if holder not in self.false}
        tries = [set[str](), *({holder} for holder in trusted)]
        enough = len(trusted) >= (needed := self._masked.roster.threshold)
        for without in tries if enough else ():
            placed = {sites.index(each): share for each, share in trusted.items() if each not in without}
            if len(placed) >= needed and fits(secret := combine(placed, needed)):
                self.false |= without
                return secret
        raise SharesDoNotFit(
            f"the {len(trusted)} shares that sites released do not give the secret of site {site!r} that it "
            "committed itself to: it, or one of them, sent false shares; the sum cannot be unmasked",
            site if len(trusted) > needed else None,
        )

    def _require_survivor(self, said: ConsistencySignature | ReleasedShares) -> None:
        name = self._masked.roster.sum
        if said.sum != name or said.site not in self._masked.survivors:
            raise WrongSum(
                f"site {said.site!r} answered to {said.sum}, and {name} is being unmasked without it"
            )


def told_apart(said: Mapping[str, str], needed: int, name: SumName) -> list[str]:
    """Returns who says something else of a sum than most sites.

    Args:
        said: A hash of what each site knows of it.
        needed: How many have to say the same.
        name: The sum, for the message.

    Raises:
        TranscriptMismatch: No group is as large; the message names them all.
    """
    groups = [[site for site in said if said[site] == each] for each in dict.fromkeys(said.values())]
    groups.sort(key=len)
    if len(groups) > 1 and len(groups[-1]) < needed:
        told = " | ".join(", ".join(group) for group in groups)
        raise TranscriptMismatch(
            f"sites do not agree on settings, roster, model, plan, shapes or survivors of {name}: {told}; "
            "their masks do not cancel, and nothing was unmasked. Check that all have one configuration and "
            "one model, and make another attempt"
        )
    return [site for group in groups[:-1] for site in group]


def _commitment(seed: bytes) -> str:
    return hashlib.sha256(seed).hexdigest()


def _public_half(key: bytes) -> str:
    return public_half(X25519PrivateKey.from_private_bytes(key)).hex()

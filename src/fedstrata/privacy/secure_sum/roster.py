"""What a site checks before it answers to a roster: what hides it comes from its own lock."""

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedstrata.privacy.federation_lock import Lock
from fedstrata.privacy.identity import is_signed
from fedstrata.privacy.secure_sum.keys import agree
from fedstrata.privacy.secure_sum.messages import KeyBundle, Roster
from fedstrata.privacy.secure_sum.refusals import (
    ForgedKeys,
    ReplayedKeys,
    RosterChanged,
    SecureSumRefusal,
    TooFewSites,
    UnpinnedSite,
    WrongThreshold,
)
from fedstrata.privacy.secure_sum.shares import threshold
from fedstrata.privacy.secure_sum.transcript import signed_keys


def require_sound(roster: Roster, own: KeyBundle, minimum: int, known: int) -> None:
    """Checks what of a roster is the server's to say.

    Args:
        roster: What the server says; its sum's name is checked already.
        own: The keys that this site has sent.
        minimum: How many sites it wants to be hidden among.
        known: How many sites its own lock has, from which the least threshold follows.

    Raises:
        SecureSumRefusal: Something is not as it has to be; the class tells what.
    """
    sites, needed = len(roster.bundles), threshold(max(known, len(roster.bundles)))
    require_enough(sites, max(minimum, needed), "answered")
    if not needed <= roster.threshold <= sites:
        raise WrongThreshold(
            f"the server asks for a threshold of {roster.threshold} shares; with {sites} sites and {known} "
            f"in this site's lock it must be {needed} to {sites}: with fewer the server and some sites could "
            "unmask a single update; nothing was released"
        )
    if own not in roster.bundles:
        raise RosterChanged(
            f"the roster does not have the keys that site {own.site!r} has sent, so that it could not be "
            "hidden among the others; nothing was released"
        )


def distrusted(roster: Roster, own: X25519PrivateKey, lock: Lock) -> dict[str, SecureSumRefusal]:
    """Returns with whom of a roster no sum is made, and why: keys that are not those of a known site.

    Args:
        roster: What the server says.
        own: The private half of a key of this site.
        lock: The identities that it knows.
    """
    found = {}
    for bundle in roster.bundles:
        try:
            _require_pinned(bundle, roster, lock)
            for public in (bundle.mask_key, bundle.share_key):
                agree(own, bytes.fromhex(public), bundle.site)
        except SecureSumRefusal as refusal:
            found[bundle.site] = refusal
    return found


def require_enough(came: int, needed: int, what: str) -> None:
    """Checks that sites are enough to hide each other.

    Args:
        came: How many there are.
        needed: How many there must be.
        what: What those have done.

    Raises:
        TooFewSites: There are fewer.
    """
    if came < needed:
        raise TooFewSites(
            f"secure aggregation needs {needed} sites here and {came} {what}: with too few, the others could "
            "subtract their own updates and read what is left; nothing was unmasked"
        )


def _require_pinned(bundle: KeyBundle, roster: Roster, lock: Lock) -> None:
    public = lock.get(bundle.site)
    if public is None:
        raise UnpinnedSite(
            f"site {bundle.site!r} is not in this site's federation.lock; compare its fingerprint with its "
            "people and write it there, or leave the site out; nothing was released"
        )
    if not is_signed(public, bytes.fromhex(bundle.signature), signed_keys(bundle)):
        raise ForgedKeys(
            f"the keys said to be of site {bundle.site!r} are not signed by the identity that "
            "federation.lock has for it; if that site has a new identity, compare its fingerprint; nothing "
            "was released"
        )
    if bundle.sum != roster.sum:
        raise ReplayedKeys(
            f"the keys of site {bundle.site!r} were signed for {bundle.sum}, not for {roster.sum}; keys are "
            "used once; nothing was released"
        )

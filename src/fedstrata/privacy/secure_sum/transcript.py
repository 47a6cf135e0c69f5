"""What sites must agree on, as hashes: one that masks come from, one that is signed before shares leave."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedstrata.privacy.secure_sum.messages import KeyBundle, Roster, SumName, canonical

_RING_BITS = 32


@dataclass(frozen=True, slots=True)
class Subject:
    """What is summed, as one side knows it by itself: nothing of it is taken from a message.

    Attributes:
        agreed: SHA-256 of the settings and versions that all sites must share, hexadecimal.
        model: SHA-256 of the model that the site has, hexadecimal.
        plan: SHA-256 of the plan that it got, hexadecimal.
        shapes: Shape of each tensor by name, in the order in which they are masked.
    """

    agreed: str
    model: str
    plan: str
    shapes: Mapping[str, tuple[int, ...]]


def context_of(subject: Subject, roster: Roster) -> bytes:
    """Returns the hash that every mask of a sum is derived with, (32,) bytes.

    A site that has other settings, another model, plan or roster has masks that do not cancel: a server that
    sends one site something else learns nothing from the sum.

    Args:
        subject: What is summed.
        roster: Who takes part, with the keys; it has the sum's name.
    """
    facts: dict[str, Any] = {
        "roster": roster.model_dump(mode="json"),
        "agreed": subject.agreed,
        "model": subject.model,
        "plan": subject.plan,
        "tensors": [[name, list(shape)] for name, shape in subject.shapes.items()],
        "ring": _RING_BITS,
    }
    return hashlib.sha256(canonical(facts)).digest()


def transcript_of(context: bytes, sharers: Iterable[str], survivors: Iterable[str]) -> str:
    """Returns the hash of all that a site knows of a sum, hexadecimal.

    Args:
        context: `context_of` the sum.
        sharers: Whose shares the site holds, its own included.
        survivors: Whose input is in the sum, as the server says.
    """
    facts = {"context": context.hex(), "sharers": sorted(sharers), "survivors": sorted(survivors)}
    return hashlib.sha256(canonical(facts)).hexdigest()


def signed_keys(bundle: Mapping[str, Any] | KeyBundle) -> bytes:
    """Returns what an identity signs of its keys for one sum: all fields but the signature."""
    fields = bundle.model_dump(mode="json") if isinstance(bundle, KeyBundle) else dict(bundle)
    fields.pop("signature", None)
    return b"fedstrata secure sum: keys\n" + canonical(fields)


def signed_consistency(name: SumName, transcript: str) -> bytes:
    """Returns what an identity signs before shares leave."""
    return b"fedstrata secure sum: consistency\n" + canonical([name.model_dump(mode="json"), transcript])

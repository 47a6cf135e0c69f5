"""What a site and the server say to each other for a masked sum.

Each message is a frozen model whose fields are checked when it is read: kinds, sizes, counts, order, and no
field too many. On the wire it is one frame (`fedstrata.wire`): the fields are the frame's values, and a
masked input's tensors are the frame's. What is signed or hashed is the canonical JSON of fields: keys sorted,
no blanks, ASCII.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, TypeVar

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from fedstrata.core.errors import FrameError, printable
from fedstrata.core.settings.privacy import LEAST_SITES, MOST_SITES
from fedstrata.core.types import JSON, Message, Tensors
from fedstrata.privacy.federation_lock import SITE_PATTERN

HEADER_LIMIT = 2**22
"""Bytes that the header of such a message's frame may have (`frame.split`)."""
RING = torch.int32
"""Ring elements are integers modulo 2^32, in torch as int32, whose sums wrap around."""
_MOST_NUMBER = 2**31 - 1


def canonical(values: JSON | Sequence[Any] | Mapping[str, Any]) -> bytes:
    """Returns the one byte form of JSON values."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _hexadecimal(count: int) -> Any:
    return StringConstraints(pattern=rf"^[0-9a-f]{{{2 * count}}}$")


def _in_order(sites: Sequence[str]) -> None:
    if any(first >= second for first, second in pairwise(sites)):
        raise ValueError("sites have to be in order, each once")


def _ordered(field: str) -> Any:
    """Returns a check that entries are in the order of the site they are of, and no site has two."""

    def check(entries: tuple[Any, ...]) -> tuple[Any, ...]:
        _in_order([getattr(entry, field) for entry in entries])
        return entries

    return AfterValidator(check)


def _sites_ordered(sites: tuple[str, ...]) -> tuple[str, ...]:
    _in_order(sites)
    return sites


Site = Annotated[str, StringConstraints(pattern=SITE_PATTERN)]
Number = Annotated[int, Field(ge=0, le=_MOST_NUMBER)]
Bytes32 = Annotated[str, _hexadecimal(32)]
"""A key, a hash, or a share of a secret, as hexadecimal digits."""
Signature = Annotated[str, _hexadecimal(64)]
Sealed = Annotated[str, _hexadecimal(12 + 2 * 32 + 16)]
"""Two shares, encrypted: nonce, text, tag."""
_AT_MOST_ALL = Field(max_length=MOST_SITES)
_UP_TO_ALL = Field(min_length=1, max_length=MOST_SITES)
_ENOUGH = Field(min_length=LEAST_SITES, max_length=MOST_SITES)


class _Fields(BaseModel):
    """Fields of exactly these types, and no others."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True)


class SumName(_Fields):
    """Which masked sum it is.

    Attributes:
        run: The run's id.
        round: The round's number.
        handler: What is summed: a method's handler, or the scores of a part of the split (`scores/test`).
        call: How often the handler was called in this round before.
        attempt: How often this sum was begun before.
    """

    run: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z._-]{1,64}$")]
    round: Number
    handler: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z._/-]{1,64}$")]
    call: Number
    attempt: Number

    def __str__(self) -> str:
        return f"run {self.run}, round {self.round}, {self.handler}, call {self.call}, attempt {self.attempt}"


class SummedTensor(_Fields):
    """A tensor of an update, as it is summed.

    Attributes:
        bound: What larger changes are cut to.
    """

    name: str
    shape: tuple[Number, ...]
    bound: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


def _each_once(tensors: tuple[SummedTensor, ...]) -> tuple[SummedTensor, ...]:
    names = {each.name for each in tensors}
    if len(names) != len(tensors) or any(name.startswith("secure/") for name in names):
        raise ValueError("tensors must have names of their own")
    return tensors


Figure = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class NoiseTerms(_Fields):
    """The joint noise of a sum, which each site compares with its own settings and never takes from here.

    Attributes:
        clip: The most that a unit's gradient is long.
        scale: Integers in one unit of a gradient.
        sigma: The noise that t - c sites bring together, in units of the L2 sensitivity.
        colluders: c.
        numbers: Of a gradient, over all its tensors.
        expected_batch: Units of a site that its sum has on average, by which it is divided.
    """

    clip: Figure
    scale: Figure
    sigma: Figure
    colluders: Number
    numbers: Annotated[int, Field(ge=1)]
    expected_batch: Annotated[int, Field(ge=1)]


class MeanTerms(_Fields):
    """What a weighted mean is made of; every site's masks depend on all of it.

    Attributes:
        sum: Its name.
        plan: SHA-256 of the plan that comes with the shares.
        tensors: What an update holds.
        scale: The largest weight that a site may have: a change is summed by its weight over this.
        loss: Whether the training loss is summed as well.
        noise: Of a mean of clipped gradients, whose sites add the noise jointly and weigh all the same; none
            of a mean of what was trained.
        counts: Whether it is no mean but the sum of what sites have counted of their documents.
        ring: Bits of a ring element; where nothing can be cut 32 alone.
    """

    kind: Literal["mean"] = "mean"
    sum: SumName
    plan: Bytes32
    tensors: Annotated[tuple[SummedTensor, ...], AfterValidator(_each_once)]
    scale: Annotated[int, Field(ge=1, le=_MOST_NUMBER)]
    loss: bool
    noise: NoiseTerms | None = None
    counts: bool = False
    ring: Literal[24, 32] = 32

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.exact and self.ring != 32:
            raise ValueError("such a sum has no room in a ring of 24 bits")
        return self

    @property
    def exact(self) -> bool:
        """Whether nothing that is summed can be cut, so that no cut values are counted."""
        return self.counts or self.noise is not None


class KeyBundle(_Fields):
    """A site's keys for one sum, signed by its identity.

    Attributes:
        mask_key: Public X25519 key that pairwise masks come from.
        share_key: Public X25519 key that shares are encrypted to.
        seed_commitment: SHA-256 of the seed of its own mask, by which a wrong one is found.
        ledger_head: Hash of the last line of its egress ledger, so that the others witness it; zeros if none.
    """

    kind: Literal["keys"] = "keys"
    sum: SumName
    site: Site
    mask_key: Bytes32
    share_key: Bytes32
    seed_commitment: Bytes32
    ledger_head: Bytes32
    signature: Signature


class Roster(_Fields):
    """Who takes part, in order, and how many shares give a secret."""

    kind: Literal["roster"] = "roster"
    sum: SumName
    threshold: Number
    bundles: Annotated[tuple[KeyBundle, ...], _ENOUGH, _ordered("site")]

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all, in order."""
        return tuple(bundle.site for bundle in self.bundles)

    def bundle(self, site: str) -> KeyBundle:
        """Returns the keys of a site."""
        return self.bundles[self.sites.index(site)]


class SealedShares(_Fields):
    """One site's shares of both secrets of another, encrypted.

    Attributes:
        site: The receiver where a site sends them; the sender where the server delivers them.
    """

    site: Site
    sealed: Sealed


class SentShares(_Fields):
    """A site's shares for every other site of the roster; or none, and with whose keys it makes no sum.

    Attributes:
        context: What its masks will be derived with (`transcript.context_of`), so that a site which would
            mask for another sum is found before it does.
        distrusted: Sites whose keys are not those that it knows of them.
    """

    kind: Literal["shares"] = "shares"
    sum: SumName
    site: Site
    context: Bytes32
    shares: Annotated[tuple[SealedShares, ...], _AT_MOST_ALL, _ordered("site")]
    distrusted: Annotated[tuple[Site, ...], _AT_MOST_ALL, AfterValidator(_sites_ordered)]


class DeliveredShares(_Fields):
    """All other sites' shares for one site."""

    kind: Literal["delivery"] = "delivery"
    sum: SumName
    site: Site
    shares: Annotated[tuple[SealedShares, ...], _UP_TO_ALL, _ordered("site")]


class OpenedShares(_Fields):
    """What a site says of the shares that it got.

    Attributes:
        unopened: Whose were not encrypted for it.
    """

    kind: Literal["opened"] = "opened"
    sum: SumName
    site: Site
    unopened: Annotated[tuple[Site, ...], _AT_MOST_ALL, AfterValidator(_sites_ordered)]


class Sharers(_Fields):
    """Who masks with each other; who is not among them drops out unmasked."""

    kind: Literal["sharers"] = "sharers"
    sum: SumName
    sites: Annotated[tuple[Site, ...], _ENOUGH, AfterValidator(_sites_ordered)]


class MaskedInput(_Fields):
    """A site's input under its masks; the tensors travel with it."""

    kind: Literal["input"] = "input"
    sum: SumName
    site: Site


class Survivors(_Fields):
    """Whose masked input is in the sum."""

    kind: Literal["survivors"] = "survivors"
    sum: SumName
    sites: Annotated[tuple[Site, ...], _ENOUGH, AfterValidator(_sites_ordered)]


class ConsistencySignature(_Fields):
    """A site's signature of all that it knows of a sum.

    Attributes:
        transcript: The hash that is signed; said so that one which differs can be named.
    """

    kind: Literal["consistency"] = "consistency"
    sum: SumName
    site: Site
    transcript: Bytes32
    signature: Signature


class ConsistencyProof(_Fields):
    """The signatures of all survivors who gave one."""

    kind: Literal["proof"] = "proof"
    sum: SumName
    signatures: Annotated[tuple[ConsistencySignature, ...], _UP_TO_ALL, _ordered("site")]


class OpenShare(_Fields):
    """A share of one secret of a site.

    Attributes:
        site: Whose secret it is.
    """

    site: Site
    share: Bytes32


class ReleasedShares(_Fields):
    """A site's shares: of the own mask of each survivor, and of the mask key of each who dropped out.

    Of a site whose shares it could not open it has none.
    """

    kind: Literal["released"] = "released"
    sum: SumName
    site: Site
    self_masks: Annotated[tuple[OpenShare, ...], _UP_TO_ALL, _ordered("site")]
    mask_keys: Annotated[tuple[OpenShare, ...], _AT_MOST_ALL, _ordered("site")]


class StoredSum(_Fields):
    """What a server keeps of a sum beside its tensors; it does not travel."""

    kind: Literal["stored"] = "stored"
    roster: Roster
    agreed: Bytes32
    model: Bytes32
    plan: Bytes32
    sharers: Annotated[tuple[Site, ...], _ENOUGH, AfterValidator(_sites_ordered)]
    survivors: Annotated[tuple[Site, ...], _ENOUGH, AfterValidator(_sites_ordered)]


Said = TypeVar("Said", bound=_Fields)


def pack(said: BaseModel, tensors: Tensors | None = None) -> Message:
    """Returns a message as the wire takes it.

    Args:
        said: The message.
        tensors: A masked input's.
    """
    return Message(tensors or {}, said.model_dump(mode="json"))


def unpack(message: Message, kind: type[Said], shapes: Mapping[str, tuple[int, ...]] | None = None) -> Said:
    """Returns what a message from the wire says.

    Args:
        message: The message; its frame was read with `HEADER_LIMIT`.
        kind: What it has to be.
        shapes: The tensors that it has to hold, all of them int32, in this order; none if none.

    Raises:
        FrameError: It is another kind, or a field or tensor is missing, too many, or not what it has to be.
    """
    expected = [(name, tuple(shape)) for name, shape in (shapes or {}).items()]
    came = [(name, tuple(tensor.shape)) for name, tensor in message.tensors.items()]
    if came != expected or any(tensor.dtype != RING for tensor in message.tensors.values()):
        raise FrameError(
            f"a message of a secure sum holds {len(came)} tensors that are not the {len(expected)} of int32 "
            "that were agreed, in their order",
            code="not_agreed",
        )
    try:
        return kind.model_validate_json(canonical(dict(message.values)))
    except (ValidationError, ValueError, TypeError, RecursionError) as error:
        raise FrameError(f"a {kind.__name__} of a secure sum is damaged: {_first(error)}") from None


def _first(error: Exception) -> str:
    """Returns the first thing that is wrong, without what was sent: it may be a secret."""
    if not isinstance(error, ValidationError):
        return type(error).__name__
    found = error.errors(include_input=False, include_url=False, include_context=False)[0]
    return printable(f"{'.'.join(map(str, found['loc']))}: {found['msg']}", 200)

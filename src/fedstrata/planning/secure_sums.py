"""What masked sums will send: the real messages of every exchange, with zeros for what is drawn.

A message's size depends on who takes part, on their names and on the tensors, and not on keys or shares. What
is not known before is how wide the range of a tensor will be, which travels as text: planned is that of the
settings, and one that is widened takes up to 24 bytes more of each client in each round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean
from typing import NamedTuple

import torch
from pydantic import BaseModel

from fedstrata.aggregate.mean import mean_of
from fedstrata.client.secure_turns import said_of
from fedstrata.core.cohort import Mean
from fedstrata.core.settings.privacy import LEAST_SITES
from fedstrata.core.types import ClientInfo, Plan, Update
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.protocol import Exchanging
from fedstrata.engine.secure_mean import first_attempt, mean_terms
from fedstrata.privacy.secure_sum.mean import subject_of
from fedstrata.privacy.secure_sum.messages import (
    RING,
    ConsistencyProof,
    ConsistencySignature,
    DeliveredShares,
    KeyBundle,
    MaskedInput,
    MeanTerms,
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
from fedstrata.privacy.secure_sum.quantization import packed
from fedstrata.privacy.secure_sum.shares import threshold
from fedstrata.wire import frame

_RUN = "0" * 16
"""As long as the id of a run."""
_BYTES_32, _SIGNATURE, _SEALED = "0" * 64, "0" * 128, "0" * 184
"""As long as a key, a hash or a share; a signature; and two shares that are encrypted."""
_DATABASE, _RELEASED = 24_576, 300
"""Bytes of a client's `site.sqlite` before its first sum, and of what each sum adds to it."""
_LEDGER_LINE, _WITNESSED_LINE = 530, 98
"""Bytes of a ledger's line about a message without tensors, and of a line about keys beside the keys."""


class SumBytes(NamedTuple):
    """What masked sums take of a run.

    Attributes:
        up: What clients say in the exchanges beside their updates, as the record counts it.
        down: What they are told there.
        more_up: What masked updates are larger than plain ones.
        more_down: What plans are larger, with which shares travel.
        kept: What clients write to their disks about the exchanges.
    """

    up: int = 0
    down: int = 0
    more_up: float = 0.0
    more_down: float = 0.0
    kept: int = 0

    def plus(self, other: SumBytes) -> SumBytes:
        """Returns both together."""
        said = self.up + other.up, self.down + other.down
        more = self.more_up + other.more_up, self.more_down + other.more_down
        return SumBytes(*said, *more, self.kept + other.kept)


@dataclass(frozen=True)
class WatchedSum:
    """A mean of a rehearsed round, that will be a masked sum.

    Attributes:
        terms: What it is made of.
        plan: What its clients were sent, without values of tensors.
        update_bytes: Of an update, on average.
    """

    terms: MeanTerms
    plan: Plan
    update_bytes: float


@dataclass
class WatchedSums:
    """Makes the means of a rehearsal, whose clients are too few for masks, in the clear.

    Attributes:
        experiment: The run.
        rounds: The means of each round, in order.
    """

    experiment: Experiment
    rounds: dict[int, list[WatchedSum]] = field(default_factory=dict)

    def mean(self, cohort: Exchanging, handler: str, plan: Plan) -> Mean:
        """Returns the weighted mean, and notes what a masked sum of it would be made of."""
        sizes: list[int] = []

        def updates() -> Iterator[tuple[ClientInfo, Update]]:
            for info, update in cohort.inputs(handler, handler, lambda _: plan):
                sizes.append(frame.size(update))
                yield info, update

        name = SumName(run=_RUN, round=cohort.book.number, handler=handler, call=1, attempt=first_attempt())
        own = self.experiment
        terms = mean_terms(own.privacy, own.method, own.model, name, plan, cohort.clients, {})
        found = mean_of(updates())
        empty = Plan({key: each.to("meta") for key, each in plan.tensors.items()}, plan.values)
        self.rounds.setdefault(name.round, []).append(WatchedSum(terms, empty, fmean(sizes)))
        return found


def bytes_of_sums(
    experiment: Experiment,
    watched: Mapping[int, Sequence[WatchedSum]],
    clients: Mapping[str, ClientInfo],
    asked: Sequence[Sequence[str]],
    delivered: Sequence[Sequence[str]],
) -> SumBytes:
    """Returns what the masked sums of all rounds take.

    Args:
        experiment: The run.
        watched: The means of the rehearsed rounds; the last stands for all that were not rehearsed as first.
        clients: What is known of each client.
        asked: The clients of each round.
        delivered: Those of them whose updates come.
    """
    minimum = experiment.privacy.settings.survivors or LEAST_SITES

    @cache
    def of_round(
        number: int, first: bool, scale: int, who: tuple[str, ...], left: tuple[str, ...]
    ) -> SumBytes:
        total, present, calls = SumBytes(), who, Counter[str]()
        for each in watched[1 if first else max(watched)]:
            calls[each.terms.sum.handler] += 1
            place = {"round": number, "call": calls[each.terms.sum.handler]}
            changed = {"sum": each.terms.sum.model_copy(update=place), "scale": scale}
            needed = max(minimum, threshold(len(clients)))
            sums = _Sums(each.terms.model_copy(update=changed), each, present, left, needed, len(clients))
            total = total.plus(sums.bytes())
            if len(left) < needed:
                break  # it is refused, and the round changes nothing
            present = left
        return total

    joint = experiment.privacy.joint is not None
    total = SumBytes(kept=_DATABASE * len(clients))
    for number, (who, left) in enumerate(zip(asked, delivered, strict=True), start=1):
        scale = 1 if joint else int(max(experiment.method.weighs(clients[name]) for name in who))
        digits = 10 ** (len(str(number)) - 1)  # rounds whose numbers are as long are alike
        total = total.plus(of_round(digits, number == 1, scale, tuple(who), tuple(left)))
    return total


class _Sums:
    """The exchanges of one sum, whose messages have zeros for what is drawn.

    Args:
        terms: What it is made of.
        watched: What of it was rehearsed.
        asked: Who is asked for it.
        delivered: Whose updates come.
        needed: How many of them it needs.
        known: How many clients the run has.
    """

    def __init__(
        self,
        terms: MeanTerms,
        watched: WatchedSum,
        asked: Sequence[str],
        delivered: Sequence[str],
        needed: int,
        known: int,
    ) -> None:
        self._terms, self._watched, self._needed = terms, watched, needed
        self._name, self._known = terms.sum, known
        self._sites, self._left = sorted(asked), sorted(delivered)
        self._sealed = {site: SealedShares(site=site, sealed=_SEALED) for site in asked}
        self._open = {site: OpenShare(site=site, share=_BYTES_32) for site in asked}

    def bytes(self) -> SumBytes:
        """Returns what all exchanges take; of a sum that too few are left for those before it is refused."""
        present = len(self._sites)
        before = self._keys, self._shares, self._opened
        up = sum(_said(message(site)) for message in before for site in self._sites)
        begin = frame.size(Plan(values=self._terms.model_dump(mode="json")))
        down = present * (begin + _told(self._roster()))
        down += sum(_told(self._delivery(site)) for site in self._sites)
        more_up, more_down = self._inputs()
        messages = len(before) * present
        witnessed = sum(_WITNESSED_LINE + len(self._keys(site).model_dump_json()) for site in self._sites)
        if len(self._left) >= self._needed:
            messages += 2 * len(self._left)
            up += sum(_said(self._signature(site)) + _said(self._released(site)) for site in self._left)
            survivors = Survivors(sum=self._name, sites=tuple(self._left))
            down += len(self._left) * (_told(survivors) + _told(self._proof()))
        kept = _LEDGER_LINE * messages + (present - 1) * witnessed + _RELEASED * present
        return SumBytes(up, down, more_up, more_down, kept)

    def _inputs(self) -> tuple[float, float]:
        """Returns what masked updates, and the plans that shares come with, are larger than plain ones."""
        plan, masked = self._watched.plan, dict[str, torch.Tensor]()
        for name, shape in subject_of(self._terms, _BYTES_32, _BYTES_32).shapes.items():
            masked[name] = packed(torch.empty(shape, dtype=RING, device="meta"), self._terms.ring)
        up = sum(
            frame.size(Update(masked, said_of(MaskedInput(sum=self._name, site=site))))
            - self._watched.update_bytes
            for site in self._left
        )
        sharers = Sharers(sum=self._name, sites=tuple(self._sites))
        told = Plan(plan.tensors, {**said_of(sharers), "values": dict(plan.values)})
        return up, len(self._sites) * float(frame.size(told) - frame.size(plan))

    def _keys(self, site: str) -> KeyBundle:
        return KeyBundle(
            sum=self._name,
            site=site,
            mask_key=_BYTES_32,
            share_key=_BYTES_32,
            seed_commitment=_BYTES_32,
            ledger_head=_BYTES_32,
            signature=_SIGNATURE,
        )

    def _roster(self) -> Roster:
        bundles = tuple(self._keys(site) for site in self._sites)
        return Roster(sum=self._name, threshold=threshold(max(self._known, len(bundles))), bundles=bundles)

    def _others(self, site: str) -> tuple[SealedShares, ...]:
        return tuple(self._sealed[other] for other in self._sites if other != site)

    def _shares(self, site: str) -> SentShares:
        return SentShares(
            sum=self._name, site=site, context=_BYTES_32, shares=self._others(site), distrusted=()
        )

    def _delivery(self, site: str) -> DeliveredShares:
        return DeliveredShares(sum=self._name, site=site, shares=self._others(site))

    def _opened(self, site: str) -> OpenedShares:
        return OpenedShares(sum=self._name, site=site, unopened=())

    def _signature(self, site: str) -> ConsistencySignature:
        return ConsistencySignature(sum=self._name, site=site, transcript=_BYTES_32, signature=_SIGNATURE)

    def _proof(self) -> ConsistencyProof:
        signatures = tuple(self._signature(site) for site in self._left)
        return ConsistencyProof(sum=self._name, signatures=signatures)

    def _released(self, site: str) -> ReleasedShares:
        survivors = tuple(self._open[each] for each in self._left)
        lost = tuple(self._open[each] for each in self._sites if each not in set(self._left))
        return ReleasedShares(sum=self._name, site=site, self_masks=survivors, mask_keys=lost)


def _said(said: BaseModel) -> int:
    return frame.size(Update({}, said_of(said)))


def _told(said: BaseModel) -> int:
    return frame.size(Plan(values=said_of(said)))

"""The server's half of one masked sum, up to the sum; `unmasking` has the rest.

Source: Bonawitz et al. 2017, figure 4. Nothing is durable here: a server that is killed now has no sum, no
share has left any site, and it may begin another attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch

from fedstrata.core.errors import FedstrataError, FrameError
from fedstrata.core.settings.privacy import LEAST_SITES, MOST_SITES
from fedstrata.core.types import Tensors
from fedstrata.privacy.secure_sum.messages import (
    RING,
    DeliveredShares,
    KeyBundle,
    MaskedInput,
    Roster,
    SealedShares,
    SentShares,
    Sharers,
    SumName,
)
from fedstrata.privacy.secure_sum.refusals import OutOfOrder, TranscriptMismatch, WrongSum
from fedstrata.privacy.secure_sum.roster import require_enough
from fedstrata.privacy.secure_sum.shares import threshold
from fedstrata.privacy.secure_sum.transcript import Subject, context_of
from fedstrata.privacy.secure_sum.unmasking import MaskedSum, SumUnmasking, told_apart


def left_out(accused: Mapping[str, Collection[str]], sites: int) -> set[str]:
    """Returns whom so many sites accuse that it cannot be they who lie: two, and a third of all.

    Args:
        accused: Whom each site accuses.
        sites: How many there are.
    """
    count = Counter(site for own in accused.values() for site in set(own))
    return {site for site, accusers in count.items() if accusers >= max(2, (sites - 1) // 3 + 1)}


class SumServer:
    """Takes keys, shares and masked inputs; memory is one sum, whatever the number of sites.

    Args:
        name: The sum.
        subject: What is summed.
        minimum: How many sites have to be in it.
        known: How many sites the federation has, from which the threshold follows; no fewer than answer.
    """

    def __init__(
        self, name: SumName, subject: Subject, *, minimum: int = LEAST_SITES, known: int = 0
    ) -> None:
        self._name, self._subject, self._known = name, subject, known
        self._minimum = max(LEAST_SITES, minimum)
        self._roster: Roster | None = None
        self._sharers: tuple[str, ...] = ()
        self.came: set[str] = set()
        """Whose masked inputs are in the sum."""
        self._sum = {tensor: torch.zeros(shape, dtype=RING) for tensor, shape in subject.shapes.items()}

    def roster(self, bundles: Sequence[KeyBundle]) -> Roster:
        """Returns who takes part, from the keys that came, and how many shares unmask the sum.

        Raises:
            TooFewSites: So few answered that nobody could be hidden.
            WrongSum: Keys belong to another sum, or a site sent two.
        """
        self._require_own(bundles)
        needed = threshold(max(self._known, len(bundles)))
        require_enough(len(bundles), max(self._minimum, needed), "answered")
        if len(bundles) > MOST_SITES:
            raise WrongSum(
                f"{len(bundles)} sites sent keys, and at most {MOST_SITES} fit the ring; ask fewer",
                code="out_of_range",
            )
        ordered = sorted(bundles, key=lambda bundle: bundle.site)
        self._roster = Roster(sum=self._name, threshold=needed, bundles=tuple(ordered))
        return self._roster

    def unusable(self, sent: Sequence[SentShares]) -> dict[str, FedstrataError]:
        """Returns whose shares cannot be delivered, and why.

        They are not for all others of the roster, or their masks would be of another sum than those of most
        sites and cancel with none of them.

        Raises:
            TranscriptMismatch: No group of sites with one sum is large enough, and the message names them
                all; or the server has another sum than they.
            WrongSum: Shares are of another sum, or a site sent two.
        """
        roster, found = self._begun(), dict[str, FedstrataError]()
        self._require_own(sent)
        for each in sent:
            others = [site for site in roster.sites if site != each.site]
            if each.site not in roster.sites or [share.site for share in each.shares] != others:
                found[each.site] = FrameError(
                    f"the shares of site {each.site!r} are not for the other {len(others)} of the roster",
                    code="not_agreed",
                )
        contexts = {each.site: each.context for each in sent if each.site not in found}
        others = told_apart(contexts, self._needed, self._name)
        if any(site not in others and context != self._context for site, context in contexts.items()):
            raise TranscriptMismatch(
                f"the sites agree on {self._name}, and the server has other settings, or another model, plan "
                "or shape: their sum could not be unmasked; nothing was masked"
            )
        for site in others:
            found[site] = TranscriptMismatch(
                f"site {site!r} has other settings, another roster, model, plan or shape of {self._name} "
                "than most: it was left out before it masked anything. Check that all have one configuration "
                "and one model"
            )
        return found

    def deliver(self, sent: Sequence[SentShares]) -> dict[str, DeliveredShares]:
        """Returns for each site what the others sent it.

        Args:
            sent: What sites sent, without what is unusable.

        Raises:
            TooFewSites: So few sent shares that the sum could not be unmasked.
        """
        require_enough(len(sent), self._needed, "sent shares")
        boxes: dict[str, list[SealedShares]] = {each.site: [] for each in sent}
        for each in sorted(sent, key=lambda each: each.site):
            for share in each.shares:
                if share.site in boxes:
                    boxes[share.site].append(SealedShares(site=each.site, sealed=share.sealed))
        return {
            site: DeliveredShares(sum=self._name, site=site, shares=tuple(box)) for site, box in boxes.items()
        }

    def sharers(self, sites: Collection[str]) -> Sharers:
        """Returns who masks with each other.

        Args:
            sites: Who has got the others' shares, without those whose shares are false.

        Raises:
            TooFewSites: They are so few that the sum could not be unmasked.
        """
        require_enough(len(sites), self._needed, "sent shares")
        self._sharers = tuple(sorted(sites))
        return Sharers(sum=self._name, sites=self._sharers)

    def add(self, said: MaskedInput, tensors: Tensors) -> None:
        """Adds a masked input to the sum.

        Args:
            said: Whose it is.
            tensors: int32 of the subject's shapes (checked by `messages.unpack`).

        Raises:
            WrongSum: It is of another sum, of a site that sent no shares, or came before.
        """
        self._require_own([said])
        if said.site not in self._sharers or said.site in self.came:
            raise WrongSum(
                f"an input of site {said.site!r} came twice, or without its shares; it is left out",
                code="duplicate",
            )
        self.came.add(said.site)
        for name, total in self._sum.items():
            total.add_(tensors[name])

    def close(self, folder: Path) -> SumUnmasking:
        """Stores the masked sum durably, and returns what unmasks it.

        Args:
            folder: Where it is kept, one for each sum.

        Raises:
            TooFewSites: So few inputs came that nobody could be hidden, or the sum not be unmasked.
        """
        require_enough(len(self.came), self._needed, "sent their updates")
        masked = MaskedSum(self._begun(), self._subject, self._sharers, tuple(sorted(self.came)), self._sum)
        return SumUnmasking.begin(folder, masked)

    @property
    def _context(self) -> str:
        return context_of(self._subject, self._begun()).hex()

    @property
    def _needed(self) -> int:
        return max(self._minimum, self._begun().threshold)

    def _begun(self) -> Roster:
        if self._roster is None:
            raise OutOfOrder(f"{self._name} has no roster yet")
        return self._roster

    def _require_own(self, said: Sequence[KeyBundle | SentShares | MaskedInput]) -> None:
        for each in said:
            if each.sum != self._name:
                raise WrongSum(f"site {each.site!r} answered to {each.sum}, and was asked for {self._name}")
        if len({each.site for each in said}) != len(said):
            raise WrongSum(f"a site has answered twice to {self._name}", code="duplicate")

"""The server's half of one masked sum, up to the sum; `unmasking` has the rest.

Source: Bonawitz et al. 2017, figure 4. Nothing is durable here: a server that is killed now has no sum, no
share has left any site, and it may begin another attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from fedstrata.core.errors import FrameError
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
    SumName,
)
from fedstrata.privacy.secure_sum.refusals import OutOfOrder, WrongSum
from fedstrata.privacy.secure_sum.roster import require_enough
from fedstrata.privacy.secure_sum.shares import threshold
from fedstrata.privacy.secure_sum.transcript import Subject
from fedstrata.privacy.secure_sum.unmasking import MaskedSum, SumUnmasking


class SumServer:
    """Takes keys, shares and masked inputs; memory is one sum, whatever the number of sites.

    Args:
        name: The sum.
        subject: What is summed.
        minimum: How many sites have to be in it.
    """

    def __init__(self, name: SumName, subject: Subject, *, minimum: int = LEAST_SITES) -> None:
        self._name, self._subject, self._minimum = name, subject, max(LEAST_SITES, minimum)
        self._roster: Roster | None = None
        self._sharers: tuple[str, ...] = ()
        self._came: set[str] = set()
        self._sum = {tensor: torch.zeros(shape, dtype=RING) for tensor, shape in subject.shapes.items()}

    def roster(self, bundles: Sequence[KeyBundle]) -> Roster:
        """Returns who takes part, from the keys that came.

        Raises:
            TooFewSites: So few answered that nobody could be hidden.
            WrongSum: Keys belong to another sum, or a site sent two.
        """
        self._require_own(bundles)
        require_enough(len(bundles), self._minimum, "answered")
        if len(bundles) > MOST_SITES:
            raise WrongSum(
                f"{len(bundles)} sites sent keys, and at most {MOST_SITES} fit the ring; ask fewer"
            )
        ordered = sorted(bundles, key=lambda bundle: bundle.site)
        self._roster = Roster(sum=self._name, threshold=threshold(len(ordered)), bundles=tuple(ordered))
        return self._roster

    def deliver(self, sent: Sequence[SentShares]) -> dict[str, DeliveredShares]:
        """Returns for each site that sent shares what the others sent it.

        Raises:
            TooFewSites: So few sent shares that the sum could not be unmasked.
            FrameError: A site's shares are not for all others of the roster.
        """
        roster = self._begun()
        self._require_own(sent)
        for each in sent:
            expected = [site for site in roster.sites if site != each.site]
            if each.site not in roster.sites or [share.site for share in each.shares] != expected:
                raise FrameError(
                    f"the shares of site {each.site!r} are not for the other {len(expected)} of the roster"
                )
        require_enough(len(sent), self._needed, "sent shares")
        self._sharers = tuple(sorted(each.site for each in sent))
        boxes: dict[str, list[SealedShares]] = {site: [] for site in self._sharers}
        for each in sorted(sent, key=lambda each: each.site):
            for share in each.shares:
                if share.site in boxes:
                    boxes[share.site].append(SealedShares(site=each.site, sealed=share.sealed))
        return {
            site: DeliveredShares(sum=self._name, site=site, shares=tuple(box)) for site, box in boxes.items()
        }

    def add(self, said: MaskedInput, tensors: Tensors) -> None:
        """Adds a masked input to the sum.

        Args:
            said: Whose it is.
            tensors: int32 of the subject's shapes (checked by `messages.unpack`).

        Raises:
            WrongSum: It is of another sum, of a site that sent no shares, or came before.
        """
        self._require_own([said])
        if said.site not in self._sharers or said.site in self._came:
            raise WrongSum(
                f"an input of site {said.site!r} came twice, or without its shares; it is left out"
            )
        self._came.add(said.site)
        for name, total in self._sum.items():
            total.add_(tensors[name])

    def close(self, folder: Path) -> SumUnmasking:
        """Stores the masked sum durably, and returns what unmasks it.

        Args:
            folder: Where it is kept, one for each sum.

        Raises:
            TooFewSites: So few inputs came that nobody could be hidden, or the sum not be unmasked.
        """
        require_enough(len(self._came), self._needed, "sent their updates")
        masked = MaskedSum(self._begun(), self._subject, self._sharers, tuple(sorted(self._came)), self._sum)
        return SumUnmasking.begin(folder, masked)

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
            raise WrongSum(f"a site has answered twice to {self._name}")

"""Differential privacy by client, at a server that is trusted: changes are clipped as they are folded.

Source: McMahan, Ramage, Talwar, Zhang 2018, Learning Differentially Private Recurrent Language Models,
algorithm 1 (DP-FedAvg) with equal weights, flat clipping and a fixed denominator: what is divided by is the
expected number of clients, whatever came back, so that nothing but the noised sum depends on who took part.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedstrata.core.cohort import Mean
from fedstrata.core.errors import BudgetSpentError
from fedstrata.core.types import ClientInfo, Tensors, Update
from fedstrata.privacy.mechanism import Privacy
from fedstrata.privacy.randomness import Randomness


class NoisedMeans:
    """The noised means of a run, each of which is recorded before it is used.

    Args:
        privacy: The mechanism.
        record: Records durably that a mean of a round was noised.

    Attributes:
        count: How many were noised so far, in all processes of the run.
    """

    def __init__(self, privacy: Privacy, record: Callable[[int], None]) -> None:
        self._privacy, self._record = privacy, record
        self.count = 0

    def load(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Takes over what a record holds of a run that goes on.

        Runs of earlier versions recorded rounds alone: each counts, and each time that the run was resumed.
        """
        noised = {event["round"] for event in events if event["event"] == "noised"}
        rounds = [event for event in events if event["event"] == "round" and not event["abandoned"]]
        earlier = sum(event["round"] not in noised for event in rounds)
        resumed = sum(event["event"] == "resumed" for event in events) if earlier else 0
        self.count = sum(event["event"] == "noised" for event in events) + earlier + resumed

    def require_room(self) -> None:
        """Checks that the noise allows for one more mean.

        Raises:
            BudgetSpentError: It does not.
        """
        if self.count >= self._privacy.turns:
            raise BudgetSpentError(
                f"{self.count} means of this run were noised, and its noise allows for "
                f"{self._privacy.turns}: one in each round, and privacy.spare_turns for rounds that are "
                "begun again. What was committed stays; begin another run, with more spare turns, for more"
            )

    def mean(
        self,
        number: int,
        sent: Tensors,
        updates: Iterable[tuple[ClientInfo, Update]],
        *,
        expected: float,
        randomness: Randomness,
    ) -> Mean:
        """Returns the noised mean of a round (`noised_mean`), once it is recorded.

        Raises:
            BudgetSpentError: The noise allows for no more.
        """
        self.require_room()
        mean = noised_mean(sent, updates, self._privacy, expected, randomness)
        self.count += 1
        self._record(number)
        return mean


def noised_mean(
    sent: Tensors,
    updates: Iterable[tuple[ClientInfo, Update]],
    privacy: Privacy,
    expected: float,
    randomness: Randomness,
) -> Mean:
    """Returns what was sent with the noised mean of clients' clipped changes added.

    Args:
        sent: What every client was sent, and begins with.
        updates: What they sent back; a tensor that one lacks has not changed there, and an update that is not
            finite counts as no change.
        privacy: The mechanism.
        expected: How many clients take part in a round on average.
        randomness: What the noise is drawn from.
    """
    sums = {name: torch.zeros(tensor.shape, dtype=torch.float32) for name, tensor in sent.items()}
    clients = []
    for client, update in updates:  # clients may compute meanwhile, with gradients
        clients.append(client.id)
        _add_clipped(sums, sent, update, privacy.settings.clip)
    mean: dict[str, Tensor] = {}
    deviation = privacy.sigma * privacy.settings.clip
    for name, total in sums.items():
        noise = randomness.normal(total.numel()).view(total.shape)
        noised = total.double().add_(noise, alpha=deviation).div_(expected)
        mean[name] = noised.add_(sent[name].double().cpu()).float()
    return Mean(mean, dict.fromkeys(mean, expected), {}, dict.fromkeys(mean, len(clients)), tuple(clients))


@torch.no_grad()
def _add_clipped(sums: Tensors, sent: Tensors, update: Update, clip: float) -> None:
    """Adds a client's change, all tensors as one vector no longer than the clip."""
    changes = {
        name: tensor.float().cpu() - sent[name].float().cpu() for name, tensor in update.tensors.items()
    }
    norms = torch._foreach_norm(list(changes.values()), 2, torch.float64)
    length = float(torch.stack(norms).norm()) if norms else 0.0
    if not length < torch.inf:
        return
    for name, change in changes.items():
        sums[name].add_(change, alpha=min(1.0, clip / length) if length else 1.0)

"""What FLoRA sends and keeps, which grows with the clients of a round: a rehearsal has only two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stacks:
    """The stacked adapters of a run.

    Attributes:
        sent: Bytes of stacks, or of weights in their place, to all clients in each round.
        kept: Bytes of the stacks that the server still has at the end.
        writes: How often each client stores its weights: in every turn before which something was merged.
    """

    sent: tuple[int, ...]
    kept: int
    writes: Mapping[str, int]


def count_stacks(
    sampled: Sequence[Sequence[str]], delivered: Sequence[Sequence[str]], *, adapter: int, weights: int
) -> Stacks:
    """Follows which client lacks what, as `fedstrata.methods.flora` does.

    Args:
        sampled: The clients of every round.
        delivered: Those of them that send something; none of a round that is abandoned.
        adapter: Bytes of one client's adapter, of the largest rank.
        weights: Bytes of all adapted weights.
    """
    kept: dict[int, int] = {}  # by the number of the merged round
    held: dict[str, int] = {}
    merged, sent, writes = 0, [], Counter[str]()
    for clients, there in zip(sampled, delivered, strict=True):
        missing = [range(held.get(client, 0) + 1, merged + 1) for client in clients]
        sent.append(
            sum(
                sum(kept[number] for number in own) if all(number in kept for number in own) else weights
                for own in missing
            )
        )
        if merged:
            writes.update(there)
        if there:
            held |= dict.fromkeys(there, merged)
            merged += 1
            kept[merged] = adapter * len(there)
            while sum(kept.values()) > weights:
                del kept[min(kept)]
    return Stacks(tuple(sent), sum(kept.values()), writes)

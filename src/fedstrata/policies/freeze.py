"""Which blocks train: the lower ones are frozen, the top ones and what follows them train."""

from collections.abc import Collection, Sequence
from itertools import accumulate

from fedstrata.core.model import Layout


def top_count(top: int | float, blocks: int) -> int:
    """Returns k, the number of blocks that train.

    Args:
        top: A count (int) or a fraction of the blocks (float in (0, 1]), rounded, at least 1.
        blocks: L, the number of blocks of the model.

    Example:
        >>> top_count(2, 8), top_count(0.25, 8), top_count(0.01, 8)
        (2, 2, 1)
    """
    return top if isinstance(top, int) else max(1, round(top * blocks))


def train_top(layout: Layout, k: int) -> tuple[str, ...]:
    """Returns the parameters that train when the top k blocks do: those blocks, the final norm and the head.

    At k = L nothing is left to freeze, so the embedding trains too and the method is FedAvg.

    Args:
        layout: The model's parameters by part.
        k: Between 1 and the number of blocks.
    """
    if k >= len(layout.blocks):
        return layout.all
    top = [name for block in layout.blocks[len(layout.blocks) - k :] for name in block]
    return (*top, *layout.final_norm, *layout.head)


def smallest_top(norms: Sequence[float], share: float) -> int:
    """Returns the smallest k whose top k blocks hold a share of the sum of all gradient norms.

    The adaptive depth that Layer-Skipping FL names as future work; the rule is ours.

    Args:
        norms: A gradient norm a block, lowest block first.
        share: In (0, 1].

    Example:
        >>> smallest_top([1.0, 1.0, 2.0, 4.0], 0.5), smallest_top([1.0, 1.0, 2.0, 4.0], 0.7)
        (1, 2)
    """
    held = list(accumulate(reversed(norms)))
    wanted = share * held[-1]
    # The last always does; a rounding error must not leave the search without an answer.
    return next((k for k, total in enumerate(held, start=1) if total >= wanted), len(held))


def largest_top(layout: Layout, budget: float, *, private: Collection[str] = ()) -> int:
    """Returns the largest k whose update is no more than a share of the whole model; 0 when none is.

    Args:
        layout: The model's parameters by part.
        budget: Share of the whole model's numbers, in (0, 1].
        private: Parameters that train and do not travel.
    """
    limit = budget * sum(layout.sizes.values())
    fitting = (
        k
        for k in range(len(layout.blocks), 0, -1)
        if sum(layout.sizes[name] for name in train_top(layout, k) if name not in private) <= limit
    )
    return next(fitting, 0)

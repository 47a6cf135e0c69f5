"""Which blocks train: the lower ones are frozen, the top ones and what follows them train."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstrata.core.method import Layout


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

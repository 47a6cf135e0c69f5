"""Which of the parameters that train stay at their client: a personal top, or all blocks but some."""

from collections.abc import Collection, Sequence
from typing import cast

from fedstrata.core.errors import refused
from fedstrata.core.model import Layout
from fedstrata.core.types import JSON, State
from fedstrata.policies.freeze import top_count

_BLOCKS = "_blocks"


def keeps_some(shared: int | float) -> bool:
    """Whether blocks stay personal when so many are shared; a count, also 1, is never all of them.

    Example:
        >>> keeps_some(1), keeps_some(0.5), keeps_some(1.0)
        (True, True, False)
    """
    return isinstance(shared, int) or shared < 1.0


def block_count(shared: int | float, layout: Layout) -> int:
    """Returns k, how many blocks a client shares.

    Args:
        shared: A count (int) or a share of the blocks (float in (0, 1]), rounded, at least 1.
        layout: The model's parameters by part.

    Raises:
        ConfigurationError: The model has no more blocks than that, and not all were asked for by 1.0.
    """
    blocks = len(layout.blocks)
    k = top_count(shared, blocks)
    if k >= blocks and keeps_some(shared):
        message = f"must be less than {blocks}, the number of blocks of the model, not {k}; 1.0 shares all"
        if isinstance(shared, float):
            message = f"{shared:g} of the model's {blocks} blocks is all of them, rounded; 1.0 shares all"
        raise refused("method.shared_blocks", message, "out_of_range")
    return k


def sent_and_kept(
    importance: Sequence[float | None], count: int, unchanged: Collection[int]
) -> tuple[list[int], list[int]]:
    """Divides a device's blocks by their importance (DropPEFT, section 4).

    Args:
        importance: That of each block; none of one that has never run at the device.
        count: How many of the least important ones are shared; fewer where fewer have an importance.
        unchanged: Blocks that came down and did not run: the server has them as they are.

    Returns:
        The blocks that are sent: the shared ones. And those that stay: the others that have an importance.
        An unchanged block is neither, whatever its importance, nor is one that has never run.

    Example:
        >>> sent_and_kept([3.0, 1.0, None, 1.0, 2.0, 4.0], 3, [2, 3, 5])
        ([1, 4], [0])
    """
    known = sorted((value, block) for block, value in enumerate(importance) if value is not None)
    blocks = [block for _, block in known]
    sent, kept = (set(part).difference(unchanged) for part in (blocks[:count], blocks[count:]))
    return sorted(sent), sorted(kept)


def names_outside(blocks: Sequence[Sequence[str]], chosen: Collection[int]) -> list[str]:
    """Returns the parameter names of all blocks but the chosen ones, in order.

    Example:
        >>> names_outside([["a"], ["b", "c"], ["d"]], [0, 2])
        ['b', 'c']
    """
    return [name for block, names in enumerate(blocks) if block not in chosen for name in names]


def noted_blocks(layout: Layout) -> dict[str, JSON]:
    """Returns what a state says of the blocks, since a server half sees no layout; see `blocks_in`."""
    return {_BLOCKS: [list[JSON](names) for names in layout.blocks]}


def blocks_in(state: State) -> list[list[str]]:
    """Returns the parameter names of every block, lowest first, as `noted_blocks` put them into the state."""
    return cast("list[list[str]]", state.values[_BLOCKS])


def personal_top(layout: Layout, blocks: int, *, setting: str) -> tuple[str, ...]:
    """Returns the parameters that stay at a client: the head and, with blocks below it, what lies between.

    Args:
        layout: The model's parameters by part.
        blocks: How many blocks, counted from the top, are personal too; the final norm is from 1 on, since it
            lies above them.
        setting: The setting that asked for it, for the message.

    Raises:
        ConfigurationError: The model has fewer blocks, or nothing would be personal because its head is tied
            to its embedding.
    """
    count = len(layout.blocks)
    if blocks > count:
        message = f"must be at most {count}, the number of blocks of the model, not {blocks}"
        raise refused(setting, message, "out_of_range")
    above = [name for block in layout.blocks[count - blocks :] for name in block] if blocks else []
    personal = (*above, *(layout.final_norm if blocks else ()), *layout.head)
    if not personal:
        what = "it is tied to the embedding, or frozen under an adapter"
        message = f"this model's head does not train by itself ({what}), so nothing would stay at a client"
        raise refused(setting, message, "no_effect")
    return personal

"""Where a model is divided between a client and the server (`fedstrata.split`)."""

from dataclasses import dataclass, field
from itertools import chain

from fedstrata.core.errors import Problem, refuse
from fedstrata.core.model import Layout


@dataclass(frozen=True, slots=True)
class Segments:
    """What can train of each segment of a divided model, by name; every name is in exactly one.

    Attributes:
        front: A: the embedding, with whatever is tied to it, and the blocks below the middle.
        middle: B.
        back: C: the blocks above the middle, the final norm and the head.
    """

    front: tuple[str, ...]
    middle: tuple[str, ...]
    back: tuple[str, ...]

    @property
    def ends(self) -> tuple[str, ...]:
        """What is the client's."""
        return (*self.front, *self.back)


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a model is divided.

    Attributes:
        front: Blocks of the client below the middle, p; 0 leaves it the embedding.
        back: Blocks of the client above the middle, q; 0 leaves it the final norm and the head.
        section: Dotted path of the settings that say so.
    """

    front: int
    back: int
    section: str = field(default="method", repr=False, compare=False)

    def middle(self, blocks: int) -> range:
        """Returns the numbers of the middle's blocks, counted from 0.

        Args:
            blocks: How many the model has.

        Raises:
            ConfigurationError: A count is negative, or no block is left for the middle.
        """
        problems = [
            Problem(f"{self.section}.{name}", f"must be at least 0, not {count}", code="out_of_range")
            for name, count in (("front", self.front), ("back", self.back))
            if count < 0
        ]
        if not problems and self.front + self.back >= blocks:
            message = (
                f"{self.front} blocks in front and {self.back} at the back leave none of the model's "
                f"{blocks} for the server; both together may be at most {blocks - 1}"
            )
            problems.append(Problem(f"{self.section}.front", message, code="conflict"))
        refuse(problems)
        return range(self.front, blocks - self.back)

    def segments(self, layout: Layout) -> Segments:
        """Returns what can train of each segment.

        Args:
            layout: The model's, or a side's: then the other side's segments are empty.

        Raises:
            ConfigurationError: As `middle` does.
        """
        middle = self.middle(len(layout.blocks))
        below, own, above = (
            tuple(chain.from_iterable(layout.blocks[part]))
            for part in (slice(middle.start), slice(middle.start, middle.stop), slice(middle.stop, None))
        )
        return Segments((*layout.embedding, *below), own, (*above, *layout.final_norm, *layout.head))

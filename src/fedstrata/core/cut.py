"""Where a model is divided between a client and the server (`fedstrata.split`)."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.core.errors import ConfigurationError, Problem


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a model is divided.

    Attributes:
        front: Blocks of the client below the middle, p; 0 leaves it the embedding.
        back: Blocks of the client above the middle, q; 0 leaves it the final norm and the head.
    """

    front: int
    back: int

    def middle(self, blocks: int) -> range:
        """Returns the numbers of the middle's blocks, counted from 0.

        Args:
            blocks: How many the model has.

        Raises:
            ConfigurationError: A count is negative, or no block is left for the middle.
        """
        problems = [
            Problem(f"split.{name}", f"must be at least 0, not {count}")
            for name, count in (("front", self.front), ("back", self.back))
            if count < 0
        ]
        if not problems and self.front + self.back >= blocks:
            message = (
                f"{self.front} blocks in front and {self.back} at the back leave none of the model's "
                f"{blocks} for the server; both together may be at most {blocks - 1}"
            )
            problems.append(Problem("split.front", message))
        if problems:
            raise ConfigurationError(problems)
        return range(self.front, blocks - self.back)

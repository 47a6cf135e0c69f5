"""How long the rows of a batch are: all that travels of an attention mask.

Source: FL-LLaMA, section 3.4.1, attention-mask compression. A mask is columns x columns numbers a row; all it
says beside the architecture is how many of the columns are padding, one number a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedstrata.core.errors import FrameError
from fedstrata.core.types import JSON


@dataclass(frozen=True, slots=True)
class Rows:
    """The lengths of a batch's rows.

    Attributes:
        length: Columns of the batch, those of the padding included.
        padding: How many columns of each row are padding.
        side: Where they are: `right` in training, `left` in generation, where all rows go on at one place.
    """

    length: int
    padding: tuple[int, ...]
    side: Literal["left", "right"] = "right"

    @classmethod
    def of(cls, mask: Tensor | None, rows: int, length: int) -> Rows:
        """Reads them off a mask.

        Args:
            mask: (rows, length), 0 or false in padding; none if there is no padding.
            rows: Rows of the batch.
            length: Columns of the batch.

        Raises:
            ValueError: The mask has another shape, or its rows are not padded on one side.
        """
        if mask is None:
            return cls(length, (0,) * rows)
        if mask.shape != (rows, length):
            raise ValueError(f"a mask of shape {tuple(mask.shape)} for a batch of {(rows, length)}")
        padding = tuple(int(count) for count in length - mask.bool().sum(dim=1))
        for side in ("right", "left"):
            found = cls(length, padding, side)
            own = found.mask(mask.device)
            if own is None or torch.equal(own, mask.to(own.dtype)):
                return found
        raise ValueError("the rows of a batch must all be padded on the right, or all on the left")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Rows:
        """Reads what `to_json` gave.

        Raises:
            FrameError: It is nothing of the kind.
        """
        length, padding, side = (values.get(name) for name in ("length", "padding", "side"))
        if not (
            isinstance(length, int)
            and isinstance(padding, list)
            and all(isinstance(each, int) and 0 <= each <= length for each in padding)
            and side in ("left", "right")
        ):
            raise FrameError(f"{dict(values)!r} are no lengths of rows", code="invalid")
        return cls(length, tuple(padding), side)

    def to_json(self) -> dict[str, JSON]:
        """Returns what travels."""
        return {"length": self.length, "padding": list(self.padding), "side": self.side}

    def longer(self, columns: int) -> Rows:
        """Returns the rows with so many columns in all; what is new is not padding where it stands left."""
        return Rows(columns, self.padding, self.side)

    def only(self, kept: Sequence[int]) -> Rows:
        """Returns some of the rows.

        Raises:
            FrameError: Their indices are none of these rows, or not ascending.
        """
        if not kept or sorted({*kept}) != list(kept) or kept[0] < 0 or kept[-1] >= len(self.padding):
            raise FrameError(
                f"of {len(self.padding)} rows {list(kept)} are to go on, which cannot be", code="invalid"
            )
        return Rows(self.length, tuple(self.padding[index] for index in kept), self.side)

    def mask(self, device: torch.device) -> Tensor | None:
        """Returns the mask, (rows, length) int64; none if there is no padding."""
        if not any(self.padding):
            return None
        columns = torch.arange(self.length, device=device)
        padding = torch.tensor(self.padding, device=device)[:, None]
        own = columns >= padding if self.side == "left" else columns < self.length - padding
        return own.long()

    def positions(self, device: torch.device, last: int) -> Tensor | None:
        """Returns the positions of the last columns as `generate` of transformers gives them to a model.

        Args:
            device: Where to.
            last: Of how many columns.

        Returns:
            (rows, last) int64, counted from the first column that is not padding; none with padding on the
            right, where a model counts columns by itself.
        """
        if self.side == "right":
            return None
        columns = torch.arange(self.length - last, self.length, device=device)
        padding = torch.tensor(self.padding, device=device)[:, None]
        return (columns - padding).clamp(min=0)

"""A model whose parameters have names and belong to blocks, as methods see it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from fedstrata.core.types import Tensors

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn import Parameter


EMBEDDING, FINAL_NORM, HEAD = "embedding", "final norm", "head"


@dataclass(frozen=True)
class Layout:
    """A model's parameter names by part. Names are those of `named_parameters()`: a tied parameter has one.

    Attributes:
        blocks_path: Where the list of blocks is, for example `model.layers`.
        blocks: Names of every block, lowest first, each in model order.
        embedding: Names below the blocks or shared by all of them: input and position embeddings, their norm,
            DeBERTa's relative positions, soft prompts. Includes the head's weight when it is tied to the
            input embedding.
        final_norm: Names of the norm after the last block; empty for BERT and its kin.
        head: Names of the task head, with the pooler or dense layer in front of it; empty when it is tied.
        sizes: How many numbers each parameter holds, by name.
        frozen: Names that can never train: with an adapter, those of the model it was added to. They are in
            no other group.
    """

    blocks_path: str
    blocks: tuple[tuple[str, ...], ...]
    embedding: tuple[str, ...]
    final_norm: tuple[str, ...]
    head: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()

    def group_of(self, name: str) -> str:
        """Returns `embedding`, `block 3` (counted from 0), `final norm` or `head`.

        Raises:
            KeyError: No parameter of this name can train.
        """
        return self._groups[name]

    @property
    def all(self) -> tuple[str, ...]:
        """Every name that can train, in the order of the data: embedding, blocks, final norm, head."""
        return tuple(self._groups)

    @cached_property
    def _groups(self) -> dict[str, str]:
        groups = dict.fromkeys(self.embedding, EMBEDDING)
        for index, names in enumerate(self.blocks):
            groups |= dict.fromkeys(names, f"block {index}")
        return groups | dict.fromkeys(self.final_norm, FINAL_NORM) | dict.fromkeys(self.head, HEAD)


class Model(Protocol):
    """A model whose parameters can be read, set and trained by name; see `fedstrata.models.state.Model`."""

    @property
    def module(self) -> nn.Module:
        """The transformers model itself."""

    @property
    def layout(self) -> Layout:
        """Its parameter names by part."""

    @property
    def emulated(self) -> Any:
        """What emulated devices count in its place (`train.emulated_model`); itself if none."""

    def parameters(self, names: Collection[str]) -> list[Parameter]:
        """Returns the live parameters of these names."""

    def tensors(self, names: Collection[str]) -> dict[str, Tensor]:
        """Returns detached views of the live parameters: no copy, valid until the model changes."""

    def snapshot(self, names: Collection[str]) -> dict[str, Tensor]:
        """Returns copies on the CPU."""

    def is_changed(self, names: Collection[str]) -> bool:
        """Whether any of these parameters differs from its base value."""

    def fingerprint(self, names: Collection[str]) -> str:
        """Returns a hash of the present values of these parameters."""

    def load(self, tensors: Tensors) -> None:
        """Copies these values into the parameters of the same names."""

    def train_only(self, names: Collection[str]) -> None:
        """Makes exactly these parameters trainable."""

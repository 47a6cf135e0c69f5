"""A model whose parameters have names and belong to blocks, as methods see it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from fedstrata.core.types import Tensors

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn import Parameter


class Layout(Protocol):
    """Which parameters belong to which part of a model; see `fedstrata.models.blocks.Layout`."""

    @property
    def blocks_path(self) -> str:
        """Where the list of blocks is in the module."""

    @property
    def blocks(self) -> tuple[tuple[str, ...], ...]:
        """Parameter names of every block, lowest first."""

    @property
    def embedding(self) -> tuple[str, ...]:
        """Parameter names below the blocks, or shared by all of them."""

    @property
    def final_norm(self) -> tuple[str, ...]:
        """Parameter names of the norm after the last block."""

    @property
    def head(self) -> tuple[str, ...]:
        """Parameter names of the task head; empty when it is tied to the embedding."""

    @property
    def all(self) -> tuple[str, ...]:
        """Every name that can train, in model order: with an adapter, its parameters and the head's."""

    @property
    def frozen(self) -> tuple[str, ...]:
        """Every name that can never train: none without an adapter."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """How many numbers each parameter holds, by name."""


class Model(Protocol):
    """A model whose parameters can be read, set and trained by name; see `fedstrata.models.state.Model`."""

    @property
    def module(self) -> nn.Module:
        """The transformers model itself."""

    @property
    def layout(self) -> Layout:
        """Its parameter names by part."""

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

"""How a client trains: `training`."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from fedstrata.core.errors import SettingError
from fedstrata.core.settings.base import Count, NotNegative, Part, Positive, Settings


class TrainingSettings(Settings):
    """How a client trains; every method uses the same loop."""

    epochs: Count = Field(default=1, description="Epochs of local training per round.")
    batch_size: Count = Field(default=8, description="Examples per batch.")
    accumulation: Count = Field(default=1, description="Batches accumulated before each optimizer step.")
    group_by_length: bool = Field(
        default=False,
        description="Group examples of similar length into batches. This reduces padding and training "
        "time, but batches are no longer fully random.",
    )
    optimizer: Literal["adamw", "sgd"] = Field(
        default="adamw", description="Optimizer of local training. Its state is reset in every round."
    )
    learning_rate: Positive = Field(default=5e-4, description="Peak learning rate.")
    momentum: Part = Field(default=0.0, description="Momentum of `sgd`.")
    weight_decay: NotNegative = Field(default=0.01, description="Weight decay of the optimizer.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="Learning rate schedule within one round of local training."
    )
    warmup: Part = Field(default=0.0, description="Fraction of the steps used for linear warmup.")
    clip_norm: Positive | None = Field(
        default=1.0, description="Maximum gradient norm; null disables clipping."
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Precision of training: bfloat16 autocast or float32. `auto` uses bfloat16 on a GPU "
        "and float32 on a CPU; x86 CPUs without AVX-512 are many times slower in bfloat16.",
    )
    checkpointing: bool = Field(
        default=False,
        description="Recompute activations in the backward pass. This saves memory and costs about a "
        "third more time.",
    )
    eval_batch_size: Count = Field(default=32, description="Examples per batch in evaluation.")
    cache: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Cache the output of frozen lower blocks on disk. `auto` does so where texts are used "
        "more than once.",
    )
    frozen_dropout: Literal["off", "on"] = Field(
        default="off",
        description="Apply dropout in frozen blocks and a frozen embedding during training. `off` runs "
        "them as in evaluation, so that their output can be cached.",
    )
    cache_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="Data type of cached activations; `auto` is lossless."
    )
    cache_gigabytes: Positive = Field(
        default=20.0,
        description="Maximum disk space of the cache, for all clients of a run together. Training "
        "continues uncached where less is available.",
    )

    def _misfits(self) -> Iterator[SettingError]:
        if self.momentum and self.optimizer != "sgd":
            yield SettingError(
                f"momentum={self.momentum:g} has no meaning with optimizer {self.optimizer!r}; use sgd",
                "no_effect",
            )
        if self.frozen_dropout == "on" and self.cache != "off":
            yield SettingError(
                "frozen_dropout=on draws other states every time, and none can be kept: set cache to off",
                "conflict",
            )

"""How a client trains: `training`."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from fedstrata.core.errors import SettingError
from fedstrata.core.settings.base import Count, NotNegative, Part, Positive, Settings


class TrainingSettings(Settings):
    """How a client trains; every method uses the same loop."""

    epochs: Count = Field(default=1, description="Passes of a client over its training examples in a round.")
    batch_size: Count = Field(default=8, description="Examples of a batch.")
    accumulation: Count = Field(default=1, description="Batches whose gradients are summed before a step.")
    group_by_length: bool = Field(
        default=False,
        description="Batches of examples of about the same length: less padding, and less time where lengths "
        "differ much; which examples meet in a batch is then less a matter of chance.",
    )
    optimizer: Literal["adamw", "sgd"] = Field(
        default="adamw", description="That of a client; it starts anew in every round."
    )
    learning_rate: Positive = Field(default=5e-4, description="At its highest.")
    momentum: Part = Field(default=0.0, description="Of `sgd`.")
    weight_decay: NotNegative = Field(default=0.01, description="Of the optimizer.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="Within a client's local training of one round."
    )
    warmup: Part = Field(default=0.0, description="Share of the steps warmed up.")
    clip_norm: Positive | None = Field(
        default=1.0, description="The norm that a gradient is scaled down to; null: it is left as it is."
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Of the arithmetic: bfloat16 autocast on a GPU and float32 on a CPU when auto. "
        "An x86 processor without AVX-512 is many times slower in bfloat16.",
    )
    checkpointing: bool = Field(
        default=False,
        description="Compute the activations of a block again in its backward pass: less memory, a third "
        "more time.",
    )
    eval_batch_size: Count = Field(default=32, description="Examples of a batch that is scored.")
    cache: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Keep the output of frozen lower blocks on disk; auto where texts are used repeatedly.",
    )
    frozen_dropout: Literal["off", "on"] = Field(
        default="off",
        description="Whether frozen blocks and a frozen embedding have dropout while others train; "
        "off: they run as in evaluation, so that their output can be kept.",
    )
    cache_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="In what it is kept: auto as the blocks give it, which is exact."
    )
    cache_gigabytes: Positive = Field(
        default=20.0,
        description="Disk it may take, all clients of a run together; without it where it is less.",
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

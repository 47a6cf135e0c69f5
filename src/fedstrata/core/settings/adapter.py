"""The settings of adapters: small modules that train in place of the model they are added to."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from fedstrata.core.settings.base import Count, Part, Positive, Settings

_Names = Annotated[list[str], Field(min_length=1)]


class LoraSettings(Settings):
    """Low-rank adapters (Hu et al. 2022): W + (alpha / rank) B A, with W frozen."""

    kind: Literal["lora"] = "lora"
    rank: Count = Field(default=8, description="LoRA rank r.")
    alpha: Positive | None = Field(
        default=None, description="Scaling: alpha / r multiplies B A; 2 r if null."
    )
    dropout: Part = Field(default=0.0, description="Dropout on the input of A during training.")
    targets: Literal["all-linear"] | _Names = Field(
        default="all-linear",
        description="Linear layers of the blocks that get a LoRA, by the suffixes of their names: [query, "
        "value].",
    )

    @property
    def alpha_used(self) -> float:
        """Alpha with what null stands for."""
        return 2.0 * self.rank if self.alpha is None else self.alpha


class BottleneckSettings(Settings):
    """Bottleneck adapters (Houlsby et al. 2019): h + up(activation(down(h))) after each sublayer."""

    kind: Literal["bottleneck"] = "bottleneck"
    width: Count = Field(default=32, description="Width of the bottleneck.")
    activation: Literal["gelu", "relu", "silu"] = Field(
        default="gelu", description="Activation function between the down- and the up-projection."
    )
    targets: _Names | None = Field(
        default=None,
        description="Linear layers followed by an adapter, by the suffixes of their names; if null, the "
        "last layer of attention and of the feed-forward part.",
    )


class PrefixSettings(Settings):
    """Prefix tuning (Li and Liang 2021): keys and values in front of those of the text, in every block."""

    kind: Literal["prefix"] = "prefix"
    tokens: Count = Field(default=20, description="Number of virtual tokens in each block.")


AdapterSettings: TypeAlias = LoraSettings | BottleneckSettings | PrefixSettings

"""The settings of adapters: small modules that train in place of the model they are added to."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from fedstrata.core.settings.base import Count, Part, Positive, Settings

_Names = Annotated[list[str], Field(min_length=1)]


class LoraSettings(Settings):
    """Low-rank adapters (Hu et al. 2022): W + (alpha / rank) B A, with W frozen."""

    kind: Literal["lora"] = "lora"
    rank: Count = Field(default=8, description="Rows of A and columns of B.")
    alpha: Positive | None = Field(default=None, description="alpha / rank scales B A; 2 rank if null.")
    dropout: Part = Field(default=0.0, description="Of what goes into A, when training.")
    targets: Literal["all-linear"] | _Names = Field(
        default="all-linear",
        description="Linear layers of the blocks, by the ends of their names: [query, value].",
    )

    @property
    def alpha_used(self) -> float:
        """Alpha with what null stands for."""
        return 2.0 * self.rank if self.alpha is None else self.alpha


class BottleneckSettings(Settings):
    """Bottleneck adapters (Houlsby et al. 2019): h + up(activation(down(h))) after each sublayer."""

    kind: Literal["bottleneck"] = "bottleneck"
    width: Count = Field(default=32, description="Numbers between down and up.")
    activation: Literal["gelu", "relu", "silu"] = Field(
        default="gelu", description="The function between down and up."
    )
    targets: _Names | None = Field(
        default=None,
        description="The linear layers that they follow, by the ends of their names; if null the last one of "
        "the attention and of the feed-forward part.",
    )


class PrefixSettings(Settings):
    """Prefix tuning (Li and Liang 2021): keys and values in front of those of the text, in every block."""

    kind: Literal["prefix"] = "prefix"
    tokens: Count = Field(default=20, description="How many of them, in each block.")


AdapterSettings: TypeAlias = LoraSettings | BottleneckSettings | PrefixSettings

"""The settings of the model and of its tokenizer."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from fedstrata.core.errors import SettingError
from fedstrata.core.settings.base import Settings

BYTE_VOCABULARY = 258
"""The fewest tokens of a byte-level tokenizer: the bytes, the end token and the padding token."""


class TrainedTokenizer(Settings):
    """A tokenizer that is built from the training texts."""

    train: Literal["words", "bytes"] = Field(
        description="`words`: one token per word, and one for unknown words. `bytes`: byte-level BPE, "
        "which can encode any text."
    )
    vocabulary: Annotated[int, Field(ge=8)] = Field(
        default=10_000, description="Maximum vocabulary size, including special tokens."
    )
    lower_case: bool = Field(default=False, description="Convert texts to lower case.")
    split: Literal["punctuation", "blanks"] = Field(
        default="punctuation",
        description="Split words at whitespace and punctuation, or at whitespace only, for texts that are "
        "already tokenized (train: words).",
    )

    def _misfits(self) -> Iterator[SettingError]:
        if self.train == "bytes" and self.vocabulary < BYTE_VOCABULARY:
            yield SettingError(
                f"vocabulary must be at least {BYTE_VOCABULARY} with train 'bytes', not {self.vocabulary}",
                "out_of_range",
            )
        if self.train == "bytes" and self.split != "punctuation":
            yield SettingError(
                f"split={self.split!r} has no meaning with train 'bytes'; it belongs to 'words'", "no_effect"
            )


class ModelSettings(Settings):
    """Which model is fine-tuned."""

    name: str = Field(
        default="mini",
        description="`mini`, a folder, a GGUF file, a Hugging Face hub id, `package:DISTRIBUTION`, or a "
        "custom factory: `package.module:factory`, or the name under which an installed package registers "
        "it.",
    )
    init: Literal["pretrained", "random"] = Field(
        default="pretrained",
        description="Load pretrained weights, or initialize them randomly with the seed.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="With random weights, the transformers configuration with its `model_type`; otherwise "
        "values that override the model's configuration.",
    )
    tokenizer: str | TrainedTokenizer | None = Field(
        default=None,
        description="Folder or hub id of the tokenizer, if it is not stored with the model. With random "
        "weights also a tokenizer that is built from the training texts of all clients: {train: words, "
        "vocabulary: 10000}.",
    )
    vocabulary: str | None = Field(
        default=None,
        description="File or folder of public text. The vocabulary is cut to the tokens of this text, "
        "those of the task's templates and all bytes (BPE tokenizers only). All sites use the same list "
        "of tokens.",
    )
    dtype: Literal["float32", "bfloat16", "auto"] = Field(
        default="float32", description="Data type of the weights; `auto` keeps the checkpoint's."
    )
    attention: Literal["auto", "eager", "sdpa"] = Field(
        default="auto", description="Attention implementation; `auto` is the default of transformers."
    )
    quantization: Literal["nf4"] | None = Field(
        default=None,
        description="Quantize frozen linear layers to 4 bits (QLoRA; needs an adapter and "
        "fedstrata[quantized]).",
    )
    revision: str | None = Field(default=None, description="Commit, branch or tag of a hub id.")
    blocks: str | None = Field(
        default=None,
        description="Path of the list of transformer blocks inside the model, for example "
        "`encoder.layers`, where it is not found automatically.",
    )
    weights: str | None = Field(
        default=None,
        description="Folder with a model.safetensors file that is loaded into the model of a custom factory.",
    )

    @property
    def makes_tokenizer(self) -> bool:
        """Whether a run makes its tokenizer, which a resumed run and workers must have from it."""
        return isinstance(self.tokenizer, TrainedTokenizer) or self.vocabulary is not None

    @property
    def title(self) -> str:
        """What a record and a report call the model: its name, or the architecture that begins at random."""
        if self.init == "pretrained":
            return self.name
        return f"{self.config.get('model_type', self.name)} with random weights"

    def _misfits(self) -> Iterator[SettingError]:
        if self.quantization is not None and self.init == "random":
            yield SettingError(
                f"quantization={self.quantization!r} needs `init: pretrained`, weights to quantize",
                "conflict",
            )
        if self.vocabulary is not None and self.init == "random":
            yield SettingError(
                "vocabulary needs `init: pretrained`: a new model has the vocabulary that config names",
                "conflict",
            )
        if isinstance(self.tokenizer, TrainedTokenizer) and self.init != "random":
            yield SettingError(
                "a tokenizer that is built from the training texts (model.tokenizer.train) needs "
                f"`init: random`, since weights know their own tokens; init is {self.init!r}",
                "conflict",
            )

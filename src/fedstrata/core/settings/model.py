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
        description="`words`: a token a word, with one for all unknown words. `bytes`: byte-level BPE, which "
        "can spell every text."
    )
    vocabulary: Annotated[int, Field(ge=8)] = Field(
        default=10_000, description="Most tokens it may have, special ones included."
    )
    lower_case: bool = Field(default=False, description="Texts are read in lower case.")
    split: Literal["punctuation", "blanks"] = Field(
        default="punctuation",
        description="Where words end: at blanks and punctuation, or at blanks alone, for texts that are "
        "tokenised already (words).",
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
        description="`mini`, a folder, a GGUF file, a hub id, `package:DISTRIBUTION`, or a factory of one's "
        "own: `package.module:factory`, or the name that an installed package gives it.",
    )
    init: Literal["pretrained", "random"] = Field(
        default="pretrained", description="Whether weights are read, or drawn by the seed."
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="With init random: the transformers config, `model_type` included; else overrides.",
    )
    tokenizer: str | TrainedTokenizer | None = Field(
        default=None,
        description="Where the tokenizer is, if not with the model; or, with init random, one that is built "
        "from all clients' training texts: {train: words, vocabulary: 10000}.",
    )
    vocabulary: str | None = Field(
        default=None,
        description="A file or folder of public text: embedding and head keep only its tokens, those of the "
        "task's templates and all bytes (BPE tokenizers). The kept tokens are the same at all sites.",
    )
    dtype: Literal["float32", "bfloat16", "auto"] = Field(
        default="float32", description="Of the weights; auto: as they were saved."
    )
    attention: Literal["auto", "eager", "sdpa"] = Field(
        default="auto", description="How attention is computed; transformers' choice when auto."
    )
    quantization: Literal["nf4"] | None = Field(
        default=None,
        description="Frozen linear layers in 4 bits (QLoRA, with an adapter; needs fedstrata[quantized]).",
    )
    revision: str | None = Field(default=None, description="Commit, branch or tag of a hub id.")
    blocks: str | None = Field(
        default=None,
        description="Where the list of blocks is, `encoder.layers`, in a model in which it is not found.",
    )
    weights: str | None = Field(
        default=None,
        description="A folder with model.safetensors that is read into what a factory gives.",
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

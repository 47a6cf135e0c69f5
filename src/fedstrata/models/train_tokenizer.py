"""Tokenizers built from texts, with the `tokenizers` library (https://github.com/huggingface/tokenizers)."""

from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from fedstrata.core.settings.model import TrainedTokenizer

UNKNOWN, END, PADDING = "<unk>", "<eos>", "<pad>"
"""Special tokens. Those that a text spells out, as published corpora do, are taken for what they say."""


def train_tokenizer(settings: TrainedTokenizer, texts: Iterable[str]) -> Any:
    """Builds a tokenizer.

    Equal texts, in whatever order, give an equal tokenizer: of equally frequent words the first in the order
    of their characters is taken.

    Args:
        settings: Its kind and size.
        texts: What to count.

    Returns:
        A fast transformers tokenizer with an end-of-sequence and a padding token. Of words also one for those
        that it does not know; of bytes every text can be spelt.
    """
    spelt = settings.train == "bytes"
    special = [END, PADDING] if spelt else [UNKNOWN, END, PADDING]
    wanted = {"vocab_size": settings.vocabulary, "special_tokens": special, "show_progress": False}
    if spelt:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(**wanted, initial_alphabet=alphabet)
    else:
        tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
        apart = settings.split == "punctuation"
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace() if apart else pre_tokenizers.WhitespaceSplit()
        trainer = trainers.WordLevelTrainer(**wanted)
    if settings.lower_case:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PADDING,
        clean_up_tokenization_spaces=False,
        **({} if spelt else {"unk_token": UNKNOWN}),
    )

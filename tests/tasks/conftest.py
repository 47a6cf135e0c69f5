from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForTokenClassification,
    PreTrainedTokenizerFast,
)

NOTES = [
    "The patient has severe chest pain radiating to the left arm and denies fever.",
    "Given 5mg aspirin daily; 81 mg of metoprolol b.i.d. by mouth for hypertension.",
    "Naïve café façade; 体温 38.5 °C. CT of the abdomen 😀 was unremarkable.",
]


class Numbers:
    """A tokenizer of texts that are numbers with blanks between them: each is its own id."""

    eos_token_id, sep_token_id, pad_token_id = 0, None, None

    def __len__(self) -> int:
        return 4

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}


@pytest.fixture(scope="session")
def numbers() -> Numbers:
    return Numbers()


@pytest.fixture(scope="session")
def byte_level() -> Any:
    """Byte-level BPE as Llama 3's: a blank belongs to the word after it, one special token in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>", "<pad>"]
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(NOTES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    names = dict(zip(["bos_token", "eos_token", "pad_token"], special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


@pytest.fixture(scope="session")
def word_piece() -> Any:
    """A WordPiece tokenizer as BERT's: lower case, accents stripped, a special token at both ends.

    Its vocabulary is listed and not trained: in training ties fall otherwise in every process, and with them
    the numbers of the tokens and what a model of a test learns.
    """
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    normalizer, splitter = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    texts = map(normalizer.normalize_str, NOTES)
    words = sorted({word for text in texts for word, _ in splitter.pre_tokenize_str(text)})
    letters = sorted(set("".join(words)))
    listed = dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *words])
    vocabulary = {token: number for number, token in enumerate(listed)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=special[1]))
    tokenizer.add_special_tokens(special)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(["pad_token", "unk_token", "cls_token", "sep_token"], special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


@pytest.fixture(scope="session", params=["byte_level", "word_piece"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session", params=["llama", "bert"])
def make_model(request: pytest.FixtureRequest) -> Callable[[int], Any]:
    """Makes a tiny random token classifier with a number of classes, in evaluation mode."""
    shape = {
        "vocab_size": 400,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
    }

    def make(classes: int) -> Any:
        torch.manual_seed(0)
        if request.param == "llama":
            model = LlamaForTokenClassification(LlamaConfig(**shape, num_labels=classes, pad_token_id=2))
        else:
            model = BertForTokenClassification(BertConfig(**shape, num_labels=classes))
        return model.eval()

    return make


@pytest.fixture
def tiny_causal(tiny_model: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a causal language model of 400 tokens, far from uniform, so that rounding does not decide."""

    def make(family: str = "llama", std: float = 0.6, **config: Any) -> Any:
        sizes = {"vocab_size": 400, "max_position_embeddings": 600, **config}
        module = tiny_model(family, "causal-lm", config=sizes).module.requires_grad_(True)
        torch.manual_seed(0)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=std)
        return module.eval()

    return make

"""Models of one's own, as a user's file would have them: factories, and a module without transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, BertConfig, BertForTokenClassification

from fedstrata.models.locate import MINI

WIDTH = 32


class Tagger(nn.Module):
    """torch's own encoder; the head is registered before the blocks, and they do not stand at the top."""

    def __init__(self, vocabulary: int, classes: int, *, each: str = "token") -> None:
        super().__init__()
        self.each = each
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(WIDTH, classes))
        self.embed = nn.Embedding(vocabulary, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, 3, norm=nn.LayerNorm(WIDTH))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        states = self.embed(input_ids)
        causal = None
        if self.each == "next":
            causal = nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1], states.device)
        states = self.encoder(
            states, mask=causal, src_key_padding_mask=torch.where(attention_mask == 0, -1e9, 0.0)
        )
        if self.each == "text":
            return self.head((states * attention_mask[..., None]).mean(dim=1))
        return {"logits": self.head(states)}


class TwoLists(Tagger):
    """A second list of modules beside the blocks."""

    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__(vocabulary, classes)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MINI)


def plain(kind: str, labels: tuple[str, ...]) -> tuple[nn.Module, Any]:
    own = tokenizer()
    if kind == "causal-lm":
        return Tagger(len(own), len(own), each="next"), own
    return Tagger(len(own), len(labels), each="text" if kind == "sequence-classification" else "token"), own


def two_lists(kind: str, labels: tuple[str, ...]) -> tuple[nn.Module, Any]:
    own = tokenizer()
    return TwoLists(len(own), len(labels)), own


def bert(kind: str, labels: tuple[str, ...]) -> tuple[nn.Module, Any]:
    own = tokenizer()
    config = BertConfig(
        vocab_size=len(own),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=len(labels),
    )
    return BertForTokenClassification(config), own

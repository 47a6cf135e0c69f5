"""Cloze questions through both sides of a divided model: the answers are as likely as with the whole one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from divided import Tiny, deeper, divided

from fedstrata.core.cut import Cut
from fedstrata.core.documents import Document
from fedstrata.data.split import Split
from fedstrata.models.state import Model
from fedstrata.split.kvcache import Sessions
from fedstrata.tasks.cloze import ClozeQuestions

TEXTS = ("w1 w2 w3 w4 w5", "w6", "w7 w8 w9 w10 w11 w12")
CHOICES = {"choice1": "w1 w2", "choice2": "w3", "choice3": "w4 w5 w6"}
ASKED: dict[str, dict[str, Any]] = {
    "label": {"question": "labels", "template": "{text} w9 {answer}", "words": {"yes": "w1 w2", "no": "w3"}},
    "each": {"question": "multirc", "words": {"true": "w1 w2 w4", "false": "w3 w5"}},
    "choice": {"question": "record"},
    "referent": {"question": "wsc"},
}
RIGHT = {"label": "yes", "each": "choice2", "choice": "choice1", "referent": "choice3"}


def document(form: str, number: int, text: str) -> Document:
    label = "no" if form == "label" and number else RIGHT[form]
    pair = "w8 @placeholder w9" if form == "choice" else "w8"
    metadata = {"superglue": ASKED[form]["question"], "pronoun": "w2", **CHOICES}
    return Document(f"{number}", text, labels=(label,), metadata=metadata, text_pair=pair)


def causal(tiny_model: Tiny, family: str) -> Model:
    model = tiny_model(family, "causal-lm", config=deeper(family))
    with torch.no_grad():  # far from uniform
        for index, parameter in enumerate(model.module.parameters()):
            parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(index))
    return model


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("form", list(ASKED))
def test_answers_are_as_likely_as_with_the_whole_model(tiny_model: Tiny, family: str, form: str) -> None:
    """Several questions of unequal length in a batch, with answers of one and of several tokens."""
    documents = [document(form, number, text) for number, text in enumerate(TEXTS)]
    task = ClozeQuestions(**ASKED[form]).fitted({"a": Split(train=tuple(documents))})
    model = causal(tiny_model, family)
    examples = task.encode(documents, model.tokenizer)
    assert max(len(answer) for example in examples for answer in example.answers) > 1
    batch = task.collate(examples)
    expected = task.predict(model.module, batch)
    both = divided(model, Cut(1, 1))
    server = Sessions(both.middle, 10**9)
    with both.ends.connected(server):
        for _ in range(2):  # the second batch goes on from nothing of the first
            found = task.predict(both.ends.module, batch)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert not server.names


def test_keys_and_values_that_the_server_cannot_have_are_refused(tiny_model: Tiny) -> None:
    """It can neither go back to an earlier token nor copy a row: no wrong numbers come of that."""
    both = divided(causal(tiny_model, "llama"), Cut(1, 1))
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    with both.ends.connected(Sessions(both.middle, 10**9)), torch.no_grad():
        cache = both.ends.module(input_ids=ids, use_cache=True).past_key_values
        cache.batch_select_indices(torch.tensor([1, 1]))
        with pytest.raises(ValueError, match="row"):
            both.ends.module(input_ids=ids[:, :1], past_key_values=cache, use_cache=True)
        cache = both.ends.module(input_ids=ids, use_cache=True).past_key_values
        cache.crop(-1)
        with pytest.raises(ValueError, match="goes on"):
            both.ends.module(input_ids=ids[:, :1], past_key_values=cache, use_cache=True)

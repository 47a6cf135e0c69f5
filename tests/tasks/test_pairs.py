"""Pairs of texts: as the tokenizer's own pairs, one window each, with their token types up to the model."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import refused
from tokenizers import processors

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.data.split import Split
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.lm import LanguageModelling
from fedstrata.tasks.ner import NamedEntityRecognition

LABELS = ("no", "yes")
SHORT, LONG = "no fever.", "The patient has severe chest pain radiating to the left arm. " * 3
PAIRS = [
    Document("a", SHORT, labels=("yes",), text_pair="denies fever."),
    Document("b", LONG, labels=("no",), text_pair=SHORT),
    Document("c", SHORT, labels=("no",), text_pair=LONG),
    Document("d", LONG, labels=("yes",), text_pair=LONG),
    Document("e", SHORT, labels=("yes",), text_pair=""),
]
SINGLE = Document("s", LONG, labels=("yes",))


def task_of(max_length: int = 16) -> DocumentClassification:
    chosen = DocumentClassification(problem_type="single_label", max_length=max_length, stride=4)
    return chosen.of_labels(LABELS)


@pytest.fixture(scope="module")
def bert_pairs(word_piece: Any) -> Any:
    """A tokenizer that joins pairs as BERT's does, with token types."""
    tokenizer = deepcopy(word_piece)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer


@pytest.fixture
def bert(tiny_model: Any) -> Any:
    config = {"vocab_size": 400, "initializer_range": 0.5}
    return tiny_model("bert", "sequence-classification", config=config).module.requires_grad_(True).eval()


TEXTS = st.text("ab chest pain.é😀\n", max_size=60)


@given(first=TEXTS, second=TEXTS, length=st.integers(8, 40))
def test_a_pair_is_what_the_tokenizer_makes_of_it(
    bert_pairs: Any, first: str, second: str, length: int
) -> None:
    own = bert_pairs(  # in lists, since alone an empty second text would be none
        [first], [second], truncation="longest_first", max_length=length, return_token_type_ids=True
    )
    (example,) = task_of(length).encode([Document("x", first, text_pair=second)], bert_pairs)
    assert [ids.tolist() for ids in example.windows] == own["input_ids"]
    assert [types.tolist() for types in example.token_types] == own["token_type_ids"]
    assert len(example) <= length


@pytest.mark.parametrize("suffix", ["", " </s>"])
def test_without_a_template_the_end_token_stands_between_the_texts(byte_level: Any, suffix: str) -> None:
    tokenizer = deepcopy(byte_level)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"<s> $A{suffix}", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    plain = {"add_special_tokens": False}
    for pair, example in zip(PAIRS, task_of(200).encode(PAIRS, tokenizer), strict=True):
        texts = [tokenizer(text, **plain)["input_ids"] for text in pair.texts]
        expected = [0, *texts[0], 1, *texts[1], *([1] if suffix else [])]
        assert [ids.tolist() for ids in example.windows] == [expected]
        assert example.token_types == ()
    for example in task_of(16).encode(PAIRS[1:4], tokenizer):
        (ids,) = example.windows
        assert len(ids) == 16
        assert ids[0] == 0
        assert 1 in ids[1:-1]


def test_a_tokenizer_that_has_nothing_to_put_between_texts_is_refused(byte_level: Any) -> None:
    tokenizer = deepcopy(byte_level)
    tokenizer.eos_token = None
    with refused(ConfigurationError, "lacks_tokens", at="model.tokenizer") as raised:
        task_of().encode(PAIRS, tokenizer)
    assert "chest" not in str(raised.value)


def test_single_texts_beside_pairs_are_windows_of_type_zero(bert_pairs: Any) -> None:
    task = task_of()
    (alone,) = task.encode([SINGLE], bert_pairs)
    before, beside, after = task.encode([PAIRS[0], SINGLE, PAIRS[1]], bert_pairs)
    assert alone.token_types == ()
    assert len(alone.windows) > 2
    assert [ids.tolist() for ids in beside.windows] == [ids.tolist() for ids in alone.windows]
    assert [types.tolist() for types in beside.token_types] == [[0] * len(ids) for ids in alone.windows]
    assert [before.document, beside.document, after.document] == [0, 1, 2]
    assert "token_type_ids" not in task.collate([alone])
    batch = task.collate([before, alone])
    types = batch["token_type_ids"]
    assert types.shape == batch["input_ids"].shape
    assert types[0, : len(before)].tolist() == before.token_types[0].tolist()
    assert int(types[0, len(before) :].sum() + types[1:].sum()) == 0


def test_the_model_gets_the_token_types(bert: Any, bert_pairs: Any) -> None:
    task = task_of(32)
    examples = task.encode(PAIRS, bert_pairs)
    found = np.stack(task.predict(bert, task.collate(examples)))
    with torch.no_grad():
        for row, pair in zip(found, PAIRS, strict=True):
            own = bert_pairs(
                [pair.text], [pair.text_pair], truncation="longest_first", max_length=32, return_tensors="pt"
            )
            assert own["token_type_ids"].any()
            expected = bert(**own).logits[0]
            np.testing.assert_allclose(row, expected.numpy(), rtol=1e-4, atol=1e-5)
            without = bert(**{**own, "token_type_ids": None}).logits[0]
            assert not np.allclose(row, without.numpy(), atol=1e-4)


def test_a_model_that_knows_no_types_is_given_none(tiny_model: Any, bert_pairs: Any) -> None:
    """RoBERTa has one type, and GPT-2 would read types as words."""
    task = task_of(32)
    batch = task.collate(task.encode(PAIRS, bert_pairs))
    for family, changes in (("roberta", {"type_vocab_size": 1}), ("gpt2", {})):
        config = {"vocab_size": 400, **changes}
        module = tiny_model(family, "sequence-classification", config=config).module.eval()
        rest = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            expected = module(**rest).logits.numpy()
        np.testing.assert_allclose(np.stack(task.predict(module, batch)), expected, rtol=1e-4, atol=1e-6)


def test_the_loss_of_pairs_reaches_the_embedding_of_types(bert: Any, bert_pairs: Any) -> None:
    task = task_of()
    task.loss(bert, task.collate(task.encode(PAIRS, bert_pairs)))[0].backward()
    gradient = bert.bert.embeddings.token_type_embeddings.weight.grad
    assert (gradient.abs().sum(dim=1) > 0).all()


def test_shuffled_tokens_leave_separators_and_types_in_place(bert_pairs: Any) -> None:
    task = task_of()
    examples = task.encode(PAIRS, bert_pairs)
    found = task.corrupt(examples, "shuffled_tokens", bert_pairs, Seed(0))
    for one, two in zip(examples, found, strict=True):
        assert (np.isin(one.windows[0], [2, 3]) == np.isin(two.windows[0], [2, 3])).all()
        assert sorted(one.windows[0].tolist()) == sorted(two.windows[0].tolist())
        assert one.token_types[0].tolist() == two.token_types[0].tolist()
    assert any((one.windows[0] != two.windows[0]).any() for one, two in zip(examples, found, strict=True))
    task.collate(found)


def test_other_tasks_refuse_pairs(tokenizer: Any) -> None:
    tagged = replace(PAIRS[0], spans=(Span(0, 2, "x"),))
    ner, lm = (
        NamedEntityRecognition(max_length=16, stride=4).of_types(["x"]),
        LanguageModelling(max_length=16),
    )
    attempts = [
        lambda: NamedEntityRecognition().fitted({"north": Split((tagged,))}),
        lambda: LanguageModelling().fitted({"north": Split((SINGLE,), (), (PAIRS[0],))}),
        lambda: ner.encode([tagged], tokenizer),
        lambda: lm.encode(PAIRS, tokenizer),
    ]
    for attempt in attempts:
        with refused(ConfigurationError, "not_supported", at="task.name", values=["example 'a'"]) as e:
            attempt()
        assert SHORT not in str(e.value)

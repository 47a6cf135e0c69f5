"""Tokenizers built from texts against counts of words."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.settings.model import TrainedTokenizer
from fedstrata.models.train_tokenizer import END, PADDING, UNKNOWN, train_tokenizer

TEXTS = ["The pain , the fever .", "No pain, <unk> fever", "a b c d"]


def built(texts: list[str], **settings: Any) -> Any:
    return train_tokenizer(TrainedTokenizer(**settings), texts)


@given(st.lists(st.text(alphabet="ab c,D", max_size=12), max_size=6), st.integers(8, 12), st.booleans())
def test_words_are_the_most_frequent_and_the_first_of_equals(
    texts: list[str], size: int, lower: bool
) -> None:
    words = re.findall(r"\w+|[^\w\s]+", " ".join(text.lower() if lower else text for text in texts))
    order = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    tokenizer = built(texts, train="words", vocabulary=size, lower_case=lower)
    expected = [UNKNOWN, END, PADDING, *(word for word, _ in order)][:size]
    assert sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get) == expected


def test_unknown_words_are_one_token_and_texts_may_spell_it() -> None:
    tokenizer = built(TEXTS, train="words")
    ids = tokenizer("pain <unk> headache")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["pain", UNKNOWN, UNKNOWN]
    assert tokenizer.is_fast
    assert (tokenizer.eos_token, tokenizer.pad_token) == (END, PADDING)


def test_texts_that_are_tokenised_already_are_split_at_blanks_alone() -> None:
    texts = ["do n't , U.S. @-@"]
    assert {"n't", "U.S.", "@-@"} <= built(texts, train="words", split="blanks").get_vocab().keys()
    assert {"n", "'", "t"} <= built(texts, train="words").get_vocab().keys()


@given(st.text(max_size=40))
def test_bytes_give_every_text_back(text: str) -> None:
    tokenizer = built(TEXTS, train="bytes", vocabulary=280)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_equal_texts_give_an_equal_tokenizer_in_any_order(kind: str) -> None:
    one, other = (built(texts, train=kind, vocabulary=300) for texts in (TEXTS, TEXTS[::-1]))
    assert one.backend_tokenizer.to_str() == other.backend_tokenizer.to_str()

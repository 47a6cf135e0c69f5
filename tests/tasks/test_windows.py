from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.tasks.windows import DOCUMENTS_PER_CALL, IGNORED, Window, encode_windows, pad_labelled

TEXTS = st.text(st.sampled_from("ab Ié体😀\n\r\t.5\u00a0"), max_size=80)


def number(_: Document, offsets: np.ndarray) -> np.ndarray:
    """Tags every token with its position in the document."""
    return np.arange(len(offsets))


def encode(texts: list[str], tokenizer: Any, max_length: int = 16, stride: int = 4) -> list[Window]:
    documents = [Document(str(index), text) for index, text in enumerate(texts)]
    return encode_windows(
        documents, tokenizer, NamedEntityRecognition(max_length=max_length, stride=stride), number
    )


@given(texts=st.lists(TEXTS, max_size=4), max_length=st.integers(10, 24), stride=st.integers(0, 5))
@pytest.mark.parametrize("side", ["right", "left"])
def test_every_token_is_owned_once_and_stands_where_it_stands_in_the_text(
    tokenizer: Any, side: str, texts: list[str], max_length: int, stride: int
) -> None:
    tokenizer.truncation_side = side
    try:
        windows = encode(texts, tokenizer, max_length, stride)
    finally:
        tokenizer.truncation_side = "right"
    for index, text in enumerate(texts):
        own = [window for window in windows if window.document == index]
        whole = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert [id_ for window in own for id_ in window.input_ids[window.owned].tolist()] == whole
        assert [tag for window in own for tag in window.tags[window.owned].tolist()] == list(
            range(len(whole))
        )
        assert bool(own) == bool(whole)
    for window in windows:
        assert len(window) <= max_length
        assert (window.tags[~window.owned] == IGNORED).all()
        assert window.owned.any()


def test_an_overlap_is_shared_out_at_its_middle_and_seen_by_both(tokenizer: Any) -> None:
    first, second, *_ = encode(["a b c d e f g h i j k l m n o p q r s t u v w x y z"], tokenizer)
    prefix = int(np.flatnonzero(first.owned)[0])
    suffix = tokenizer.num_special_tokens_to_add() - prefix
    body = 16 - prefix - suffix
    assert np.flatnonzero(first.owned).tolist() == list(range(prefix, prefix + body - 2))
    assert np.flatnonzero(second.owned).tolist() == list(range(prefix + 2, prefix + body - 2))
    shared = first.input_ids[prefix + body - 4 : prefix + body]
    assert shared.tolist() == second.input_ids[prefix : prefix + 4].tolist()


@given(text=TEXTS)
def test_offsets_hold_no_blank_at_either_end(tokenizer: Any, text: str) -> None:
    for window in encode([text], tokenizer):
        for start, end in window.offsets.tolist():
            assert 0 <= start <= end <= len(text)
            piece = text[start:end]
            assert piece == piece.strip()


def test_narrowing_loses_nothing_but_blanks(byte_level: Any) -> None:
    text = "chest  pain,\r\n\r\n 5mg\u00a0daily "
    (window,) = encode([text], byte_level, max_length=64)
    covered = {i for start, end in window.offsets.tolist() for i in range(start, end)}
    assert covered == {i for i, character in enumerate(text) if not character.isspace()}


def test_many_documents_keep_their_index(byte_level: Any) -> None:
    texts = [f"note {index}" if index % 3 else "" for index in range(2 * DOCUMENTS_PER_CALL + 5)]
    windows = encode(texts, byte_level)
    assert [window.document for window in windows] == [index for index, text in enumerate(texts) if text]
    for window in windows:
        assert byte_level.decode(window.input_ids[window.owned]) == texts[window.document]


def test_special_tokens_written_in_a_text_are_text(byte_level: Any, word_piece: Any) -> None:
    for tokenizer, text in ((byte_level, "a <s> b </s> c"), (word_piece, "a [SEP] b [CLS] c")):
        windows = encode([text], tokenizer, max_length=8, stride=2)
        whole = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert [id_ for window in windows for id_ in window.input_ids[window.owned].tolist()] == whole


def test_batches_are_padded_on_the_right_with_the_tokenizer_s_id(byte_level: Any) -> None:
    long, short = encode(["a b c d e f", "g"], byte_level)
    batch = pad_labelled([short, long], of="tags")
    ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
    assert {tuple(tensor.shape) for tensor in batch.values()} == {(2, len(long))}
    assert {str(tensor.dtype) for tensor in batch.values()} == {"torch.int64"}
    assert ids[1].tolist() == long.input_ids.tolist()
    assert ids[0].tolist() == short.input_ids.tolist() + [2] * (len(long) - len(short))
    assert mask.tolist() == [[1] * len(short) + [0] * (len(long) - len(short)), [1] * len(long)]
    assert labels[0, : len(short)].tolist() == short.tags.tolist()
    assert (labels[0, len(short) :] == IGNORED).all()


def test_without_a_padding_token_another_id_pads(byte_level: Any) -> None:
    without = deepcopy(byte_level)
    without.pad_token = None
    assert encode(["a"], without)[0].pad_id == byte_level.eos_token_id


def test_windows_must_be_longer_than_their_overlap_and_tokens_must_have_offsets() -> None:
    task = NamedEntityRecognition(max_length=8, stride=4)
    wordy = SimpleNamespace(is_fast=True, num_special_tokens_to_add=lambda: 4)
    with refused(ConfigurationError, "out_of_range", at="task.max_length", values=["8", "task.stride (4)"]):
        encode_windows([], wordy, task, number)
    slow = SimpleNamespace(is_fast=False)
    with refused(ConfigurationError, "no_offsets", at="model.tokenizer", values=["SimpleNamespace"]):
        encode_windows([], slow, task, number)

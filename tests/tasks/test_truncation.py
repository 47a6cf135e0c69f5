"""What of documents is not read: what tasks say of it is what their examples show."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.documents import Document, Span
from fedstrata.core.surveyed import Truncation
from fedstrata.data.split import Split
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.cloze import ClozeQuestions
from fedstrata.tasks.extract import Extraction
from fedstrata.tasks.lm import LanguageModelling
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.tasks.summarize import Summarization

PART = "The patient has severe chest pain radiating to the left arm. "
TEXTS = [PART * count for count in (1, 0, 7, 12)]
SINGLE = {"problem_type": "single_label", "max_length": 24, "stride": 4}


def classify(**changes: Any) -> DocumentClassification:
    return DocumentClassification(**{**SINGLE, **changes}).of_labels(["no", "yes"])


def size(text: str, tokenizer: Any) -> int:
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("which", ["byte_level", "word_piece"])
@given(windows=st.integers(1, 6), stride=st.integers(0, 10), lengths=st.lists(st.integers(0, 30), max_size=5))
def test_windows_that_are_not_read(
    which: str, windows: int, stride: int, lengths: list[int], request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(which)
    documents = [Document(str(n), PART * length, labels=("yes",)) for n, length in enumerate(lengths)]
    special = tokenizer.num_special_tokens_to_add()
    sizes = []
    for example in classify(stride=stride, max_windows=windows).encode(documents, tokenizer):
        whole = size(documents[example.document].text, tokenizer)
        read = sum(len(own) - special for own in example.windows) - stride * (len(example.windows) - 1)
        sizes.append((whole, whole - read if whole else 0))  # without tokens there is one of padding
    task = classify(stride=stride, max_windows=windows)
    assert task.truncation(documents, tokenizer) == Truncation.of(sizes)


@pytest.mark.parametrize("which", ["byte_level", "word_piece"])
def test_pairs_that_lose_tokens(which: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(which)
    documents = [
        Document(f"{n}-{m}", text, labels=("yes",), text_pair=other)
        for n, text in enumerate(TEXTS)
        for m, other in enumerate(TEXTS)
    ]
    task, longer = classify(), classify(max_length=4096)
    whole = [len(each) for each in longer.encode(documents, tokenizer)]
    read = [len(each) for each in task.encode(documents, tokenizer)]
    told = task.truncation(documents, tokenizer)
    assert told is not None
    assert told.lost == sum(whole) - sum(read)
    assert told.cut == sum(one > two for one, two in zip(whole, read, strict=True))
    assert told.documents == 16


@pytest.mark.parametrize(
    "task", [NamedEntityRecognition().of_types(["drug"]), LanguageModelling(), classify()]
)
def test_what_reads_all_of_any_text_says_nothing(task: Any, byte_level: Any) -> None:
    assert task.truncation([Document("a", PART * 40)], byte_level) is None


def test_dialogues_and_answers_that_are_too_long(byte_level: Any) -> None:
    documents = [
        Document(str(n), text, text_pair="pain " * answer)
        for n, (text, answer) in enumerate([(PART * 2, 2), (PART * 30, 3), (PART, 60)])
    ]
    settings = Summarization(max_length=200, answer_length=40)
    task = settings.fitted({"a": Split(train=tuple(documents))})
    longer = task.changed(max_length=10**6, answer_length=10**5)
    whole, read = longer.encode(documents, byte_level), task.encode(documents, byte_level)
    told = task.truncation(documents, byte_level)
    assert (told.documents, told.cut) == (3, 2)
    assert told.tokens == sum(len(each) + 1 for each in whole)
    # A prompt may be a token or two shorter than there is room for, since words are cut where tokens end.
    lost = sum(len(one) - len(two) for one, two in zip(whole, read, strict=True))
    assert lost - 4 <= told.lost <= lost


def test_questions_that_are_too_long(byte_level: Any) -> None:
    documents = [
        Document(str(n), text, labels=(label,), metadata={"superglue": "boolq"}, text_pair="is it pain")
        for n, (text, label) in enumerate([(PART, "true"), (PART * 30, "false"), (PART * 20, "true")])
    ]
    task = ClozeQuestions(max_length=120).fitted({"a": Split(train=tuple(documents))})
    whole = task.changed(max_length=10**6).encode(documents, byte_level)
    read = task.encode(documents, byte_level)
    told = task.truncation(documents, byte_level)
    assert (told.documents, told.cut) == (3, 2)
    lost = sum(len(one.prompt) - len(two.prompt) for one, two in zip(whole, read, strict=True))
    assert lost - 4 <= told.lost <= lost
    assert told.tokens >= sum(len(each.prompt) for each in whole)


def test_sentences_that_are_asked_about_in_pieces(byte_level: Any) -> None:
    long = "severe chest pain and " * 60
    texts = [PART * 3, f"{long}. {PART}", f"{PART}{long}."]
    documents = [Document(str(n), text, (Span(0, 3, "problem"),)) for n, text in enumerate(texts)]
    task = Extraction(tasks=["ner"], mentions=["problem"], modifiers={}, templates="short", max_length=500)
    told = task.truncation(documents, byte_level)
    pieces = {each.document for each in task.encode(documents, byte_level)}
    assert pieces == {0, 1, 2}
    assert (told.documents, told.cut, told.lost) == (3, 2, 0)
    counts = [sum(each.document == n for each in task.encode(documents, byte_level)) for n in range(3)]
    assert counts[0] == 3  # one for each sentence
    assert min(counts[1:]) > 3

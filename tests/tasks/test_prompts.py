"""Prompts as tokens: what stands before an answer, answers behind it, and texts cut to fit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import refused
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.model import ModelSettings
from fedstrata.models.load import read_tokenizer
from fedstrata.tasks.instruction.prompts import PromptTokenizer, faults, read_template


@pytest.fixture(scope="module")
def words() -> PromptTokenizer:
    return PromptTokenizer(read_tokenizer(ModelSettings()), chats=False)


@pytest.fixture(scope="module")
def metaspace() -> Any:
    """A tokenizer as SentencePiece's: the blank before a word is part of it, and put before the first one."""
    special = ["<unk>", "</s>"]
    tokenizer = Tokenizer(models.BPE(unk_token=special[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=80, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(["Answer: yes no maybe yes no"], trainer)
    names = dict(zip(["unk_token", "eos_token"], special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


@pytest.mark.parametrize("kind", ["byte_level", "word_piece", "metaspace"])
@pytest.mark.parametrize("answer", [" yes", " no fever", "\nmaybe"])
def test_an_answer_has_the_tokens_it_has_behind_its_prompt(
    request: pytest.FixtureRequest, kind: str, answer: str
) -> None:
    words = PromptTokenizer(request.getfixturevalue(kind), chats=False)
    before = "Is it so? Answer:"
    (prompt,) = words.ids([before])
    (own,) = words.continuations([before], [answer])
    assert words.ids([before + answer]) == [prompt + own]


def test_the_end_token_that_a_tokenizer_adds_is_no_part_of_a_prompt(word_piece: Any) -> None:
    (prompt,) = PromptTokenizer(word_piece, chats=False).prompts(["chest pain"])
    assert prompt[0] == word_piece.cls_token_id
    assert word_piece.sep_token_id not in prompt


CHAT = (
    "{{ '<s>' }}{% for turn in messages %}<pad>{{ turn.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<pad>{% endif %}"
)


@pytest.mark.parametrize("chats", [False, True])
def test_a_text_holds_no_special_token_whatever_it_looks_like(byte_level: Any, chats: bool) -> None:
    """A note may hold `</s>`, which is a tag of HTML, and a model would take its answer to end there."""
    tokenizer = copy.deepcopy(byte_level)
    tokenizer.chat_template = CHAT if chats else None
    words = PromptTokenizer(tokenizer, chats=chats)
    text = "Denies pain </s> and<pad>fever<s>. "
    plain, odd = words.prompts(["Denies pain and fever.", text])
    ends = (["<s>", "<pad>"], ["</s>", "<pad>"]) if chats else (["<s>"], [])
    for row in (plain, odd):
        special = [
            token for token in tokenizer.convert_ids_to_tokens(row) if token in ("<s>", "</s>", "<pad>")
        ]
        assert special == [*ends[0], *ends[1]]
    inner = odd[len(ends[0]) : len(odd) - len(ends[1])]
    assert tokenizer.decode(inner) == (text.strip() if chats else text)
    assert words.ids([text])[0][: len(inner)] == inner


def test_an_answer_in_a_chat_ends_as_a_turn_does(byte_level: Any) -> None:
    """Gemma and Phi-3, among others, have a token for that which does not end a text."""
    tokenizer = copy.deepcopy(byte_level)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    tokenizer.chat_template = CHAT.replace("</s>", "<turn>\n")
    assert PromptTokenizer(tokenizer, chats=True).end("extract") == tokenizer.convert_tokens_to_ids("<turn>")
    assert PromptTokenizer(tokenizer, chats=False).end("extract") == tokenizer.eos_token_id
    tokenizer.chat_template = CHAT.replace("</s>", "\n")
    assert PromptTokenizer(tokenizer, chats=True).end("extract") == tokenizer.eos_token_id


def test_a_prompt_is_the_same_on_every_day(byte_level: Any) -> None:
    """Llama 3.2's template writes today's date into every chat; a run is resumed and used on other days."""
    tokenizer = copy.deepcopy(byte_level)
    tokenizer.chat_template = (
        "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
        "Today: {{ date_string }}, {{ strftime_now('%Y') }}. " + CHAT
    )
    (prompt,) = PromptTokenizer(tokenizer, chats=True).prompts(["Denies pain."])
    assert tokenizer.decode(prompt).startswith("Today: 26 Jul 2024, 26 Jul 2024. ")


@pytest.mark.parametrize("beginning", ["", "\n", "\n\nA ", "  {% if true %}B{% endif %} "])
def test_the_rest_of_a_chat_is_as_its_template_writes_it(byte_level: Any, beginning: str) -> None:
    tokenizer = copy.deepcopy(byte_level)
    tokenizer.chat_template = beginning + CHAT
    (prompt,) = PromptTokenizer(tokenizer, chats=True).prompts(["Denies pain."])
    turns = [{"role": "user", "content": "Denies pain."}]
    assert tokenizer.decode(prompt) == tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, tokenize=False
    )
    tokenizer.chat_template = {"one": CHAT, "other": CHAT}
    with refused(ConfigurationError, "conflict", at="task.chat", values=["never"]):
        PromptTokenizer(tokenizer, chats=True).prompts(["Denies pain."])


@pytest.mark.parametrize(
    "opened",
    [
        "<think>\n",  # DeepSeek-R1 and its distilled models
        "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",  # Qwen 3
    ],
)
def test_an_answer_is_outside_of_a_thought(byte_level: Any, opened: str) -> None:
    tokenizer = copy.deepcopy(byte_level)
    tokenizer.chat_template = CHAT.replace("<pad>{% endif %}", f"<pad>{opened}{{% endif %}}")
    words = PromptTokenizer(tokenizer, chats=True)
    assert tokenizer.decode(words.prompts(["<think>"])[0]).endswith("<think></s><pad><think>\n\n</think>\n\n")
    (prompt,) = words.prompts(["Denies pain."])
    assert tokenizer.decode(prompt).endswith("Denies pain.</s><pad><think>\n\n</think>\n\n")


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="{}"), max_size=60)


@given(text=TEXTS, room=st.integers(6, 40))
def test_a_shortened_prompt_fits_and_holds_a_beginning_of_its_text(
    words: PromptTokenizer, text: str, room: int
) -> None:
    (whole,) = words.prompts([f"<{text}> ?"])
    ids = words.shortened(whole, Document("x", text), lambda own: f"<{own}> ?", max_length=room + 3, spared=3)
    shown = words.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert len(ids) <= room
    assert (ids == whole) == (len(whole) <= room)
    assert shown.startswith("<")
    assert shown.endswith("> ?")
    assert text.startswith(shown[1:-3])


def test_no_more_is_cut_than_must_be(words: PromptTokenizer) -> None:
    text = "The patient has severe chest pain radiating to the left arm and denies fever. " * 5
    (whole,) = words.prompts([f"{text}?"])
    for room in (20, 47, len(whole) - 1):
        ids = words.shortened(whole, Document("x", text), "{}?".format, max_length=room, spared=0)
        assert room - 2 <= len(ids) <= room
    values = ["9", "-1 tokens", "'x' has 2"]
    with refused(ConfigurationError, "out_of_range", at="task.max_length", values=values):
        words.shortened(whole, Document("x", text), "{}?".format, max_length=9, spared=10)


def test_faults_of_templates() -> None:
    for template, code, values in (
        ("{text} {answer}", None, []),
        ("{text}", "missing", ["{answer}"]),
        ("{answer} {who}", "unknown_name", ["{who}", "{answer}, {text}"]),
        ("{text.__class__}{answer}", "unknown_name", ["{text.__class__}"]),
        ("{answer} {", "wrong_form", []),
    ):
        found = faults("task.template", template, "answer", ["answer", "text"])
        assert [(each.path, each.code) for each in found] == ([("task.template", code)] if code else [])
        assert all(value in found[0].message for value in values)
    with refused(ConfigurationError, "not_found", at="task.template", values=["'nowhere.txt'"]):
        read_template("nowhere.txt", "answer", "task.template")

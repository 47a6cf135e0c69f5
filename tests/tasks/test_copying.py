"""Copy decoding, held against a decoder of one sentence without a cache that tokenises what is left anew."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import fedstrata as fs
from fedstrata.core.documents import Document, Span
from fedstrata.models.locate import MINI
from fedstrata.tasks.extract import Extraction
from fedstrata.tasks.instruction.copying import CopyTokenizer, copy_marked, pieces
from fedstrata.tasks.instruction.examples import answer_text
from fedstrata.tasks.instruction.markup import CLOSING, escape, mark, opening, read
from fedstrata.tasks.instruction.prompts import PromptTokenizer

TYPES = ("drug", "problem", "test", "treatment")
TASK = Extraction(tasks=["ner"], mentions=list(TYPES), templates="short", max_length=400, chat="never")
ODD = [
    "Line one\nof  two, \t tabs.",
    "Temperature 38.5\u00b0C, \u03b2-blocker \u4e2d\u6587 given.",
    "He wrote <span class=x> and </span> in the note.",
    "x",
    "Na+ 136, K+ 4.1.",
]


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MINI)


@cache
def module() -> nn.Module:
    """A model whose answers have tags: `mini`, whose embedding of tags is made as likely as that of text."""
    own = AutoModelForCausalLM.from_pretrained(MINI, dtype=torch.float32, num_hidden_layers=2).eval()
    head = nn.Linear(own.lm_head.in_features, own.lm_head.out_features)
    torch.manual_seed(1)
    with torch.no_grad():
        head.weight.copy_(own.lm_head.weight)
        head.weight.mul_(0.2).add_(0.05 * torch.randn_like(head.weight))
        head.bias.zero_()
        for text in (opening("drug"), " " + opening("drug"), CLOSING):
            head.bias[tokenizer()(text, add_special_tokens=False)["input_ids"][0]] = 0.9
    own.lm_head = head
    own.config.tie_word_embeddings = False
    return own


def documents(count: int) -> list[Document]:
    made = [note for notes in fs.synth(sites=1, notes=3, seed=2).values() for note in notes]
    return [*made[:count], *(Document(id=str(n), text=text) for n, text in enumerate(ODD))]


def batch_of(examples: Sequence[Any]) -> dict[str, Tensor]:
    return TASK.collate(examples)


@torch.no_grad()
def slow(model: nn.Module, text: str, prompt: Sequence[int]) -> tuple[Span, ...]:
    """Decides on the tags of a text by the definition: what is left is tokenised anew behind every tag."""
    own, ids, source = tokenizer(), list(prompt), escape(text)

    def tokens(part: str) -> tuple[list[int], list[int]]:
        made = own(part, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
        return made["input_ids"], [end for _, end in made["offset_mapping"]]

    @torch.inference_mode()
    def next_logits() -> Tensor:
        return model(input_ids=torch.tensor([ids]), logits_to_keep=1).logits[0, -1]

    place, label, begin, spans = 0, "", 0, []
    while place < len(source):
        rest, ends = tokens(source[place:])
        last = 0
        for token, end in zip(rest, ends, strict=True):
            here = place + last
            blank = source[here : len(source) - len(source[here:].lstrip())]
            tag = tokens(CLOSING if label else blank + opening(TYPES[0]))[0][0]
            logits = next_logits()
            may = end > last and tag != token
            if label:
                may = may and here != begin and not source[here - 1].isspace()
            if may and logits[tag] > logits[token]:
                break
            ids.append(token)
            last = max(last, end)
        else:
            place = len(source)
            continue
        place += last
        if label:
            spans.append(Span(begin, place, label))
            ids += tokens(CLOSING)[0]
            label = ""
            continue
        left = {each: tokens(blank + opening(each))[0] for each in TYPES}
        known = 0
        while len(left) > 1:
            heads = {row[known] for row in left.values()}
            best = (
                max(sorted(heads), key=lambda head: float(next_logits()[head]))
                if len(heads) > 1
                else heads.pop()
            )
            ids.append(best)
            left = {each: row for each, row in left.items() if row[known] == best}
            known += 1
        ((label, row),) = left.items()
        ids += row[known:]
        place += len(blank)
        begin = place
    return (*spans, Span(begin, len(source), label)) if label else tuple(spans)


@pytest.fixture(scope="module")
def examples() -> list[Any]:
    return TASK.encode(documents(1), tokenizer())[:3] + TASK.encode(documents(0), tokenizer())


@pytest.fixture(scope="module")
def expected(examples: list[Any]) -> list[tuple[str, tuple[Span, ...]]]:
    """The text of each example, and what the slow decoder finds in it."""
    prompts = [tokenizer().decode(each.input_ids[: each.prompt]) for each in examples]
    texts = [
        prompt.partition("Mentions: ")[2].rpartition("\nMarked:")[0].replace("&lt;", "<")
        for prompt in prompts
    ]
    return [
        (text, slow(module(), text, each.input_ids[: each.prompt]))
        for text, each in zip(texts, examples, strict=True)
    ]


@pytest.mark.parametrize("rows", [1, 3, 32])
def test_batches_find_what_a_slow_decoder_of_one_sentence_finds(
    examples: list[Any], expected: list[tuple[str, tuple[Span, ...]]], rows: int
) -> None:
    found = []
    for first in range(0, len(examples), rows):
        found += copy_marked(module(), batch_of(examples[first : first + rows]))
    tagged = 0
    for example, answer, (text, slowly_found) in zip(examples, found, expected, strict=True):
        written, finished = answer_text(example, answer)
        spans, faults = read(text, written, TYPES)
        assert finished
        assert not faults.total()
        assert written == mark(text, spans)
        if escape(text) == text:
            assert spans == tuple(sorted(slowly_found))
        tagged += len(spans)
    assert tagged > 10


def test_every_answer_is_the_sentence_with_tags() -> None:
    """Whatever the weights: with random ones tags stand anywhere."""
    torch.manual_seed(3)
    own = AutoModelForCausalLM.from_config(module().config).eval()
    given = documents(0)
    made = TASK.encode(given, tokenizer())
    answers = copy_marked(own, batch_of(made))
    found = TASK.decode(given, made, answers)
    assert not any(value for each in found for key, value in each.faults.items() if key != "unreachable")


@pytest.mark.parametrize("text", [*ODD, "Given \u03b2\u03b2 \u4e2d\u4e2d. \U0001f600 \U0001f600x"])
def test_behind_every_tag_the_rest_of_the_sentence_is_spelled(text: str) -> None:
    """Also where a character is of several tokens, of which a tag may stand in front of the first alone."""
    (source,) = CopyTokenizer(PromptTokenizer(tokenizer(), chats=False)).sources([text], [TYPES])
    rests = {escape(text)[place:] for place in range(len(escape(text)))}
    places = {int(own) for own, kind in zip(source.opened, source.blanks, strict=True) if kind >= 0}
    for first in places:
        tokens, place = [], first
        while place >= 0:
            tokens.append(int(source.tokens[place]))
            place = int(source.following[place])
        assert tokenizer().decode(tokens) in rests


@pytest.mark.parametrize("seed", range(8))
def test_text_and_tags_are_tokenised_apart_and_give_the_answer(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311
    text = draw.choice([*ODD[:2], "He denies chest pain, fever and cough; given aspirin 81 mg."])
    cuts = sorted(draw.sample(range(len(text) + 1), 4))
    answer = mark(text, [Span(cuts[0], cuts[1], "drug"), Span(cuts[2], cuts[3], "problem")])
    parts = pieces(answer)
    assert "".join(parts) == answer
    words = PromptTokenizer(tokenizer(), chats=False)
    ids = [token for row in words.ids(parts) for token in row]
    assert tokenizer().decode(ids) == answer


def test_a_right_answer_trains_tags_of_the_same_tokens() -> None:
    document = Document(
        id="a", text="He has fever, (chest pain).", spans=(Span(7, 12, "problem"), Span(15, 25, "problem"))
    )
    (learnt,) = TASK.training_examples([document], tokenizer())
    (spaced, bare, closing) = (
        tokenizer()(text, add_special_tokens=False)["input_ids"]
        for text in (" " + opening("problem"), opening("problem"), CLOSING)
    )
    answer = [*learnt.targets[learnt.prompt - 1 :]]

    def count(tag: list[int]) -> int:
        return sum(answer[at : at + len(tag)] == tag for at in range(len(answer)))

    assert (count(spaced), count(closing)) == (1, 2)
    assert count(bare) >= 1
    assert learnt.source is None


def test_mentions_that_no_tag_can_mark_are_counted() -> None:
    text = "Gave aspirin and abciximab."
    (source,) = CopyTokenizer(PromptTokenizer(tokenizer(), chats=False)).sources([text], [TYPES])
    reachable = [Span(5, 12, "drug"), Span(17, 26, "drug")]
    assert source.unreachable(reachable) == 0
    assert source.unreachable([*reachable, Span(5, 9, "test")]) == 1, "nested"
    inside = next(place for place in range(18, 26) if place not in source.ends)
    assert source.unreachable([Span(17, inside, "drug")]) == 1


def test_what_is_out_of_reach_is_among_the_scores() -> None:
    document = Document(id="a", text="He has fever.", spans=(Span(7, 12, "problem"), Span(8, 10, "problem")))
    made = TASK.encode([document], tokenizer())
    answers = copy_marked(module(), batch_of(made))
    found = TASK.decode([document], made, answers)
    tally = TASK.tally([document], found)
    assert tally["annotated_out_of_reach"] == 1


def test_free_decoding_has_no_sources_and_one_string_for_an_answer() -> None:
    free = TASK.changed(decoding="free")
    document = Document(id="a", text="He has (fever).", spans=(Span(8, 13, "problem"),))
    (asked,), (learnt,) = (
        free.encode([document], tokenizer()),
        free.training_examples([document], tokenizer()),
    )
    assert asked.source is None
    answer = tokenizer()(mark(document.text, document.spans), add_special_tokens=False)["input_ids"]
    assert np.array_equal(learnt.targets[learnt.prompt - 1 : -1], answer)

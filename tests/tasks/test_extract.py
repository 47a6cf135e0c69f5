"""Extraction: instructions and answers on synthetic notes, losses and generation against loops."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from divided import prompt_batch
from instructed import LACKING, MODIFIERS, NOTE
from peft import LoraConfig, get_peft_model
from support import refused
from torch.nn import functional as F
from transformers import GenerationConfig

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.split import Split
from fedstrata.data.synthetic import generate as generate_corpus
from fedstrata.metrics.relations import triples_of
from fedstrata.tasks.continuations import generate
from fedstrata.tasks.extract import FAULTS, Extracted, Extraction
from fedstrata.tasks.instruction.examples import Example
from fedstrata.tasks.instruction.instructions import TemplateFiles, budget_of
from fedstrata.tasks.instruction.markup import mark

SHORT = {"templates": "short", "mentions": ["drug", "problem"], "modifiers": MODIFIERS, "max_length": 400}


@pytest.fixture(scope="module")
def corpus() -> list[Document]:
    return generate_corpus(seed=3, sites=2, notes=8)


def task_of(**changes: Any) -> Extraction:
    return Extraction(**{**SHORT, **changes})


def ideal(example: Example) -> np.ndarray:
    """The tokens of the right answer, the end token included."""
    return example.targets[example.prompt - 1 :]


def words(example: Example) -> tuple[str, str]:
    """Returns the instruction and the right answer of an example."""
    prompt = example.tokenizer.decode(example.input_ids[: example.prompt], skip_special_tokens=True)
    return prompt, example.tokenizer.decode(ideal(example)[:-1])


def test_each_sentence_is_asked_for_mentions_and_each_mention_for_its_modifiers(byte_level: Any) -> None:
    asked = [words(example) for example in task_of().encode([NOTE], byte_level)]
    severe = 'Severe <span class="problem">chest pain</span> since Monday.'
    assert asked[2] == (f"Mentions: {NOTE.text[14:45]}\nMarked:\n", severe)
    assert asked[3] == (
        f"Modifiers: {severe}\nMarked:\n",
        '<span class="severity">Severe</span> chest pain <span class="temporal">since Monday</span>.',
    )
    assert len(asked) == 6
    assert sum(prompt.startswith("Mentions") for prompt, _ in asked) == 3


def test_full_instructions_name_the_task_the_guide_and_the_definitions(byte_level: Any) -> None:
    task = task_of(templates="full", max_length=2000, definitions={"severity": "how bad"})
    prompt, answer = words(task.encode([NOTE], byte_level)[3])
    parts = ("### Task", "### Markup guide", "### Definitions", "severity: how bad", "negation: what says")
    assert all(part in prompt for part in parts)
    assert prompt.endswith('Severe <span class="problem">chest pain</span> since Monday.\n\n### Output\n')
    assert answer.startswith('<span class="severity">')


@pytest.mark.parametrize("unit", ["sentence", "line"])
def test_right_answers_give_the_annotations_back(byte_level: Any, corpus: list[Document], unit: str) -> None:
    task = Extraction(templates="short", unit=unit, max_length=4000).fitted({"a": Split(train=tuple(corpus))})
    examples = task.encode(corpus, byte_level)
    ideals = [ideal(example)[: example.budget] for example in examples]
    answers = task.decode(corpus, examples, ideals)
    scores = task.score(corpus, answers)
    assert scores["ner_f1"] == scores["re_precision"] == scores["re_lenient_precision"] == 1.0
    assert scores["re_recall"] > 0.98  # the others are in another sentence
    assert [scores[name] for name in FAULTS] == [0.0] * 5
    for document, answer in zip(corpus, answers, strict=True):
        known = task.known(document)
        again = task.annotate(document, answer)
        assert set(triples_of(again)) <= set(triples_of(known))
        assert set(again.spans) <= set(known.spans)
    assert scores.keys() <= set(task.metric_names)
    assert set(task.metrics) <= scores.keys()
    assert task.metric in task.metrics


def test_what_cannot_be_used_is_counted(byte_level: Any) -> None:
    task = task_of()
    examples = task.encode([NOTE], byte_level)
    garbled = [
        'Denies <span class="problem">fever',
        'Denies <span class="treatment">fever</span>.',
        'Severe <span class="problem">stomach ache</span> since Monday.',
        "",
        "",
        "",
    ]
    predictions = [np.array(byte_level(text, add_special_tokens=False)["input_ids"]) for text in garbled]
    (answer,) = task.decode([NOTE], examples, predictions)
    assert (answer.spans, answer.relations) == ((), ())
    assert list(task.score([NOTE], [answer]).values())[-5:] == [1.0, 1.0, 1.0, 6.0, 0.0]


@pytest.mark.parametrize("loss_on", ["response", "full"])
def test_the_loss_is_that_of_the_tokens_that_count(tiny_causal: Any, byte_level: Any, loss_on: str) -> None:
    task, model = task_of(loss_on=loss_on), tiny_causal()
    examples = task.encode([NOTE], byte_level)
    total, count = task.loss(model, task.collate(examples))
    expected, terms = 0.0, 0
    for example in examples:
        ids = torch.tensor([*example.input_ids, example.end_id])
        logits = model(input_ids=ids[None]).logits[0]
        first = example.prompt if loss_on == "response" else 1
        own = F.cross_entropy(logits[first - 1 : -1], ids[first:], reduction="sum")
        expected += own.item()
        terms += len(ids) - first
    assert int(count) == terms
    assert float(total) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_batch_generates_what_each_row_would_alone(tiny_causal: Any, family: str) -> None:
    """Against a loop without a cache and without padding."""
    model, rng = tiny_causal(family), np.random.default_rng(0)
    rows = [rng.integers(3, 400, size=size) for size in (9, 3, 6, 14)]
    budgets = [7, 12, 3, 12]
    naive = [alone(model, row, budget) for row, budget in zip(rows, budgets, strict=True)]
    end = int(naive[1][5])  # a token that one of them does come to
    padded = torch.full((4, 20), 77)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = torch.from_numpy(row)
    lengths = torch.tensor([9, 3, 6, 14])
    found = generate(model, prompt_batch(padded, lengths, torch.tensor(budgets), end=end, pad=1))
    for own, expected in zip(found, naive, strict=True):
        stop = np.flatnonzero(expected == end)
        assert own.tolist() == expected[: stop[0] + 1 if len(stop) else None].tolist()


def test_a_row_goes_on_no_further_than_its_budget(tiny_causal: Any) -> None:
    """Beside one that does: after a long prompt it would come to positions that the model does not have."""
    model, rng = tiny_causal("gpt2", max_position_embeddings=40), np.random.default_rng(0)
    rows = torch.from_numpy(rng.integers(3, 400, size=(3, 30)))
    prompts, budgets = (30, 8, 8), (8, 30, 4)
    batch = prompt_batch(rows, torch.tensor(prompts), torch.tensor(budgets), end=400, pad=1)
    found = generate(model, batch)
    for own, row, prompt, budget in zip(found, rows.numpy(), prompts, budgets, strict=True):
        assert own.tolist() == alone(model, row[:prompt], budget).tolist()


@pytest.mark.parametrize("adapted", [False, True])
def test_habits_of_an_instruct_model_do_not_decide(tiny_causal: Any, adapted: bool) -> None:
    """Such as those of Qwen2.5-Instruct; they are still the model's afterwards."""
    model = tiny_causal()
    rows = torch.from_numpy(np.random.default_rng(0).integers(3, 400, size=(2, 9)))
    batch = prompt_batch(rows, torch.tensor([9, 9]), torch.tensor([30, 30]), end=2, pad=1)
    plain = [row.tolist() for row in generate(model, batch)]
    habits = {"repetition_penalty": 5.0, "no_repeat_ngram_size": 2, "num_beams": 3, "do_sample": True}
    own = GenerationConfig(**habits, suppress_tokens=[plain[0][0]], min_new_tokens=3)
    model.generation_config = own
    asked: Any = get_peft_model(model, LoraConfig(r=2, task_type="CAUSAL_LM")) if adapted else model
    assert [row.tolist() for row in generate(asked, batch)] == plain
    assert model.generation_config is own


def alone(model: Any, row: np.ndarray, budget: int) -> np.ndarray:
    ids = torch.from_numpy(row)
    with torch.no_grad():
        for _ in range(budget):
            ids = torch.cat([ids, model(input_ids=ids[None], use_cache=False).logits[0, -1:].argmax(-1)])
    return ids[len(row) :].numpy()


def test_prompts_alone_are_read_in_generation(tiny_causal: Any, byte_level: Any) -> None:
    """The right answer, which is in the batch, must not leak into the generated one."""
    task, model = task_of(), tiny_causal()
    examples = task.encode([NOTE], byte_level)
    without = task.encode([replace(NOTE, spans=NOTE.spans, relations=())], byte_level)
    pairs = zip(
        task.predict(model, task.collate(examples)), task.predict(model, task.collate(without)), strict=True
    )
    for (one, other), example in zip(pairs, examples, strict=True):
        if example.question.kind == "re":
            assert one.tolist() == other.tolist()
        assert len(one) <= example.budget


def test_long_sentences_are_cut_at_blanks(byte_level: Any) -> None:
    task = task_of(max_length=320)
    text = "Fever " + "and more " * 80 + "pain."
    document = Document(
        "long", text, spans=(Span(0, 5, "problem"), Span(len(text) - 5, len(text) - 1, "problem"))
    )
    examples = task.encode([document], byte_level)
    asked = [each.question for each in examples if each.question.main is None]
    assert len(asked) > 2
    assert " ".join(text[each.start : each.end] for each in asked) == text
    for example in examples:
        tokens = byte_level(text[example.question.start : example.question.end], add_special_tokens=False)
        longest = byte_level(mark("x", [Span(0, 1, "negation")]), add_special_tokens=False)["input_ids"]
        assert example.budget >= budget_of(len(tokens["input_ids"]), len(longest))
        assert example.prompt + example.budget <= 320
        assert len(example) <= 320


def panel(times: int) -> Document:
    """A sentence in which nearly every token is a mention."""
    names = ["K", "a", "P", "d", "c"] * times
    ends = list(accumulate(len(name) + 1 for name in names))
    spans = (Span(end - 1 - len(name), end - 1, "test") for end, name in zip(ends, names, strict=True))
    return Document("panel", " ".join(names), tuple(spans))


@pytest.mark.parametrize(("times", "longest"), [(3, 400), (15, 1800)])
def test_right_answers_that_are_trained_on_can_be_given(byte_level: Any, times: int, longest: int) -> None:
    """However many mentions there are, and within what a generated answer may have."""
    document, task = panel(times), task_of(tasks=["ner"], mentions=["test"], max_length=longest)
    examples = task.training_examples([document], byte_level)
    assert all(len(ideal(example)) <= example.budget for example in examples)
    answers = [ideal(example) for example in examples]
    (found,) = task.decode([document], examples, answers)
    assert found.spans == document.spans


def test_cuts_are_between_mentions_where_they_can_be(byte_level: Any) -> None:
    text = "Severe chest pain " * 12
    spans = tuple(Span(start, start + 17, "problem") for start in range(0, len(text), 18))
    document, task = Document("long", text, spans), task_of(tasks=["ner"], max_length=300)
    examples = task.training_examples([document], byte_level)
    assert len(examples) > 1
    (found,) = task.decode([document], examples, [ideal(example) for example in examples])
    assert found.spans == spans


def test_documents_that_are_scored_are_cut_whatever_is_annotated(byte_level: Any) -> None:
    """And are no longer than a model may read, though a right answer may be cut off."""
    document, task = panel(15), task_of(tasks=["ner"], mentions=["test"], max_length=1800)
    examples = task.encode([document], byte_level)
    plain = task.encode([replace(document, spans=())], byte_level)
    assert [example.question for example in examples] == [example.question for example in plain]
    assert all(len(example) <= 1800 for example in examples)
    cut = [ideal(example)[: example.budget] for example in examples]
    scores = task.score([document], task.decode([document], examples, cut))
    assert scores["ner_precision"] == 1.0
    assert 0.0 < scores["ner_recall"] < 1.0
    assert scores["unfinished_left_out"] > 0


def test_documents_in_which_nobody_looked_for_relations_are_asked_for_and_count_for_mentions(
    byte_level: Any,
) -> None:
    """Whatever modifiers are found in them."""
    task, lacking = task_of(), LACKING
    assert {example.question.kind for example in task.encode([lacking], byte_level)} == {"ner"}
    assert task.scorable(lacking) and not task_of(tasks=["re"]).scorable(lacking)
    mentions = tuple(span for span in NOTE.spans if span.label in ("problem", "drug"))
    perfect = Extracted(mentions, triples_of(NOTE))
    assert task.score([NOTE, lacking], [perfect, perfect])["re_f1"] == 1.0
    alone = task.score([lacking], [perfect])
    assert alone["f1"] == alone["ner_f1"] == 1.0
    assert not [name for name in alone if name.startswith("re_")]


def test_tags_that_a_tokenizer_garbles_and_too_little_room_are_told(word_piece: Any, byte_level: Any) -> None:
    names = {**word_piece.special_tokens_map, "eos_token": "[SEP]"}
    ending = type(word_piece)(tokenizer_object=word_piece.backend_tokenizer, **names)
    with refused(ConfigurationError, "not_supported", at="model.tokenizer", values=["extract"]):
        task_of().encode([], ending)
    with refused(ConfigurationError, "out_of_range", at="task.max_length", values=["100"]):
        task_of(templates="full", max_length=100).encode([NOTE], byte_level)


def test_a_template_of_ones_own_goes_with_the_model(tmp_path: Path, byte_level: Any) -> None:
    (tmp_path / "ner.txt").write_text("Say it: {{{input}}}\n", encoding="utf-8")
    own = Extraction(tasks=["ner"], templates=TemplateFiles(ner=str(tmp_path / "ner.txt")), max_length=400)
    task = own.fitted({"a": Split(train=(NOTE,))})
    (tmp_path / "ner.txt").unlink()
    again = task.restored(())
    assert words(again.encode([NOTE], byte_level)[0])[0] == "Say it: {Denies fever.}\n"


def test_a_chat_template_is_used_where_there_is_one(byte_level: Any) -> None:
    chatty = type(byte_level)(tokenizer_object=byte_level.backend_tokenizer, **byte_level.special_tokens_map)
    chatty.chat_template = (
        "{% for m in messages %}<s>[{{ m.role }}] {{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %} [assistant] {% endif %}"
    )
    prompt, _ = words(task_of(tasks=["ner"]).encode([NOTE], chatty)[0])
    assert prompt == "[user] Mentions: Denies fever.\nMarked:\n [assistant] "
    example = task_of(tasks=["ner"]).encode([NOTE], chatty)[0]
    assert example.input_ids.tolist().count(0) == 1  # one token that begins a text, and not two
    never, _ = words(task_of(tasks=["ner"], chat="never").encode([NOTE], chatty)[0])
    assert never == "Mentions: Denies fever.\nMarked:\n"

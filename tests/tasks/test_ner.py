from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import category, name

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from support import problems_of, refused

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.readers import read
from fedstrata.data.select import types_of
from fedstrata.data.split import Split
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.tasks.windows import Window

TOKENIZERS = ["byte_level", pytest.param("word_piece", marks=pytest.mark.slow)]
TYPES = ("drug", "problem", "test")
SHORT, LONG = (
    NamedEntityRecognition(max_length=16, stride=4),
    NamedEntityRecognition(max_length=512, stride=0),
)
WORDS = ["chest", "pain", "5mg", "aspirin", "b.i.d.", "naïve", "体温38", "😀", "metoprolol,", "(CT)", "I"]
BLANKS = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", " \r\n\r\n "]


def ner(
    task_settings: NamedEntityRecognition = SHORT, types: tuple[str, ...] = TYPES
) -> NamedEntityRecognition:
    return task_settings.of_types(types)


@st.composite
def annotated_words(draw: st.DrawFn) -> Document:
    """A note whose mentions are runs of whole words, some adjacent, none overlapping."""
    text, mentions, start = "", [], None
    label = ""
    for word in draw(st.lists(st.sampled_from(WORDS), max_size=40)):
        text += draw(st.sampled_from(BLANKS))
        if start is not None and draw(st.booleans()):
            mentions.append(Span(start, len(text.rstrip()), label))
            start = None
        if start is None and draw(st.booleans()):
            start, label = len(text), draw(st.sampled_from(TYPES))
        text += word
    if start is not None:
        mentions.append(Span(start, len(text), label))
    return Document("note", text + draw(st.sampled_from(["", *BLANKS])), tuple(mentions))


@st.composite
def annotated_anywhere(draw: st.DrawFn) -> Document:
    """A note whose mentions begin and end at any character, and may overlap, nest or be discontinuous."""
    pieces = draw(st.lists(st.sampled_from(WORDS + BLANKS), min_size=1, max_size=20))
    text = "".join(pieces)
    mentions = set()
    for _ in range(draw(st.integers(0, 6))):
        start, end = sorted(draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=2)))
        if end - start >= 3 and draw(st.booleans()):
            mentions.add(Span(start, end, draw(st.sampled_from(TYPES)), ((start, start + 1), (end - 1, end))))
        elif start < end:
            mentions.add(Span(start, end, draw(st.sampled_from(TYPES))))
    ordered = sorted(mentions, key=lambda span: (span.start, span.end, span.label, span.fragments))
    return Document("note", text, tuple(ordered))


def naive_tags(document: Document, offsets: list[tuple[int, int]], labels: tuple[str, ...]) -> list[str]:
    """Tags token by token and mention by mention."""
    tags = ["O"] * len(offsets)
    for span in sorted(
        document.spans, key=lambda s: (bool(s.fragments), -(s.end - s.start), s.start, s.label)
    ):
        touched = [i for i, (a, b) in enumerate(offsets) if a < b and a < span.end and b > span.start]
        tokens = range(touched[0], touched[-1] + 1) if touched else range(0)
        if all(tags[token] == "O" for token in tokens):
            for token in tokens:
                tags[token] = f"{'B' if token == tokens[0] else 'I'}-{span.label}"
    assert set(tags) <= set(labels)
    return tags


def naive_whole_words(text: str, tags: list[str], offsets: list[tuple[int, int]]) -> list[str]:
    """Carries the tag of each word's first token over the word, character by character."""

    def of_word(sign: str) -> bool:
        return category(sign)[0] == "M" or (
            sign.isalpha() and name(sign).split()[0] in {"LATIN", "GREEK", "CYRILLIC"}
        )

    def word(start: int, end: int) -> int | None:
        if start == end or not all(map(of_word, text[start:end])):
            return None
        while start > 0 and of_word(text[start - 1]):
            start -= 1
        return start

    whole = list(tags)
    words = [word(*pair) for pair in offsets]
    for token in range(1, len(tags)):
        if words[token] is not None and words[token] == words[token - 1]:
            whole[token] = "O" if whole[token - 1] == "O" else f"I-{whole[token - 1][2:]}"
    return whole


def naive_spans(tags: list[str], offsets: list[tuple[int, int]]) -> list[Span]:
    """Reads mentions off tags with a loop over tokens."""
    runs: list[tuple[str, list[int]]] = []
    previous = "O"
    for token, tag in enumerate(tags):
        if tag != "O" and (tag[0] == "B" or previous == "O" or previous[2:] != tag[2:]):
            runs.append((tag[2:], [token]))
        elif tag != "O":
            runs[-1][1].append(token)
        previous = tag
    found = []
    for label, tokens in runs:
        solid = [offsets[token] for token in tokens if offsets[token][0] < offsets[token][1]]
        if solid:
            found.append(Span(min(a for a, _ in solid), max(b for _, b in solid), label))
    return sorted(found, key=lambda span: (span.start, span.end, span.label))


def own(windows: list[Window], attribute: str) -> list[Any]:
    return [value for window in windows for value in getattr(window, attribute)[window.owned].tolist()]


LONG_MENTION = Document("long", "severe chest pain " * 12, (Span(7, 18 * 12 - 1, "problem"),))


@given(documents=st.lists(annotated_words(), min_size=1, max_size=3))
@example(documents=[LONG_MENTION])
def test_gold_tags_decode_to_the_annotated_mentions(tokenizer: Any, documents: list[Document]) -> None:
    task = ner()
    windows = task.encode(documents, tokenizer)
    answers = task.decode(documents, windows, [window.tags for window in windows])
    assert answers == [document.spans for document in documents]
    scores = task.score(documents, answers)
    assert scores["f1"] == (1.0 if any(document.spans for document in documents) else 0.0)


OVERLAPPING = (Span(0, 5, "problem"), Span(0, 17, "problem"), Span(6, 17, "test"), Span(18, 23, "drug"))
BROKEN = Span(0, 18, "problem", ((0, 4), (15, 18)))


@pytest.mark.parametrize("tokenizer", TOKENIZERS, indirect=True)
@given(document=annotated_anywhere())
@example(document=Document("the longest", "chest pain severe fever", OVERLAPPING))
@example(document=Document("an envelope", "left and right arm", (BROKEN,)))
@example(document=Document("a continuous one", "left and right arm", (BROKEN, Span(9, 14, "test"))))
@example(document=Document("within a token", "pain", (Span(0, 3, "problem"),)))
def test_tags_equal_those_of_a_loop_over_tokens(tokenizer: Any, document: Document) -> None:
    task = ner()
    windows = task.encode([document], tokenizer)
    offsets = [tuple(pair) for pair in own(windows, "offsets")]
    tags = [task.classes[tag] for tag in own(windows, "tags")]
    assert tags == naive_tags(document, offsets, task.classes)


@pytest.mark.parametrize("tokenizer", TOKENIZERS, indirect=True)
@given(text=annotated_words().map(lambda d: d.text), whole_words=st.booleans(), data=st.data())
def test_any_tags_decode_as_in_a_loop_however_the_text_is_cut(
    tokenizer: Any, text: str, whole_words: bool, data: st.DataObject
) -> None:
    documents = [Document("note", text)]
    answers = []
    tags = np.zeros(0, dtype=np.int16)
    for cut in (LONG, SHORT):
        task = ner(cut.model_copy(update={"whole_words": whole_words}))
        windows = task.encode(documents, tokenizer)
        offsets = [tuple(pair) for pair in own(windows, "offsets")]
        if cut is LONG:
            count = len(offsets)
            tags = np.array(data.draw(st.lists(st.integers(0, 6), min_size=count, max_size=count)), np.int16)
        predictions, done = [], 0
        for window in windows:
            row = np.full(len(window), 3, dtype=np.int16)  # what is not owned must not count
            row[window.owned] = tags[done : done + window.owned.sum()]
            done += window.owned.sum()
            predictions.append(row)
        answers.append(task.decode(documents, windows, predictions)[0])
        names = [task.classes[tag] for tag in tags]
        if whole_words:
            names = naive_whole_words(text, names, offsets)
        assert list(answers[-1]) == naive_spans(names, offsets)
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("tagged", "whole", "pieces"),
    [
        (["metop"], ["metoprolol"], ["metop"]),  # the first piece of a word decides
        (["olol"], [], ["ol"]),
        (["5"], ["5"], ["5"]),  # a number is no part of the word after it
        (["体"], ["体"], ["体"]),  # nor is a sentence without blanks one word
    ],
)
def test_the_first_token_of_a_word_decides_for_all_of_it(
    byte_level: Any, tagged: list[str], whole: list[str], pieces: list[str]
) -> None:
    text = "metoprolol 5mg 体温高"
    document = Document("note", text)
    for whole_words, expected in ((True, whole), (False, pieces)):
        task = ner(NamedEntityRecognition(whole_words=whole_words))
        (window,) = task.encode([document], byte_level)
        stretches = [(text.index(part), text.index(part) + len(part)) for part in tagged]
        inside = [any(a <= s and e <= b for a, b in stretches) and s < e for s, e in window.offsets]
        tags = np.where(inside, task.classes.index("I-drug"), 0).astype(np.int16)
        (spans,) = task.decode([document], [window], [tags])
        assert [text[span.start : span.end] for span in spans] == expected, whole_words


def test_notes_without_a_token_have_no_mentions(tokenizer: Any) -> None:
    documents = [
        Document("empty", ""),
        Document("note", "fever", (Span(0, 5, "problem"),)),
        Document("none", ""),
    ]
    task = ner()
    windows = task.encode(documents, tokenizer)
    assert [window.document for window in windows] == [1]
    assert task.decode(documents, windows, [window.tags for window in windows]) == [
        (),
        documents[1].spans,
        (),
    ]
    assert task.encode(documents[:1], tokenizer) == []
    assert task.decode(documents[:1], [], []) == [()]
    assert task.score(documents[:1], [()])["f1"] == 0.0


def test_the_task_of_a_corpus_has_the_types_of_all_clients_training_documents() -> None:
    drug, test = (Document(label, "abc", (Span(0, 2, label),)) for label in ("drug", "test"))
    clients = {"north": Split((test,), (drug,)), "south": Split((drug,), (), (test,))}
    task = SHORT.fitted(clients)
    assert task.known_types == ("drug", "test")


def test_a_type_that_training_never_saw_is_refused_with_every_other(tokenizer: Any) -> None:
    drug, test, dose = (
        Document(f"a-{label}", "abc", (Span(0, 2, label),)) for label in ("drug", "test", "dose")
    )
    with pytest.raises(ConfigurationError) as error:
        SHORT.fitted({"north": Split((drug,), (test, test), (drug, dose))})
    assert problems_of(error.value) == [("data.types", "unknown_name")] * 2
    words = ("'test' (validation document 'a-test')", "'dose' (test document 'a-dose')", ": drug;")
    assert all(each in str(error.value) for each in words)
    with refused(ConfigurationError, "unknown_name", at="data.types", values=["'dose' (document 'a-dose')"]):
        ner().encode([drug, dose], tokenizer)


def test_a_corpus_without_mentions_is_refused() -> None:
    with refused(ConfigurationError, "nothing_to_learn", at="data", values=["1 training documents"]):
        SHORT.fitted({"north": Split((Document("a", "abc"),))})


NOTES = [
    Document("a", "severe chest pain, given aspirin 5mg", (Span(7, 17, "problem"), Span(25, 32, "drug"))),
    Document("b", "CT of the chest; no fever. " * 3, (Span(0, 2, "test"), Span(20, 25, "problem"))),
]


def test_the_loss_is_the_sum_over_owned_tokens(tokenizer: Any, make_model: Callable[[int], Any]) -> None:
    task, module = ner(), make_model(len(ner().classes))
    windows = task.encode(NOTES, tokenizer)
    loss, count = task.loss(module, task.collate(windows))
    expected = 0.0
    for window in windows:
        ids = torch.from_numpy(window.input_ids.astype(np.int64))[None]
        log_probabilities = module(ids).logits[0].log_softmax(-1).detach()
        for token in np.flatnonzero(window.owned):
            expected -= float(log_probabilities[token, window.tags[token]])
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert int(count) == sum(len(tokenizer(note.text, add_special_tokens=False).input_ids) for note in NOTES)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters() if p.grad is not None)


def test_a_causal_model_builds_no_cache_even_inside_a_peft_wrapper(tiny_model: Any, byte_level: Any) -> None:
    module = tiny_model("llama", config={"vocab_size": 400}).module
    asked: list[Any] = []
    module.model.register_forward_pre_hook(
        lambda _, __, kwargs: asked.append(kwargs.get("use_cache")), with_kwargs=True
    )
    task = ner()
    batch = task.collate(task.encode(NOTES, byte_level))
    task.predict(module, batch)
    task.predict(get_peft_model(module, LoraConfig(target_modules=["q_proj"])), batch)
    assert asked == [False, False]


@pytest.mark.parametrize(
    ("tokenizer", "make_model"), [("byte_level", "llama"), ("word_piece", "bert")], indirect=True
)
def test_a_model_learns_the_mentions(tokenizer: Any, make_model: Callable[[int], Any]) -> None:
    task, module = ner(), make_model(len(ner().classes))
    windows = task.encode(NOTES, tokenizer)
    batch = task.collate(windows)
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-3)
    for _ in range(60):
        loss, count = task.loss(module, batch)
        (loss / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    answers = task.decode(NOTES, windows, task.predict(module, batch))
    scores = task.score(NOTES, answers)
    assert scores["f1"] == 1.0
    assert {name for name in scores if "/" not in name} == set(task.metrics)
    assert {name.split("/")[1] for name in scores if "/" in name} == set(task.known_types)


def test_nearly_all_mentions_of_real_notes_can_be_reached(
    data_root: Path, tmp_path: Path, byte_level: Any
) -> None:
    folder = data_root / "maccrobat2020" / "brat"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}")
    for path in sorted(folder.glob("*.ann"))[:30]:
        for file in (path, path.with_suffix(".txt")):
            (tmp_path / file.name).symlink_to(file.resolve())
    documents = read(tmp_path, "brat")
    task = NamedEntityRecognition(max_length=128, stride=32).of_types(types_of(documents, "spans"))
    windows = task.encode(documents, byte_level)
    answers = task.decode(documents, windows, [window.tags for window in windows])
    mentions, lost, misaligned = 0, 0, 0
    for document, answer in zip(documents, answers, strict=True):
        gold = set(document.spans)
        mentions += len(gold)
        for span in gold - set(answer):
            lost += 1
            overlapping = any(one.start < span.end and span.start < one.end for one in gold - {span})
            misaligned += not (span.fragments or overlapping)
    assert mentions > 2500
    assert lost - misaligned < 0.03 * mentions  # what flat tags cannot hold
    assert misaligned < 0.002 * mentions  # slips of annotators, such as a word without its end
    for index, document in enumerate(documents):
        covered = np.zeros(len(document.text), dtype=bool)
        for start, end in own([window for window in windows if window.document == index], "offsets"):
            covered[start:end] = True
        assert covered.tolist() == [not character.isspace() for character in document.text]


def test_a_task_comes_back_from_the_labels_of_a_model() -> None:
    assert ner(types=("test", "a drug")).classes == ("O", "B-a drug", "I-a drug", "B-test", "I-test")
    again = SHORT.restored(ner().classes)
    assert again.known_types == TYPES
    wrongs = (["O"], ["LABEL_0", "LABEL_1"], ["O", "B-x"], ["B-x", "I-x", "O"], ["O", "I-x", "B-x"])
    for wrong in wrongs:
        with refused(ConfigurationError, "conflict", at="model.name", values=["task ner"]):
            SHORT.restored(wrong)


def test_known_keeps_what_can_be_found_and_annotate_puts_an_answer_in_its_place() -> None:
    spans = (Span(0, 1, "gene"), Span(2, 3, "problem"))
    document = Document("x", "a b c", spans, labels=("428.0",), site="north", metadata={"kind": "note"})
    known = ner().known(document)
    assert (known.spans, known.labels) == ((Span(2, 3, "problem"),), ())
    annotated = ner().annotate(document, [Span(4, 5, "drug")])
    assert annotated.spans == (Span(4, 5, "drug"),)
    assert (annotated.text, annotated.site, annotated.metadata) == ("a b c", "north", {"kind": "note"})

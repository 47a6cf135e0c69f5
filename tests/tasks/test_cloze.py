"""Cloze questions: prompts and answers of every kind, losses against loops, SuperGLUE's scores by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import problems_of, refused
from torch.nn import functional as F

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.data.split import Split
from fedstrata.tasks.cloze import ClozeAnswer, ClozeQuestions
from fedstrata.tasks.questions import FORMS, OWN, ClozeExample, stretches
from fedstrata.tasks.windows import IGNORED


def document(task: str, number: int, labels: Sequence[str], pair: str | None = None, **more: str) -> Document:
    text = more.pop("text", f"Pain {number}.")
    metadata = {"superglue": task, **more}
    return Document(f"{task}-{number}", text, labels=tuple(labels), metadata=metadata, text_pair=pair)


COPA = {"question": "cause", "choice1": "He fell.", "choice2": "It rained."}
NOUNS = {"text": "Al saw Bo when *he* left.", "pronoun": "he"}
DOCUMENTS: dict[str, list[Document]] = {
    "rte": [document("rte", n, [name], "Pain.") for n, name in enumerate(["entailment", "not_entailment"])],
    "cb": [
        document("cb", n, [name], "Pain.")
        for n, name in enumerate(["contradiction", "entailment", "neutral"])
    ],
    "boolq": [document("boolq", n, [name], "is it pain") for n, name in enumerate(["true", "false"])],
    "wic": [document("wic", n, [name], "No pain.", word="pain") for n, name in enumerate(["true", "false"])],
    "copa": [document("copa", n, [f"choice{n + 1}"], **COPA) for n in range(2)],
    "multirc": [
        document("multirc", 0, ["choice2"], "Where?", choice1="arm", choice2="chest", choice3=""),
        document("multirc", 1, ["none"], "Why?", choice1="fever"),
    ],
    "record": [
        document(
            "record", 0, ["choice2", "choice3"], "It is @placeholder.", choice1="a", choice2="b", choice3="C."
        ),
        document("record", 1, ["choice1"], "Not @placeholder.", choice1="x y", choice2="y"),
    ],
    "wsc": [
        document("wsc", 0, ["choice2"], **NOUNS, choice1="Al", choice2="Bo", rival1="Al's cat"),
        document("wsc", 1, ["none"], **NOUNS, choice1="Al"),
    ],
}  # fmt: skip


def task_of(name: str, documents: Sequence[Document] = (), **changes: Any) -> ClozeQuestions:
    own = tuple(documents or DOCUMENTS[name])
    more = own if name != "wsc" else (*own, DOCUMENTS["wsc"][0])
    return ClozeQuestions(**changes).fitted({"a": Split(train=more)})


def words(example: ClozeExample, tokenizer: Any) -> tuple[str, list[str]]:
    """Returns the question and the answers of an example."""
    prompt = tokenizer.decode(example.prompt, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return prompt, [tokenizer.decode(own, clean_up_tokenization_spaces=False) for own in example.answers]


@pytest.mark.parametrize(
    ("name", "prompt", "answers", "rights"),
    [
        ("rte", 'Pain 0.\nQuestion: Does it follow that "Pain."?\nAnswer:', [" yes", " no"], [0, 1]),
        (
            "cb",
            'Pain 0.\nQuestion: Does it follow that "Pain."? Yes, no, or maybe?\nAnswer:',
            [" no", " yes", " maybe"],
            [0, 1, 2],
        ),
        ("boolq", "Pain 0.\nQuestion: is it pain?\nAnswer:", [" no", " yes"], [1, 0]),
        (
            "wic",
            '"Pain 0." / "No pain."\nQuestion: Similar sense of "pain"?\nAnswer:',
            [" no", " yes"],
            [1, 0],
        ),
        (
            "copa",
            '"He fell." or "It rained."?\nPain 0. The cause of this:',
            [" He fell.", " It rained."],
            [0, 1],
        ),
        ("multirc", 'Pain 0.\nQuestion: Where?\nIs it "arm"?\nAnswer:', [" yes", " no"], [1, 0, 1, 1]),
        (
            "record",
            "Pain 0.\nQuestion: It is @placeholder.\nHere @placeholder is",
            [" a", " b", " C."],
            [1, 0],
        ),
        (
            "wsc",
            'Al saw Bo when *he* left.\nThe pronoun "*he*" refers to',
            [" Al", " Bo", " Al's cat"],
            [1, -1],
        ),
    ],
)
def test_what_is_asked(
    byte_level: Any, name: str, prompt: str, answers: list[str], rights: list[int]
) -> None:
    task = task_of(name)
    examples = task.encode(DOCUMENTS[name], byte_level)
    assert words(examples[0], byte_level) == (prompt, answers)
    assert [example.right for example in examples] == rights
    trained = task.training_examples(DOCUMENTS[name], byte_level)
    assert [example.right for example in trained] == [right for right in rights if right >= 0]
    assert task.restored(()).metric_names == task.metric_names
    assert task.restored(()) == task


def test_every_kind_of_question_is_tried_here() -> None:
    assert set(FORMS) == {*DOCUMENTS, *OWN}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_loss_is_that_of_the_right_answers_tokens(tiny_causal: Any, byte_level: Any, name: str) -> None:
    task, model = task_of(name), tiny_causal(std=0.3)
    examples = task.training_examples(DOCUMENTS[name], byte_level)
    total, count = task.loss(model, task.collate(examples))
    expected, terms = 0.0, 0
    for example in examples:
        answer = example.answers[example.right]
        ids = torch.tensor([*example.prompt, *answer])
        logits = model(input_ids=ids[None]).logits[0, len(example.prompt) - 1 : -1]
        expected += F.cross_entropy(logits, torch.tensor(answer).long(), reduction="sum").item()
        terms += len(answer)
    assert int(count) == terms
    assert total.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_answers_depend_neither_on_labels_nor_the_batch(tiny_causal: Any, byte_level: Any, name: str) -> None:
    task, model = task_of(name), tiny_causal(std=0.3)
    whole = task.encode(DOCUMENTS[name], byte_level)
    blind = task.encode([replace(own, labels=()) for own in DOCUMENTS[name]], byte_level)
    found = task.predict(model, task.collate(whole))
    for one, other, example in zip(found, task.predict(model, task.collate(blind)), whole, strict=True):
        assert one.tolist() == pytest.approx(other.tolist(), abs=1e-4)
        (alone,) = task.predict(model, task.collate([example]))
        assert one.tolist() == pytest.approx(alone.tolist(), abs=1e-4)
        assert one.shape == (len(example.answers),)


def ideal(task: ClozeQuestions, examples: Sequence[ClozeExample]) -> list[np.ndarray]:
    """Log-likelihoods by which every right answer is the likeliest; with none, the last one is."""
    return [np.where(np.arange(len(e.answers)) == e.right % len(e.answers), -1.0, -9.0) for e in examples]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_right_answers_have_every_score(byte_level: Any, name: str) -> None:
    task, documents = task_of(name), DOCUMENTS[name]
    if name == "wsc":  # whose noun of no meaning has rivals, the last of which is the likeliest here
        assert len(task.encode(documents, byte_level)[1].answers) > 1
    examples = task.encode(documents, byte_level)
    answers = task.decode(documents, examples, ideal(task, examples))
    scores = task.score(documents, answers)
    assert {scores[metric] for metric in task.metrics} == {1.0}
    assert scores.keys() <= {*task.metric_names, "f1_labels_left_out", "auc_labels_left_out"}
    assert task.metric == task.metrics[0]
    for own, answer in zip(documents, answers, strict=True):
        again = task.annotate(own, answer)
        assert task.scorable(again) or again.labels == ("none",)
        assert task.known(again) == again
        assert set(again.labels) & set(own.labels)
        assert all(0.0 <= share <= 1.0 for share in answer.probabilities.values())


def answer(*labels: str) -> ClozeAnswer:
    return ClozeAnswer(labels, {})


def test_the_nouns_of_a_sentence_are_told_one_by_one() -> None:
    """By hand: of Al and Bo, Bo is right; of Al alone, none is."""
    task = task_of("wsc")
    assert task.score(DOCUMENTS["wsc"], [answer("choice2"), answer("none")]) == {"accuracy": 1.0}
    assert task.score(DOCUMENTS["wsc"], [answer("choice1"), answer("none")]) == {"accuracy": 1 / 3}
    assert task.score(DOCUMENTS["wsc"], [answer("none"), answer("choice1")]) == {"accuracy": 1 / 3}


def test_names_are_scored_by_their_words_against_the_nearest_right_one() -> None:
    task = task_of("record")
    assert task.score(DOCUMENTS["record"], [answer("choice1"), answer("choice2")]) == {
        "f1": pytest.approx((0.0 + 2 / 3) / 2),
        "exact_match": 0.0,
    }
    assert task.score(DOCUMENTS["record"], [answer("choice3"), answer("choice1")])["exact_match"] == 1.0


@given(
    truths=st.lists(st.lists(st.tuples(st.booleans(), st.floats(-9, 9)), min_size=1, max_size=4), min_size=1)
)
def test_choices_are_right_where_yes_is_likelier_than_no(
    truths: list[list[tuple[bool, float]]], byte_level: Any
) -> None:
    task, documents, predictions = task_of("multirc"), [], []
    for number, own in enumerate(truths):
        choices = {f"choice{place}": f"text {place}" for place in range(1, len(own) + 1)}
        right = [name for name, (truth, _) in zip(choices, own, strict=True) if truth]
        documents.append(document("multirc", number, right or ["none"], "Which?", **choices))
        predictions += [np.array([lead, 0.0]) for _, lead in own]
    examples = task.encode(documents, byte_level)
    answers = task.decode(documents, examples, predictions)
    for own, found in zip(truths, answers, strict=True):
        yes = [f"choice{place}" for place, (_, lead) in enumerate(own, start=1) if lead >= 0]
        assert list(found.labels) == (yes or ["none"])
        for share, (_, lead) in zip(found.probabilities.values(), own, strict=True):
            assert share == pytest.approx(1 / (1 + np.exp(-lead)))


def test_stretches_of_a_text_are_its_other_nouns() -> None:
    text = 'The city refused "the people" a permit because *they* feared them.'
    assert stretches(text, "The people", "they") == [
        "The city", "city refused", "a permit", "permit because", "feared them",
    ]  # fmt: skip
    assert stretches("One word", "three more words", "it") == []


@pytest.mark.parametrize("room", [64, 90])
def test_a_long_text_loses_its_end_and_nothing_else(byte_level: Any, room: int) -> None:
    long = replace(DOCUMENTS["boolq"][0], text="The patient denies fever. " * 30)
    task = task_of("boolq", [long, DOCUMENTS["boolq"][1]], max_length=room)
    example = task.encode([long], byte_level)[0]
    prompt, answers = words(example, byte_level)
    assert room - 3 <= len(example.prompt) + max(map(len, example.answers)) - 1 <= room
    assert prompt.endswith("\nQuestion: is it pain?\nAnswer:")
    assert long.text.startswith(prompt.partition("\n")[0])
    assert answers == [" no", " yes"]


def test_documents_of_ones_own(tmp_path: Path, byte_level: Any) -> None:
    (tmp_path / "own.txt").write_text("{text}\nKind {{x}}:\n{answer}\n", encoding="utf-8")
    documents = [Document("1", "Fever.", labels=("sign",)), Document("2", "Aspirin.", labels=("drug",))]
    clients = {"a": Split(train=tuple(documents))}
    own = ClozeQuestions(
        question="labels", template=str(tmp_path / "own.txt"), words={"sign": "finding"}, max_length=40
    )
    task = own.fitted(clients)
    (tmp_path / "own.txt").unlink()
    again = task.restored(())
    assert again.words == {"drug": "drug", "sign": "finding"}
    assert words(again.encode(documents, byte_level)[0], byte_level) == (
        "Fever.\nKind {x}:",
        ["\ndrug", "\nfinding"],
    )
    assert again.beyond_texts == ("", "") != task_of("rte").beyond_texts


CHOICELESS = [replace(own, metadata={"superglue": "copa", "question": "cause"}) for own in DOCUMENTS["copa"]]


@pytest.mark.parametrize(
    ("documents", "changes", "path", "code", "text"),
    [
        ([Document("x", "a", labels=("b",))], {}, "task.question", "missing", "copa"),
        ([*DOCUMENTS["rte"], *DOCUMENTS["cb"]], {}, "task.question", "conflict", "cb, rte"),
        (DOCUMENTS["rte"][:1], {}, "data.labels", "not_enough_data", "1 different labels"),
        (DOCUMENTS["rte"], {"words": {"maybe": "x"}}, "task.words", "unknown_name", "'maybe'"),
        (DOCUMENTS["rte"], {"words": {"entailment": "no"}}, "task.words", "duplicate", "'entailment' and"),
        (DOCUMENTS["rte"], {"words": {"entailment": " "}}, "task.words", "missing", "'entailment'"),
        (DOCUMENTS["copa"], {"words": {"choice1": "x"}}, "task.words", "no_effect", "question copa"),
        (CHOICELESS, {"template": "{answer}"}, "task.question", "conflict", "'copa-0' has 0, 0"),
        (DOCUMENTS["rte"], {"question": "labels"}, "task.template", "missing", "task.question labels"),
        (DOCUMENTS["rte"], {"template": "{answer} {word}"}, "task.template", "unknown_name", "{word}"),
        (DOCUMENTS["rte"], {"template": "Is it {answer}?"}, "task.template", "no_effect", "{answer}"),
        ([replace(own, labels=()) for own in DOCUMENTS["copa"]], {}, "data.path", "nothing_to_learn", "of a"),
    ],
)
def test_bad_settings_are_told(
    documents: list[Document], changes: dict[str, Any], path: str, code: str, text: str
) -> None:
    with refused(ConfigurationError, code, at=path, values=[text]) as caught:
        task_of("", documents, **changes)
    assert len(problems_of(caught.value)) == 1


def test_what_a_tokenizer_cannot_tell_apart_is_refused(word_piece: Any, byte_level: Any) -> None:
    task = task_of("rte", words={"entailment": "漢", "not_entailment": "字"})
    with refused(ConfigurationError, "conflict", at="task.words", values=["'漢'", "'字'"]):
        task.encode(DOCUMENTS["rte"], word_piece)
    with refused(ConfigurationError, "out_of_range", at="task.max_length", values=["32", "'rte-0'"]):
        task_of("rte", max_length=32).encode(DOCUMENTS["rte"], byte_level)
    with refused(ConfigurationError, "unknown_name", at="task.template", values=["{word}", "'rte-0'"]):
        task_of("wic").encode(DOCUMENTS["rte"], byte_level)


@pytest.mark.parametrize("kind", ["shuffled_labels", "shuffled_tokens", "label_flips"])
@pytest.mark.parametrize("name", ["cb", "multirc", "record"])
def test_a_corrupt_client_trains_on_other_answers_or_on_disorder(
    byte_level: Any, name: str, kind: str
) -> None:
    task = task_of(name)
    examples = task.training_examples(DOCUMENTS[name] * 3, byte_level)
    corrupt = task.corrupt(examples, kind, byte_level, Seed(0))
    assert len(corrupt) == len(examples)
    for one, other in zip(examples, corrupt, strict=True):
        assert len(one.prompt) == len(other.prompt)
        if kind == "shuffled_tokens":
            assert sorted(one.prompt) == sorted(other.prompt) and one.right == other.right
        if kind == "label_flips":
            assert other.right == (one.right + 1) % len(one.answers)
        assert (other.targets[len(other.prompt) - 1 :] == other.answers[other.right]).all()
        assert (other.targets[: len(other.prompt) - 1] == IGNORED).all()
    if kind == "shuffled_labels" and name == "cb":
        assert sorted(own.right for own in corrupt) == sorted(own.right for own in examples)
        assert [own.right for own in corrupt] != [own.right for own in examples]

"""Summaries by instruction: prompts, losses against loops, texts read back and scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import problems_of, refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.split import Split
from fedstrata.metrics.text import overlap_scores
from fedstrata.tasks.instruction.examples import Example
from fedstrata.tasks.summarize import Summarization
from fedstrata.tasks.windows import IGNORED

DIALOGUES = [
    Document(
        "1", "Doctor: Any pain?\nPatient: In my chest.", metadata={"section": "CC"}, text_pair="Chest pain."
    ),
    Document("2", "Doctor: Allergies?\nPatient: No.", metadata={"section": "ALLERGY"}, text_pair="None."),
]
SHORT = {"max_length": 200, "answer_length": 40}


def task_of(documents: Sequence[Document] = DIALOGUES, **changes: Any) -> Summarization:
    settings = Summarization(**{**SHORT, **changes})
    return settings.fitted({"a": Split(train=tuple(documents))})


def ideal(example: Example) -> np.ndarray:
    """The tokens of the right answer, the end token included."""
    return example.targets[example.prompt - 1 :]


def prompt_of(example: Example) -> str:
    ids = example.input_ids[: example.prompt]
    return example.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_a_dialogue_is_asked_for_its_section_and_a_text_for_a_summary(byte_level: Any) -> None:
    asked = prompt_of(task_of().encode(DIALOGUES, byte_level)[0])
    assert asked == f"### Dialogue\n{DIALOGUES[0].text}\n\n### Section of the note: CC\n"
    plain = [replace(document, metadata={}) for document in DIALOGUES]
    task = task_of(plain)
    assert prompt_of(task.encode(plain, byte_level)[0]) == f"### Text\n{plain[0].text}\n\n### Summary\n"
    assert task.beyond_texts == ("", "") != task_of().beyond_texts


def test_a_question_is_asked_with_the_turns_before_it_and_any_right_answer_counts(byte_level: Any) -> None:
    metadata = {"question": "Where?", "history": "Q: Any pain?\nA: Yes\n", "answer2": "The chest"}
    asked = [replace(DIALOGUES[0], metadata=metadata, text_pair="in my chest")]
    task = task_of(asked)
    expected = (
        f"### Passage\n{asked[0].text}\n\n### Conversation\nQ: Any pain?\nA: Yes\nQ: Where?\n\n### Answer\n"
    )
    assert prompt_of(task.encode(asked, byte_level)[0]) == expected
    assert task.score(asked, [("chest", True)])["exact_match"] == 1.0
    assert task.score([replace(asked[0], metadata={})], [("chest", True)])["exact_match"] == 0.0


def test_right_answers_have_every_score(byte_level: Any) -> None:
    task = task_of()
    examples = task.encode(DIALOGUES, byte_level)
    answers = task.decode(DIALOGUES, examples, [ideal(example) for example in examples])
    assert answers == [("Chest pain.", True), ("None.", True)]
    assert [task.annotate(*pair) for pair in zip(DIALOGUES, answers, strict=True)] == DIALOGUES
    scores = task.score(DIALOGUES, answers)
    assert scores.keys() == {*task.metric_names}
    # Of one word there is no pair, and of three no four.
    assert {name for name, value in scores.items() if value == 1.0} == {*scores} - {"rouge2", "bleu4"}


def test_scores_are_those_of_the_texts() -> None:
    answers = [("Pain in the chest.", True), ("", False)]
    scores = task_of().score(DIALOGUES, answers)
    assert scores["finished"] == 0.5
    assert scores["exact_match"] == 0.0
    assert scores["f1"] == pytest.approx((2 * 2 / 5) / 2)
    expected = overlap_scores(["Pain in the chest.", ""], ["Chest pain.", "None."])
    assert {name: scores[name] for name in expected} == expected


@pytest.mark.parametrize("loss_on", ["response", "full"])
def test_the_tokens_of_the_answer_count_or_all(byte_level: Any, loss_on: str) -> None:
    """What their loss is, tests of extraction and of cloze questions hold against loops."""
    for example in task_of(loss_on=loss_on).encode(DIALOGUES, byte_level):
        follows = [*example.input_ids[1:], example.end_id]
        asked = example.prompt - 1 if loss_on == "response" else 0
        assert example.targets.tolist() == [IGNORED] * asked + follows[asked:]


def test_what_is_too_long_is_cut_at_its_end(byte_level: Any) -> None:
    long = replace(DIALOGUES[0], text="Doctor: Any pain? " * 40, text_pair="Severe chest pain " * 20)
    task = task_of([long])
    (example,) = task.encode([long], byte_level)
    assert 157 <= example.prompt <= 160
    assert example.budget == 40
    assert prompt_of(example).endswith("\n\n### Section of the note: CC\n")
    answer = ideal(example)
    assert len(answer) == 40
    assert example.end_id not in answer  # it goes on, and its end is not learnt
    assert long.text_pair.startswith(byte_level.decode(answer)) if long.text_pair else False


def test_documents_without_a_second_text_are_answered_and_not_learnt_or_scored(byte_level: Any) -> None:
    alone = replace(DIALOGUES[0], text_pair=None)
    task = task_of([DIALOGUES[0], alone])
    assert len(task.encode([DIALOGUES[0], alone], byte_level)) == 2
    assert len(task.training_examples([DIALOGUES[0], alone], byte_level)) == 1
    assert [task.scorable(own) for own in (DIALOGUES[0], alone)] == [True, False]


def test_a_template_of_ones_own_goes_with_the_model(tmp_path: Path, byte_level: Any) -> None:
    (tmp_path / "own.txt").write_text("{section}? {{{text}}}\n", encoding="utf-8")
    task = task_of(template=str(tmp_path / "own.txt"))
    (tmp_path / "own.txt").unlink()
    again = task.restored(())
    assert prompt_of(again.encode(DIALOGUES, byte_level)[1]) == f"ALLERGY? {{{DIALOGUES[1].text}}}\n"


@pytest.mark.parametrize(
    ("documents", "changes", "path", "code", "text"),
    [
        ([replace(DIALOGUES[0], text_pair=" ")], {}, "data.path", "nothing_to_learn", "of a"),
        (DIALOGUES, {"template": "{text} {who}"}, "task.template", "unknown_name", "{section}, {text}"),
    ],
)
def test_bad_settings_are_told(
    documents: list[Document], changes: dict[str, Any], path: str, code: str, text: str
) -> None:
    with refused(ConfigurationError, code, at=path, values=[text]) as caught:
        task_of(documents, **changes)
    assert len(problems_of(caught.value)) == 1


def test_too_little_room_is_told(byte_level: Any) -> None:
    task = task_of(max_length=64, answer_length=32, template="{text}" + " and more" * 20)
    values = ["64", "32 tokens", "document '1'"]
    with refused(ConfigurationError, "out_of_range", at="task.max_length", values=values):
        task.encode(DIALOGUES, byte_level)
    with refused(
        ConfigurationError, "unknown_name", at="task.template", values=["{section}", "document '1'"]
    ):
        task_of().encode([replace(DIALOGUES[0], metadata={})], byte_level)

"""CoQA: questions about a passage, with the turns before them and all right answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read
from fedstrata.data.readers.coqa import right_answers


def turns(*texts: str) -> list[dict[str, Any]]:
    return [{"turn_id": number, "input_text": text, "rank": 0} for number, text in enumerate(texts, start=1)]


def conversation(**changes: Any) -> dict[str, Any]:
    return {
        "id": "c1",
        "source": "mctest",
        "filename": "x.txt",
        "story": "Cotton is a white kitten.",
        "questions": turns("Who is it? ", "Which colour?"),
        "answers": turns("Cotton", "white"),
        **changes,
    }


def write(path: Path, *conversations: dict[str, Any]) -> None:
    path.write_text(json.dumps({"version": "1.0", "data": conversations}), encoding="utf-8")


def test_a_question_comes_with_the_turns_before_it(tmp_path: Path) -> None:
    others = {
        "0": turns("A kitten", "It is white"), "1": turns(" ", ""), "2": turns("Cotton the kitten", "White."),
    }  # fmt: skip
    write(tmp_path / "coqa-train-v1.0.json", conversation())
    write(tmp_path / "coqa-dev-v1.0.json", conversation(additional_answers=others))
    dev, _, first, second = sorted(read(tmp_path, "coqa"), key=lambda own: own.id)
    common = {"patient": "c1", "source": "mctest", "split": "train"}
    assert second == Document(
        "coqa-train-v1.0/c1-2",
        "Cotton is a white kitten.",
        labels=("mctest",),
        metadata={**common, "question": "Which colour?", "history": "Q: Who is it?\nA: Cotton\n"},
        text_pair="white",
    )
    assert (first.metadata["history"], first.text_pair) == ("", "Cotton")
    assert dev.metadata["split"] == "validation"
    assert right_answers(dev) == ["Cotton", "A kitten", "Cotton the kitten"]
    assert right_answers(first) == ["Cotton"]


def test_questions_without_answers_are_the_input_of_a_prediction(tmp_path: Path) -> None:
    write(tmp_path / "x.json", conversation(answers=[]))
    _, second = read(tmp_path / "x.json", "coqa")
    assert second.text_pair is None
    assert second.metadata["history"] == "Q: Who is it?\nA: \n"


@pytest.mark.parametrize(
    ("changes", "code", "values"),
    [
        ({"answers": turns("SECRET")}, "conflict", []),
        ({"story": None}, "wrong_type", ["data.0.story"]),
        ({"questions": [{"turn_id": 1}]}, "missing", ["data.0.questions.0.input_text"]),
    ],
)
def test_files_that_cannot_be_used(
    tmp_path: Path, changes: dict[str, Any], code: str, values: list[object]
) -> None:
    write(tmp_path / "x.json", conversation(**changes))
    with refused(DataError, code, at="x.json", values=values) as raised:
        read(tmp_path / "x.json", "coqa")
    assert "SECRET" not in str(raised.value)

"""CoQA: the splits and all right answers; the turns before a question are in test_conformance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def test_all_right_answers_to_a_question_are_known(tmp_path: Path) -> None:
    others = {
        "0": turns("A kitten", "It is white"), "1": turns(" ", ""), "2": turns("Cotton the kitten", "White."),
    }  # fmt: skip
    write(tmp_path / "coqa-train-v1.0.json", conversation())
    write(tmp_path / "coqa-dev-v1.0.json", conversation(additional_answers=others))
    dev, _, first, _ = sorted(read(tmp_path, "coqa"), key=lambda own: own.id)
    assert (dev.metadata["split"], first.metadata["split"]) == ("validation", "train")
    assert right_answers(dev) == ["Cotton", "A kitten", "Cotton the kitten"]
    assert right_answers(first) == ["Cotton"]

"""What XSum's list and the names of CoQA's files say of splits, and CoQA's further right answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support import refused

from fedstrata.core.errors import DataError
from fedstrata.data.readers import read
from fedstrata.data.readers.coqa import right_answers

ARTICLE = "[SN]URL[SN]\nx\n\n[SN]TITLE[SN]\nx\n\n[SN]FIRST-SENTENCE[SN]\nRain.\n\n[SN]RESTBODY[SN]\nMore.\n"
LIST = "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json"


def test_the_list_of_xsum_says_which_part_an_article_is_of(tmp_path: Path) -> None:
    for name in ("10", "11", "12"):
        (tmp_path / f"{name}.summary").write_text(ARTICLE)
    split = {"test": ["12"], "train": ["10", "99"], "validation": ["11"]}
    (tmp_path / LIST).write_text(json.dumps(split))
    assert [own.metadata["split"] for own in read(tmp_path, "xsum")] == ["train", "validation", "test"]
    (tmp_path / LIST).write_text(json.dumps({**split, "test": []}))
    with refused(DataError, "not_found", at="12.summary", values=[LIST]):
        read(tmp_path, "xsum")


def turns(*texts: str) -> list[dict[str, Any]]:
    return [{"turn_id": number, "input_text": text} for number, text in enumerate(texts, start=1)]


def test_all_right_answers_of_coqa_are_known(tmp_path: Path) -> None:
    story = {"id": "c1", "source": "mctest", "story": "Cotton is a white kitten."}
    asked = {**story, "questions": turns("Who?", "Which colour?"), "answers": turns("Cotton", "white")}
    others = [turns("A kitten", "It is white"), turns(" ", ""), turns("Cotton the kitten", "White.")]
    more = {"additional_answers": {str(number): own for number, own in enumerate(others)}}
    for part, conversation in (("train", asked), ("dev", asked | more)):
        content = json.dumps({"version": "1.0", "data": [conversation]})
        (tmp_path / f"coqa-{part}-v1.0.json").write_text(content, encoding="utf-8")
    dev, _, first, _ = sorted(read(tmp_path, "coqa"), key=lambda own: own.id)
    assert (dev.metadata["split"], first.metadata["split"]) == ("validation", "train")
    assert right_answers(dev) == ["Cotton", "A kitten", "Cotton the kitten"]
    assert right_answers(first) == ["Cotton"]

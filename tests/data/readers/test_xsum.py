"""XSum: articles with their first sentence as the summary, split as the published list says."""

from __future__ import annotations

import json
from pathlib import Path

from support import refused

from fedstrata.core.errors import DataError
from fedstrata.data.readers import read

ARTICLE = "[SN]URL[SN]\nx\n\n[SN]TITLE[SN]\nx\n\n[SN]FIRST-SENTENCE[SN]\nRain.\n\n[SN]RESTBODY[SN]\nMore.\n"
LIST = "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json"


def test_the_published_list_says_which_part_an_article_is_of(tmp_path: Path) -> None:
    for name in ("10", "11", "12"):
        (tmp_path / f"{name}.summary").write_text(ARTICLE)
    split = {"test": ["12"], "train": ["10", "99"], "validation": ["11"]}
    (tmp_path / LIST).write_text(json.dumps(split))
    assert [own.metadata["split"] for own in read(tmp_path, "xsum")] == ["train", "validation", "test"]
    (tmp_path / LIST).write_text(json.dumps({**split, "test": []}))
    with refused(DataError, "not_found", at="12.summary", values=[LIST]):
        read(tmp_path, "xsum")

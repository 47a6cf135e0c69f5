"""XSum: articles with their first sentence as the summary, split as the published list says."""

from __future__ import annotations

import json
from pathlib import Path

from support import refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read

ARTICLE = (
    "[SN]URL[SN]\nhttp://x\n\n[SN]TITLE[SN]\nFloods\n\n[SN]FIRST-SENTENCE[SN]\nRain is expected.\n\n"
    "[SN]RESTBODY[SN]\nShare this with\nEmail\nUp to 60 mm [SN] could fall.\n\n Take care. \n"
)
LIST = "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json"


def test_the_published_list_says_which_part_an_article_is_of(tmp_path: Path) -> None:
    for name in ("10", "11", "12"):
        (tmp_path / f"{name}.summary").write_text(ARTICLE)
    split = {"test": ["12"], "train": ["10", "99"], "validation": ["11"]}
    (tmp_path / LIST).write_text(json.dumps(split))
    first, *others = read(tmp_path, "xsum")
    assert first == Document(
        "10",
        "Up to 60 mm [SN] could fall.\nTake care.",
        metadata={"title": "Floods", "split": "train"},
        text_pair="Rain is expected.",
    )
    assert [own.metadata["split"] for own in others] == ["validation", "test"]
    (tmp_path / LIST).write_text(json.dumps({**split, "test": []}))
    with refused(DataError, "not_found", at="12.summary", values=[LIST]):
        read(tmp_path, "xsum")

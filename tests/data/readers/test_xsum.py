"""XSum: articles with their first sentence as the summary, split as the published list says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
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
    (tmp_path / LIST).write_text(json.dumps({"test": ["12"], "train": ["10", "99"], "validation": ["11"]}))
    first, *others = read(tmp_path, "xsum")
    assert first == Document(
        "10",
        "Up to 60 mm [SN] could fall.\nTake care.",
        metadata={"title": "Floods", "split": "train"},
        text_pair="Rain is expected.",
    )
    assert [own.metadata["split"] for own in others] == ["validation", "test"]


def test_without_the_list_there_is_no_split(tmp_path: Path) -> None:
    (tmp_path / "10.summary").write_text(ARTICLE)
    assert "split" not in read(tmp_path, "xsum")[0].metadata


def test_an_article_without_a_summary_has_none(tmp_path: Path) -> None:
    (tmp_path / "10.summary").write_text(ARTICLE.replace("Rain is expected.", ""))
    assert read(tmp_path, "xsum")[0].text_pair is None


@pytest.mark.parametrize(
    ("article", "parts", "code", "values"),
    [
        ("SECRET", None, "missing", ["10.summary", "[SN]FIRST-SENTENCE"]),
        (ARTICLE.split("[SN]REST", maxsplit=1)[0], None, "missing", ["[SN]RESTBODY"]),
        (ARTICLE, '{"train": ["10"], "validation": ["10"], "test": []}', "duplicate", []),
        (ARTICLE, "{", "not_json", [LIST, "line 1"]),
        (ARTICLE, '{"train": ["10"]}', "wrong_form", []),
        (ARTICLE, '{"train": [], "validation": [], "test": ["11"]}', "not_found", ["XSum"]),
    ],
)
def test_files_that_cannot_be_used(
    tmp_path: Path, article: str, parts: str | None, code: str, values: list[object]
) -> None:
    (tmp_path / "10.summary").write_text(article)
    if parts is not None:
        (tmp_path / LIST).write_text(parts)
    with refused(DataError, code, values=values) as raised:
        read(tmp_path, "xsum")
    assert "SECRET" not in str(raised.value)

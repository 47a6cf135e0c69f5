"""JSON lines: every field, and every way a line can be refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support import refused

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read


def lines(*records: Any) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


FULL = {
    "id": "n1",
    "text": "left arm and leg weak\u2028\U0001f600",
    "spans": [
        {"start": 17, "end": 21, "label": "problem"},
        {"start": 0, "end": 16, "label": "body location", "fragments": [[0, 4], [13, 16]]},
    ],
    "relations": [{"head": 0, "tail": 1, "label": "body location"}],
    "labels": ["401.9", "V58.61"],
    "site": "north",
    "metadata": {"speciality": "neurology"},
}


def test_every_field(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(FULL) + b"\r\n" + lines({"text": ""}))
    assert read(tmp_path / "notes.jsonl", "jsonl") == [
        Document(
            id="n1",
            text="left arm and leg weak\u2028\U0001f600",
            spans=(Span(0, 16, "body location", ((0, 4), (13, 16))), Span(17, 21, "problem")),
            relations=(Relation(1, 0, "body location"),),
            labels=("401.9", "V58.61"),
            site="north",
            metadata={"speciality": "neurology"},
        ),
        Document("notes-2", ""),
    ]


def test_what_nobody_looked_for_and_what_is_said_of_a_mention(tmp_path: Path) -> None:
    mention = {"start": 3, "end": 8, "label": "problem", "assertion": "absent"}
    (tmp_path / "notes.jsonl").write_bytes(
        lines({"text": "No fever", "spans": [mention], "lacks_relations": True}, {"text": "Fever"})
    )
    first, second = read(tmp_path, "jsonl")
    assert (first.lacks_relations, second.lacks_relations) == (True, False)
    assert [span.assertion for span in first.spans] == ["absent"]


def test_compressed_files_of_a_site(tmp_path: Path) -> None:
    (tmp_path / "south").mkdir()
    (tmp_path / "south" / "notes.jsonl.gz").write_bytes(gzip.compress(lines({"id": "n", "text": "a"})))
    assert read(tmp_path, "jsonl") == [Document("south/n", "a", site="south")]


def test_a_record_of_another_site_than_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "south").mkdir()
    (tmp_path / "south" / "notes.jsonl").write_bytes(lines(FULL))
    with refused(DataError, "conflict", at="notes.jsonl", values=["n1", "'north'", "'south'"]):
        read(tmp_path, "jsonl")


@pytest.mark.parametrize(
    ("record", "code", "values"),
    [
        ({}, "missing", ["text:"]),
        (
            {**FULL, "spans": [{"start": 0, "end": 3, "label": "a", "x": 1}]},
            "unknown_key",
            ["spans.0.x"],
        ),
        ([FULL], "wrong_type", []),
        ({"text": 3}, "wrong_type", ["text:"]),
        ({"text": "SECRET", "spam": "SECRET"}, "unknown_key", ["spam", "'spans'"]),
        ({"text": "SECRET", "colour": "SECRET"}, "unknown_key", ["colour", "id, text"]),
        (
            {"text": "SECRET", "spans": [{"start": "0", "end": 3, "label": "a"}]},
            "wrong_type",
            ["spans.0.start"],
        ),
        (
            {"text": "SECRET", "spans": [{"start": 3, "end": 3, "label": "a"}]},
            "out_of_range",
            ["start 3", "end 3"],
        ),
        ({"text": "SECRET", "spans": [{"start": 0, "end": 7, "label": "a"}]}, "out_of_range", ["at 7"]),
        (
            {"text": "SECRET", "spans": [{"start": 0, "end": 3, "label": ""}]},
            "out_of_range",
            ["spans.0.label"],
        ),
        (
            {
                "text": "SECRET",
                "spans": [{"start": 0, "end": 5, "label": "a", "fragments": [[0, 2], [1, 5]]}],
            },
            "conflict",
            ["fragments"],
        ),
        (
            {
                "text": "SECRET",
                "spans": [{"start": 0, "end": 5, "label": "a", "fragments": [[0, 2], [3, 4]]}],
            },
            "conflict",
            ["fragments"],
        ),
        (
            {"text": "SECRET", "relations": [{"head": 0, "tail": 0, "label": "a"}]},
            "not_found",
            ["0 and 0", "of 0"],
        ),
        ({**FULL, "annotates": ["other"]}, "missing", ["annotates"]),
        ({**FULL, "lacks_relations": True}, "conflict", ["lacks_relations", "1 relations"]),
    ],
)
def test_errors_name_the_line_and_never_the_text(
    tmp_path: Path, record: Any, code: str, values: list[object]
) -> None:
    (tmp_path / "notes.jsonl").write_bytes(lines({"text": "SECRET"}) + b"\n" + lines(record))
    with refused(DataError, code, values=values) as raised:
        read(tmp_path, "jsonl")
    assert (raised.value.path, raised.value.line) == (tmp_path / "notes.jsonl", 3)
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize(
    "raw", [b'{"text": "SECRET"', b"SECRET", b'{"text": "SECRET\\ud800"}', b'{"text": "a"}{}']
)
def test_what_is_no_json_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "notes.jsonl").write_bytes(raw)
    with refused(DataError, "not_json", at="notes.jsonl", values=["line 1"]) as raised:
        read(tmp_path, "jsonl")
    assert "SECRET" not in str(raised.value)

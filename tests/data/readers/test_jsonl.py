"""JSON lines: every field, and every way a line can be refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

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
    with pytest.raises(DataError, match=r"document n1 names the site 'north' \(expected 'south'\)"):
        read(tmp_path, "jsonl")


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({}, "text: must be set"),
        (
            {**FULL, "spans": [{"start": 0, "end": 3, "label": "a", "x": 1}]},
            "spans.0.x: unknown key (expected",
        ),
        ([FULL], "must be an object"),
        ({"text": 3}, "text: must be a valid string"),
        ({"text": "SECRET", "spam": "SECRET"}, "spam: unknown key; did you mean 'spans'?"),
        ({"text": "SECRET", "colour": "SECRET"}, "colour: unknown key (expected one object of id, text,"),
        ({"text": "SECRET", "spans": [{"start": "0", "end": 3, "label": "a"}]}, "spans.0.start: "),
        ({"text": "SECRET", "spans": [{"start": 3, "end": 3, "label": "a"}]}, "start 3 is not before end 3"),
        ({"text": "SECRET", "spans": [{"start": 0, "end": 7, "label": "a"}]}, "a span ends at 7, after the"),
        ({"text": "SECRET", "spans": [{"start": 0, "end": 3, "label": ""}]}, "spans.0.label: "),
        (
            {
                "text": "SECRET",
                "spans": [{"start": 0, "end": 5, "label": "a", "fragments": [[0, 2], [1, 5]]}],
            },
            "fragments must be in order",
        ),
        (
            {
                "text": "SECRET",
                "spans": [{"start": 0, "end": 5, "label": "a", "fragments": [[0, 2], [3, 4]]}],
            },
            "fragments must be in order",
        ),
        ({"text": "SECRET", "relations": [{"head": 0, "tail": 0, "label": "a"}]}, "spans 0 and 0 of 0"),
        ({**FULL, "annotates": ["other"]}, "annotates does not name '"),
        ({**FULL, "lacks_relations": True}, "lacks_relations is true, and there are 1 relations"),
    ],
)
def test_errors_name_the_line_and_never_the_text(tmp_path: Path, record: Any, says: str) -> None:
    (tmp_path / "notes.jsonl").write_bytes(lines({"text": "SECRET"}) + b"\n" + lines(record))
    with pytest.raises(DataError) as raised:
        read(tmp_path, "jsonl")
    assert (raised.value.path, raised.value.line) == (tmp_path / "notes.jsonl", 3)
    assert says in str(raised.value)
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize(
    "raw", [b'{"text": "SECRET"', b"SECRET", b'{"text": "SECRET\\ud800"}', b'{"text": "a"}{}']
)
def test_what_is_no_json_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "notes.jsonl").write_bytes(raw)
    with pytest.raises(DataError, match="line 1: Invalid JSON") as raised:
        read(tmp_path, "jsonl")
    assert "SECRET" not in str(raised.value)

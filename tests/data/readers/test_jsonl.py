"""JSON lines: every field, and every way a line can be refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support import refused

from fedstrata.core.errors import DataError
from fedstrata.data.readers import read


def lines(*records: Any) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def test_what_nobody_looked_for_and_what_is_said_of_a_mention(tmp_path: Path) -> None:
    mention = {"start": 3, "end": 8, "label": "problem", "assertion": "absent"}
    (tmp_path / "notes.jsonl").write_bytes(
        lines({"text": "No fever", "spans": [mention], "lacks_relations": True}, {"text": "Fever"})
    )
    first, second = read(tmp_path, "jsonl")
    assert (first.lacks_relations, second.lacks_relations) == (True, False)
    assert [span.assertion for span in first.spans] == ["absent"]


def test_a_record_of_another_site_than_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "south").mkdir()
    (tmp_path / "south" / "notes.jsonl").write_text('{"id": "n1", "text": "", "site": "north"}')
    with refused(DataError, "conflict", at="notes.jsonl", values=["n1", "'north'", "'south'"]):
        read(tmp_path, "jsonl")

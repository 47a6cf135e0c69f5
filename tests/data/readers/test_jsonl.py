"""JSON lines and the sites of folders; all else of the format is in test_conformance and test_round_trips."""

from __future__ import annotations

from pathlib import Path

from support import refused

from fedstrata.core.errors import DataError
from fedstrata.data.readers import read


def test_a_record_of_another_site_than_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "south").mkdir()
    (tmp_path / "south" / "notes.jsonl").write_text('{"id": "n1", "text": "", "site": "north"}')
    with refused(DataError, "conflict", at="notes.jsonl", values=["n1", "'north'", "'south'"]):
        read(tmp_path, "jsonl")

"""MEDLINE as PubMed exports it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from support import refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read

RECORDS = """
PMID- 101
OWN - NLM
TI  - Fever in
      rats.
AB  - METHODS: Rats had
      fever - a rash.
AU  - Doe J
AU  - Roe R
PMID- 102
TI  - A title alone.

PMID- 103
AB  - An abstract alone.

PMID- 104
AU  - Nobody N
"""


def test_titles_and_abstracts_with_what_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.txt", "a.nbib", "a.nbib.gz"):
        content = RECORDS.replace("\n", "\r\n").encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        assert read(tmp_path / name, "medline") == [
            Document("101", "Fever in rats. METHODS: Rats had fever - a rash."),
            Document("102", "A title alone."),
            Document("103", "An abstract alone."),
        ]
    assert ": 1 records" in caplog.text


@pytest.mark.parametrize(
    ("content", "line", "code", "values"),
    [
        ("SECRET\n", 1, "malformed_data", ["TAG - VALUE"]),
        ("PMID- 1\nTI  - a\nSECRET\n", 3, "malformed_data", []),
        ("      SECRET\n", 1, "malformed_data", []),
        ("PMID- 1\nTI  - a\nTI  - SECRET\n", 3, "duplicate", ["TI"]),
        ("PMID- 1\nTI  - a\n\nTI  - SECRET\n", 4, "missing", []),
        ("PMID- SECRET of a note\nTI  - a\n", 1, "missing", ["PMID- NUMBER"]),
    ],
)
def test_errors_name_the_line_and_never_the_text(
    tmp_path: Path, content: str, line: int, code: str, values: list[object]
) -> None:
    (tmp_path / "a.txt").write_text(content)
    with refused(DataError, code, values=values) as raised:
        read(tmp_path, "medline")
    assert (raised.value.path, raised.value.line) == (tmp_path / "a.txt", line)
    assert "SECRET" not in str(raised.value)

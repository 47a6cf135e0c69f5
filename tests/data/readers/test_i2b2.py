"""i2b2-2010 concept files: lines from 1, tokens from 0, both ends included."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read


def corpus(tmp_path: Path, text: str, concepts: str | None) -> Path:
    (tmp_path / "note.txt").write_bytes(text.encode())
    if concepts is not None:
        (tmp_path / "note.con").write_bytes(concepts.encode())
    return tmp_path


def mentions(document: Document) -> list[tuple[str, str]]:
    return [(document.text[span.start : span.end], span.label) for span in document.spans]


def test_concepts_become_spans_of_the_untouched_text(tmp_path: Path) -> None:
    text = "1 .  CT of\tthe Head\nHistory of renal\ncarcinoma , COPD .\n"
    concepts = (
        'c="copd" 3:2 3:2||t="problem"\n'
        'c="renal carcinoma" 2:2 3:0||t="problem"\n'
        'c="ct of the head" 1:2 1:5||t="test"\n'
        'c="copd" 3:2 3:2||t="problem"\n'  # the released files repeat lines
    )
    (document,) = read(corpus(tmp_path, text, concepts), "i2b2")
    assert document.id == "note"
    assert document.text == text
    assert mentions(document) == [
        ("CT of\tthe Head", "test"),
        ("renal\ncarcinoma", "problem"),
        ("COPD", "problem"),
    ]


def test_official_sub_folders(tmp_path: Path) -> None:
    for site in ("beth", "partners"):
        for folder in ("txt", "concept", "ast", "rel"):
            (tmp_path / site / folder).mkdir(parents=True)
        (tmp_path / site / "txt" / "record-1.txt").write_text("No fever .\n")
        (tmp_path / site / "concept" / "record-1.con").write_text('c="fever" 1:1 1:1||t="problem"\n')
        (tmp_path / site / "ast" / "record-1.ast").write_text('c="fever" 1:1 1:1||t="problem"||a="absent"\n')
    documents = read(tmp_path, "i2b2")
    assert [(item.id, item.site, item.spans) for item in documents] == [
        ("beth/record-1", "beth", (Span(3, 8, "problem"),)),
        ("partners/record-1", "partners", (Span(3, 8, "problem"),)),
    ]
    (alone,) = read(tmp_path / "beth" / "txt" / "record-1.txt", "i2b2")
    assert alone.spans == documents[0].spans


@pytest.mark.parametrize("first", [1, 0])
def test_a_line_that_begins_with_blanks_may_begin_with_an_empty_token(tmp_path: Path, first: int) -> None:
    concepts = f'c="fever" 1:{first} 1:{first}||t="problem"\nc="cough" 2:0 2:0||t="problem"\n'
    (document,) = read(corpus(tmp_path, "  fever\ncough", concepts), "i2b2")
    assert mentions(document) == [("fever", "problem"), ("cough", "problem")]


def test_a_concept_that_begins_at_the_empty_token_begins_at_the_word(tmp_path: Path) -> None:
    concepts = 'c="high fever" 1:0 1:2||t="problem"\n'
    (document,) = read(corpus(tmp_path, " high fever", concepts), "i2b2")
    assert document.spans == (Span(1, 11, "problem"),)


def test_windows_files_and_marks_do_not_shift_anything(tmp_path: Path) -> None:
    text = "\ufeffChest pain .\r\n\r\nFever .\r\n"
    concepts = '\ufeffc="chest pain" 1:0 1:1||t="problem"\r\n\r\nc="fever" 3:0 3:0||t="problem"\r\n'
    (document,) = read(corpus(tmp_path, text, concepts), "i2b2")
    assert document.text == text[1:]
    assert mentions(document) == [("Chest pain", "problem"), ("Fever", "problem")]


def test_only_ascii_white_space_sets_tokens_apart(tmp_path: Path) -> None:
    text = " 10\u00a0mg\u2028of \U0001f48a STRASSE daily"
    (document,) = read(corpus(tmp_path, text, 'c="stra\u00dfe" 1:2 1:2||t="treatment"\n'), "i2b2")
    assert mentions(document) == [("STRASSE", "treatment")]


def test_quotation_marks_inside_a_concept(tmp_path: Path) -> None:
    (document,) = read(corpus(tmp_path, 'a " b', 'c="a " b" 1:0 1:2||t="problem"\n'), "i2b2")
    assert mentions(document) == [('a " b', "problem")]


def test_empty_files(tmp_path: Path) -> None:
    assert read(corpus(tmp_path, "", ""), "i2b2") == [Document("note", "")]


@pytest.mark.parametrize(
    ("concepts", "line", "says"),
    [
        ('c="secret" 1:0 1:0||t="problem"\nc="secret" 1:1 1:1||t="problem"\n', 2, "does not quote"),
        ('c="secret" 9:0 9:0||t="problem"\n', 1, "the text has no line 9, it has 2"),
        ('c="secret" 1:0 1:7||t="problem"\n', 1, "line 1 of the text has no token 7, it has 3"),
        ('c="secret" 0:0 0:0||t="problem"\n', 1, "the text has no line 0"),
        ('c="secret pain" 1:2 1:0||t="problem"\n', 1, "runs backwards, from 1:2 to 1:0"),
        ('c="" 2:0 2:0||t="problem"\n', 1, "has no token 0, it has 0"),
        ('c="secret" 1:0||t="problem"\n', 1, "malformed concept line"),
        ('c="secret" 1:0 1:0||t="problem"||a="absent"\n', 1, "malformed concept line"),
    ],
)
def test_errors_name_the_line_and_never_the_text(tmp_path: Path, concepts: str, line: int, says: str) -> None:
    folder = corpus(tmp_path, "Secret chest pain\n  ", concepts)
    with pytest.raises(DataError) as raised:
        read(folder, "i2b2")
    assert (raised.value.path, raised.value.line) == (folder / "note.con", line)
    assert says in str(raised.value)
    assert "ecret" not in str(raised.value)

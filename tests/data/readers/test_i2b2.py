"""i2b2-2010 concept files: lines from 1, tokens from 0, both ends included."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import refused

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read


def corpus(tmp_path: Path, text: str, concepts: str) -> Path:
    (tmp_path / "note.txt").write_bytes(text.encode())
    (tmp_path / "note.con").write_bytes(concepts.encode())
    return tmp_path


TEXT = "Aspirin for chest pain ,\nno fever .\n"
CONCEPTS = (
    'c="aspirin" 1:0 1:0||t="treatment"\n'
    'c="chest pain" 1:2 1:3||t="problem"\n'
    'c="fever" 2:1 2:1||t="problem"\n'
    'c="fever" 2:1 2:1||t="test"\n'
)


def with_further(tmp_path: Path, **files: str) -> Path:
    """A note with its concepts, and further files by their ending."""
    folder = corpus(tmp_path, TEXT, CONCEPTS)
    for suffix, content in files.items():
        (folder / f"note.{suffix}").write_text(content)
    return folder


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


def test_relations_and_assertions_are_of_the_concepts(tmp_path: Path) -> None:
    folder = with_further(
        tmp_path,
        ast=(
            'c="fever" 2:1 2:1||t="problem"||a="absent"\n\n'
            'c="chest  pain" 1:2 1:3||t="problem"||a="present"\n'
        ),
        rel=(
            'c="aspirin" 1:0 1:0||r="TrAP"||c="chest pain" 1:2 1:3\n'
            'c="chest pain" 1:2 1:3||r="PIP"||c="Fever" 2:1 2:1\n'
            'c="fever" 2:1 2:1||r="TeRP"||c="chest pain" 1:2 1:3\n'
            'c="aspirin" 1:0 1:0||r="TrAP"||c="chest pain" 1:2 1:3\n'
        ),
    )
    (document,) = read(folder, "i2b2")
    aspirin, pain, fever, also_fever = range(4)
    assert [(span.label, span.assertion) for span in document.spans] == [
        ("treatment", ""),
        ("problem", "present"),
        ("problem", "absent"),
        ("test", ""),
    ]
    # The first concept of a line is the head; of two at one place the relation's name says which.
    assert document.relations == (
        Relation(aspirin, pain, "TrAP"),
        Relation(pain, fever, "PIP"),
        Relation(also_fever, pain, "TeRP"),
    )
    assert not document.lacks_relations
    assert read(folder / "note.txt", "i2b2") == [document]


def test_relations_are_lacking_where_only_others_have_a_file_of_them(tmp_path: Path) -> None:
    for site, names in {"beth": "ab", "partners": "c"}.items():
        for folder in ("txt", "concept", "rel"):
            (tmp_path / site / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / site / "txt" / f"{name}.txt").write_text("No fever .\n")
            (tmp_path / site / "concept" / f"{name}.con").write_text("")
    assert not any(document.lacks_relations for document in read(tmp_path, "i2b2"))
    (tmp_path / "beth" / "rel" / "a.rel").write_text("")
    lacking = {document.id: document.lacks_relations for document in read(tmp_path, "i2b2")}
    assert lacking == {"beth/a": False, "beth/b": True, "partners/c": True}
    (alone,) = read(tmp_path / "beth" / "txt" / "b.txt", "i2b2")
    assert alone.lacks_relations


def test_what_is_said_of_concepts_needs_them_and_their_text(tmp_path: Path) -> None:
    folder = with_further(tmp_path, rel="")
    (folder / "note.con").unlink()
    with refused(DataError, "missing", at="note.rel", values=["note.con"]):
        read(folder, "i2b2")
    (folder / "note.con").write_text("")
    (folder / "other.ast").write_text("")
    with refused(DataError, "missing", at="other.ast"):
        read(folder, "i2b2")


BLANKS = "  fever\ncough"  # may begin with an empty token


@pytest.mark.parametrize(
    ("text", "concept", "found"),
    [
        pytest.param(BLANKS, 'c="fever" 1:1 1:1', "fever", id="at the word"),
        pytest.param(BLANKS, 'c="fever" 1:0 1:0', "fever", id="at the empty token"),
        pytest.param(BLANKS, 'c="cough" 2:0 2:0', "cough", id="the line after"),
        pytest.param(" high fever", 'c="high fever" 1:0 1:2', "high fever", id="from the empty token on"),
        pytest.param(
            " 10\u00a0mg\u2028of \U0001f48a STRASSE daily",
            'c="stra\u00dfe" 1:2 1:2',
            "STRASSE",
            id="ascii blanks",
        ),
        pytest.param('a " b', 'c="a " b" 1:0 1:2', 'a " b', id="quotation marks"),
    ],
)
def test_where_a_concept_is_in_the_text(tmp_path: Path, text: str, concept: str, found: str) -> None:
    (document,) = read(corpus(tmp_path, text, f'{concept}||t="problem"\n'), "i2b2")
    assert mentions(document) == [(found, "problem")]

"""Writing a corpus: whole or not at all, and only what can be read back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import refused

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import ConfigurationError, DataError
from fedstrata.data.readers import read
from fedstrata.data.writers import FORMATS, write


def test_layout_of_each_format(tmp_path: Path) -> None:
    document = Document("north/n1", "No fever.", (Span(3, 8, "problem"),), site="north")
    files = {
        "i2b2": ["north/n1.con", "north/n1.txt"],
        "brat": ["north/n1.ann", "north/n1.txt"],
        "conll": ["north/documents.conll"],
        "jsonl": ["north/documents.jsonl"],
        "mimic": ["ADMISSIONS.csv", "DIAGNOSES_ICD.csv", "NOTEEVENTS.csv", "PATIENTS.csv"],
    }
    assert sorted(files) == sorted(FORMATS)
    for format, expected in files.items():
        root = tmp_path / "new" / format
        write([document], root, format)
        assert sorted(str(path.relative_to(root)) for path in root.rglob("*.*")) == expected
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(files)


def test_exact_contents(tmp_path: Path) -> None:
    text = "No chest pain,\nfever 38.5"
    spans = (Span(3, 13, "problem"), Span(3, 8, "body location"), Span(15, 20, "problem"))
    document = Document(
        "n1",
        text,
        tuple(sorted(spans, key=lambda span: (span.start, span.end))),
        (Relation(1, 0, "body location"),),
    )
    for format in ("i2b2", "brat", "conll"):
        write([document], tmp_path / format, format)
    assert (tmp_path / "i2b2" / "n1.txt").read_text() == "No chest pain ,\nfever 38.5"
    assert (tmp_path / "i2b2" / "n1.con").read_text() == (
        'c="chest pain" 1:1 1:2||t="problem"\nc="fever" 2:0 2:0||t="problem"\n'
    )
    assert (tmp_path / "brat" / "n1.txt").read_text() == text
    assert (tmp_path / "brat" / "n1.ann").read_text() == (
        "T1\tbody_location 3 8\tchest\nT2\tproblem 3 13\tchest pain\nT3\tproblem 15 20\tfever\n"
        "R1\tbody_location Arg1:T1 Arg2:T2\n"
    )
    assert (tmp_path / "conll" / "documents.conll").read_text() == (
        "# newdoc id = n1\nNo\tO\nchest\tB-problem\npain\tI-problem\n,\tO\n\nfever\tB-problem\n38.5\tO\n\n"
    )


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("kept")
    for target in (tmp_path, tmp_path / "kept.txt"):
        with refused(ConfigurationError, "exists", values=[target]):
            write([Document("a", "x")], target, "brat")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("kept.txt", "kept")]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def documents() -> Iterator[Document]:
        yield Document("a", "x")
        raise KeyboardInterrupt

    (tmp_path / "empty").mkdir()
    with pytest.raises(KeyboardInterrupt):
        write(documents(), tmp_path / "empty", "mimic")
    with refused(DataError, "not_utf8", at="b.txt", values=["character 1"]):
        write([Document("a", "x"), Document("b", "x\ud800")], tmp_path / "new", "brat")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert not any((tmp_path / "empty").iterdir())


def test_an_empty_folder_is_filled_with_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write([Document("a", "x")], tmp_path / "empty", "jsonl")
    assert read(tmp_path / "empty", "jsonl") == [Document("a", "x")]
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "empty").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(
    ("format", "documents", "code", "values"),
    [
        ("brat", [Document("../a", "x")], "wrong_form", ["'../a'"]),
        ("brat", [Document(".a", "x")], "wrong_form", ["'.a'"]),
        ("i2b2", [Document("a\\b", "x")], "wrong_form", [repr("a\\b")]),
        ("jsonl", [Document("a", "x", site="..")], "wrong_form", ["'..'"]),
        ("conll", [Document("a\nb", "x")], "wrong_form", [repr("a\nb")]),
        ("conll", [Document("a", "x", site="test")], "reserved", ["'test'"]),
        (
            "brat", [Document("a", "x", site="training-north"), Document("b", "x", site="test-south")],
            "reserved", ["'test-south'"],
        ),
        (
            "conll", [Document("a", "x", metadata={"split": "fold-1"})], "unknown_name",
            ["'fold-1'", "train, validation or test"],
        ),
        ("brat", [Document("s/a", "x", site="s"), Document("a", "y", site="s")], "duplicate", ["'s/a'"]),
        ("brat", [Document("a", "x", site="s"), Document("b", "y")], "missing", ["'b'", "site"]),
        (
            "brat", [Document("a", "xyz", (Span(0, 1, "a b"), Span(1, 2, "a_b")))], "duplicate",
            ["'a_b'", "'a b'"],
        ),
        ("i2b2", [Document("a", "x", (Span(0, 1, 'a"b'),))], "wrong_form", [".con"]),
        ("i2b2", [Document("a", "x", (Span(0, 1, "b", assertion="no"),))], "unknown_name", ["'no'", ".ast"]),
    ],
)  # fmt: skip
def test_what_could_not_be_read_back_is_refused(
    tmp_path: Path, format: str, documents: list[Document], code: str, values: list[object]
) -> None:
    with refused(DataError, code, values=values):
        write(documents, tmp_path / "new", format)
    assert not any(tmp_path.iterdir())


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with refused(ConfigurationError, "unknown_name", values=["'bioc'", "i2b2, brat, conll, jsonl, mimic"]):
        write([], tmp_path / "new", "bioc")


@pytest.mark.parametrize("format", sorted(set(FORMATS) - {"jsonl"}))
def test_a_pair_of_texts_needs_json_lines(tmp_path: Path, format: str) -> None:
    pair = Document("n1", "SECRET fever", text_pair="SECRET too")
    with refused(DataError, "not_supported", values=["'n1'", "jsonl"]) as raised:
        write([pair], tmp_path / "corpus", format)
    assert "SECRET" not in str(raised.value)
    assert not any(tmp_path.iterdir())

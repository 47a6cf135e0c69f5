"""CoNLL columns in the forms they come in: tabs or blanks, three tag schemes, with and without documents."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import refused

import fedstrata as fs
from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read
from fedstrata.data.readers.tags import chunks, invalid_transition


def read_text(tmp_path: Path, content: str, name: str = "corpus.tsv") -> list[Document]:
    (tmp_path / name).write_bytes(content.encode())
    return read(tmp_path / name, "conll")


def mentions(document: Document) -> list[tuple[str, str]]:
    return [(document.text[span.start : span.end], span.label) for span in document.spans]


@pytest.mark.parametrize("separator", ["\t", " "])
def test_document_marks_comments_and_further_columns(tmp_path: Path, separator: str) -> None:
    rows = [
        ["-DOCSTART- -X- O"],
        [""],
        ["Chest", "NN", "B-problem"],
        ["pain", "NN", "I-problem"],
        [""],
        ["#", "SYM", "O"],
        ["CT", "NN", "B-test"],
        ["-DOCSTART- -X- O"],
        ["# newdoc id = note 2"],
        ["# sent_id = 1"],
        ["# a remark"],
        ["Fever", "NN", "B-problem"],
        ["#doc note-3"],
        [""],
    ]
    documents = read_text(tmp_path, "\r\n".join(separator.join(row) for row in rows), "a.conll")
    assert [(item.id, item.text) for item in documents] == [
        ("a-1", "Chest pain\n# CT"),
        ("a-2", ""),
        ("note 2", "Fever"),
        ("note-3", ""),
    ]
    assert mentions(documents[0]) == [("Chest pain", "problem"), ("CT", "test")]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-a I-a O B-a B-a I-a", ["0-1", "3-3", "4-5"]),  # IOB2
        ("I-a I-a O I-a B-a I-a", ["0-1", "3-3", "4-5"]),  # IOB1
        ("B-a E-a O S-a B-a E-a", ["0-1", "3-3", "4-5"]),  # BIOES
        ("B-a I-a E-a O O S-a", ["0-2", "5-5"]),
    ],
)
def test_the_three_schemes(tmp_path: Path, tags: str, expected: list[str]) -> None:
    content = "".join(f"{number} {tag}\n" for number, tag in enumerate(tags.split()))
    (document,) = read_text(tmp_path, content)
    assert [f"{text[0]}-{text[-1]}" for text, _ in mentions(document)] == expected


@given(st.lists(st.sampled_from(["O", "B-a", "B-b", "I-a", "I-b", "E-a", "S-b"]), min_size=1, max_size=4))
def test_chunks_agree_with_a_naive_reading_of_the_schemes(tags: list[str]) -> None:
    """Every way to lay non-overlapping chunks is tried: the tags are valid if one of them is spelled so."""

    def spell(layout: tuple[tuple[int, int, str], ...], scheme: str) -> list[str]:
        spelled = ["O"] * len(tags)
        for first, last, kind in layout:
            spelled[first : last + 1] = [f"I-{kind}"] * (last - first + 1)
            if scheme == "IOB2" or any(other[1] == first - 1 and other[2] == kind for other in layout):
                spelled[first] = f"B-{kind}"
            if scheme == "BIOES":
                spelled[first], spelled[last] = f"B-{kind}", f"E-{kind}"
                if first == last:
                    spelled[first] = f"S-{kind}"
        return spelled

    def layouts(start: int) -> list[tuple[tuple[int, int, str], ...]]:
        if start >= len(tags):
            return [()]
        found = layouts(start + 1)
        for last, kind in product(range(start, len(tags)), "ab"):
            found += [((start, last, kind), *rest) for rest in layouts(last + 1)]
        return found

    schemes = ["BIOES"] if any(tag[0] in "ES" for tag in tags) else ["IOB2", "IOB1"]
    valid = [layout for scheme in schemes for layout in layouts(0) if spell(layout, scheme) == tags]
    assert (invalid_transition([tags]) is None) == bool(valid)
    if valid:
        assert chunks(tags) == sorted(valid[0])


def test_a_file_is_read_in_one_scheme_throughout() -> None:
    assert invalid_transition([["I-a", "O"], ["O", "I-a", "B-a"]]) is None
    assert invalid_transition([["B-a", "O"], ["O", "I-a"]]) is not None
    assert invalid_transition([["B-a", "I-a"], ["S-a"]]) is not None


def test_a_line_with_tabs_is_no_comment(tmp_path: Path) -> None:
    (document,) = read_text(tmp_path, "#doc\tB-x\n#5=\tO\n")
    assert mentions(document) == [("#doc", "x")]
    assert document.text == "#doc #5="


def test_tabs_allow_blanks_inside_tokens_and_blanks_allow_no_break_spaces(tmp_path: Path) -> None:
    (document,) = read_text(tmp_path, "New York\tB-place\n10\u00a0mg\tO\n")
    assert document.text == "New York 10\u00a0mg"
    (document,) = read_text(tmp_path, "10\u00a0mg B-dosage\n")
    assert mentions(document) == [("10\u00a0mg", "dosage")]


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (["1\tNo\tDT\tO\tx", "2\tfever\tNN\tB-problem\tx"], {"token": 2, "tag": 4}),
        (["O  No", "B-problem   fever"], {"token": 2, "tag": 1}),
        (["No,DT,O", "fever,NN,B-problem"], {"separator": ","}),
        (["No it\tO", "#,fever\tB-problem"], {"separator": "\t"}),
    ],
)
def test_the_settings_say_which_columns_and_what_is_between(
    tmp_path: Path, rows: list[str], settings: dict[str, object]
) -> None:
    (tmp_path / "a.conll").write_text("# sent_id = 1\n" + "\n".join(rows) + "\n")
    (document,) = fs.read(tmp_path / "a.conll", "conll", conll=settings)
    assert [label for _, label in mentions(document)] == ["problem"]
    assert document.text.split()[-1].endswith("fever")


def test_a_file_without_the_column_that_is_named_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("SECRET\tO\n")
    with refused(DataError, "out_of_range", values=["line 1", "2 columns", "data.conll.tag", 5]):
        fs.read(tmp_path / "a.conll", "conll", conll={"tag": 5})

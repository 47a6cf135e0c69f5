"""Tables of pairs of mentions, a pair a row."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import refused

import fedstrata as fs
from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import DataError

ADE = {
    "names": ["from", "text", "effect", "e1", "e2", "drug", "d1", "d2"],
    "head": "drug",
    "tail": "effect",
    "id": "from",
    "head_type": "drug",
    "tail_type": "effect",
    "relation_type": "causes",
}
OFFSETS = {"head_start": "d1", "head_end": "d2", "tail_start": "e1", "tail_end": "e2"}


def documents_of(path: Path, content: str, name: str = "x.rel", **settings: object) -> list[Document]:
    (path / name).write_text(content)
    return fs.read(path / name, "relation_table", relation_table=settings)


def related(document: Document) -> list[tuple[str, str, str]]:
    words = [document.text[span.start : span.end] for span in document.spans]
    return [(words[item.head], item.label, words[item.tail]) for item in document.relations]


def test_offsets_of_the_whole_abstract_tell_which_of_several_places_is_meant(tmp_path: Path) -> None:
    """The sentence begins at character 100 of what the offsets count, and the drug occurs in it twice."""
    content = "7|Aspirin: rash after aspirin.|rash|109|113|aspirin|120|127\n"
    (document,) = documents_of(tmp_path, content, **ADE, **OFFSETS)
    assert document.spans == (Span(9, 13, "effect"), Span(20, 27, "drug"))
    content = "7|aspirin, rash, aspirin.|rash|1|5|aspirin|900|907\n"  # of some other text
    with refused(DataError, "ambiguous", at="x.rel", values=["line 1"]):
        documents_of(tmp_path, content, **ADE, **OFFSETS)


@pytest.mark.parametrize(
    ("text", "head", "place"),
    [
        ("Rash: the drug, not drugs.", "drug", (10, 14)),  # as a whole word
        ("Rash: Drug given.", "drug", (6, 10)),  # in other capitals
        ("Rash: antidrugs given.", "drug", (10, 14)),  # within a word
        ("Rash: beta  blocker.", "beta blocker", (6, 19)),  # with other white space
    ],
)
def test_words_alone_where_they_occur_once(
    tmp_path: Path, text: str, head: str, place: tuple[int, int]
) -> None:
    (document,) = documents_of(tmp_path, f"text|head|tail\n{text}|{head}|Rash\n")
    assert document == Document(
        "x-1", text, (Span(0, 4, "tail"), Span(*place, "head")), (Relation(1, 0, "related"),)
    )


def test_what_cannot_be_told_is_refused_or_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = "text|head|tail\nSECRET: drug, drug, rash.|drug|rash\nSECRET: drug, drug, rash.|SECRET|rash\n"
    content += "Rash, drug.|drug|Rash\nSECRET.|drug|rash\n"
    with pytest.raises(DataError) as raised:
        documents_of(tmp_path, content)
    assert (raised.value.line, "1 further texts" in str(raised.value)) == (2, True)
    assert "data.relation_table.unfound: skip" in str(raised.value)
    assert "SECRET" not in str(raised.value)
    assert [document.text for document in documents_of(tmp_path, content, unfound="skip")] == ["Rash, drug."]
    assert "2 of 3 texts" in caplog.text


def test_columns_of_types_and_patients_and_files_with_commas_and_tabs(tmp_path: Path) -> None:
    table = [["text", "head", "tail", "kind", "whose"], ['"Rash, drug."', "drug", "Rash", "causes", "p1"]]
    table.append(["Fever; codeine.", "codeine", "Fever", "", "p2"])
    for name, separator in (("x.csv", ","), ("x.tsv", "\t"), ("x.txt", "|")):
        rows = "".join(separator.join(row) + "\n" for row in table)
        first, second = documents_of(tmp_path, rows, name, relation="kind", patient="whose")
        assert first.text == ("Rash, drug." if name == "x.csv" else '"Rash, drug."')
        assert [label for _, label, _ in related(first)] == ["causes"]
        assert (second.relations, len(second.spans), second.patient) == ((), 2, "p2")

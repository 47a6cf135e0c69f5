"""PubTator: titles, abstracts and mentions."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read
from fedstrata.data.readers.files import Source
from fedstrata.data.readers.pubtator import read as read_source

TITLE, ABSTRACT = "Fever in rats.", "Rats had fever | rash."


def article(*lines: str, name: str = "17", title: str = TITLE, abstract: str = ABSTRACT) -> str:
    return "\n".join(
        [f"{name}|t|{title}", f"{name}|a|{abstract}", *(f"{name}\t{line}" for line in lines), ""]
    )


def written(path: Path, content: str) -> Path:
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def test_title_abstract_and_mentions(tmp_path: Path) -> None:
    text = article("24\t29\tfever\tDisease\tD005334", "0\t5\tFever\tDisease\t", "9\t13\trats\tSpecies")
    written(tmp_path / "a.txt", f"\n{text}\n{article(name='PMC9')}".replace("\n", "\r\n"))
    assert read(tmp_path, "pubtator") == [
        Document(
            "17",
            f"{TITLE} {ABSTRACT}",
            (Span(0, 5, "Disease"), Span(9, 13, "Species"), Span(24, 29, "Disease")),
        ),
        Document("PMC9", f"{TITLE} {ABSTRACT}"),
    ]


def test_relations_concepts_and_composite_mentions_are_passed_over(tmp_path: Path) -> None:
    lines = (
        "24\t36\tfever | rash\tDisease\tD005334|D005076\tfever|rash",
        "CID\tD005334\tD005076",
        "Positive_Correlation\tD005334\tD005076\tNovel",
    )
    written(tmp_path / "a.pubtator.gz", article(*lines))
    (document,) = read(tmp_path, "pubtator")
    assert document.spans == (Span(24, 36, "Disease"),)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("9\t19\trats. Rats\tSpecies", f"{TITLE} {ABSTRACT}"),
        ("9\t18\trats.Rats\tSpecies", f"{TITLE}{ABSTRACT}"),
        ("23\t28\tfever\tDisease", f"{TITLE}{ABSTRACT}"),
    ],
)
def test_the_quotes_decide_what_stands_between_title_and_abstract(
    tmp_path: Path, line: str, text: str
) -> None:
    (document,) = read(written(tmp_path / "a.txt", article(line)), "pubtator")
    assert document.text == text


def test_a_title_alone_and_an_empty_abstract(tmp_path: Path) -> None:
    written(tmp_path / "a.txt", f"1|t|{TITLE}\n1\t0\t5\tFever\tDisease\n\n2|t|{TITLE}\n2|a|\n")
    assert [document.text for document in read(tmp_path, "pubtator")] == [TITLE, f"{TITLE} "]


def test_identical_copies_are_one_document_and_others_are_refused(tmp_path: Path) -> None:
    one, same, other = (
        article(f"{line}\tDisease") for line in ("0\t5\tFever", "0\t5\tFever ", "24\t29\tfever")
    )
    path = written(tmp_path / "a.txt", f"{one}\n{same}")
    assert len(read(path, "pubtator")) == 1
    written(path, f"{one}\n{other}")
    with refused(DataError, "duplicate", at="a.txt", values=["line 5", 17]):
        read(path, "pubtator")


@pytest.mark.parametrize(
    ("content", "line", "code", "values"),
    [
        ("17\t0\t5\tFever\tDisease", 1, "out_of_order", []),
        ("README SECRET", 1, "out_of_order", []),
        (article("0\t5\tFever"), 3, "missing", []),
        (article("0\t5\tFever\t "), 3, "missing", []),
        (article("5\t5\t\tDisease"), 3, "out_of_range", ["5 5"]),
        (article("0\tfive\tFever\tDisease"), 3, "wrong_form", []),
        (article("1\t6\tFever\tDisease"), 3, "misquoted", ["(Disease)", "1 6"]),
        (article("90\t95\tFever\tDisease"), 3, "misquoted", ["90 95"]),
        (article() + "18\t0\t5\tFever\tDisease", 3, "conflict", []),
        (article() + "17|a|SECRET", 3, "duplicate", []),
        (article() + "17 SECRET", 3, "malformed_data", []),
    ],
)
def test_errors_name_the_line_and_never_the_text(
    tmp_path: Path, content: str, line: int, code: str, values: list[object]
) -> None:
    path = written(tmp_path / "a.txt", content)
    with refused(DataError, code, values=values) as raised:
        read(path, "pubtator")
    assert (raised.value.path, raised.value.line) == (path, line)
    for secret in ("SECRET", "Fever in", "Rats had"):
        assert secret not in str(raised.value)


PASSAGES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=30)


@given(title=PASSAGES, abstract=PASSAGES, data=st.data())
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, title, abstract, data) -> None:
    text = f"{title} {abstract}"
    lines, spans = [], set()
    for _ in range(data.draw(st.integers(0, 3))):
        start, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
        if start < end and "\t" not in text[start:end]:
            lines.append(f"{start}\t{end}\t{text[start:end]}\tDisease")
            spans.add(Span(start, end, "Disease"))
    path = written(tmp_path_factory.mktemp("p") / "a.txt", article(*lines, title=title, abstract=abstract))
    (document,) = read_source(Source(path))
    assert document.text == text
    assert set(document.spans) == spans


def test_files_named_as_corpora_are_published(tmp_path: Path) -> None:
    for name in ("NCBItrainset_corpus", "NCBIdevelopset_corpus", "CDR_TestSet.PubTator"):
        written(tmp_path / f"{name}.txt", article())
    found = {document.id: document.metadata["split"] for document in read(tmp_path, "pubtator")}
    assert found == {
        "NCBItrainset_corpus/17": "train",
        "NCBIdevelopset_corpus/17": "validation",
        "CDR_TestSet.PubTator/17": "test",
    }


def test_the_forms_that_other_corpora_have(tmp_path: Path) -> None:
    """Documents right after each other or torn by blank lines, no abstract, unknown concepts, relations."""
    lines = [
        "17|t|Fever in rats.",
        "",
        "17|a|Rats had fever | rash.",
        "17\t0\t5\tFever\tDisease\t-1",
        "17\t9\t13\trats\tSpecies",
        "",
        "17\t24\t36\tfever | rash\tDisease\tD1|D2\tfever|rash",
        "17\tCID\tD1\t-1",
        "17\tAssociation\tD1\t10090\tNovel",
        "18|t|A title alone.",
        "18\t2\t7\ttitle\tThing\t-",
        "19|t|",
        "19|a|An abstract.",
    ]
    first, second, third = read(written(tmp_path / "a.txt", "\n".join(lines)), "pubtator")
    assert [(span.start, span.end) for span in first.spans] == [(0, 5), (9, 13), (24, 36)]
    assert (first.relations, second.text, third.text) == ((), "A title alone.", " An abstract.")
    assert second.spans == (Span(2, 7, "Thing"),)

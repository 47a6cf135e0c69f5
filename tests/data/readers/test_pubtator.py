"""PubTator: titles, abstracts and mentions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.documents import Span
from fedstrata.data.readers import read
from fedstrata.data.readers.files import Source
from fedstrata.data.readers.pubtator import read as read_source

TITLE, ABSTRACT = "Fever in rats.", "Rats had fever | rash."


def article(*lines: str, name: str = "17", title: str = TITLE, abstract: str = ABSTRACT) -> str:
    return "\n".join(
        [f"{name}|t|{title}", f"{name}|a|{abstract}", *(f"{name}\t{line}" for line in lines), ""]
    )


def written(path: Path, content: str) -> Path:
    path.write_bytes(content.encode())
    return path


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


def test_identical_copies_are_one_document(tmp_path: Path) -> None:
    one, same = (article(f"0\t5\tFever{end}\tDisease") for end in ("", " "))
    assert len(read(written(tmp_path / "a.txt", f"{one}\n{same}"), "pubtator")) == 1


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
        "20|t|A title.",
        "20|a|",
    ]
    first, second, third, fourth = read(written(tmp_path / "a.txt", "\n".join(lines)), "pubtator")
    assert [(span.start, span.end) for span in first.spans] == [(0, 5), (9, 13), (24, 36)]
    assert (first.relations, second.text, third.text) == ((), "A title alone.", " An abstract.")
    assert fourth.text == "A title. "
    assert second.spans == (Span(2, 7, "Thing"),)

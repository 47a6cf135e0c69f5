"""What is written is read back: exactly where the format can hold it, by its tokens where it cannot."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.data.readers import read
from fedstrata.data.writers import write

# Characters that break naive readers: line ends of all kinds, blanks of all kinds, a byte order mark, a
# combining accent, a character outside the basic plane, and the signs the formats give a meaning to.
AWKWARD = 'aB1. \n\r\t\v\x1c\x85\u00a0\u2028\ufeff\u0301\U0001f600İß#-|:;="/O'
TEXTS = st.one_of(st.text(alphabet=AWKWARD, max_size=40), st.text(max_size=40))
LABELS = st.sampled_from(["problem", "body location", "lab value", "Sign_symptom", "B-cell"])


def key(span: Span) -> tuple[int, int, str]:
    return span.start, span.end, span.label


@st.composite
def documents(draw: st.DrawFn, *, overlapping: bool = True, fragments: bool = True) -> Document:
    text = draw(TEXTS)
    offsets = st.integers(0, len(text))
    spans: list[Span] = []
    for _ in range(draw(st.integers(0, 5)) if text else 0):
        pieces = 2 if fragments and draw(st.booleans()) else 1
        cuts = sorted(draw(st.lists(offsets, min_size=2 * pieces, max_size=2 * pieces)))
        parts = tuple(zip(cuts[::2], cuts[1::2], strict=True))
        if any(start == end for start, end in parts):
            continue
        if not overlapping and any(cuts[0] < span.end and span.start < cuts[-1] for span in spans):
            continue
        spans.append(Span(cuts[0], cuts[-1], draw(LABELS), parts if pieces > 1 else ()))
    relations = []
    if spans:
        ends = st.integers(0, len(spans) - 1)
        relations = draw(st.lists(st.builds(Relation, ends, ends, LABELS), max_size=4))
    return Document("note-1", text, tuple(sorted(spans, key=key)), tuple(relations))


def there_and_back(corpus: list[Document], format: str) -> list[Document]:
    with tempfile.TemporaryDirectory() as folder:
        write(corpus, Path(folder) / "corpus", format)
        return read(Path(folder) / "corpus", format)


def surface(text: str) -> str:
    """The characters that belong to tokens."""
    return "".join(character for character in text if not (character.isspace() or character == "\ufeff"))


def in_one_stretch(document: Document) -> bool:
    """Whether two pieces of a mention have only white space between them, as brat writes a line break."""
    return any(
        not document.text[before[1] : after[0]].strip()
        for span in document.spans
        for before, after in pairwise(span.fragments)
    )


def ends_in_a_line_break(document: Document) -> bool:
    """Whether a mention begins or ends with what brat's files cannot hold in one: a line break or a tab."""
    return any(
        document.text[place] in "\t\n\r"
        for span in document.spans
        for start, end in span.fragments or ((span.start, span.end),)
        for place in (start, end - 1)
    )


@given(documents().filter(lambda document: not (in_one_stretch(document) or ends_in_a_line_break(document))))
@example(Document("note-1", "\ufeffFever"))
@example(Document("note-1", "chest\n  pain\there", (Span(0, 17, "problem"),)))
@example(Document("note-1", "\ufeff\ufeffA\r\nB", (Span(5, 6, "problem"),)))
def test_brat_gives_back_text_spans_fragments_and_relations(document: Document) -> None:
    assert there_and_back([document], "brat") == [document]


@given(
    document=documents(),
    labels=st.lists(st.text(min_size=1, max_size=5), max_size=3),
    pair=st.none() | TEXTS,
    assertion=st.sampled_from(["", "absent"]),
)
def test_jsonl_gives_back_the_whole_document(
    document: Document, labels: list[str], pair: str | None, assertion: str
) -> None:
    named = {own.label for own in (*document.spans, *document.relations)}
    more = {
        "labels": tuple(labels),
        "metadata": {"speciality": "cardiology", "split": "test"},
        "text_pair": pair,
        "spans": tuple(replace(span, assertion=assertion) for span in document.spans),
        "annotates": frozenset({*named, *labels}) if assertion else None,
        "lacks_relations": not document.relations,
    }
    corpus = [
        replace(document, id=f"s-{site}-{number}", site=f"s-{site}", **more)
        for site in (1, 2)
        for number in (1, 2)
    ]
    assert there_and_back(corpus, "jsonl") == corpus


@given(documents())
def test_i2b2_gives_back_the_tokens_of_every_mention_in_order(document: Document) -> None:
    expected: dict[tuple[int, int, str], tuple[str, str]] = {}
    for span in document.spans:
        inside = [offset for offset in range(span.start, span.end) if surface(document.text[offset])]
        if inside and span.label in ("problem", "Sign_symptom", "B-cell"):  # the other two are modifiers
            bounds = (inside[0], inside[-1], span.label)
            expected[bounds] = (surface(document.text[span.start : span.end]), span.label)
    (found,) = there_and_back([replace(document, relations=())], "i2b2")
    mentions = [(surface(found.text[span.start : span.end]), span.label) for span in found.spans]
    assert mentions == [expected[bounds] for bounds in sorted(expected)]
    assert surface(found.text) == surface(document.text)
    assert found.text.count("\n") == document.text.count("\n")


def held(document: Document) -> list[list[object]]:
    """A document's mentions with what is said of them, and its relations, each in the words of its spans."""
    spans = [
        (surface(document.text[span.start : span.end]), span.label, span.assertion) for span in document.spans
    ]
    related = [(spans[own.head], spans[own.tail], own.label) for own in document.relations]
    return [list(spans), list(related)]


def test_i2b2_gives_back_relations_and_assertions(caplog: pytest.LogCaptureFixture) -> None:
    text = "Aspirin, 81 mg, for severe chest pain.\nNo fever"
    spans = (
        Span(0, 7, "treatment"),
        Span(9, 14, "strength"),
        Span(20, 26, "severity"),
        Span(20, 37, "problem", assertion="present"),
        Span(42, 47, "problem", assertion="absent"),
    )
    relations = (
        Relation(0, 3, "TrAP"),
        Relation(3, 4, "PIP"),
        Relation(3, 2, "severity"),
        Relation(4, 3, "PIP"),
    )
    note = Document("a", text, spans, relations)
    nothing = Document("b", "Fever", (Span(0, 5, "problem"),))
    lacking = Document("c", "Fever", (Span(0, 5, "problem"),), lacks_relations=True)
    with caplog.at_level(logging.WARNING):
        found = there_and_back([note, nothing, lacking], "i2b2")
    mains = [held(note)[0][index] for index in (0, 3, 4)]
    assert held(found[0]) == [mains, [relation for relation in held(note)[1] if relation[-1] != "severity"]]
    assert [record.args for record in caplog.records] == [(2, 1)]
    assert found[1:] == [nothing, lacking]
    assert there_and_back(found, "i2b2") == found


@given(documents(overlapping=False))
def test_conll_gives_back_the_tokens_of_every_mention_in_order(document: Document) -> None:
    (found,) = there_and_back([replace(document, relations=())], "conll")
    mentions = [(surface(found.text[span.start : span.end]), span.label) for span in found.spans]
    expected = [(surface(document.text[span.start : span.end]), span.label) for span in document.spans]
    assert mentions == [mention for mention in expected if mention[0]]
    assert surface(found.text) == surface(document.text)


@pytest.mark.parametrize("format", ["i2b2", "brat", "conll", "jsonl"])
def test_sites_splits_and_ids_come_back_and_stay(format: str, tmp_path: Path) -> None:
    corpus = [
        Document(
            f"site-{site}-{number}",
            "No fever .",
            (Span(3, 8, "problem"),),
            site=f"site-{site}",
            metadata={"split": split},
        )
        for site in (1, 2)
        for split in ("test", "train")
        for number in (split, f"{split}-b")
    ]
    write(corpus, tmp_path / "once", format)
    once = read(tmp_path / "once", format)
    assert [(item.site, item.metadata["split"], item.spans) for item in once] == [
        (item.site, item.metadata["split"], item.spans) for item in corpus
    ]
    assert [item.id.rsplit("/", 1)[-1] for item in once] == [item.id for item in corpus]
    write(once, tmp_path / "twice", format)
    assert read(tmp_path / "twice", format) == once


def test_of_overlapping_spans_conll_keeps_the_longest_and_says_how_many_it_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "severe chest pain today"
    spans = (
        Span(0, 6, "severity"),
        Span(0, 17, "problem"),
        Span(7, 12, "body location"),
        Span(18, 23, "temporal"),
    )
    document = Document("n", text, spans, (Relation(1, 0, "severity"),))
    with caplog.at_level(logging.WARNING):
        (found,) = there_and_back([document], "conll")
    assert [(found.text[span.start : span.end], span.label) for span in found.spans] == [
        ("severe chest pain", "problem"),
        ("today", "temporal"),
    ]
    assert [record.args for record in caplog.records] == [(2, 1)]
    assert "chest" not in caplog.text


def test_a_span_over_a_line_break_stays_one_mention() -> None:
    document = Document(
        "n", "He has chest\npain and\nfever", (Span(7, 17, "problem"), Span(22, 27, "problem"))
    )
    (conll,) = there_and_back([document], "conll")
    assert conll.text == "He has chest pain and\nfever"
    (i2b2,) = there_and_back([document], "i2b2")
    assert i2b2 == document


def test_empty_documents_survive() -> None:
    corpus = [Document("a", ""), Document("b", "")]
    for format in ("i2b2", "brat", "conll", "jsonl"):
        assert there_and_back(corpus, format) == corpus


def test_labels_of_the_clinical_vocabulary_come_back_with_their_blanks() -> None:
    spans = (Span(0, 4, "body location"), Span(5, 9, "Lab_value"), Span(10, 14, "two words"))
    document = Document("n", "aaaa bbbb cccc", spans, (Relation(1, 0, "lab value"),))
    for format in ("brat", "conll"):
        (found,) = there_and_back([document], format)
        assert [span.label for span in found.spans] == ["body location", "Lab_value", "two_words"]
    assert there_and_back([document], "brat")[0].relations == document.relations


@pytest.mark.parametrize("text", ["chest\npain", "BP\t120/80", "chest\r\npain", "chest  \n  pain"])
def test_brat_accepts_a_mention_over_a_line_break_or_a_tab(text: str, tmp_path: Path) -> None:
    """By the rule of its server: the quote is that of the pieces, joined by one blank, in one line."""
    write([Document("note-1", text, (Span(0, len(text), "problem"),))], tmp_path / "corpus", "brat")
    (path,) = (tmp_path / "corpus").rglob("*.ann")
    (line,) = path.read_text(encoding="utf-8").splitlines()
    _, place, quote = line.split("\t")
    pieces = [tuple(map(int, piece.split())) for piece in place.removeprefix("problem ").split(";")]
    assert quote == " ".join(text[start:end] for start, end in pieces)

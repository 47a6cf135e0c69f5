from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.documents import Relation, Span
from fedstrata.core.seeding import Seed
from fedstrata.data.synthetic.builder import NoteBuilder
from fedstrata.data.synthetic.draw import Draw
from fedstrata.data.synthetic.lexicons import lexicon
from fedstrata.data.synthetic.style import HouseStyle, house_style

CLIPS = {"chest": "ch", "left": "L"}


def style(**changes: Any) -> HouseStyle:
    plain = {"casing": "sentence", "width": 0, "slips": 0.0, "replacements": {}, "clips": {}} | changes
    drawn = house_style(Seed(0), 1)
    return dataclasses.replace(drawn, **plain, _weights={}, _rewritten={})


def builder(**changes: Any) -> NoteBuilder:
    return NoteBuilder(style(**changes), Draw(Seed(0)))


def write(target: NoteBuilder, *pieces: str | tuple[str, str]) -> None:
    for piece in pieces:
        if isinstance(piece, str):
            target.text(piece)
        else:
            start = target.begin()
            target.text(piece[1])
            target.end(start, piece[0])


def test_spaces_collapse_and_sentences_begin_with_a_capital() -> None:
    note = builder()
    write(note, "  he has ", ("problem", "fever"), " ", " ", ". ", "no rash", " , he says")
    text, spans, _ = note.finish()
    assert text == "He has fever. No rash, he says"
    assert spans == (Span(7, 12, "problem"),)


def test_a_modifier_reaches_the_mentions_of_its_scope_that_it_may_modify() -> None:
    note = builder()
    note.push()
    note.push()
    write(note, ("negation", "no"), " ", ("problem", "rash"), " or ", ("problem", "fever"), " ")
    note.pop()
    write(note, "on ", ("test", "exam"))
    note.pop()
    _, spans, relations = note.finish()
    assert [span.label for span in spans] == ["negation", "problem", "problem", "test"]
    assert relations == (Relation(1, 0, "negation"), Relation(2, 0, "negation"))


def test_a_modifier_that_fits_nothing_in_its_scope_passes_to_the_scope_around() -> None:
    note = builder()
    note.push()
    write(note, ("problem", "pain"), " ")
    note.push()
    write(note, ("temporal", "for two days"))
    note.pop()
    note.pop()
    assert note.finish()[2] == (Relation(0, 1, "temporal"),)


def test_a_modifier_that_modifies_nothing_is_an_error_that_names_it() -> None:
    note = builder()
    write(note, ("severity", "mild"))
    with pytest.raises(ValueError, match="severity"):
        note.finish()


def test_long_lines_break_at_spaces_but_never_inside_a_span() -> None:
    note = builder(width=20)
    mention = "a very long mention of many words"
    write(note, "a b c d e f g h i j ", ("problem", mention), " and then more words")
    text, (span,), _ = note.finish()
    assert text[span.start : span.end] == mention
    assert all(len(line) <= 20 + len(mention) for line in text.split("\n"))
    assert "\n" in text


@given(
    pieces=st.lists(
        st.tuples(
            st.sampled_from(["", "problem", "test"]),
            st.sampled_from(["edema", "chest x-ray", "left lower lobe", "a"]),
        ),
        max_size=12,
    ),
    casing=st.sampled_from(["sentence", "lower", "upper"]),
    british=st.booleans(),
    width=st.sampled_from([0, 12]),
    slips=st.sampled_from([0.0, 1.0]),
)
def test_offsets_hold_whatever_the_style_does_to_the_text(
    pieces: list[tuple[str, str]], casing: str, british: bool, width: int, slips: float
) -> None:
    replacements = lexicon().british if british else {}
    note = builder(casing=casing, replacements=replacements, width=width, slips=slips, clips=CLIPS)
    for label, text in pieces:
        write(note, (label, text) if label else text, " ")
    text, spans, _ = note.finish()
    written = [content for label, content in pieces if label]
    assert len(spans) == len(written)
    for span, content in zip(spans, written, strict=True):
        found = text[span.start : span.end]
        assert found == found.strip()
        assert len(found.split()) == len(content.split())
        assert sorted(found.lower()) == sorted(
            style(casing="lower", replacements=replacements, clips=CLIPS).rewrite(content)
        )

"""Where sentences of notes begin and end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedstrata.data.sentences import lines, sentences
from fedstrata.data.synthetic import generate


def test_sentences_end_with_full_stops_and_lines() -> None:
    text = "Dr. Lee saw her.  BP 120/80, T 38.5 C.\r\n\n  MEDS\n- aspirin 81 mg. p.o.\n \n"
    found = [text[start:end] for start, end in sentences(text)]
    assert found[:3] == ["Dr. Lee saw her.", "BP 120/80, T 38.5 C.", "MEDS"]
    assert [text[start:end] for start, end in lines(text)] == [
        "Dr. Lee saw her.  BP 120/80, T 38.5 C.",
        "MEDS",
        "- aspirin 81 mg. p.o.",
    ]


def test_lines_that_are_broken_to_a_width_go_on() -> None:
    story = "She was seen by the renal team on Monday, who\nfound no cause for the fall in her\n"
    story += "platelet count of 38, and gave no further\nadvice on it."
    text = f"HISTORY\n{story}\n\nMEDS\nIron\n"
    found = [" ".join(text[start:end].split()) for start, end in sentences(text)]
    assert found == ["HISTORY", " ".join(story.split()), "MEDS", "Iron"]


@given(st.text(st.sampled_from("ab .!?\n\r\té"), max_size=120) | st.text(max_size=80))
def test_every_character_that_is_seen_is_in_one_sentence(text: str) -> None:
    for cut in (sentences, lines):
        last = 0
        for start, end in cut(text):
            assert not text[last:start].strip()
            assert text[start:end] == text[start:end].strip() != ""
            last = end
        assert not text[last:].strip()


def test_sentences_of_synthetic_notes_hold_their_mentions_and_nearly_all_relations() -> None:
    inside = total = 0
    for document in generate(seed=5, sites=5, notes=50):
        found = list(sentences(document.text))
        place = [
            next((number for number, (start, end) in enumerate(found) if start <= span.start < end), -1)
            for span in document.spans
        ]
        assert all(span.end <= found[own][1] for span, own in zip(document.spans, place, strict=True))
        inside += sum(place[each.head] == place[each.tail] for each in document.relations)
        total += len(document.relations)
    assert inside / total > 0.97

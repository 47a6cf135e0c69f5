"""A whole note: which sections it has, and how the house lays them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedstrata.core.documents import Relation, Span
from fedstrata.core.seeding import Seed
from fedstrata.data.synthetic.builder import NoteBuilder
from fedstrata.data.synthetic.case import Case
from fedstrata.data.synthetic.draw import Draw
from fedstrata.data.synthetic.facts import FACTS
from fedstrata.data.synthetic.lexicons import Lexicon
from fedstrata.data.synthetic.scene import Scene
from fedstrata.data.synthetic.style import HouseStyle

INLINE_MARKERS = (", ", "; ")
TARGET_LENGTH = 3000
"""Characters after which no further section is begun, so that a note stays under about 600 words."""


@dataclass(frozen=True, slots=True)
class Note:
    """A written note.

    Attributes:
        text: The text.
        spans: What is annotated, in order.
        relations: Between the spans.
        evidence: For each code, main diagnosis first, the offsets of the mentions that state it.
        kind: Discharge summary, progress note or transcription.
    """

    text: str
    spans: tuple[Span, ...]
    relations: tuple[Relation, ...]
    evidence: Mapping[str, Sequence[tuple[int, int]]]
    kind: str


def write_note(case: Case, style: HouseStyle, lexicon: Lexicon, seed: Seed) -> Note:
    """Writes one note.

    Args:
        case: What it is about.
        style: How the site writes.
        lexicon: The lexicons.
        seed: The note's own seed.
    """
    draw = Draw(seed.child("words"))
    builder = NoteBuilder(style, Draw(seed.child("slips")))
    scene = Scene(case, style, lexicon, draw, builder, FACTS)
    kind = tuple(lexicon.kinds)[draw.index(style.kinds)]
    for name, probability in _outline(lexicon.kinds[kind], draw):
        if draw.chance(probability) and len(builder) < TARGET_LENGTH:
            _write_section(scene, name, lexicon.sections[name])
    if case.principal.code not in scene.evidence:
        _write_section(scene, "diagnoses", lexicon.sections["diagnoses"])
    text, spans, relations = builder.finish()
    order = sorted(scene.evidence, key=lambda code: code != case.principal.code)
    evidence = {code: builder.locate(scene.evidence[code]) for code in order}
    return Note(text, spans, relations, evidence, kind)


def _outline(kind: Any, draw: Draw) -> Sequence[tuple[str, float]]:
    """Returns the sections of a kind of note; a kind may have several forms."""
    sections = draw.pick(tuple(kind.values())) if isinstance(kind, Mapping) else kind
    return [(name, probability) for name, probability in sections]


def _write_section(scene: Scene, name: str, section: Mapping[str, Any]) -> None:
    scene.unmentioned = list(scene.case.present)
    builder, style, draw = scene.builder, scene.style, scene.draw
    headings = section["headings"]
    heading = headings[style.favourite(f"heading {name}", len(headings))]
    as_list = "list" in section and ("prose" not in section or draw.chance(style.listing))
    if not len(builder) or style.favourite("blank lines", 3):
        builder.paragraph()
    else:
        builder.line()
    if heading:
        builder.line(style.title(heading))
    least, most = section["count"]
    count = draw.between(least, most)
    if section.get("per") == "condition":
        count = min(count, len(scene.case.present))
    if as_list:
        _write_list(scene, section, count, starts_new_line=bool(heading))
    else:
        _write_prose(scene, section, count, starts_new_line=bool(heading))


def _write_list(scene: Scene, section: Mapping[str, Any], count: int, *, starts_new_line: bool) -> None:
    builder, marker = scene.builder, scene.style.marker
    asides = section.get("asides", 0.0)
    inline = marker in INLINE_MARKERS
    for number in range(count):
        if inline:
            builder.text(marker if number else " ")
        elif count > 1 or starts_new_line:
            builder.line(marker.format(number + 1).strip() if count > 1 else "")
        scene.rule(section.get("aside", "topic item") if scene.draw.chance(asides) else section["list"])


def _write_prose(scene: Scene, section: Mapping[str, Any], count: int, *, starts_new_line: bool) -> None:
    builder = scene.builder
    if starts_new_line and scene.style.favourite("run on", 2):
        builder.line()
    if "first" in section:
        scene.rule(section["first"])
        builder.text(" ")
    for _ in range(count):
        scene.rule("topic" if scene.draw.chance(section.get("asides", 0.0)) else section["prose"])
        builder.text(" ")

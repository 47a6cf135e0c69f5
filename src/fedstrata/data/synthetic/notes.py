"""A whole note: which sections it has, and how the house lays them out."""

import json
from collections.abc import Mapping
from typing import Any

from fedstrata.core.documents import Document
from fedstrata.core.seeding import Seed
from fedstrata.data.synthetic.builder import NoteBuilder
from fedstrata.data.synthetic.case import Case
from fedstrata.data.synthetic.draw import Draw
from fedstrata.data.synthetic.facts import FACTS
from fedstrata.data.synthetic.lexicons import lexicon
from fedstrata.data.synthetic.scene import Scene
from fedstrata.data.synthetic.style import HouseStyle

INLINE_MARKERS = (", ", "; ")
TARGET_LENGTH = 3000
"""Characters after which no further section is begun, so that a note stays under about 600 words."""


def write_note(case: Case, style: HouseStyle, seed: Seed) -> Document:
    """Writes one note.

    Args:
        case: What it is about.
        style: How the site writes.
        seed: The note's own seed.

    Returns:
        The note, without an id and a site. `labels` are its codes, the main diagnosis first; `metadata` has
        its `kind` (discharge summary, progress note or transcription), and as `evidence` a JSON object from
        each code to the `[start, end]` offsets of the mentions that state it.
    """
    words, draw = lexicon(), Draw(seed.child("words"))
    builder = NoteBuilder(style, Draw(seed.child("slips")))
    scene = Scene(case, style, draw, builder, FACTS)
    kind = tuple(words.kinds)[draw.index(style.kinds)]
    outline = words.kinds[kind]
    if isinstance(outline, Mapping):  # a kind may have several forms
        outline = draw.pick(tuple(outline.values()))
    for name, probability in outline:
        if draw.chance(probability) and len(builder) < TARGET_LENGTH:
            _write_section(scene, name, words.sections[name])
    if case.principal.code not in scene.evidence:
        _write_section(scene, "diagnoses", words.sections["diagnoses"])
    text, spans, relations = builder.finish()
    order = sorted(scene.evidence, key=lambda code: code != case.principal.code)
    evidence = {code: scene.evidence[code] for code in order}
    metadata = {"kind": kind, "evidence": json.dumps(evidence)}
    return Document("", text, spans, relations, labels=tuple(evidence), metadata=metadata)


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
    count = draw.between(*section["count"])
    if section.get("per") == "condition":
        count = min(count, len(scene.case.present))
    write = _write_list if as_list else _write_prose
    write(scene, section, count, starts_new_line=bool(heading))


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

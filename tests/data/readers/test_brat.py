"""BRAT stand-off files: spans, discontinuous spans, events, relations, and what counts as a character."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.data.readers import read

TEXT = "Patient has severe chest pain and left or right arm weakness.\n"
ANNOTATIONS = """\
T1\tSeverity 12 18\tsevere
T2\tSign_symptom 19 29\tchest pain
E1\tSign_symptom:T2\x20
T3\tBiological_structure 34 38;48 51\tleft arm
R1\tMODIFY Arg1:T1 Arg2:E1\t
R2\tMODIFY Arg2:T2 Arg1:T3
A1\tPOLARITY E1 NEG
M1\tNegation T2
N1\tReference T2 UMLS:C0008031\tChest Pain
#1\tAnnotatorNotes T2\tsee the
#2\tAnnotatorNotes T99\tabout a line that was deleted
*\tOVERLAP T1 E1
"""


def read_one(tmp_path: Path, text: str | bytes, annotations: str | bytes | None) -> Document:
    for suffix, content in (("txt", text), ("ann", annotations)):
        if content is not None:
            raw = content if isinstance(content, bytes) else content.encode()
            (tmp_path / f"note.{suffix}").write_bytes(raw)
    (document,) = read(tmp_path, "brat")
    return document


def test_spans_relations_and_discontinuous_mentions(tmp_path: Path) -> None:
    document = read_one(tmp_path, TEXT, ANNOTATIONS)
    severe, pain = Span(12, 18, "Severity"), Span(19, 29, "Sign_symptom")
    arm = Span(34, 51, "Biological_structure", ((34, 38), (48, 51)))
    relations = (Relation(1, 0, "MODIFY"), Relation(1, 2, "MODIFY"), Relation(0, 1, "OVERLAP"))
    assert document == Document("note", TEXT, (severe, pain, arm), relations)


def test_event_arguments_are_relations_from_the_trigger(tmp_path: Path) -> None:
    annotations = (
        "E2\tTreats:T1 Drug:T2 Cause:E1\n"  # before the lines it refers to
        "E1\tIllness:T3\n"
        "T1\tTreats 8 14\ttreats\n"
        "T2\tDrug 0 7\tAspirin\n"
        "T3\tIllness 15 19\tpain\n"
        "R1\tLocated Part:E2 Whole:T2\n"
    )
    document = read_one(tmp_path, "Aspirin treats pain", annotations)
    assert [span.label for span in document.spans] == ["Drug", "Treats", "Illness"]
    assert set(document.relations) == {
        Relation(1, 0, "Drug"),
        Relation(1, 2, "Cause"),
        Relation(0, 1, "Located"),
    }


def test_several_arguments_in_one_role_are_numbered(tmp_path: Path) -> None:
    annotations = (
        "T1\tBinding 8 13\tbinds\nT2\tProtein 0 7\tAspirin\nT3\tProtein 14 17\tCOX\n"
        "E1\tBinding:T1 Theme:T2 Theme2:T3\n"
        "E2\tBinding:T1 Arg1:T2 Arg2:T3\n"  # nothing is called Arg
    )
    document = read_one(tmp_path, "Aspirin binds COX", annotations)
    assert document.relations == (
        Relation(1, 0, "Theme"),
        Relation(1, 2, "Theme"),
        Relation(1, 0, "Arg1"),
        Relation(1, 2, "Arg2"),
    )


@pytest.mark.parametrize("listed", ["E3 T1 E2 T3", "T1 E2 E3", "T3 T2 T1 E2"])  # T3 is E3's own trigger
def test_the_members_of_a_set_are_related_to_the_first_in_the_text(tmp_path: Path, listed: str) -> None:
    annotations = (
        f"*\tOVERLAP {listed}\n"  # the lines that it refers to come later
        "T1\tproblem 2 3\tb\nT2\tproblem 0 1\ta\nT3\tproblem 4 5\tc\nT4\tproblem 6 7\td\n"
        "E2\tproblem:T2\nE3\tproblem:T3\n"
        "*\tEquiv T4\n"
        "*\tEquiv T4 T1 T4 T1\n"
    )
    document = read_one(tmp_path, "a b c d", annotations)
    assert document.relations == (
        Relation(0, 1, "OVERLAP"),
        Relation(0, 2, "OVERLAP"),
        Relation(1, 3, "Equiv"),
    )


def test_pieces_with_nothing_but_white_space_between_them_are_one(tmp_path: Path) -> None:
    text = "Chest \n pain, left arm"
    annotations = (
        "T1\tproblem 0 5;8 12\tChest pain\n"
        "T2\tproblem 0 5;8 10;10 12;14 18\tChest pa in left\n"
        "T3\tproblem 14 18;18 22\tleft  arm\n"
    )
    document = read_one(tmp_path, text, annotations)
    assert document.spans == (
        Span(0, 12, "problem"),
        Span(0, 18, "problem", ((0, 12), (14, 18))),
        Span(14, 22, "problem"),
    )


POINTS = "\U0001f600 cafe\u0301 na\u00efve\u00a0"


@pytest.mark.parametrize(
    ("raw", "start", "kept"),
    [
        (b"No.\r\nCough today.\r\n", 5, "No.\r\nCough today.\r\n"),
        (b"No.\r\nCough today.\r\n", 4, "No.\nCough today.\n"),
        (b"\xef\xbb\xbfNo.\nCough", 4, "No.\nCough"),
        (b"\xef\xbb\xbfNo.\nCough", 5, "\ufeffNo.\nCough"),
        (b"\xef\xbb\xbfNo.\r\nCough", 5, "No.\r\nCough"),
        (b"\xef\xbb\xbfNo.\r\nCough", 6, "\ufeffNo.\r\nCough"),
        (f"{POINTS}Cough\u2028x".encode(), 14, f"{POINTS}Cough\u2028x"),
    ],
)
def test_the_quoted_text_decides_what_counts_as_a_character(
    tmp_path: Path, raw: bytes, start: int, kept: str
) -> None:
    document = read_one(tmp_path, raw, f"T1\tproblem {start} {start + 5}\tCough\r\n".encode("utf-8-sig"))
    assert document.text == kept
    (span,) = document.spans
    assert document.text[span.start : span.end] == "Cough"


def test_a_mention_over_a_line_break_is_quoted_on_one_line(tmp_path: Path) -> None:
    document = read_one(tmp_path, "chest\n  pain", "T1\tproblem 0 12\tchest pain\n")
    assert document.spans == (Span(0, 12, "problem"),)


def test_a_text_alone_is_the_input_of_a_prediction(tmp_path: Path) -> None:
    assert read_one(tmp_path, "\ufeffFever.\r\n", None) == Document("note", "Fever.\r\n")


SCHEME = """\
# what annotators had to choose from
<MAIN>=Sign_symptom|Disease
[entities]
!Finding
\tSign_symptom
\tDisease_disorder
--------------------
body_location
[relations]
MODIFY\tArg1:<MODIFIER>, Arg2:<MAIN>
<OVERLAP>\tArg1:<MAIN>, Arg2:<MAIN>, <OVL-TYPE>:contain
[events]
Treatment\tTarget?:Disease_disorder, Agent*:Drug,  Dose{0-2}:Dosage
[attributes]
Negation\tArg:<EVENT>
"""
NAMED = {
    *("Sign_symptom", "Disease_disorder", "body location", "MODIFY"),
    *("Treatment", "Target", "Agent", "Dose"),
}


def sites_with_schemes(folder: Path) -> Path:
    """Three sites: one has its own scheme, one that of the corpus, one a scheme that names no type."""
    for place in ("north", "south", "west/train", "west/test"):
        (folder / place).mkdir(parents=True)
        name = f"note-{place.replace('/', '-')}"
        (folder / place / f"{name}.txt").write_text("Aspirin treats pain.")
        (folder / place / f"{name}.ann").write_text("T1\tSign_symptom 15 19\tpain\n")
    (folder / "annotation.conf").write_text("[entities]\nSign_symptom\nDrug\n")
    (folder / "north" / "annotation.conf").write_text(SCHEME)
    (folder / "west" / "annotation.conf").write_text("[attributes]\nNegation\tArg:<ANY>\n")
    return folder


def test_the_nearest_annotation_conf_says_what_annotators_had_to_choose_from(tmp_path: Path) -> None:
    folder = sites_with_schemes(tmp_path)
    documents = {document.site: document for document in read(folder, "brat")}
    assert documents["north"].annotates == NAMED
    assert documents["south"].annotates == {"Sign_symptom", "Drug"}
    assert documents["west"].annotates is None, "attributes say nothing of types"
    for place in (folder / "north", folder / "north" / "note-north.txt"):
        assert [document.annotates for document in read(place, "brat")] == [NAMED]


def test_what_is_annotated_though_nothing_names_it_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "annotation.conf").write_text("[entities]\nDrug\n")
    for name in ("one", "other"):
        (tmp_path / f"{name}.txt").write_text("Aspirin treats pain.")
        (tmp_path / f"{name}.ann").write_text("T1\tPain 15 19\tpain\n" if name == "one" else "")
    assert [document.annotates for document in read(tmp_path, "brat")] == [{"Drug", "Pain"}] * 2


@pytest.mark.parametrize(
    ("scheme", "names"),
    [
        ("[ENTITIES]\r\nDrug\r\n", {"Drug"}),
        ("\ufeff[ Entities ]\nDrug # or a treatment\n", {"Drug"}),
        ("[events]\nBinding|GO:0005515\tTheme+:Drug\n", {"Binding", "Theme"}),
        ("", None),
    ],
)
def test_an_annotation_conf_as_people_write_it(tmp_path: Path, scheme: str, names: set[str] | None) -> None:
    (tmp_path / "annotation.conf").write_bytes(scheme.encode())
    (tmp_path / "note.txt").write_text("Aspirin treats pain.")
    (tmp_path / "note.ann").write_text("")
    assert [document.annotates for document in read(tmp_path, "brat")] == [names]

"""What holds for every reader: the contract of `fedstrata.testing`, and what is said of broken files."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import pytest
from support import refused

import fedstrata as fs
from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import DataError
from fedstrata.data.readers import FORMATS
from fedstrata.testing import readers


class Sample(NamedTuple):
    """Files of a format, and what they mean; the first is read alone, the others are beside it."""

    files: Mapping[str, str]
    documents: tuple[Document, ...]
    settings: Mapping[str, Any] = {}
    log: str = ""


def copa(word: str, number: str, **more: Any) -> Document:
    metadata = {"superglue": "copa", "question": "cause", "choice1": "SECRET-a", "choice2": "b"}
    return Document(f"copa-{number}", "It fell.", labels=(word,), metadata=metadata, **more)


COPA = '{"premise": "It fell.", "choice1": "SECRET-a", "choice2": "b", "question": "cause", "label": 1}\n'
CONLLU = "\t".join(["_"] * 8)
AG_NEWS = (
    '"3","Fears for T N ","SECRET-a say ""no""."\n'
    '"1","Comma, in it","\\\\""Quoted, by\\\\""a second\\part of a text."\n'
    '"4","Ends","by a break.\\"\n'
)
XSUM = (
    "[SN]URL[SN]\nhttp://x\n\n[SN]TITLE[SN]\nFloods\n\n[SN]FIRST-SENTENCE[SN]\nSECRET-b is near.\n\n"
    "[SN]RESTBODY[SN]\nShare this with\nEmail\nSECRET-a [SN] could fall.\n\n Take care. \n"
)
XSUM_SPLIT = "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json"
CODES = "SUBJECT_ID,HADM_ID,SEQ_NUM,ICD9_CODE\n"
NOTES = "ROW_ID,SUBJECT_ID,HADM_ID,CATEGORY,TEXT\n"
NOTE = "7,20,Discharge summary,SECRET"
MEDLINE = """
PMID- 101
OWN - NLM
TI  - SECRET-a in
      rats.
AB  - METHODS: Rats had
      fever - a rash.
AU  - Doe J
AU  - Roe R
PMID- 102
TI  - Cough alone.

PMID- 103
AB  - Itches alone.

PMID- 104
AU  - Nobody N
"""
FULL = {
    "id": "n1",
    "text": "SECRET-a and leg weak\u2028\U0001f600",
    "spans": [
        {"start": 17, "end": 21, "label": "problem"},
        {"start": 0, "end": 16, "label": "body location", "fragments": [[0, 4], [13, 16]]},
    ],
    "relations": [{"head": 0, "tail": 1, "label": "body location"}],
    "labels": ["401.9", "V58.61"],
    "metadata": {"speciality": "neurology", "patient": "7"},
}
CONVERSATION = {
    "id": "c1",
    "source": "mctest",
    "story": "SECRET-a is a white kitten.",
    "questions": [{"turn_id": 1, "input_text": "Who is it? "}, {"turn_id": 2, "input_text": "Which colour?"}],
    "answers": [{"turn_id": 1, "input_text": "SECRET-b"}, {"turn_id": 2, "input_text": "white"}],
}


def coqa(**changes: Any) -> str:
    return json.dumps({"version": "1.0", "data": [{**CONVERSATION, **changes}]})


def third(record: Any = None, **lists: dict[str, Any]) -> str:
    """Returns two lines that are sound, and a third with an object or with lists of one."""
    own = {"text": "SECRET", **{name: [item] for name, item in lists.items()}} if record is None else record
    return '{"text": "SECRET"}\n\n' + json.dumps(own)


CAUSES = (Relation(1, 0, "causes"),)
ADE = {
    "names": ["from", "text", "effect", "e1", "e2", "drug", "d1", "d2"],
    **{"head": "drug", "tail": "effect", "id": "from", "head_type": "drug", "tail_type": "effect"},
    **{"head_start": "d1", "head_end": "d2", "tail_start": "e1", "tail_end": "e2", "relation_type": "causes"},
}


SAMPLES = {
    "text": Sample({"a.txt": "SECRET-a\n\ntwo \n"}, (Document("a", "SECRET-a\n\ntwo \n"),)),
    "brat": Sample(
        {"a.txt": "SECRET\none.", "a.ann": "T1\tx 0 6\tSECRET\nT2\ty 7 10\tone\nR1\tis Arg1:T2 Arg2:T1\n"},
        (Document("a", "SECRET\none.", (Span(0, 6, "x"), Span(7, 10, "y")), (Relation(0, 1, "is"),)),),
    ),
    "i2b2": Sample(
        {
            "a.txt": "SECRET for chest pain ,\nno fever .\n",
            "a.con": 'c="secret" 1:0 1:0||t="treatment"\nc="chest pain" 1:2 1:3||t="problem"\n'
            'c="fever" 2:1 2:1||t="problem"\nc="fever" 2:1 2:1||t="test"\n',
            "a.ast": 'c="chest pain" 1:2 1:3||t="problem"||a="present"\n',
            "a.rel": 'c="secret" 1:0 1:0||r="TrAP"||c="chest pain" 1:2 1:3\n',
        },
        (
            Document(
                "a",
                "SECRET for chest pain ,\nno fever .\n",
                (
                    Span(0, 6, "treatment"),
                    Span(11, 21, "problem", assertion="present"),
                    *(Span(27, 32, label) for label in ("problem", "test")),
                ),
                (Relation(0, 1, "TrAP"),),
            ),
        ),
    ),
    "conll": Sample(
        {"a.tsv": "\n\nSECRET\tB-Disease\npolyposis\tI-Disease\n.\tO\n\n\nNo\tO\nfever\tB-problem\n"},
        (
            Document("a-1", "SECRET polyposis .", (Span(0, 16, "Disease"),)),
            Document("a-2", "No fever", (Span(3, 8, "problem"),)),
        ),
    ),
    "conllu": Sample(
        {"a.conllu": f"# newdoc id = n1\n# text = SECRET-a\n1\tSECRET-a\t{CONLLU}\n\n# newdoc\n# text = b\n"},
        (Document("n1", "SECRET-a"), Document("a-2", "b")),
    ),
    "jsonl": Sample(
        {"a.jsonl": json.dumps(FULL, ensure_ascii=False) + '\n\n{"text": "", "text_pair": "SECRET-b"}\n'},
        (
            Document(
                "n1",
                "SECRET-a and leg weak\u2028\U0001f600",
                (Span(0, 16, "body location", ((0, 4), (13, 16))), Span(17, 21, "problem")),
                (Relation(1, 0, "body location"),),
                ("401.9", "V58.61"),
                metadata={"speciality": "neurology", "patient": "7"},
            ),
            Document("a-2", "", text_pair="SECRET-b"),
        ),
    ),
    "pubtator": Sample(
        {
            "a.txt": "\n17|t|SECRET in rats.\n17|a|SECRET too.\n17\t0\t6\tSECRET\tDisease\tD1\n"
            "17\t10\t14\trats\tSpecies\n\n\nPMC9|t|Cough.\n"
        },
        (
            Document("17", "SECRET in rats. SECRET too.", (Span(0, 6, "Disease"), Span(10, 14, "Species"))),
            Document("PMC9", "Cough."),
        ),
    ),
    "medline": Sample(
        {"a.nbib": MEDLINE},
        (
            Document("101", "SECRET-a in rats. METHODS: Rats had fever - a rash."),
            Document("102", "Cough alone."),
            Document("103", "Itches alone."),
        ),
        log=": 1 records",
    ),
    "relation_table": Sample(
        {"a.rel": "text|drug|effect|whose\nSECRET: rash / drug.|drug|rash|p1\n"},
        (
            Document(
                "a-1",
                "SECRET: rash / drug.",
                (Span(8, 12, "tail"), Span(15, 19, "head")),
                (Relation(1, 0, "related"),),
                metadata={"patient": "p1"},
            ),
        ),
        {"relation_table": {"head": "drug", "tail": "effect", "patient": "whose"}},
    ),
    "relation_table, without a header": Sample(
        {
            "a.rel": "7|SECRET: rash, fever: aspirin.|rash|8|12|aspirin|21|28\n"
            "7|SECRET: rash, fever: aspirin.|fever|14|19|aspirin|21|28\n"
            "7|Rash; codeine.|Rash|0|4|codeine|6|13\n8|Cough; zinc.|Cough|0|5|zinc|7|11\n"
        },
        (
            Document(
                "7-1",
                "SECRET: rash, fever: aspirin.",
                (Span(8, 12, "effect"), Span(14, 19, "effect"), Span(21, 28, "drug")),
                (Relation(2, 0, "causes"), Relation(2, 1, "causes")),
            ),
            *(
                Document(name, text, (Span(0, end, "effect"), Span(end + 2, last, "drug")), CAUSES)
                for name, text, end, last in (("7-2", "Rash; codeine.", 4, 13), ("8", "Cough; zinc.", 5, 11))
            ),
        ),
        {"relation_table": ADE},
    ),
    "mtsamples": Sample(
        {
            "a.csv": ",medical_specialty,transcription,keywords\n"
            '0, Surgery,"SECRET-a,\nof lines ",k\n1, Urology,two,\n2, Letters, ,\n'
            '3, Radiology,"SECRET-a,\nof lines",k\n4, Surgery,"SECRET-a,\nof lines",k\n'
        },
        (
            Document(
                "a-1",
                "SECRET-a,\nof lines",
                labels=("Surgery", "Radiology"),
                metadata={"speciality": "Surgery"},
            ),
            Document("a-2", "two", labels=("Urology",), metadata={"speciality": "Urology"}),
        ),
        log=": 1 rows",
    ),
    "mtsamples, of one field": Sample(
        {"a.csv": "sample_id,specialties,transcription\n29,Letters| Urology|,SECRET-a\n"},
        (
            Document("29", "SECRET-a", labels=("Letters", "Urology"), metadata={"speciality": "Letters"}),
        ),
    ),
    "mimic": Sample(
        {"NOTEEVENTS.csv": f"{NOTES}1,{NOTE}-a\n", "DIAGNOSES_ICD.csv": f"{CODES}7,20,1,4019\n"},
        (Document("20", "SECRET-a", labels=("401.9",), metadata={"patient": "7", "admission": "20"}),),
    ),
    "ag_news": Sample(
        {"a.csv": AG_NEWS, "classes.txt": "Earth\r\nGames\nMoney\n\nTech\n"},
        (
            Document("a-1", 'Fears for T N SECRET-a say "no".', labels=("Money",)),
            Document(
                "a-2", 'Comma, in it \n\n"Quoted, by\n\n"a second\npart of a text.', labels=("Earth",)
            ),
            Document("a-3", "Ends by a break.", labels=("Tech",)),
        ),
    ),
    "ag_news, as Kaggle has it": Sample(
        {"a.csv": 'Class Index,Title,Description\n"3","SECRET-a","b"\n"4","c","d"\n'},
        (Document("a-1", "SECRET-a b", labels=("Business",)), Document("a-2", "c d", labels=("Sci/Tech",))),
    ),
    "ag_news, as JSON": Sample(  # which counts from 0
        {"a.json": '{"0": {"ori": "SECRET-a\\\\two", "label": "3"}, "x": {"text": "Three", "label": 0}}'},
        (Document("0", "SECRET-a\ntwo", labels=("Sci/Tech",)), Document("x", "Three", labels=("World",))),
    ),
    "glue": Sample(
        {"a.tsv": "index\tsentence1\tsentence2\tlabel\n7\tSECRET-a\tA boy.\tentailment\n"},
        (Document("7", "SECRET-a", labels=("entailment",), text_pair="A boy."),),
    ),
    "glue, as JSON": Sample(
        {
            "a.json": '{"5": {"text_a": "SECRET-a", "text_b": "b", "label": "x"}, '
            '"k": {"premise": "c", "Hypothesis": "d", "label": 1}}'
        },
        (
            Document("5", "SECRET-a", labels=("x",), text_pair="b"),
            Document("k", "c", labels=("1",), text_pair="d"),
        ),
    ),
    "glue, as a list": Sample(
        {"a.json": '[{"text_a": "SECRET-a", "text_b": "b", "label": "x"}]'},
        (Document("a-1", "SECRET-a", labels=("x",), text_pair="b"),),
    ),
    "superglue": Sample({"copa.jsonl": f"{COPA}\n{COPA}"}, (copa("choice2", "1"), copa("choice2", "2"))),
    "mts_dialog": Sample(
        {
            "a.csv": "ID,section_header,section_text,dialogue\n"
            '0,CC,"SECRET-b, fever.","Doctor: Yes?\nPatient: SECRET-a ""cough""."\n'
        },
        (
            Document(
                "0",
                'Doctor: Yes?\nPatient: SECRET-a "cough".',
                labels=("CC",),
                metadata={"section": "CC"},
                text_pair="SECRET-b, fever.",
            ),
        ),
    ),
    "mts_dialog, of dialogues alone": Sample(
        {"a.csv": "dialogue\nDoctor: SECRET-a?\n"}, (Document("a-1", "Doctor: SECRET-a?"),)
    ),
    "coqa": Sample(
        {"a.json": coqa()},
        tuple(
            Document(
                f"c1-{turn}",
                "SECRET-a is a white kitten.",
                labels=("mctest",),
                metadata={"patient": "c1", "source": "mctest", "question": question, "history": history},
                text_pair=answer,
            )
            for turn, question, history, answer in (
                (1, "Who is it?", "", "SECRET-b"),
                (2, "Which colour?", "Q: Who is it?\nA: SECRET-b\n", "white"),
            )
        ),
    ),
    "coqa, of questions alone": Sample(
        {"a.json": coqa(answers=[], questions=CONVERSATION["questions"][:1])},
        (
            Document(
                "c1-1",
                "SECRET-a is a white kitten.",
                labels=("mctest",),
                metadata={"patient": "c1", "source": "mctest", "question": "Who is it?", "history": ""},
            ),
        ),
    ),
    "xsum": Sample(
        {"10.summary": XSUM},
        (
            Document(
                "10",
                "SECRET-a [SN] could fall.\nTake care.",
                metadata={"title": "Floods"},
                text_pair="SECRET-b is near.",
            ),
        ),
    ),
    "xsum, without a summary": Sample(
        {"10.summary": XSUM.replace("SECRET-b is near.", "")},
        (Document("10", "SECRET-a [SN] could fall.\nTake care.", metadata={"title": "Floods"}),),
    ),
}  # fmt: skip
"""By the format and, where there are several of one, what is of its own."""


P = "17|t|SECRET in rats.\n17|a|SECRET too.\n"
WRONG: dict[tuple[str, str], dict[str, tuple[Any, ...]]] = {
    ("brat", "a.ann"): {
        "T1\tproblem 0 6\tSECRET\nT1\tproblem 7 10\tone\n": (2, "duplicate", "T1"),
        "T1\tproblem 0 6\n": (1, "malformed_data", "T line"),
        "T1 problem 0 6 SECRET\n": (1, "malformed_data", "T line"),
        "The SECRET\tproblem 6 6\tx\n": (1, "malformed_data", "T line"),
        "T1\tproblem 0-6\tSECRET\n": (1, "malformed_data", "T line"),
        "\nT1\tproblem 1 6\tSECRET\n": (2, "misquoted", "1 6"),
        "T1\tproblem 0 99\tSECRET\n": (1, "out_of_range", 99, "11 characters"),
        "T1\tproblem 6 6\t\n": (1, "out_of_range", "6 6"),
        "T1\tproblem 0 6;3 7\tSECRET\n": (1, "conflict", "0 6", "3 7"),
        "E1\tproblem:T7\n": (1, "not_found", "T7"),
        "E1\t\n": (1, "malformed_data", "E line"),
        "T1\tproblem 0 6\tSECRET\nR1\tis Arg1:T1 Arg2:T8\n": (2, "not_found", "T8"),
        "T1\tproblem 0 6\tSECRET\nR1\tis Arg1:T1\n": (2, "malformed_data", "R line"),
        "A1\tNegated T5\n": (1, "not_found", "T5"),
        "A1\tNegated\n": (1, "malformed_data", "A line"),
        "*\tEquiv SECRET one\n": (1, "malformed_data", "* line"),
        "T1\tproblem 0 6\tSECRET\n*\tEquiv T1 T9\n": (2, "not_found", "T9"),
        "*\tEquiv T9\n": (1, "not_found", "T9"),
        "T1\tx 0 6\tSECRET\nR1\tis Arg1:T1 Arg2:T1\n*\tEquiv T1 R1\n": (3, "malformed_data", "* line"),
        "SECRET one\n": (1, "unknown_name"),
    },
    ("brat", "annotation.conf"): {
        "# types\n\nSECRET\n": (3, "malformed_data", "[entities]"),
        "[entities]\nSECRET value\n": (2, "wrong_form", "[entities]"),
    },
    ("i2b2", "a.con"): {
        'c="secret" 1:0 1:0||t="x"\nc="secret" 1:1 1:1||t="x"\n': (2, "misquoted"),
        'c="secret" 9:0 9:0||t="x"\n': (1, "out_of_range", "line 9", "has 3"),
        'c="secret" 1:0 1:7||t="x"\n': (1, "out_of_range", "line 1", "token 7", "has 5"),
        'c="secret" 0:0 0:0||t="x"\n': (1, "out_of_range", "line 0"),
        'c="secret pain" 1:2 1:0||t="x"\n': (1, "out_of_range", "1:2 to 1:0"),
        'c="" 3:0 3:0||t="x"\n': (1, "out_of_range", "token 0", "has 0"),
        'c="secret" 1:0||t="x"\n': (1, "malformed_data", "concept line"),
        'c="secret" 1:0 1:0||t="x"||a="absent"\n': (1, "malformed_data", "concept line"),
    },
    ("i2b2", "a.ast"): {
        '\nc="secret" 1:0 1:0||t="treatment"\n': (2, "malformed_data", "assertion line"),
        'c="secret" 1:0 1:0||t="x"||a="maybe"\n': (1, "malformed_data", "present|absent|possible"),
        'c="fever" 2:0 2:0||t="problem"||a="absent"\n': (1, "not_found", "2:0 to 2:0"),
        'c="secret" 2:1 2:1||t="problem"||a="absent"\n': (1, "misquoted", "2:1 to 2:1"),
        'c="fever" 2:1 2:1||t="drug"||a="absent"\n': (1, "unknown_name", "drug", "problem or test"),
        'c="fever" 2:1 2:1||t="problem"||a="absent"\nc="fever" 2:1 2:1||t="problem"||a="possible"\n': (
            2, "conflict", "absent", "possible",
        ),
    },
    ("i2b2", "a.rel"): {
        'c="secret" 1:0 1:0||r="PIP"\n': (1, "malformed_data", "relation line"),
        'c="secret" 1:0 1:0||t="PIP"||c="fever" 2:1 2:1\n': (1, "malformed_data", "relation line"),
        'c="fever" 2:1 2:0||r="PIP"||c="fever" 2:1 2:1\n': (1, "out_of_range", "2:1 to 2:0"),
        'c="secret" 1:0 1:0||r="TrAP"||c="pain" 1:3 1:3\n': (1, "not_found", "1:3 to 1:3"),
        'c="secret" 1:0 1:0||r="TrAP"||c="secret" 1:2 1:3\n': (1, "misquoted", "1:2"),
    },
    ("conll", "a.tsv"): {
        "SECRET\n": (1, "wrong_count", "one column"),
        "a\tO\nSECRET\tNN\tO\n": (2, "wrong_count", "3 columns", "expected 2", "line 1", "tabs"),
        "a O\n\nSECRET\n": (3, "wrong_count", "one column", "expected 2", "line 1", "blanks"),
        "a\tO\nb\tSECRET\n": (2, "wrong_form", "last column"),
        "a\tB\n": (1, "wrong_form", "last column"),
        "\tO\n": (1, "missing", "token column"),
        "a\tB-x\n\nSECRET\tI-x\n": (3, "conflict", "I-x"),
        "a\tB-x\nSECRET\tI-y\n": (2, "conflict", "I-y", "B-x"),
        "a\tS-x\nSECRET\tB-x\n": (2, "conflict", "end of", "B-x"),
        "a\tS-x\nb\tB-x\nc\tO\n": (3, "conflict", "O cannot", "B-x"),
        "": (None, "not_enough_data"),
        "\n# a comment = x\n": (None, "not_enough_data"),
    },
    ("conllu", "a.conllu"): {
        "# text = SECRET\n1\tone\t_\n": (2, "wrong_count", "3 columns"),
        f"# text = SECRET\nx\ty\t{CONLLU}\n": (2, "wrong_form"),
        f"# text = SECRET\n0\ty\t{CONLLU}\n": (2, "wrong_form"),
        f"1\tSECRET\t{CONLLU}\n": (1, "missing", "data.conllu.text"),
    },
    ("jsonl", "a.jsonl"): {
        third({}): (3, "missing", "text:"),
        third(spans={"start": 0, "end": 3, "label": "a", "x": 1}): (3, "unknown_key", "spans.0.x"),
        third([FULL]): (3, "wrong_type"),
        third({"text": 3}): (3, "wrong_type", "text:"),
        third({"text": "SECRET", "spam": "SECRET"}): (3, "unknown_key", "spam", "'spans'"),
        third({"text": "SECRET", "colour": "SECRET"}): (3, "unknown_key", "colour", "id, text"),
        third(spans={"start": "0", "end": 3, "label": "a"}): (3, "wrong_type", "spans.0.start"),
        third(spans={"start": 3, "end": 3, "label": "a"}): (3, "out_of_range", "start 3", "end 3"),
        third(spans={"start": 0, "end": 7, "label": "a"}): (3, "out_of_range", "at 7"),
        third(spans={"start": 0, "end": 3, "label": ""}): (3, "out_of_range", "spans.0.label"),
        third(spans={"start": 0, "end": 5, "label": "a", "fragments": [[0, 2], [1, 5]]}): (
            3, "conflict", "fragments",
        ),
        third(spans={"start": 0, "end": 5, "label": "a", "fragments": [[0, 2], [3, 4]]}): (
            3, "conflict", "fragments",
        ),
        third(relations={"head": 0, "tail": 0, "label": "a"}): (3, "not_found", "0 and 0", "of 0"),
        third({**FULL, "annotates": ["other"]}): (3, "missing", "annotates"),
        third({**FULL, "lacks_relations": True}): (3, "conflict", "lacks_relations", "1 relations"),
        '{"text": "SECRET"': (1, "not_json"),
        "SECRET": (1, "not_json"),
        '{"text": "SECRET\\ud800"}': (1, "not_json"),
        '{"text": "a"}{}': (1, "not_json"),
        "\n": (None, "not_enough_data"),
    },
    ("pubtator", "a.txt"): {
        "17\t0\t6\tSECRET\tDisease": (1, "out_of_order"),
        "README SECRET": (1, "out_of_order"),
        f"{P}17\t0\t6\tSECRET": (3, "missing"),
        f"{P}17\t0\t6\tSECRET\t ": (3, "missing"),
        f"{P}17\t6\t6\t\tDisease": (3, "out_of_range", "6 6"),
        f"{P}17\t0\tsix\tSECRET\tDisease": (3, "wrong_form"),
        f"{P}17\t1\t7\tSECRET\tDisease": (3, "misquoted", "(Disease)", "1 7"),
        f"{P}17\t90\t96\tSECRET\tDisease": (3, "misquoted", "90 96"),
        f"{P}18\t0\t6\tSECRET\tDisease": (3, "conflict"),
        f"{P}17|a|SECRET": (3, "duplicate"),
        f"{P}17 SECRET": (3, "malformed_data"),
        f"{P}17\t0\t6\tSECRET\tDisease\n\n{P}17\t16\t22\tSECRET\tDisease": (5, "duplicate", 17),
    },
    ("medline", "a.nbib"): {
        "SECRET\n": (1, "malformed_data", "TAG - VALUE"),
        "PMID- 1\nTI  - a\nSECRET\n": (3, "malformed_data"),
        "      SECRET\n": (1, "malformed_data"),
        "PMID- 1\nTI  - a\nTI  - SECRET\n": (3, "duplicate", "TI"),
        "PMID- 1\nTI  - a\n\nTI  - SECRET\n": (4, "missing"),
        "PMID- SECRET of a note\nTI  - a\n": (1, "missing", "PMID- NUMBER"),
    },
    ("relation_table", "a.rel"): {
        "text|drug|whose\nSECRET|x|p\n": (1, "missing_column", "effect", "text, drug, effect, whose"),
        "text|drug|effect|whose\nSECRET| |x|p\n": (2, "missing", "'drug'"),
    },
    ("relation_table, without a header", "a.rel"): {
        "1|SECRET|a|x|1|b|2|3\n": (1, "wrong_type", "'e1'"),
        " |SECRET|a|0|1|b|2|3\n": (1, "missing", "'from'"),
        f"{'SECRET' * 40}|x|a|0|1|b|2|3\n": (1, "wrong_form", "'from'", 240),
        "1|a b|a|0|1|b|2|3\n2|a b|a|0|1|b|2|3\n": (2, "conflict", "line 1", "from"),
    },
    ("mtsamples", "a.csv"): {
        "specialties,text\na,SECRET\n": (1, "missing_column", "transcription"),
        "specialty,transcription\na,SECRET\n": (1, "missing_column", "medical_specialty", "specialties"),
        "specialties,transcription\n| ,SECRET\n": (2, "missing"),
    },
    ("mimic", "DIAGNOSES_ICD.csv"): {
        f"{CODES}7,20,1,486\n7,20,1,4019\n": (3, "duplicate", "SEQ_NUM 1"),
        f"{CODES}7,20,1,SECRET\n": (2, "unknown_name", "ICD9_CODE"),
        f"{CODES}7,20,1,486\n7,,2,486\n": (3, "missing", "SUBJECT_ID", "HADM_ID", "SEQ_NUM"),
        f"{CODES}7,20,1,486\n7,x,2,486\n": (3, "wrong_form", "HADM_ID"),
        f"{CODES}7,20,1,486\n8,20,2,486\n": (3, "conflict"),
    },
    ("mimic", "NOTEEVENTS.csv"): {
        f"{NOTES}1,{NOTE}\n1,{NOTE}\n": (3, "duplicate", "ROW_ID"),
        f"{NOTES}1,{NOTE}\n2,8,20,Discharge summary,SECRET\n": (3, "conflict", "SUBJECT_ID", "DIAGNOSES_ICD"),
        f"{NOTES}1,{NOTE}\none,{NOTE}\n": (3, "wrong_form", "ROW_ID"),
        f'{NOTES}1,7,20,Discharge summary,"three\r\nSECRET\nlong"\n1,{NOTE}\n': (5, "duplicate"),
        f'{NOTES}1,{NOTE}\n2,7,20,Discharge summary,"SECRET\nSECRET\n': (3, "cut_short"),
        "SUBJECT_ID,HADM_ID,TEXT\n7,20,SECRET\n": (1, "missing_column", "category"),
    },
    ("mimic", "ADMISSIONS.csv"): {
        "SUBJECT_ID,HADM_ID\n7,20\n7,20\n": (3, "duplicate", "HADM_ID"),
        "SUBJECT_ID\n7\n": (1, "missing_column", "hadm_id"),
    },
    ("ag_news", "a.csv"): {
        '"1","a","b"\n"5","SECRET","b"\n': (2, "out_of_range", "1 to 4"),
        '"0","SECRET","b"\n': (1, "out_of_range"),
        '"SECRET","a","b"\n': (1, "out_of_range"),
    },
    ("ag_news", "classes.txt"): {"SECRET\nSECRET\n": (None, "duplicate")},
    ("ag_news, as JSON", "a.json"): {
        '{"0": {"ori": "SECRET", "label": "4"}}': (None, "out_of_range", "record 1"),
        '[{"ori": "SECRET"}]': (None, "missing_column", "record 1"),
    },
    ("glue", "a.tsv"): {
        "index\tSECRET\tlabel\n0\tSECRET\tx\n": (1, "missing_column"),
        "": (None, "missing"),
        "index\tSECRET\n0\ta\tb\tx\n": (1, "wrong_count", "1 rows", "columns, 2"),
        "index\tsentence1\tsentence2\tlabel\n": (None, "not_enough_data"),
    },
    ("glue, as JSON", "a.json"): {
        '{"0": {"text_a": "SECRET"}}': (None, "missing_column", "record 1"),
        '{"0": {"text_a": "x", "text_b": ["SECRET"]}}': (None, "missing_column", "record 1"),
        '["SECRET"]': (None, "wrong_type", "record 1", "str"),
        '"SECRET"': (None, "wrong_type", "str"),
        '{\n"0": SECRET}': (2, "not_json"),
    },
    ("superglue", "other/x.jsonl"): {"{}": (None, "wrong_format")},
    ("superglue", "RTE/x.jsonl"): {
        '{"premise": "SECRET"}': (1, "missing", "hypothesis"),
        '{"premise": "a", "hypothesis": "SECRET", "label": 2}': (1, "unknown_name"),
        '{"premise": "a", "hypothesis": "b", "label": "SECRET"}': (1, "unknown_name"),
    },
    ("superglue", "BoolQ/x.jsonl"): {'{"question": "SECRET", "passage": 3}': (1, "wrong_type", "passage")},
    ("superglue", "CB/x.jsonl"): {"\nSECRET": (2, "not_json")},
    ("superglue", "MultiRC/x.jsonl"): {
        '{"passage": {"text": "SECRET"}}': (1, "missing", "passage.questions"),
    },
    ("superglue", "WSC/x.jsonl"): {
        '{"text": "SECRET", "target": {"span1_text": "SECRET", "span2_text": "He", "span2_index": 4}}': (
            1, "out_of_range", "target.span2_index",
        ),
    },
    ("mts_dialog", "a.csv"): {
        "ID,section_text\n0,SECRET\n": (1, "missing_column", "dialogue"),
        "ID,section_text,dialogue\n0,SECRET, \n": (2, "missing", "dialogue"),
    },
    ("coqa", "a.json"): {
        coqa(answers=CONVERSATION["answers"][:1]): (None, "conflict"),
        coqa(story=None): (None, "wrong_type", "data.0.story"),
        coqa(questions=[{"turn_id": 1}]): (None, "missing", "data.0.questions.0.input_text"),
    },
    ("xsum", "10.summary"): {
        "SECRET": (None, "missing", "[SN]FIRST-SENTENCE"),
        XSUM.split("[SN]REST", maxsplit=1)[0]: (None, "missing", "[SN]RESTBODY"),
    },
    ("xsum", XSUM_SPLIT): {
        '{"train": ["10"], "validation": ["10"], "test": []}': (None, "duplicate"),
        "{": (1, "not_json"),
        '{"train": ["10"]}': (None, "wrong_form"),
    },
}  # fmt: skip
"""What a file of a sample (or a further one) holds in place of what it should, and what is said of it: the
line, the code and some values."""


def written(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Writes files; returns the first."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / next(iter(files))


def test_every_format_has_a_sample() -> None:
    assert {name.partition(",")[0] for name in SAMPLES} == FORMATS.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_reader_keeps_its_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(readers, "LONGEST_QUOTE", len("SECRET"))
    files, documents, settings, log = SAMPLES[name]
    format = name.partition(",")[0]
    file = written(tmp_path, files)
    assert fs.read(file, format, **settings) == list(documents)
    assert log in caplog.text
    clauses = readers.check_reader(format, tmp_path, documents, **settings)
    takes_gz = any(suffix.endswith(".gz") for suffix in FORMATS[format].suffixes)
    assert len(clauses) == (8 if takes_gz else 7)
    written(tmp_path, {"x.unknown": "SECRET"})
    assert fs.read(tmp_path, format, **settings) == list(documents)


class Careless(fs.Reader):
    """A file is a note; what it does wrong is a setting."""

    suffixes: ClassVar[tuple[str, ...]] = (".note", ".note.gz")
    flaw: Literal["mark", "ends", "count", "quote", "log", "path", "gz"] = "mark"

    def read(self, path: Path, annotations: Path | None) -> Iterator[Document]:
        content = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
        text = content.decode("utf-8" if self.flaw == "mark" else "utf-8-sig")
        if self.flaw == "log":
            logging.getLogger("careless").warning("read %s", text)
        if not text.endswith("."):
            where = path.with_name("elsewhere") if self.flaw == "path" else path
            raise fs.DataError(where, f"no stop after {text if self.flaw == 'quote' else 'it'}")
        number = f"-{len(text)}" if self.flaw == "ends" else f"-{next(COUNT)}" if self.flaw == "count" else ""
        yield Document(f"n{number}", "" if self.flaw == "gz" and path.name.endswith(".gz") else text)


COUNT = itertools.count()


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ("mark", ["byte order mark"]),
        ("ends", ["line ends"]),
        ("count", ["each time"]),
        ("quote", ["quotes the text"]),
        ("log", ["quotes the text"]),
        ("path", ["elsewhere"]),
        ("gz", ["compressed"]),
    ],
)
def test_a_reader_that_does_not_keep_the_contract_is_told(
    tmp_path: Path, flaw: Any, words: list[str]
) -> None:
    (tmp_path / "a.note").write_text("Some cough since Monday,\nand a little fever.")
    with pytest.raises(fs.testing.ContractError) as raised:
        fs.testing.check_reader(Careless(flaw=flaw), tmp_path)
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize("format", FORMATS)
def test_bytes_that_are_not_utf8_are_found(tmp_path: Path, format: str) -> None:
    files, _, settings, _ = SAMPLES[format]
    name, text = next(iter(files.items()))
    before, after = text.encode().split(b"SECRET", 1)
    file = written(tmp_path, {**files, name: before + b"SECRET\xef" + after})
    line, byte = before.count(b"\n") + 1, len(before) + len("SECRET")
    for place in (file, tmp_path):
        with refused(DataError, "not_utf8", at=name, values=[f"line {line}", f"byte {byte}"]) as raised:
            fs.read(place, format, **settings)
        assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "file", "content", "says"),
    [
        pytest.param(*key, content, says, id=f"{key[0]}-{says[1]}-{number}")
        for key, contents in WRONG.items()
        for number, (content, says) in enumerate(contents.items(), start=1)
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_never_the_text(
    tmp_path: Path, name: str, file: str, content: str, says: tuple[Any, ...]
) -> None:
    files, _, settings, _ = SAMPLES[name]
    written(tmp_path, {**files, file: content})
    line, code, *values = says
    with refused(DataError, code, values=values) as raised:
        fs.read(tmp_path / file if "/" in file else tmp_path, name.partition(",")[0], **settings)
    assert (raised.value.path, raised.value.line) == (tmp_path / file, line)
    assert "secret" not in str(raised.value).lower()

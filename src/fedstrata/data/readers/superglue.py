r"""SuperGLUE (Wang et al., 2019), as it is published: a JSON object a line, told by the name of its task.

    RTE/train.jsonl             {"premise": ..., "hypothesis": ..., "label": "entailment", "idx": 0}
    CB/cb_validation.jsonl.gz   the same, with labels of its own
    BoolQ/boolq_train.jsonl     {"question": ..., "passage": ..., "label": true}
    WiC/val.jsonl               {"word": ..., "sentence1": ..., "sentence2": ..., "label": false}
    COPA/train.jsonl            {"premise": ..., "choice1": ..., "choice2": ..., "question": "cause", ...}
    MultiRC/train.jsonl         {"passage": {"text": ..., "questions": [{"question": ..., "answers": [...]}]}}
    ReCoRD/train.jsonl          {"passage": {"text": ..., "entities": [...]}, "qas": [{"query": ..., ...}]}
    WSC/train.jsonl             {"text": ..., "target": {"span1_text": ..., "span2_text": ..., ...}, ...}

A file is of the task that its name, its folder's or the one's above names (`TASKS`). Labels are names, as
published; numbers, as in the copies of the Hugging Face hub, stand for them in the order of `_CLASSIFIED`,
and -1 for none.

Every document's `metadata` name its task (`superglue`).

| task | `text` | `text_pair` | `metadata` | `labels` |
|---|---|---|---|---|
| RTE, CB | premise | hypothesis | | the class |
| BoolQ | passage | question | | `true` or `false` |
| WiC | sentence | sentence | `word` | `true` or `false` |
| COPA | premise | | `question`: cause or effect; two choices | the right choice |
| MultiRC | passage | question | its answers as choices | the right choices |
| ReCoRD | passage | query | the passage's entities as choices | the right choices |
| WSC | text, its pronoun as \*it\* | | `pronoun`; the nouns as choices | the right choices |

A document of MultiRC and ReCoRD is one question. One of WSC is a sentence with a pronoun, and all nouns that
the rows of the file ask about; nouns in a row's `candidates`, which some copies have, are rivals of these.
What choices and rivals are is said in `fedstrata.data.choices`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.choices import NONE_RIGHT, PRONOUN, TASK, named
from fedstrata.data.readers.files import Format, Source, filled_lines, stem
from fedstrata.data.readers.jsonl import PartRecord, parse_line

_SUFFIXES = (".jsonl", ".jsonl.gz")
_Label = bool | int | str | None
Lines = Iterator[tuple[int, str]]


class _Pair(PartRecord):
    premise: str
    hypothesis: str
    label: _Label = None

    def document(self) -> Document:
        return Document("", self.premise, text_pair=self.hypothesis)


class _YesNo(PartRecord):
    question: str
    passage: str
    label: _Label = None
    answer: bool | None = None

    def document(self) -> Document:
        return Document("", self.passage, text_pair=self.question)


class _Senses(PartRecord):
    word: str
    sentence1: str
    sentence2: str
    label: _Label = None

    def document(self) -> Document:
        return Document("", self.sentence1, metadata={"word": self.word}, text_pair=self.sentence2)


class _Alternatives(PartRecord):
    premise: str
    choice1: str
    choice2: str
    question: str
    label: _Label = None

    def document(self) -> Document:
        choices = named("choice", [self.choice1, self.choice2])
        return Document("", self.premise, metadata={"question": self.question, **choices})


class _Answer(PartRecord):
    text: str
    label: bool | int | None = None


class _Question(PartRecord):
    question: str
    answers: tuple[_Answer, ...]


class _Questions(PartRecord):
    text: str
    questions: tuple[_Question, ...]


class _Reading(PartRecord):
    passage: _Questions


class _Place(PartRecord):
    start: int
    end: int


class _Passage(PartRecord):
    text: str
    entities: tuple[_Place, ...]


class _Query(PartRecord):
    query: str
    answers: tuple[_Answer, ...] | None = None


class _Record(PartRecord):
    passage: _Passage
    qas: tuple[_Query, ...]


class _Target(PartRecord):
    span1_text: str
    span2_text: str
    span2_index: int


class _Sentence(PartRecord):
    text: str
    target: _Target
    label: _Label = None
    candidates: tuple[str, ...] = ()


_CLASSIFIED: Mapping[str, tuple[type[_Pair | _YesNo | _Senses | _Alternatives], tuple[str, ...]]] = {
    "rte": (_Pair, ("entailment", "not_entailment")),
    "cb": (_Pair, ("entailment", "contradiction", "neutral")),
    "boolq": (_YesNo, ("false", "true")),
    "wic": (_Senses, ("false", "true")),
    "copa": (_Alternatives, ("choice1", "choice2")),
}
"""The rows of each task that has a fixed set of labels, and these in the order that numbers count them in."""


def _label(names: Sequence[str], given: _Label, path: Path, number: int) -> tuple[str, ...]:
    """Returns the label of a row by its name; nothing where it has none."""
    if given is None or given == "" or (given == -1 and not isinstance(given, bool)):
        return ()
    if isinstance(given, int) and 0 <= given < len(names):
        return (names[int(given)],)
    if isinstance(given, str) and given in names:
        return (given,)
    allowed = ", ".join(f"{place} or {name}" for place, name in enumerate(names))
    raise DataError(
        path, "the label is none of this task", line=number, expected=allowed, code="unknown_name"
    )


def _classified(task: str, path: Path, lines: Lines) -> Iterator[Document]:
    """Yields a document a row, for the tasks with a fixed set of labels."""
    record, names = _CLASSIFIED[task]
    for number, line in lines:
        row = parse_line(record, path, number, line)
        given = row.answer if isinstance(row, _YesNo) and row.label is None else row.label
        yield replace(row.document(), labels=_label(names, given, path, number))


def _multirc(task: str, path: Path, lines: Lines) -> Iterator[Document]:
    for number, line in lines:
        passage = parse_line(_Reading, path, number, line).passage
        for question in passage.questions:
            choices = named("choice", (answer.text for answer in question.answers))
            labels = _right(choices, [answer.label for answer in question.answers])
            yield Document("", passage.text, labels=labels, metadata=choices, text_pair=question.question)


def _record(task: str, path: Path, lines: Lines) -> Iterator[Document]:
    for number, line in lines:
        row = parse_line(_Record, path, number, line)
        text = row.passage.text
        # The ends of entities are those of their last characters.
        entities = dict.fromkeys(text[place.start : place.end + 1] for place in row.passage.entities)
        choices = named("choice", filter(None, entities))
        for query in row.qas:
            answers = {answer.text for answer in query.answers or ()}
            truths = [text in answers if query.answers else None for text in choices.values()]
            yield Document("", text, labels=_right(choices, truths), metadata=choices, text_pair=query.query)


def _wsc(task: str, path: Path, lines: Lines) -> Iterator[Document]:
    rows: dict[tuple[str, int], list[_Sentence]] = {}
    for number, line in lines:
        row = parse_line(_Sentence, path, number, line)
        words = row.text.split(" ")
        if not 0 <= row.target.span2_index < len(words):
            expected = f"one of the text's {len(words)} words, from 0"
            raise DataError(
                path,
                "target.span2_index is outside the text",
                line=number,
                expected=expected,
                code="out_of_range",
            )
        rows.setdefault((row.text, row.target.span2_index), []).append(row)
    for (text, _), together in rows.items():
        truths = {row.target.span1_text: row.label for row in together}
        asked = {name.casefold() for name in truths}
        further = dict.fromkeys(name for row in together for name in row.candidates)
        rivals = [name for name in further if name.casefold() not in asked]
        choices = named("choice", truths)
        target = together[0].target
        metadata = {PRONOUN: target.span2_text, **choices, **named("rival", rivals)}
        labels = _right(choices, list(truths.values()))
        yield Document("", _marked(text, target), labels=labels, metadata=metadata)


def _marked(text: str, target: _Target) -> str:
    """Returns a text with asterisks around its pronoun, and not around a comma behind it."""
    words = text.split(" ")
    word = words[target.span2_index]
    at = word.casefold().find(target.span2_text.casefold())
    start, end = (at, at + len(target.span2_text)) if at >= 0 else (0, len(word))
    words[target.span2_index] = f"{word[:start]}*{word[start:end]}*{word[end:]}"
    return " ".join(words)


def _right(choices: Mapping[str, str], truths: Sequence[_Label]) -> tuple[str, ...]:
    """Returns the labels of a question: nothing where it is not known of every choice whether it is right."""
    if not choices or any(truth not in (True, False) for truth in truths):
        return ()
    return tuple(name for name, truth in zip(choices, truths, strict=True) if truth) or (NONE_RIGHT,)


TASKS: Mapping[str, Callable[[str, Path, Lines], Iterator[Document]]] = {
    **dict.fromkeys(_CLASSIFIED, _classified),
    "multirc": _multirc,
    "record": _record,
    "wsc": _wsc,
}
"""What reads the files of each task, by the name that files or folders have it under, in any case."""


def task_of(path: Path) -> str:
    """Returns the task that a file's name, its folder or the folder above names.

    Raises:
        DataError: None of them names one.
    """
    names = [stem(path, _SUFFIXES), *(folder.name for folder in path.absolute().parents[:2])]
    for name in names:
        found = [part for part in re.split(r"[^a-z]+", name.lower()) if part in TASKS]
        if found:
            return found[0]
    expected = f"a file or folder named after its task: {', '.join(TASKS)}, in any case"
    raise DataError(path, "is of no task that is known", expected=expected, code="wrong_format")


def read(source: Source) -> Iterator[Document]:
    """Reads one file.

    Yields:
        A document for each question.

    Raises:
        DataError: It is of no task that is known, or a line is not what the task's lines are.
    """
    task = task_of(source.path)
    for document in TASKS[task](task, source.path, filled_lines(source.path)):
        yield replace(document, metadata={TASK: task, **document.metadata})


FORMAT = Format(
    read, _SUFFIXES, has_labels=lambda source: (bool(document.labels) for document in read(source))
)

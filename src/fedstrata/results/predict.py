"""Predictions for files: what a finished run's model finds in them, written as files.

The input is read twice. The first time checks every file and every name, so that no mistake stops a long
prediction half-way and all are told at once; the second time predicts. Either time a chunk of documents is
in memory, whatever the size of the input.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError, Problem, refuse, refused
from fedstrata.core.files import private_folder, require_new, write_atomically
from fedstrata.core.settings.data import DataSettings
from fedstrata.core.task import Task
from fedstrata.data.icd9 import category
from fedstrata.data.readers import documents_of, formats_of, texts
from fedstrata.data.readers.files import BYTE_ORDER_MARK, Format, Source, read_text
from fedstrata.data.readers.folders import find_sources
from fedstrata.data.select import rename_relations, rename_types, types_of
from fedstrata.data.writers import brat, i2b2, jsonl
from fedstrata.data.writers.layout import FileLabels, by_folder, file_name_of
from fedstrata.results.result import Result
from fedstrata.results.trained import trained_texts
from fedstrata.train.evaluate import answer

TEXT = "text"
"""The input format whose files may lie anywhere; the others are laid out like a corpus."""

JSON_LINES = "predictions.jsonl"
"""The one file of predictions in that format."""

CHUNK_DOCUMENTS, CHUNK_CHARACTERS = 64, 200_000
"""A chunk ends with whichever is reached first; within it, windows are batched by length."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Files to predict for, all of them checked.

    Attributes:
        root: The folder they lie in.
        form: Their format's name.
        layout: Their format.
        sources: The files, in order.
        count: The number of documents in them.
    """

    root: Path
    form: str
    layout: Format
    sources: tuple[Source, ...]
    count: int = 0

    @property
    def one_a_file(self) -> bool:
        """Whether each file is one document; predictions then lie where the file did."""
        return self.layout.one_a_file or bool(self.layout.annotation_suffix)

    def documents(self) -> Iterator[tuple[Source, Document]]:
        """Reads every document, with the file it comes from."""
        for source in self.sources:
            for document in documents_of(source, self.layout):
                yield source, document

    def place(self, source: Source, document: Document) -> PurePosixPath:
        """Returns where the files of a document go, below the output folder and without a suffix.

        Raises:
            DataError: Its id, or its site, cannot name a file.
        """
        if self.one_a_file:
            name = document.id.rpartition("/")[2]
            folder = PurePosixPath(source.path.parent.relative_to(self.root))
            return folder / file_name_of(replace(document, id=name, site="", metadata={}))
        (folder,) = by_folder([document])
        return folder / file_name_of(document)


@dataclass(slots=True)
class Outcome:
    """What a prediction came to.

    Attributes:
        documents: The number of documents.
        annotations: Mentions, relations, or labels of documents, that were found.
        left_out: Mentions for which the output format has no place.
        widened: Mentions that were widened to whole tokens of the input.
        seconds: Time it took, reading and writing included.
        scores: Scores against the input's own annotations; none without any.
        unknown: Types of mentions or relations, or labels, of the input's annotations that the model does not
            know; left out of the scores.
        unscored: Documents that were left out of the scores for want of what they could be scored against.
        trained: Documents with the words of one that the run was trained on.
    """

    documents: int = 0
    annotations: int = 0
    left_out: int = 0
    widened: int = 0
    seconds: float = 0.0
    scores: dict[str, float] | None = None
    unknown: set[str] = field(default_factory=set)
    unscored: int = 0
    trained: int = 0


def check_output(task: Task, output: str | None) -> str:
    """Returns the format to write: the given one, or the task's first.

    Raises:
        ConfigurationError: The format cannot hold the task's answers or spell its types.
    """
    if output is None:
        return task.outputs[0]
    if output not in task.outputs:
        message = f"answers of task {task.name} can be written as {', '.join(task.outputs)}, not {output!r}"
        raise refused("--format", message, "not_supported")
    spelling: dict[str, Callable[[str], str]] = {"brat": FileLabels(), "i2b2": i2b2.checked_label}
    spell = spelling.get(output, str)
    try:
        for label in task.known_types:
            spell(label)
    except DataError as error:
        raise refused("--format", str(error), error.code) from None
    return output


def check_input(task: Task, form: str) -> None:
    """Refuses texts alone for a task that reads mentions and finds none, or asks about more than a text.

    Raises:
        ConfigurationError: The format does not hold what the task reads.
    """
    what, why = task.beyond_texts
    if form == TEXT and what:
        message = f"must be a format with {what}, not {form!r}{f': {why}' if why else ''}"
        raise refused("--input-format", message, "not_supported")


def keeping_mentions(result: Result) -> Result:
    """Returns a result whose task keeps the mentions of its input, and asks for their modifiers.

    Raises:
        ConfigurationError: Its task does not ask for modifiers.
    """
    if (task := result.task.keeping_mentions()) is not None:
        return replace(result, task=task)
    message = f"is for task extract with modifiers (task.tasks: [ner, re]), not {result.task.name}"
    raise refused("--keep-mentions", message, "not_supported")


def open_inputs(path: Path, form: str, output: str, settings: DataSettings | None = None) -> Inputs:
    """Finds and checks the files to predict for.

    Args:
        path: A file or a folder.
        form: A format of `fedstrata.data.readers`; `text` for texts at any depth.
        output: The format to write.
        settings: How the run read its documents: of MIMIC-III which notes, of a treebank which text, of plain
            texts what a document is. The defaults if none.

    Raises:
        ConfigurationError: There is no such format, or files are not of it or cannot be written; all at once.
        DataError: There are no such files.
    """
    formats = formats_of(settings or DataSettings())
    if form not in formats:
        message = f"must be one of {', '.join(formats)}, not {form!r}"
        raise refused("--input-format", message, "unknown_name")
    layout = formats[form]
    sources = texts.find_texts(path) if form == TEXT else find_sources(path, layout)
    inputs = Inputs(path if path.is_dir() else path.parent, form, layout, tuple(sources))
    problems, names, count = [], set(), 0
    for source in sources:
        try:
            for document in documents_of(source, layout):
                count += 1
                name = document.id if output == "jsonl" else str(inputs.place(source, document))
                if name in names:
                    raise DataError(
                        source.path, f"a second document would be written as {name!r}", code="duplicate"
                    )
                names.add(name)
        except DataError as error:
            problems.append(Problem("INPUT", str(error), code=error.code))
    refuse(problems)
    return replace(inputs, count=count)


def predict_files(
    result: Result, inputs: Inputs, out: Path, output: str, advance: Callable[[int], None]
) -> Outcome:
    """Predicts for every document and writes what is found; every file appears whole or not at all.

    Args:
        result: The run whose model is used.
        inputs: The files.
        out: The folder to write; must not exist yet or be empty.
        output: The format, one of `Task.outputs`.
        advance: Told how many more documents are done.

    Raises:
        ConfigurationError: The folder is not empty.
    """
    require_new(out)
    private_folder(out, existing=True)
    started, outcome = time.perf_counter(), Outcome()
    predicted = _predicted(result, inputs, outcome, advance)
    if output == "jsonl":
        # One file holds the documents of all folders, so that ids keep what tells them apart.
        lines = (jsonl.line(document, document.id).encode() for _, document in predicted)
        write_atomically(out / JSON_LINES, lines)
    else:
        labels = FileLabels()
        for source, document in predicted:
            _write_pair(inputs, source, document, out, output, labels, outcome)
    outcome.seconds = time.perf_counter() - started
    return outcome


def annotated(result: Result, documents: Sequence[Document]) -> list[Document]:
    """Returns documents with the model's answers as their annotations.

    Args:
        result: The run whose model is used.
        documents: The documents; of their own annotations those are kept that the task reads and does not
            find.
    """
    outcome, task = Outcome(), result.task
    known = [_known(document, result, outcome) for document in documents]
    found = task.answers_to(partial(_asked, result), known)
    return [task.annotate(document, own) for document, own in zip(known, found, strict=True)]


def _asked(result: Result, task: Task, texts: Sequence[Document]) -> list[Any]:
    """Returns the model's answers."""
    return answer(result.model, task, texts, result.settings.training)


def _predicted(
    result: Result, inputs: Inputs, outcome: Outcome, advance: Callable[[int], None]
) -> Iterator[tuple[Source, Document]]:
    """Yields every document with the model's answer as its annotations; scores them at the end."""
    task = result.task
    expected: list[Document] = []
    answers: list[Any] = []
    trained = trained_texts(result)

    for chunk in _chunks(inputs.documents()):
        known = [_known(document, result, outcome) for _, document in chunk]
        found = task.answers_to(
            partial(_asked, result), known
        )  # modifiers are those of mentions it found itself
        if inputs.form != TEXT or not task.needs_annotations:  # else there is nothing to score against
            scored = [pair for pair in zip(known, found, strict=True) if task.scorable(pair[0])]
            expected += [document for document, _ in scored]
            answers += [own for _, own in scored]
            outcome.unscored += len(known) - len(scored)
        for (source, _), document, own in zip(chunk, known, found, strict=True):
            annotated = task.annotate(document, own)
            outcome.annotations += _count(annotated, task)
            yield source, annotated
        outcome.documents += len(chunk)
        outcome.trained += trained.count(document for _, document in chunk)
        advance(len(chunk))
    if not task.needs_annotations or any(_count(document, task) for document in expected):
        outcome.scores = task.score(expected, answers)


def _count(document: Document, task: Task) -> int:
    """Returns how many annotations of the kind that the task finds the document has."""
    found = (getattr(document, kind) for kind in task.finds)
    return sum(bool(own) if isinstance(own, str | None) else len(own) for own in found)


def _chunks(documents: Iterator[tuple[Source, Document]]) -> Iterator[list[tuple[Source, Document]]]:
    chunk: list[tuple[Source, Document]] = []
    characters = 0
    for source, document in documents:
        chunk.append((source, document))
        characters += sum(map(len, document.texts))
        if len(chunk) == CHUNK_DOCUMENTS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _known(document: Document, result: Result, outcome: Outcome) -> Document:
    """Returns the document with the annotations the model could find, under the names it has for them.

    Where a model reads mentions that it does not find, these are kept.
    """
    types, labels = result.settings.data.types, result.settings.data.labels
    renamed = rename_types(document, types) if isinstance(types, Mapping) else document
    renamed = rename_relations(renamed, result.settings.data)
    if labels.digits == 3:  # what is no code stays, and is told as unknown
        shortened = dict.fromkeys(category(label) or label for label in renamed.labels)
        renamed = replace(renamed, labels=tuple(shortened))
    known = result.task.known(renamed)
    if not result.task.needs_annotations:
        return known
    outcome.unknown |= {span.label for span in renamed.spans} - {span.label for span in known.spans}
    outcome.unknown |= set(renamed.labels) - set(known.labels)
    if "relations" in result.task.gives:
        outcome.unknown |= set(types_of([renamed], "relations")) - set(types_of([known], "relations"))
    return known


def _write_pair(
    inputs: Inputs,
    source: Source,
    document: Document,
    out: Path,
    output: str,
    labels: FileLabels,
    outcome: Outcome,
) -> None:
    """Writes a text and its annotations, in this order: whoever sees the second has both."""
    target = out / inputs.place(source, document)
    private_folder(target.parent)
    if output == "brat":
        text, rows, suffix = brat.text_of(document), "".join(brat.lines_of(document, labels)), ".ann"
        unchanged = inputs.one_a_file
    else:
        concepts = i2b2.concepts_of(document, own_tokens=inputs.form == "i2b2")
        text, rows, suffix = concepts.text, concepts.rows, ".con"
        unchanged = inputs.form == "i2b2"
        outcome.left_out += concepts.left_out
        outcome.widened += concepts.widened
    content = _unchanged(source, document) if unchanged else None
    name = target.name  # with_suffix would take a dot in a name for the beginning of a suffix
    write_atomically(
        target.with_name(f"{name}.txt"), [text.encode() if content is None else content], durable=False
    )
    write_atomically(target.with_name(f"{name}{suffix}"), [rows.encode()], durable=False)


def _unchanged(source: Source, document: Document) -> bytes | None:
    r"""Returns the bytes of the input file, decompressed; none where the text is another one.

    That is so where the annotations of a BRAT input count a byte order mark, or `\r\n` as one character.
    """
    text = read_text(source.path, keep_mark=True)
    return text.encode() if text.removeprefix(BYTE_ORDER_MARK) == document.text else None

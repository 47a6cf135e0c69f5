"""Instructions: what a model is asked of a sentence, and what it should answer.

A document is cut into sentences. Of each, one instruction asks for the mentions, and one for the modifiers
of each mention that can have some. The answer is the sentence with markup
(`fedstrata.tasks.instruction.markup`).

Source: Fed-MedLoRA (Li et al.), section 5.1 and its annotation of modifiers: the input of a relation
    instruction marks one main entity, whose type and place are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import Field

from fedstrata.core.documents import Span
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.settings.base import Settings
from fedstrata.data.sentences import lines, sentences
from fedstrata.tasks.instruction.definitions import DEFINITIONS
from fedstrata.tasks.instruction.markup import mark
from fedstrata.tasks.instruction.prompts import builtin, faults, filled, read_template

if TYPE_CHECKING:
    from fedstrata.core.documents import Document

Kind = Literal["ner", "re"]
INPUT = "input"
"""The field that every template names."""
FIELDS: Mapping[str, tuple[str, ...]] = {
    "ner": (INPUT, "types", "definitions"),
    "re": (INPUT, "main", "types", "definitions"),
}
"""What a template of each kind may name; it must name the input."""


@dataclass(frozen=True, slots=True)
class Question:
    """What one instruction is about.

    Attributes:
        document: Index of the document.
        start: Where its sentence begins in the document's text.
        end: One past where it ends.
        main: The mention whose modifiers are asked for, with offsets in the document; none if all mentions
            are.
    """

    document: int
    start: int
    end: int
    main: Span | None = None

    @property
    def kind(self) -> Kind:
        """Whether mentions or modifiers are asked for."""
        return "ner" if self.main is None else "re"

    def holds(self, span: Span) -> bool:
        """Whether a mention is in the sentence."""
        return self.start <= span.start and span.end <= self.end

    def within(self, span: Span) -> Span:
        """Returns a mention of the document with offsets in the sentence; one in pieces as a whole."""
        return Span(span.start - self.start, span.end - self.start, span.label)

    def outside(self, span: Span) -> Span:
        """Returns a mention of the sentence with offsets in the document."""
        return Span(span.start + self.start, span.end + self.start, span.label)


class TemplateFiles(Settings):
    """Instructions of one's own: each a path to a text file, or the text itself if it holds {input}."""

    ner: str | None = Field(default=None, description="For mentions; with {input}, {types}, {definitions}.")
    re: str | None = Field(
        default=None, description="For modifiers; with {input}, {main}, {types}, {definitions}."
    )


class Wanted(Protocol):
    """What a task says that it asks for, and how."""

    @property
    def tasks(self) -> Sequence[Kind]:
        """What is asked for."""

    @property
    def unit(self) -> Literal["sentence", "line"]:
        """What an instruction is about."""

    @property
    def templates(self) -> Literal["full", "short"] | TemplateFiles:
        """How it is asked."""

    @property
    def mentions(self) -> Sequence[str] | Literal["auto"]:
        """The mention types that are asked for."""

    @property
    def modifiers(self) -> Mapping[str, list[str]] | Literal["auto"]:
        """The modifier types that are asked for, by the mention type they modify."""

    @property
    def definitions(self) -> Mapping[str, str]:
        """What a type means."""


class Instructions:
    """The questions of a task, and the words of them and of their answers.

    Args:
        wanted: What is asked for, in which nothing is `auto` any more.

    Attributes:
        mentions: The mention types that are asked for.
        modifiers: The modifier types that are asked for, by the mention type they modify.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.mentions: Sequence[str] = [] if wanted.mentions == "auto" else wanted.mentions
        self.modifiers: Mapping[str, list[str]] = {} if wanted.modifiers == "auto" else wanted.modifiers
        self._templates = template_texts(wanted)
        self._definitions = {**DEFINITIONS, **wanted.definitions}
        self._unit = wanted.unit

    def prompt(self, question: Question, text: str) -> str:
        """Returns the instruction.

        Args:
            question: What is asked.
            text: The document's text.
        """
        main = question.main
        sentence = text[question.start : question.end]
        marked = mark(sentence, [question.within(main)] if main else [])
        return self._filled(question.kind, marked, main.label if main else "", self.types(question))

    def questions(
        self,
        index: int,
        document: Document,
        fits: Callable[[str, Sequence[Question]], bool],
        *,
        whole: Sequence[Span] = (),
    ) -> Iterator[Question]:
        """Yields what is asked of a document: sentence by sentence its mentions, then the modifiers of each.

        Args:
            index: The document's index.
            document: The document; its mentions are those whose modifiers are asked for.
            fits: Whether a sentence is short enough, given it and what is asked of it. One that is not is cut
                at the blank nearest to its middle.
            whole: Mentions that are not to be cut where there is another blank.
        """
        cut = sentences if self._unit == "sentence" else lines
        about = partial(self._about, index, document)
        for start, end in cut(document.text):
            yield from _parts(document.text, about, start, end, fits, whole)

    def _about(self, index: int, document: Document, start: int, end: int) -> list[Question]:
        """Returns the questions about a stretch of a document."""
        found = [Question(index, start, end)] if "ner" in self._templates else []
        if "re" not in self._templates or document.lacks_relations:
            return found
        own = (
            span
            for span in document.spans
            if self.modifiers.get(span.label) and start <= span.start and span.end <= end
        )
        return [*found, *(Question(index, start, end, main) for main in own)]

    def bare(self) -> list[str]:
        """Returns the instructions of each kind without a sentence: what they add to the length of one."""
        bare = [self._filled("ner", "", "", self.mentions)] if "ner" in self._templates else []
        if "re" in self._templates:
            bare += [
                self._filled("re", mark("-", [Span(0, 1, main)]), main, types)
                for main, types in self.modifiers.items()
            ]
        return bare

    def answer(self, question: Question, document: Document) -> str:
        """Returns the right answer, according to the document's annotations."""
        sentence = document.text[question.start : question.end]
        wanted = [question.within(span) for span in self.expected(question, document)]
        return mark(sentence, wanted)

    def expected(self, question: Question, document: Document) -> list[Span]:
        """Returns what a right answer marks, in the document; a modifier has the type of its relation."""
        if question.main is None:
            return [span for span in document.spans if span.label in self.mentions and question.holds(span)]
        types = self.types(question)
        tails = [
            Span(document.spans[relation.tail].start, document.spans[relation.tail].end, relation.label)
            for relation in document.relations
            if document.spans[relation.head] == question.main and relation.label in types
        ]
        return [span for span in tails if question.holds(span)]

    def types(self, question: Question) -> Sequence[str]:
        """Returns the types that are asked for."""
        return self.mentions if question.main is None else self.modifiers[question.main.label]

    def _filled(self, kind: Kind, sentence: str, main: str, types: Sequence[str]) -> str:
        definitions = "\n".join(map(self._defined, types))
        values = {INPUT: sentence, "main": main, "types": ", ".join(types), "definitions": definitions}
        return filled(self._templates[kind], values)

    def _defined(self, label: str) -> str:
        known = self._definitions.get(label)
        return f"{label}: {known}" if known else label


def template_texts(wanted: Wanted) -> dict[Kind, str]:
    """Returns the template of each kind.

    Raises:
        ConfigurationError: A file cannot be read, or names fields that there are not.
    """
    own, texts, problems = wanted.templates, dict[Kind, str](), list[Problem]()
    for kind in wanted.tasks:
        given = getattr(own, kind) if isinstance(own, TemplateFiles) else None
        if given is None:
            texts[kind] = builtin(kind if own != "short" else f"{kind}_short")
            continue
        path = f"task.templates.{kind}"
        try:
            texts[kind] = read_template(given, INPUT, path)
            problems += [Problem(path, fault) for fault in faults(texts[kind], INPUT, FIELDS[kind])]
        except ConfigurationError as error:
            problems += error.problems
    if problems:
        raise ConfigurationError(problems)
    return texts


def _parts(
    whole_text: str,
    about: Callable[[int, int], list[Question]],
    start: int,
    end: int,
    fits: Callable[[str, Sequence[Question]], bool],
    whole: Sequence[Span],
) -> Iterator[Question]:
    """Yields what is asked of a stretch, or where it is too long of its halves, without the blanks around."""
    text = whole_text[start:end]
    start, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    if start >= end:
        return
    text, found = text.strip(), about(start, end)
    if len(text) < 2 or fits(text, found):
        yield from found
        return
    blanks = [place for place, character in enumerate(text) if character.isspace()]
    between = [at for at in blanks if not any(span.start < start + at < span.end for span in whole)]
    middle = len(text) // 2
    at = start + min(between or blanks or [middle], key=lambda place: abs(place - middle))
    yield from _parts(whole_text, about, start, at, fits, whole)
    yield from _parts(whole_text, about, at, end, fits, whole)

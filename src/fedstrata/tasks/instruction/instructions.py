"""Instructions: what a model is asked of a sentence, and what it should answer.

A document is cut into sentences. Of each, one instruction asks for the mentions, and one for the modifiers
of each mention that can have some. The answer is the sentence with markup
(`fedstrata.tasks.instruction.markup`).

Source: Fed-MedLoRA (Li et al.), section 5.1 and its annotation of modifiers: the input of a relation
    instruction marks one main entity, whose type and place are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fedstrata.core.documents import Span
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.settings.base import Settings
from fedstrata.data.sentences import lines, sentences
from fedstrata.tasks.instruction.definitions import DEFINITIONS
from fedstrata.tasks.instruction.examples import InstructionTask
from fedstrata.tasks.instruction.markup import mark
from fedstrata.tasks.instruction.prompts import builtin, faults, read_template
from fedstrata.tasks.instruction.question import Kind, Question

if TYPE_CHECKING:
    from fedstrata.core.documents import Document

INPUT = "input"
"""The field that every template names."""
FIELDS: Mapping[str, tuple[str, ...]] = {
    "ner": (INPUT, "types", "definitions"),
    "re": (INPUT, "main", "types", "definitions"),
}
"""What a template of each kind may name; it must name the input."""


class TemplateFiles(Settings):
    """Instructions of one's own: each a path to a text file, or the text itself if it holds {input}."""

    ner: str | None = Field(default=None, description="For mentions; with {input}, {types}, {definitions}.")
    re: str | None = Field(
        default=None, description="For modifiers; with {input}, {main}, {types}, {definitions}."
    )


class AskingTask(InstructionTask):
    """Base of extraction: what is asked of a document's sentences, how, and what is right."""

    name: Literal["extract"] = "extract"
    max_length: Annotated[int, Field(ge=64)] = Field(
        default=800, description="Tokens of an instruction with its answer; longer sentences are cut."
    )
    tasks: Annotated[list[Literal["ner", "re"]], Field(min_length=1)] = Field(
        default=["ner", "re"], description="What is asked for: mentions (ner), modifiers of a mention (re)."
    )
    unit: Literal["sentence", "line"] = Field(default="sentence", description="What an instruction is about.")
    templates: Literal["full", "short"] | TemplateFiles = Field(
        default="full",
        description="How it is asked: with task, markup guide and definitions; in a line, which suits small "
        "models that are fine-tuned; or templates of one's own: {ner: PATH, re: PATH}.",
    )
    mentions: Annotated[list[str], Field(min_length=1)] | Literal["auto"] = Field(
        default="auto",
        description="Mention types that are asked for; auto: those of the training documents that are not "
        "only modifiers.",
    )
    modifiers: dict[str, list[str]] | Literal["auto"] = Field(
        default="auto",
        description="Modifier types that are asked for, by the mention type they modify; auto: those that "
        "relations of the training documents have.",
    )
    definitions: dict[str, str] = Field(
        default={}, description="What a type means, by its name; those of the paper's types are built in."
    )
    mentions_only: list[str] = Field(
        default=[], description="Sites whose training documents serve for mentions only (uneven tasks)."
    )

    template_field: ClassVar[str] = INPUT

    @model_validator(mode="after")
    def _tasks_fit(self) -> AskingTask:
        if len(set(self.tasks)) < len(self.tasks):
            raise ValueError(f"tasks names one twice: {', '.join(self.tasks)}")
        if self.mentions_only and len(self.tasks) == 1:
            raise ValueError(
                f"mentions_only has no meaning with tasks {self.tasks}: it leaves out the modifiers of some "
                "sites, where mentions and modifiers are learnt"
            )
        return self

    @property
    def asked_mentions(self) -> Sequence[str]:
        """The mention types that are asked for; none as long as they are `auto`."""
        return () if self.mentions == "auto" else self.mentions

    @property
    def asked_modifiers(self) -> Mapping[str, Sequence[str]]:
        """The modifier types that are asked for, by the mention type they modify; see `asked_mentions`."""
        return {} if self.modifiers == "auto" else self.modifiers

    @cached_property
    def template_texts(self) -> Mapping[Kind, str]:
        """The template of each kind.

        Raises:
            ConfigurationError: A file cannot be read, or names fields that there are not.
        """
        own, texts, problems = self.templates, dict[Kind, str](), list[Problem]()
        for kind in self.tasks:
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

    def prompt(self, question: Question, text: str) -> str:
        """Returns the instruction.

        Args:
            question: What is asked.
            text: The document's text.
        """
        main = question.main
        sentence = text[question.start : question.end]
        marked = mark(sentence, [question.within(main)] if main else [])
        return self._filled(question.kind, marked, main.label if main else "", self.asked_types(question))

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
        cut = sentences if self.unit == "sentence" else lines
        about = partial(self._about, index, document)
        for start, end in cut(document.text):
            yield from _parts(document.text, about, start, end, fits, whole)

    def _about(self, index: int, document: Document, start: int, end: int) -> list[Question]:
        """Returns the questions about a stretch of a document."""
        stretch = Question(index, start, end)
        found = [stretch] if "ner" in self.template_texts else []
        if "re" not in self.template_texts or document.lacks_relations:
            return found
        mains = (span for span in document.spans if self.asked_modifiers.get(span.label))
        return [*found, *(Question(index, start, end, main) for main in mains if stretch.holds(main))]

    def bare(self) -> list[str]:
        """Returns the instructions of each kind without a sentence: what they add to the length of one."""
        bare = [self._filled("ner", "", "", self.asked_mentions)] if "ner" in self.template_texts else []
        if "re" in self.template_texts:
            bare += [
                self._filled("re", mark("-", [Span(0, 1, main)]), main, types)
                for main, types in self.asked_modifiers.items()
            ]
        return bare

    def answer(self, question: Question, document: Document) -> str:
        """Returns the right answer, according to the document's annotations."""
        types, spans = self.asked_types(question), document.spans
        if question.main is None:
            wanted = [span for span in spans if span.label in types]
        else:  # a modifier has the type of its relation
            wanted = [
                Span(spans[relation.tail].start, spans[relation.tail].end, relation.label)
                for relation in document.relations
                if spans[relation.head] == question.main and relation.label in types
            ]
        sentence = document.text[question.start : question.end]
        return mark(sentence, [question.within(span) for span in wanted if question.holds(span)])

    def asked_types(self, question: Question) -> Sequence[str]:
        """Returns the types that are asked for."""
        return self.asked_mentions if question.main is None else self.asked_modifiers[question.main.label]

    def _filled(self, kind: Kind, sentence: str, main: str, types: Sequence[str]) -> str:
        known = {**DEFINITIONS, **self.definitions}
        told = [f"{label}: {known[label]}" if known.get(label) else label for label in types]
        values = {INPUT: sentence, "main": main, "types": ", ".join(types), "definitions": "\n".join(told)}
        return self.template_texts[kind].format_map(values)


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

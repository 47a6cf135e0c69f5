"""Instructions: what a model is asked of a sentence, and what it should answer.

A document is cut into sentences. Of each, one instruction asks for the mentions, and one for the modifiers
of each mention that can have some. The answer is the sentence with markup
(`fedstrata.tasks.instruction.markup`).

Source: Fed-MedLoRA (Li et al.), section 5.1 and its annotation of modifiers: the input of a relation
    instruction marks one main entity, whose type and place are given.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import repeat
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import Tensor, nn

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import ConfigurationError, Problem, SettingError, refuse, refused
from fedstrata.core.settings.base import Settings
from fedstrata.core.surveyed import Truncation
from fedstrata.data.sentences import lines, sentences
from fedstrata.tasks.instruction.copying import (
    CopySource,
    CopyTokenizer,
    can_copy,
    copy_marked,
    pieces,
)
from fedstrata.tasks.instruction.examples import Example, InstructionTask, Kind, Question, answered
from fedstrata.tasks.instruction.markup import mark, read
from fedstrata.tasks.instruction.prompts import PromptTokenizer, builtin, faults, read_template

DEFINITIONS: Mapping[str, str] = dict(line.split(": ", 1) for line in builtin("definitions").splitlines())
"""What the types of Fed-MedLoRA mean, in a line each, as an instruction tells a model.

The paper's annotation guideline is not public; these definitions are ours, and a configuration may replace
any of them (`task.definitions`).
"""
TOKENS_A_MENTION, MORE_MENTIONS = 4, 4
"""An answer has room for a mention in so many tokens of its sentence, and for so many more."""
SHORTEST = 16
"""Tokens of a sentence for which there must be room."""
INPUT = "input"
"""The field that every template names."""
FIELDS: Mapping[str, tuple[str, ...]] = {
    "ner": (INPUT, "types", "definitions"),
    "re": (INPUT, "main", "types", "definitions"),
}
"""What a template of each kind may name; it must name the input."""


class TemplateFiles(Settings):
    """Instructions of one's own: each a path to a text file, or the text itself if it holds {input}."""

    ner: str | None = Field(
        default=None, description="Template for mentions, with {input}, {types} and {definitions}."
    )
    re: str | None = Field(
        default=None, description="Template for modifiers, with {input}, {main}, {types} and {definitions}."
    )


class AskingTask(InstructionTask):
    """Base of extraction: what is asked of a document's sentences, how, and what is right."""

    name: Literal["extract"] = "extract"
    max_length: Annotated[int, Field(ge=64)] = Field(
        default=800,
        description="Maximum length of an instruction with its answer in tokens; longer sentences are "
        "truncated.",
    )
    tasks: Annotated[list[Literal["ner", "re"]], Field(min_length=1)] = Field(
        default=["ner", "re"], description="Tasks to learn: mentions (ner), modifiers of a mention (re)."
    )
    unit: Literal["sentence", "line"] = Field(default="sentence", description="Text unit of an instruction.")
    templates: Literal["full", "short"] | TemplateFiles = Field(
        default="full",
        description="Instruction template: `full` with task, markup guide and definitions; `short` with "
        "one line, for small models that are fine-tuned; or custom templates: {ner: PATH, re: PATH}.",
    )
    mentions: Annotated[list[str], Field(min_length=1)] | Literal["auto"] = Field(
        default="auto",
        description="Entity types to extract; `auto`: those of the training documents that are not only "
        "modifiers.",
    )
    modifiers: dict[str, list[str]] | Literal["auto"] = Field(
        default="auto",
        description="Modifier types to extract, by the entity type that they modify; `auto`: those of the "
        "relations in the training documents.",
    )
    definitions: dict[str, str] = Field(
        default={},
        description="Definitions of types by name. The definitions of the paper's types are built in.",
    )
    decoding: Literal["auto", "copy", "free"] = Field(
        default="auto",
        description="`copy` copies the input sentence, and the model decides only on tags; `free` "
        "generates every token. `auto`: copy, unless blocks of the model are on a server.",
    )
    mentions_only: list[str] = Field(
        default=[], description="Sites whose training documents are used for mentions only (uneven tasks)."
    )

    template_field: ClassVar[str] = INPUT

    def _misfits(self) -> Iterator[SettingError]:
        if len(set(self.tasks)) < len(self.tasks):
            yield SettingError(f"tasks names one twice: {', '.join(self.tasks)}", "duplicate")
        if self.mentions_only and len(self.tasks) == 1:
            yield SettingError(
                f"mentions_only has no meaning with tasks {self.tasks}: it leaves out the modifiers of some "
                "sites, where mentions and modifiers are learnt",
                "no_effect",
            )

    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the answer to each instruction, (tokens,) int32; see `copy_marked` and `generate`."""
        return copy_marked(module, batch) if can_copy(module, batch) else super().predict(module, batch)

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
                problems += faults(path, texts[kind], INPUT, FIELDS[kind])
            except ConfigurationError as error:
                problems += error.problems
        refuse(problems)
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
        self, index: int, document: Document, start: int, end: int, *, learnt: bool
    ) -> list[Question]:
        """Returns what is asked about a stretch of a document: its mentions, then the modifiers of each.

        What is learnt is asked of a document only for the types that somebody looked for in it.

        Args:
            index: The document's index.
            document: The document; its mentions are those whose modifiers are asked for.
            start: Where the stretch begins.
            end: One past where it ends.
            learnt: Whether right answers are learnt.
        """
        stretch = Question(index, start, end)
        found = [stretch] if "ner" in self.template_texts else []
        if "re" in self.template_texts and not document.lacks_relations:
            mains = (span for span in document.spans if self.asked_modifiers.get(span.label))
            found += [replace(stretch, main=main) for main in mains if stretch.holds(main)]
        if not learnt or document.annotates is None:
            return found
        looked = document.annotates
        asked = [tuple(label for label in self.asked_types(each) if label in looked) for each in found]
        return [replace(each, types=types) for each, types in zip(found, asked, strict=True) if types]

    def bare(self) -> list[str]:
        """Returns the instructions of each kind without a sentence: what they add to the length of one."""
        bare = [self._filled("ner", "", "", self.asked_mentions)] if "ner" in self.template_texts else []
        if "re" in self.template_texts:
            bare += [
                self._filled("re", mark("-", [Span(0, 1, main)]), main, types)
                for main, types in self.asked_modifiers.items()
            ]
        return bare

    def added_texts(self) -> Iterator[str]:
        """Yields the instructions without a sentence, and the tags of answers."""
        yield from self.bare()
        types = {*self.asked_mentions, *(each for own in self.asked_modifiers.values() for each in own)}
        for label in sorted(types):
            yield from (mark(text, [Span(place, place + 1, label)]) for text, place in (("a", 0), ("a a", 2)))

    def answer(self, question: Question, document: Document) -> str:
        """Returns the right answer, according to the document's annotations."""
        sentence = document.text[question.start : question.end]
        return mark(sentence, map(question.within, self.right_mentions(question, document)))

    def right_mentions(self, question: Question, document: Document) -> list[Span]:
        """Returns what is to be marked, by offsets in the document; a modifier has its relation's type."""
        types, spans = self.asked_types(question), document.spans
        if question.main is None:
            wanted = [span for span in spans if span.label in types]
        else:
            wanted = [
                Span(spans[relation.tail].start, spans[relation.tail].end, relation.label)
                for relation in document.relations
                if spans[relation.head] == question.main and relation.label in types
            ]
        return [span for span in wanted if question.holds(span)]

    def asked_types(self, question: Question) -> Sequence[str]:
        """Returns the types that are asked for."""
        if question.types is not None:
            return question.types
        return self.asked_mentions if question.main is None else self.asked_modifiers[question.main.label]

    def _filled(self, kind: Kind, sentence: str, main: str, types: Sequence[str]) -> str:
        known = {**DEFINITIONS, **self.definitions}
        told = [f"{label}: {known[label]}" if known.get(label) else label for label in types]
        values = {INPUT: sentence, "main": main, "types": ", ".join(types), "definitions": "\n".join(told)}
        return self.template_texts[kind].format_map(values)


def budget_of(tokens: int, tag: int) -> int:
    """Returns how many tokens an answer may have.

    Args:
        tokens: Those of its sentence.
        tag: Those of the longest tags around a mention.

    >>> budget_of(tokens=10, tag=9)
    73
    """
    return tokens + tag * (-(-tokens // TOKENS_A_MENTION) + MORE_MENTIONS)


class InstructionTokenizer:
    """A tokenizer for instructions about sentences, and answers, of a limited length.

    Args:
        tokenizer: The model's.
        task: The task.
        types: The types that answers mark.

    Raises:
        ConfigurationError: There is no token that ends an answer, the tokenizer does not give marked texts
            back, or there is no room for a sentence.
    """

    def __init__(self, tokenizer: Any, task: AskingTask, types: Sequence[str]) -> None:
        self._task, self._words = task, PromptTokenizer(tokenizer, chats=task.chats)
        self._end = self._words.end(task.name)
        self._tag = max(map(len, self._marked(types)))
        self._room = task.max_length - max(map(len, self._words.prompts(task.bare())))
        needed = SHORTEST + budget_of(SHORTEST, self._tag)
        if self._room < needed:
            message = (
                f"{task.max_length} leaves {self._room} tokens besides the longest instruction; a "
                f"sentence of {SHORTEST} with its answer needs {needed}: raise it, or give shorter "
                "task.templates"
            )
            raise refused("task.max_length", message, "out_of_range")

    def examples(self, documents: Sequence[Document], *, learnt: bool) -> list[Example]:
        """Makes the examples of all that is asked of documents.

        Args:
            documents: The documents; their mentions are those whose modifiers are asked for.
            learnt: Whether right answers are learnt. They must fit, too, and no mention is cut where there
                is another blank.
        """
        task, words = self._task, self._words
        asked = [
            (question, document)
            for index, document in enumerate(documents)
            for question in self._questions(index, document, learnt=learnt)
        ]
        prompts = words.prompts([task.prompt(question, document.text) for question, document in asked])
        answers = self._answer_ids([task.answer(question, document) for question, document in asked])
        texts = [document.text[question.start : question.end] for question, document in asked]
        sources: Iterable[CopySource | None] = repeat(None, len(asked))
        if task.decoding != "free" and not learnt:
            sources = CopyTokenizer(words).sources(texts, [task.asked_types(each) for each, _ in asked])
        return [
            answered(
                question.document,
                prompt,
                # One that is too long for its budget is never trained on; what fits says what it costs.
                [*answer, self._end][: max(1, task.max_length + 1 - len(prompt))],
                words,
                end=self._end,
                budget=budget_of(len(sentence), self._tag),
                on_prompts=task.loss_on == "full",
                question=question,
                source=source,
            )
            for (question, _), prompt, answer, sentence, source in zip(
                asked, prompts, answers, words.ids(texts), sources, strict=True
            )
        ]

    def _answer_ids(self, answers: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of right answers; where sentences are copied those of text and tags apart."""
        if self._task.decoding == "free":
            return self._words.ids(answers)
        divided = list(map(pieces, answers))
        listed = sorted({piece for own in divided for piece in own})
        ids = dict(zip(listed, self._words.ids(listed), strict=True))
        return [[token for piece in own for token in ids[piece]] for own in divided]

    def _questions(self, index: int, document: Document, *, learnt: bool) -> Iterator[Question]:
        """Yields what is asked of a document, sentence by sentence.

        A sentence that is too long is cut at the blank nearest to its middle.
        """
        for start, end in self._stretches(document):
            yield from self._parts(index, document, start, end, learnt=learnt)

    def _stretches(self, document: Document) -> Iterable[tuple[int, int]]:
        return (sentences if self._task.unit == "sentence" else lines)(document.text)

    def truncation(self, documents: Sequence[Document]) -> Truncation:
        """Returns how many documents have sentences that are cut; all of their tokens are read."""
        sizes = []
        for document in documents:
            texts = [document.text[start:end].strip() for start, end in self._stretches(document)]
            counts = list(map(len, self._words.ids(texts)))
            long = any(count + budget_of(count, self._tag) > self._room for count in counts)
            sizes.append((sum(counts), long))
        tokens = sum(count for count, _ in sizes)
        return Truncation(len(documents), sum(long for _, long in sizes), tokens)

    def _parts(
        self, index: int, document: Document, start: int, end: int, *, learnt: bool
    ) -> Iterator[Question]:
        """Yields what is asked of a stretch, or where it is too long of its halves, without blanks around."""
        text = document.text[start:end]
        start, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
        if start >= end:
            return
        text, found = text.strip(), self._task.questions(index, document, start, end, learnt=learnt)
        right = [self._task.answer(each, document) for each in found] if learnt else []
        if len(text) < 2 or self._fits(text, right):
            yield from found
            return
        whole = document.spans if learnt else ()
        blanks = [place for place, character in enumerate(text) if character.isspace()]
        between = [at for at in blanks if not any(span.start < start + at < span.end for span in whole)]
        middle = len(text) // 2
        at = start + min(between or blanks or [middle], key=lambda place: abs(place - middle))
        yield from self._parts(index, document, start, at, learnt=learnt)
        yield from self._parts(index, document, at, end, learnt=learnt)

    def _fits(self, sentence: str, answers: Sequence[str]) -> bool:
        """Whether an instruction about a sentence is short enough with the longest answer it may have.

        Args:
            sentence: The sentence.
            answers: The right answers to what is asked of it, which must not be longer than that.
        """
        (ids,), right = self._words.ids([sentence]), self._answer_ids(answers)
        budget = budget_of(len(ids), self._tag)
        return len(ids) + budget <= self._room and all(len(each) < budget for each in right)  # and the end

    def _marked(self, types: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of a mention of each type, of one letter.

        Raises:
            ConfigurationError: They are not read as what they were.
        """
        texts = [mark("x", [Span(0, 1, label)]) for label in types]
        rows = self._words.ids(texts)
        for label, text, row in zip(types, texts, rows, strict=True):
            again = self._words.tokenizer.decode(row, clean_up_tokenization_spaces=False)
            if not read("x", again, [label])[0]:
                message = f"does not give back the tags that task extract writes: {text} becomes {again!r}"
                raise refused("model.tokenizer", message, "not_supported")
        return rows

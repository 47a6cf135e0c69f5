"""Summaries by instruction: a causal language model writes the second text of a document from the first.

Source: FL-LLaMA, section 4.1: summaries scored by ROUGE-1 and ROUGE-2, answers to questions by exact match
    and F1; here of all examples.

An example is an instruction about a document with its second text as the answer and the end token, as in task
`extract`. A text that is too long is cut at its end. So is a second text that is trained on; it is scored
against whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedstrata.core.documents import Document
from fedstrata.core.errors import Problem, SettingError, refuse, refused
from fedstrata.core.settings.base import Count
from fedstrata.core.surveyed import Truncation
from fedstrata.core.task import CardWords
from fedstrata.core.types import Tally
from fedstrata.data.readers.coqa import HISTORY, QUESTION, right_answers
from fedstrata.data.readers.mts_dialog import SECTION
from fedstrata.data.sentences import sentences
from fedstrata.data.split import Split, every
from fedstrata.metrics.counts import mean
from fedstrata.metrics.text import ROUGE, answer_tally, answers_from, overlap_from, overlap_tally
from fedstrata.tasks.floors import ENOUGH, LEAD
from fedstrata.tasks.instruction.examples import Example, InstructionTask, answer_text, answered
from fedstrata.tasks.instruction.prompts import (
    FIELDS_OF_TEMPLATE,
    PromptTokenizer,
    builtin,
    faults,
    fields_of,
    read_template,
)
from fedstrata.tasks.texts import require_one_each

_TEMPLATE = "task.template"
_TEXT = "text"

Written = tuple[str, bool]
"""What the model wrote about a document, without white space around it; and whether it came to its end within
`task.answer_length`.
"""


class Summarization(InstructionTask):
    """Summaries, or other texts, by instruction: a causal language model writes a document's second text."""

    name: Literal["summarize"] = "summarize"
    max_length: Annotated[int, Field(ge=64)] = Field(
        default=800,
        description="Maximum length of an instruction with its answer in tokens; longer texts are "
        "truncated at the end.",
    )
    answer_length: Count = Field(
        default=200,
        description="Maximum length of an answer in tokens; longer training answers are truncated.",
    )
    template: str | None = Field(
        default=None,
        description="Custom instruction: the path of a text file, or the text itself if it contains "
        "{text}; the built-in instruction if null.",
    )

    learns: ClassVar[str] = "the second text of a document"
    template_field: ClassVar[str] = _TEXT
    metrics: ClassVar[tuple[str, ...]] = (*ROUGE, "bleu4", "exact_match", "f1", "finished")
    gives: ClassVar[tuple[str, ...]] = ("text_pair",)
    floor_names: ClassVar[tuple[str, ...]] = (LEAD,)

    def _misfits(self) -> Iterator[SettingError]:
        if self.answer_length > self.max_length // 2:
            half = f"at most half of max_length ({self.max_length})"
            yield SettingError(f"answer_length must be {half}, not {self.answer_length}", "out_of_range")

    def fitted(self, clients: Mapping[str, Split]) -> Summarization:
        """Returns the task for a corpus of documents with a second text each.

        Without a template, documents that name a section of a note are asked for it, and those with a
        question and a history of questions are asked that.

        Raises:
            ConfigurationError: The template cannot be read or does not fit the documents, or a client has no
                second text to learn from.
        """
        documents = every(clients)
        common = set.intersection(*(set(document.metadata) for document in documents)) | {_TEXT}
        if self.template is not None:
            template = read_template(self.template, _TEXT, _TEMPLATE)
        else:
            template = builtin(_builtin(common))
        problems = faults(_TEMPLATE, template, _TEXT, sorted(common))
        lacking = [
            name for name, own in clients.items() if own.train and not any(map(_has_answer, own.train))
        ]
        if lacking:
            message = (
                f"no training document of {', '.join(lacking)} has a second text, which is what is learnt"
            )
            problems.append(Problem("data.path", message, code="nothing_to_learn"))
        refuse(problems)
        return self.changed(template=template)

    def as_named(self) -> Summarization:
        """Returns the task with a template; who asks fills in its own."""
        return self if self.template is not None else self.changed(template=builtin("summarize"))

    @property
    def beyond_texts(self) -> tuple[str, str]:
        """What an instruction needs of a document beyond its text."""
        return ("", "") if self._fields <= {_TEXT} else FIELDS_OF_TEMPLATE

    def encode(self, documents: Sequence[Document], tokenizer: Any) -> list[Example]:
        """Makes the instructions of documents.

        Raises:
            ConfigurationError: The tokenizer has no token that ends a text, the instruction alone is too
                long, or it names what a document lacks.
        """
        words = PromptTokenizer(tokenizer, chats=self.chats)
        end = words.end(self.name)
        prompts = words.prompts([self._prompt(document, document.text) for document in documents])
        answers = words.ids([document.text_pair or "" for document in documents])
        budget, on_prompts = self.answer_length, self.loss_on == "full"
        examples = []
        for index, (document, whole, answer) in enumerate(zip(documents, prompts, answers, strict=True)):
            fill = partial(self._prompt, document)
            prompt = words.shortened(whole, document, fill, max_length=self.max_length, spared=budget)
            ids = [*answer, end][:budget]
            own = answered(index, prompt, ids, words, end=end, budget=budget, on_prompts=on_prompts)
            examples.append(own)
        return examples

    def training_examples(self, documents: Sequence[Document], tokenizer: Any) -> list[Example]:
        """Makes the instructions of documents that have a second text."""
        return self.encode([document for document in documents if _has_answer(document)], tokenizer)

    def truncation(self, documents: Sequence[Document], tokenizer: Any) -> Truncation:
        """Returns what of instructions with their answers there is no room for."""
        words, most = PromptTokenizer(tokenizer, chats=self.chats), self.answer_length
        prompts = words.prompts([self._prompt(document, document.text) for document in documents])
        answers = words.ids([document.text_pair or "" for document in documents])
        sizes = [(len(prompt), len(answer) + 1) for prompt, answer in zip(prompts, answers, strict=True)]
        room = self.max_length - most
        return Truncation.of([(one + two, max(0, one - room) + max(0, two - most)) for one, two in sizes])

    def decode(
        self, documents: Sequence[Document], examples: Sequence[Example], predictions: Sequence[np.ndarray]
    ) -> list[Written]:
        """Reads texts off the generated tokens."""
        require_one_each(documents, examples, predictions)
        texts = (answer_text(example, ids) for example, ids in zip(examples, predictions, strict=True))
        return [(text.strip(), finished) for text, finished in texts]

    def tally(self, documents: Sequence[Document], answers: Sequence[Written]) -> dict[str, float]:
        """Counts what the texts have in common with the documents' own, and those that came to their end."""
        texts, references = [text for text, _ in answers], [each.text_pair or "" for each in documents]
        counts = overlap_tally(texts, references) | answer_tally(
            texts, [right_answers(each) for each in documents]
        )
        return {**counts, "finished": sum(finished for _, finished in answers)}

    def scores(self, tally: Tally, apart: Mapping[str, float]) -> dict[str, float]:
        """Scores the texts against the documents' own; see `fedstrata.metrics.text`.

        `finished` is the share of texts that came to their end.
        """
        finished = mean(tally, "finished")
        return {**overlap_from(tally), **answers_from(tally), "finished": finished}

    def floors(
        self, train: Sequence[Document], documents: Sequence[Document], tokenizer: Any
    ) -> Mapping[str, Sequence[Written]]:
        """Writes the first sentences of a text, as many as training documents' own second texts have."""
        sizes = [len(list(sentences(each.text_pair or ""))) for each in train if _has_answer(each)]
        if not sizes:
            return {}
        count = max(1, round(fmean(sizes)))
        return {LEAD: [(_beginning(document.text, count), True) for document in documents]}

    def degenerate(self, tally: Tally, documents: int) -> str:
        """Says whether nothing was written."""
        nothing = documents >= ENOUGH and tally.get("words") == 0
        return f"nothing was written for any of {documents} documents" if nothing else ""

    def known(self, document: Document) -> Document:
        """Returns the document without mentions and relations; its labels are those of the text."""
        return replace(document, spans=(), relations=())

    def scorable(self, document: Document) -> bool:
        """Whether there is a second text, against which an answer can be scored."""
        return _has_answer(document)

    def annotate(self, document: Document, answer: Written) -> Document:
        """Returns the document with this text as its second one."""
        return replace(self.known(document), text_pair=answer[0])

    def card_words(self) -> CardWords:
        """Returns what a model card says of the task."""
        return CardWords(
            "Writes what a text comes to: a language model.",
            "cuts longer texts at their end",
            "the pipeline above goes on with any text, and knows nothing of the instruction",
        )

    def added_texts(self) -> Iterator[str]:
        """Yields the template, if it is known."""
        if self.template is not None:
            yield self.template

    @property
    def _template(self) -> str:
        if self.template is None:
            raise ValueError("template must be resolved; `fitted` does that")
        return self.template

    @cached_property
    def _fields(self) -> frozenset[str]:
        return frozenset(fields_of(self._template))

    def _prompt(self, document: Document, text: str) -> str:
        values = {**document.metadata, _TEXT: text}
        if missing := sorted(self._fields - values.keys()):
            message = f"names {{{missing[0]}}}, which document {document.id!r} lacks"
            raise refused(_TEMPLATE, message, "unknown_name")
        return self._template.format_map(values)


def _builtin(fields: Collection[str]) -> str:
    """Returns the name of the template for documents that all have these fields."""
    if SECTION in fields:
        return "summarize_note"
    return "answer_question" if {QUESTION, HISTORY} <= {*fields} else "summarize"


def _has_answer(document: Document) -> bool:
    return bool((document.text_pair or "").strip())


def _beginning(text: str, count: int) -> str:
    """Returns the first sentences of a text, so many of them."""
    ends = [end for _, end in islice(sentences(text), count)]
    return text[: ends[-1]].strip() if ends else ""

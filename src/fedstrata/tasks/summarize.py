"""Summaries by instruction: a causal language model writes the second text of a document from the first.

Source: FL-LLaMA, section 4.1: summaries scored by ROUGE-1 and ROUGE-2, answers to questions by exact match
    and F1; here of all examples.

An example is an instruction about a document with its second text as the answer and the end token, as in task
`extract`. A text that is too long is cut at its end. So is a second text that is trained on; it is scored
against whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.data.readers.mts_dialog import SECTION
from fedstrata.metrics.text import ROUGE, answer_scores, overlap_scores
from fedstrata.tasks.corrupt import corrupted_targets
from fedstrata.tasks.instruction.examples import (
    Example,
    answer_text,
    answered,
    generate_answers,
    pad_examples,
)
from fedstrata.tasks.instruction.prompts import (
    MARKS,
    PromptTokenizer,
    builtin,
    faults,
    fields_of,
    filled,
    read_template,
)
from fedstrata.tasks.lm import counted_loss

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from fedstrata.core.documents import Document
    from fedstrata.core.seeding import Seed
    from fedstrata.core.settings.task import SummarizeSettings
    from fedstrata.data.split import Split

_TEMPLATE = "task.template"
_TEXT = MARKS["summarize"]


@dataclass(frozen=True, slots=True)
class Written:
    """What the model wrote about a document.

    Attributes:
        text: The text, without white space around it.
        finished: Whether it came to its end within `task.answer_length`.
    """

    text: str
    finished: bool


class Summarization:
    """Writes summaries, or other texts about texts.

    Args:
        settings: How it is asked; `template` is the text of a template.
    """

    kind: ClassVar[str] = "causal-lm"
    metric: ClassVar[str] = "rouge1"
    metrics: ClassVar[tuple[str, ...]] = (*ROUGE, "bleu4", "exact_match", "f1", "finished")
    metric_names: ClassVar[tuple[str, ...]] = metrics
    lower_is_better: ClassVar[frozenset[str]] = frozenset()
    needs_annotations: ClassVar[bool] = True
    gives: ClassVar[tuple[str, ...]] = ("text_pair",)
    reads_spans: ClassVar[bool] = False
    packed: ClassVar[bool] = False
    problem_type: ClassVar[None] = None
    labels: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: SummarizeSettings) -> None:
        if settings.template is None:
            raise ValueError("template must be resolved; `from_documents` does that")
        self.settings, self._template = settings, settings.template
        self._fields = frozenset(fields_of(self._template))

    @classmethod
    def from_documents(cls, settings: SummarizeSettings, clients: Mapping[str, Split]) -> Summarization:
        """Makes the task for a corpus of documents with a second text each.

        Without a template, documents that name a section of a note are asked for it.

        Raises:
            ConfigurationError: The template cannot be read or does not fit the documents, or a client has no
                second text to learn from.
        """
        documents = [document for own in clients.values() for document in own.all]
        common = set.intersection(*(set(document.metadata) for document in documents)) | {_TEXT}
        if settings.template is not None:
            template = read_template(settings.template, _TEXT, _TEMPLATE)
        else:
            template = builtin("summarize_note" if SECTION in common else "summarize")
        problems = [Problem(_TEMPLATE, fault) for fault in faults(template, _TEXT, sorted(common))]
        lacking = [
            name for name, own in clients.items() if own.train and not any(map(_has_answer, own.train))
        ]
        if lacking:
            message = (
                f"no training document of {', '.join(lacking)} has a second text, which is what is learnt"
            )
            problems.append(Problem("data.path", message))
        if problems:
            raise ConfigurationError(problems)
        return cls(settings.model_copy(update={"template": template}))

    @classmethod
    def from_labels(cls, settings: SummarizeSettings, labels: Sequence[str]) -> Summarization:
        """Makes the task again for a saved model; its settings say what it was trained for."""
        return cls(settings)

    @property
    def reads_texts_alone(self) -> bool:
        """Whether an instruction needs nothing of a document but its text."""
        return self._fields <= {_TEXT}

    def encode(self, documents: Sequence[Document], tokenizer: Any) -> list[Example]:
        """Makes the instructions of documents.

        Raises:
            ConfigurationError: The tokenizer has no token that ends a text, the instruction alone is too
                long, or it names what a document lacks.
        """
        words = PromptTokenizer(tokenizer, chats=self.settings.chat == "auto")
        end = words.end("summarize")
        prompts = words.prompts([self._prompt(document, document.text) for document in documents])
        answers = words.ids([document.text_pair or "" for document in documents])
        budget, on_prompts = self.settings.answer_length, self.settings.loss_on == "full"
        fitting = (
            words.shortened(
                prompt,
                document,
                partial(self._prompt, document),
                max_length=self.settings.max_length,
                spared=budget,
            )
            for document, prompt in zip(documents, prompts, strict=True)
        )
        return [
            answered(
                index,
                prompt,
                [*answer, end][:budget],
                words,
                end=end,
                budget=budget,
                on_prompts=on_prompts,
            )
            for index, (prompt, answer) in enumerate(zip(fitting, answers, strict=True))
        ]

    def training_examples(self, documents: Sequence[Document], tokenizer: Any) -> list[Example]:
        """Makes the instructions of documents that have a second text."""
        return self.encode([document for document in documents if _has_answer(document)], tokenizer)

    def corrupt(self, examples: Sequence[Example], kind: str, tokenizer: Any, rng: Seed) -> list[Example]:
        """Returns the instructions of a corrupt client; see `fedstrata.tasks.corrupt.corrupted_targets`."""
        return corrupted_targets(examples, kind, tokenizer, rng)

    def collate(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Pads instructions on the right; see `fedstrata.tasks.instruction.examples.pad_examples`."""
        return pad_examples(examples)

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the summed loss of the tokens that count, and their number; see `tasks.lm.counted_loss`."""
        return counted_loss(module, batch)

    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the generated answer to each instruction, (tokens,) int32; see `tasks.generate`."""
        return generate_answers(module, batch)

    def decode(
        self, documents: Sequence[Document], examples: Sequence[Example], predictions: Sequence[np.ndarray]
    ) -> list[Written]:
        """Reads texts off the generated tokens.

        Args:
            documents: The documents that were encoded.
            examples: Their instructions, in the order in which `encode` gave them.
            predictions: The tokens of the answer to each, (tokens,).

        Returns:
            An answer for each document.
        """
        if not len(documents) == len(examples) == len(predictions):
            raise ValueError(
                f"{len(documents)} documents, {len(examples)} examples and {len(predictions)} predictions"
            )
        texts = (answer_text(example, ids) for example, ids in zip(examples, predictions, strict=True))
        return [Written(text.strip(), finished) for text, finished in texts]

    def score(self, documents: Sequence[Document], answers: Sequence[Written]) -> dict[str, float]:
        """Scores the texts against the documents' own; see `fedstrata.metrics.text`.

        `finished` is the share of texts that came to their end.
        """
        texts, references = [answer.text for answer in answers], [each.text_pair or "" for each in documents]
        finished = sum(answer.finished for answer in answers) / len(answers)
        scores = overlap_scores(texts, references) | answer_scores(texts, [[own] for own in references])
        return {**scores, "finished": finished}

    def known(self, document: Document) -> Document:
        """Returns the document without mentions and relations; its labels are those of the text."""
        return replace(document, spans=(), relations=())

    def scorable(self, document: Document) -> bool:
        """Whether there is a second text, against which an answer can be scored."""
        return _has_answer(document)

    def annotate(self, document: Document, answer: Written) -> Document:
        """Returns the document with this text as its second one."""
        return replace(self.known(document), text_pair=answer.text)

    def _prompt(self, document: Document, text: str) -> str:
        values = {**document.metadata, _TEXT: text}
        if missing := sorted(self._fields - values.keys()):
            message = f"names {{{missing[0]}}}, which document {document.id!r} lacks"
            raise ConfigurationError([Problem(_TEMPLATE, message)])
        return filled(self._template, values)


def _has_answer(document: Document) -> bool:
    return bool((document.text_pair or "").strip())

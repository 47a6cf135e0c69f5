"""Instructions with their answers as tokens: what a language model is trained on, and goes on from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedstrata.core.documents import Span
from fedstrata.tasks.causal import CausalTask, end_id
from fedstrata.tasks.continuations import generate
from fedstrata.tasks.instruction.copying import CopySource, pad_sources
from fedstrata.tasks.instruction.prompts import PromptTokenizer
from fedstrata.tasks.windows import IGNORED, Row, pad_labelled

Kind = Literal["ner", "re"]
"""Mentions, or modifiers of a mention."""


@dataclass(frozen=True, slots=True)
class Question:
    """What one instruction is about.

    Attributes:
        document: Index of the document.
        start: Where its sentence begins in the document's text.
        end: One past where it ends.
        main: The mention whose modifiers are asked for, with offsets in the document; none if all mentions
            are.
        types: The types that are asked for, where those are not all of the task's.
    """

    document: int
    start: int
    end: int
    main: Span | None = None
    types: tuple[str, ...] | None = None

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


@dataclass(frozen=True, slots=True)
class Example(Row):
    """One instruction with its answer.

    Attributes:
        document: Index of the document.
        input_ids: The instruction, and the answer as far as it is read; (tokens,) int32.
        targets: What follows each of them, (tokens,) int32; -100 where it counts in no loss.
        prompt: The number of tokens of the instruction.
        budget: Tokens that a generated answer may have.
        pad_id: The id with which it is padded.
        end_id: The token that ends an answer.
        tokenizer: What it was encoded with, to read a generated answer.
        question: What is asked, where a document has several questions.
        source: What an answer copies, where it is a text with tags.
    """

    document: int
    input_ids: np.ndarray
    targets: np.ndarray
    prompt: int
    budget: int
    pad_id: int
    end_id: int
    tokenizer: Any = field(repr=False, compare=False)
    question: Question | None = None
    source: CopySource | None = field(default=None, repr=False, compare=False)

    @property
    def scored_length(self) -> int:
        """Tokens that are read and may be written when the answer is generated."""
        return self.prompt + self.budget


class InstructionTask(CausalTask):
    """Base of the tasks in which a causal language model writes an answer to an instruction."""

    chat: Literal["auto", "never"] = Field(
        default="auto", description="Use the tokenizer's chat template where it has one."
    )
    loss_on: Literal["response", "full"] = Field(
        default="response", description="Tokens that count in the loss: those of the answer, or all."
    )

    generates: ClassVar[bool] = True

    @property
    def chats(self) -> bool:
        """Whether an instruction is the first turn of a chat, where the tokenizer has a template."""
        return self.chat == "auto"

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Refuses a tokenizer without a token that ends a text."""
        end_id(tokenizer, self.name)

    def collate(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Pads instructions on the right; see `pad_examples`."""
        return pad_examples(examples)

    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the generated answer to each instruction, (tokens,) int32; see `generate`."""
        return generate(module, batch)


def answered(
    document: int,
    prompt: list[int],
    answer: list[int],
    words: PromptTokenizer,
    *,
    end: int,
    budget: int,
    on_prompts: bool,
    question: Question | None = None,
    source: CopySource | None = None,
) -> Example:
    """Makes an example of an instruction and its right answer.

    Args:
        document: Index of the document.
        prompt: The tokens of the instruction.
        answer: Those of the answer, its end included.
        words: What made them.
        end: The token that ends an answer.
        budget: Tokens that a generated answer may have.
        on_prompts: Whether the tokens of the instruction count in the loss.
        question: What is asked, where a document has several questions.
        source: What an answer copies, where it is a text with tags.
    """
    ids = np.array([*prompt, *answer], dtype=np.int32)
    targets = ids[1:].copy()
    if not on_prompts:
        targets[: len(prompt) - 1] = IGNORED
    facts = (len(prompt), budget, words.pad_id, end, words.tokenizer)
    return Example(document, ids[:-1], targets, *facts, question=question, source=source)


def pad_examples(examples: Sequence[Example]) -> dict[str, Tensor]:
    """Pads instructions on the right to the longest one.

    Returns:
        Those of `fedstrata.tasks.windows.pad_labelled`; `prompt`, `budget`, `pad_id` and `end_id`, (rows,)
        int64: see `Example`; and those of `pad_sources` where answers copy.
    """
    names = ("prompt", "budget", "pad_id", "end_id")
    facts = {name: torch.tensor([getattr(each, name) for each in examples]) for name in names}
    sources = [each.source for each in examples if each.source is not None]
    return {**pad_labelled(examples), **facts, **(pad_sources(sources) if sources else {})}


def answer_text(example: Example, ids: np.ndarray) -> tuple[str, bool]:
    """Returns a generated answer as text, and whether it came to its end within the budget."""
    finished = len(ids) > 0 and int(ids[-1]) == example.end_id
    text = example.tokenizer.decode(ids[:-1] if finished else ids, clean_up_tokenization_spaces=False)
    return text, finished

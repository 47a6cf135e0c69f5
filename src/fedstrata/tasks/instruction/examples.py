"""Instructions with their answers as tokens: what a language model is trained on, and goes on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from fedstrata.core.documents import Span
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.tasks.causal import end_id
from fedstrata.tasks.instruction.generate import generate
from fedstrata.tasks.instruction.markup import mark, read
from fedstrata.tasks.instruction.prompts import PromptTokenizer, TemplateTask
from fedstrata.tasks.windows import IGNORED, Row, pad_labelled

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedstrata.tasks.instruction.question import Question

TOKENS_A_MENTION, MORE_MENTIONS = 4, 4
"""An answer has room for a mention in so many tokens of its sentence, and for so many more."""
SHORTEST = 16
"""Tokens of a sentence for which there must be room."""


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

    @property
    def scored_length(self) -> int:
        """Tokens that are read and may be written when the answer is generated."""
        return self.prompt + self.budget


class InstructionTask(TemplateTask):
    """Base of the tasks in which a causal language model writes an answer to an instruction."""

    chat: Literal["auto", "never"] = Field(
        default="auto", description="Whether the tokenizer's chat template is used where it has one."
    )
    loss_on: Literal["response", "full"] = Field(
        default="response", description="Which tokens the loss is taken on: the answer's, or all."
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
        return generate(
            module,
            batch["input_ids"],
            prompts=batch["prompt"],
            budgets=batch["budget"],
            end=int(batch["end_id"][0]),
            pad=int(batch["pad_id"][0]),
        )


def budget_of(tokens: int, tag: int) -> int:
    """Returns how many tokens an answer may have.

    Args:
        tokens: Those of its sentence.
        tag: Those of the longest tags around a mention.

    >>> budget_of(tokens=10, tag=9)
    73
    """
    return tokens + tag * (-(-tokens // TOKENS_A_MENTION) + MORE_MENTIONS)


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
    """
    ids = np.array([*prompt, *answer], dtype=np.int32)
    targets = ids[1:].copy()
    if not on_prompts:
        targets[: len(prompt) - 1] = IGNORED
    facts = (len(prompt), budget, words.pad_id, end, words.tokenizer)
    return Example(document, ids[:-1], targets, *facts, question=question)


class InstructionTokenizer:
    """A tokenizer for instructions about sentences, and answers, of a limited length.

    Args:
        tokenizer: The model's.
        task: The task.
        bare: The instructions without a sentence.
        types: The types that answers mark.

    Raises:
        ConfigurationError: There is no token that ends an answer, the tokenizer does not give marked texts
            back, or there is no room for a sentence.
    """

    def __init__(
        self, tokenizer: Any, task: InstructionTask, bare: Sequence[str], types: Sequence[str]
    ) -> None:
        self._words = PromptTokenizer(tokenizer, chats=task.chats)
        self._end = self._words.end(task.name)
        self._on_prompts = task.loss_on == "full"
        self._longest = task.max_length
        self._tag = max(map(len, self._marked(types)))
        self._room = task.max_length - max(map(len, self._words.prompts(bare)))
        needed = SHORTEST + budget_of(SHORTEST, self._tag)
        if self._room < needed:
            message = (
                f"{task.max_length} leaves {self._room} tokens besides the longest instruction; a "
                f"sentence of {SHORTEST} with its answer needs {needed}: raise it, or give shorter "
                "task.templates"
            )
            raise ConfigurationError([Problem("task.max_length", message)])

    def examples(
        self,
        questions: Sequence[Question],
        prompts: Sequence[str],
        answers: Sequence[str],
        sentences: Sequence[str],
    ) -> list[Example]:
        """Makes examples.

        Args:
            questions: What is asked.
            prompts: The instruction of each.
            answers: Its right answer.
            sentences: The sentence it is about.
        """
        words = self._words
        ids = zip(words.prompts(prompts), words.ids(answers), words.ids(sentences), strict=True)
        return [
            answered(
                question.document,
                prompt,
                # One that is too long for its budget is never trained on; what fits says what it costs.
                [*answer, self._end][: max(1, self._longest + 1 - len(prompt))],
                words,
                end=self._end,
                budget=budget_of(len(sentence), self._tag),
                on_prompts=self._on_prompts,
                question=question,
            )
            for question, (prompt, answer, sentence) in zip(questions, ids, strict=True)
        ]

    def fits(self, sentence: str, answers: Sequence[str] = ()) -> bool:
        """Whether an instruction about a sentence is short enough with the longest answer it may have.

        Args:
            sentence: The sentence.
            answers: The right answers to what is asked of it, which must not be longer than that.
        """
        ids, *right = self._words.ids([sentence, *answers])
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
                raise ConfigurationError([Problem("model.tokenizer", message)])
        return rows


def pad_examples(examples: Sequence[Example]) -> dict[str, Tensor]:
    """Pads instructions on the right to the longest one.

    Returns:
        Those of `fedstrata.tasks.windows.pad_labelled`; `prompt`, `budget`, `pad_id` and `end_id`, (rows,)
        int64: see `Example`.
    """
    names = ("prompt", "budget", "pad_id", "end_id")
    facts = {name: torch.tensor([getattr(each, name) for each in examples]) for name in names}
    return {**pad_labelled(examples), **facts}


def answer_text(example: Example, ids: np.ndarray) -> tuple[str, bool]:
    """Returns a generated answer as text, and whether it came to its end within the budget."""
    finished = len(ids) > 0 and int(ids[-1]) == example.end_id
    text = example.tokenizer.decode(ids[:-1] if finished else ids, clean_up_tokenization_spaces=False)
    return text, finished

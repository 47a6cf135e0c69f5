"""Instructions with their answers as tokens: what a language model is trained on, and goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedstrata.core.documents import Span
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.tasks.lm import end_id
from fedstrata.tasks.markup import mark, read
from fedstrata.tasks.windows import IGNORED, pad_ids, padding_id

if TYPE_CHECKING:
    from torch import Tensor

    from fedstrata.core.config import ExtractSettings
    from fedstrata.tasks.instructions import Question

TOKENS_A_MENTION, MORE_MENTIONS = 4, 4
"""An answer has room for a mention in so many tokens of its sentence, and for so many more."""
SHORTEST = 16
"""Tokens of a sentence for which there must be room."""
TEXTS_PER_CALL = 1024
"""Texts given to the tokenizer at a time."""


@dataclass(frozen=True, slots=True)
class Example:
    """One instruction with its answer.

    Attributes:
        question: What is asked.
        input_ids: The instruction, and the answer as far as it is read; (tokens,) int32.
        targets: What follows each of them, (tokens,) int32; -100 where it counts in no loss.
        prompt: The number of tokens of the instruction.
        budget: Tokens that a generated answer may have.
        pad_id: The id with which it is padded.
        end_id: The token that ends an answer.
        tokenizer: What it was encoded with, to read a generated answer.
    """

    question: Question
    input_ids: np.ndarray
    targets: np.ndarray
    prompt: int
    budget: int
    pad_id: int
    end_id: int
    tokenizer: Any = field(repr=False, compare=False)

    @property
    def document(self) -> int:
        """Index of the document."""
        return self.question.document

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def windows(self) -> tuple[np.ndarray, ...]:
        """The rows of a batch this example fills: what is read."""
        return (self.input_ids,)


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
    """A tokenizer for instructions and answers of a limited length.

    Args:
        tokenizer: The model's.
        settings: The task's.
        bare: The instructions without a sentence.
        types: The types that answers mark.

    Raises:
        ConfigurationError: There is no token that ends an answer, the tokenizer does not give marked texts
            back, or there is no room for a sentence.
    """

    def __init__(
        self, tokenizer: Any, settings: ExtractSettings, bare: Sequence[str], types: Sequence[str]
    ) -> None:
        self.tokenizer = tokenizer
        self.end_id, self.pad_id = end_id(tokenizer, "extract"), padding_id(tokenizer)
        self._on_prompts = settings.loss_on == "full"
        self._chats = settings.chat == "auto" and bool(getattr(tokenizer, "chat_template", None))
        self._longest = settings.max_length
        self._tag = max(map(len, self._marked(types)))
        self._room = settings.max_length - max(map(len, self.prompts(bare)))
        needed = SHORTEST + self.budget(SHORTEST)
        if self._room < needed:
            message = (
                f"{settings.max_length} leaves {self._room} tokens besides the longest instruction; a "
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
        ids = zip(self.prompts(prompts), self.ids(answers), self.ids(sentences), strict=True)
        return [
            self._example(question, prompt, answer, self.budget(len(sentence)))
            for question, (prompt, answer, sentence) in zip(questions, ids, strict=True)
        ]

    def _example(self, question: Question, prompt: list[int], answer: list[int], budget: int) -> Example:
        # A right answer that is too long for its budget is never trained on; what fits says what it costs.
        ids = np.array([*prompt, *answer, self.end_id][: self._longest + 1], dtype=np.int32)
        targets = ids[1:].copy()
        if not self._on_prompts:
            targets[: len(prompt) - 1] = IGNORED
        own = (len(prompt), budget, self.pad_id, self.end_id, self.tokenizer)
        return Example(question, ids[:-1], targets, *own)

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each instruction, as the first turn of a chat where there is a template."""
        if self._chats:
            turns = [[{"role": "user", "content": text}] for text in texts]
            chats = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
            return self.ids(chats)  # the chat template has written the special tokens
        # Of the special tokens those at the beginning belong to an instruction, and not one that ends it.
        rows = self.ids(texts, special=True)
        return [row[:-1] if row and row[-1] == self.end_id else row for row in rows]

    def ids(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Returns the tokens of each text, without special ones unless they are asked for."""
        ids: list[list[int]] = []
        for start in range(0, len(texts), TEXTS_PER_CALL):
            call = self.tokenizer(
                list(texts[start : start + TEXTS_PER_CALL]),
                add_special_tokens=special,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,  # longer texts are cut by `fits`
            )
            ids += call["input_ids"]
        return ids

    def budget(self, tokens: int) -> int:
        """Returns how many tokens the answer about a sentence of so many may have."""
        return budget_of(tokens, self._tag)

    def fits(self, sentence: str, answers: Sequence[str] = ()) -> bool:
        """Whether an instruction about a sentence is short enough with the longest answer it may have.

        Args:
            sentence: The sentence.
            answers: The right answers to what is asked of it, which must not be longer than that.
        """
        ids, *right = self.ids([sentence, *answers])
        budget = self.budget(len(ids))
        return len(ids) + budget <= self._room and all(len(each) < budget for each in right)  # and the end

    def _marked(self, types: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of a mention of each type, of one letter.

        Raises:
            ConfigurationError: They are not read as what they were.
        """
        texts = [mark("x", [Span(0, 1, label)]) for label in types]
        rows = self.ids(texts)
        for label, text, row in zip(types, texts, rows, strict=True):
            again = self.tokenizer.decode(row, clean_up_tokenization_spaces=False)
            if not read("x", again, [label])[0]:
                message = f"does not give back the tags that task extract writes: {text} becomes {again!r}"
                raise ConfigurationError([Problem("model.tokenizer", message)])
        return rows


def pad_examples(examples: Sequence[Example]) -> dict[str, Tensor]:
    """Pads instructions on the right to the longest one.

    Returns:
        `input_ids`, `attention_mask` and `labels`, (rows, tokens) int64: a label is the token that follows,
        and -100 where it counts in no loss. `prompt`, `budget`, `pad_id` and `end_id`, (rows,) int64: see
        `Example`.
    """
    batch = pad_ids([each.input_ids for each in examples], [each.pad_id for each in examples])
    labels = np.full(tuple(batch["input_ids"].shape), IGNORED, dtype=np.int64)
    for row, example in enumerate(examples):
        labels[row, : len(example)] = example.targets
    names = ("prompt", "budget", "pad_id", "end_id")
    facts = {name: torch.tensor([getattr(each, name) for each in examples]) for name in names}
    return {**batch, "labels": torch.from_numpy(labels), **facts}

"""Cloze questions as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.tasks.instruction.prompts import PromptTokenizer
from fedstrata.tasks.windows import IGNORED, pad_labelled, padded

if TYPE_CHECKING:
    from torch import Tensor

    from fedstrata.core.documents import Document
    from fedstrata.tasks.choice.questions import Asked, Questions


@dataclass(frozen=True, slots=True)
class ClozeExample:
    """One question with its answers.

    Attributes:
        document: Index of the document.
        choice: The name of the choice that is asked about; empty if all of the document is.
        names: The label that each answer stands for; empty for one that stands for none.
        prompt: The tokens of the question, (tokens,) int32.
        answers: Those of each answer, at least one, (tokens,) int32.
        right: Index of the right answer; -1 if there is none.
        pad_id: The id with which it is padded.
    """

    document: int
    choice: str
    names: tuple[str, ...]
    prompt: np.ndarray
    answers: tuple[np.ndarray, ...]
    right: int
    pad_id: int

    def __len__(self) -> int:
        return len(self.prompt) + (len(self.answers[self.right]) - 1 if self.right >= 0 else 0)

    @property
    def input_ids(self) -> np.ndarray:
        """The question, and the right answer as far as it is read; (tokens,) int32."""
        if self.right < 0:
            return self.prompt
        return np.concatenate([self.prompt, self.answers[self.right][:-1]])

    @property
    def targets(self) -> np.ndarray:
        """What follows each of them where it is the right answer, else -100; (tokens,) int32."""
        targets = np.full(len(self), IGNORED, dtype=np.int32)
        if self.right >= 0:
            targets[len(self.prompt) - 1 :] = self.answers[self.right]
        return targets

    @property
    def windows(self) -> tuple[np.ndarray, ...]:
        """The rows of a batch this example fills: what is read in training."""
        return (self.input_ids,)


class QuestionTokenizer:
    """A tokenizer for questions of a limited length.

    Args:
        tokenizer: A transformers tokenizer.
        questions: Words the questions.
        max_length: Tokens of a question with its longest answer. Where a text is too long for that, its end
            is cut off.
    """

    def __init__(self, tokenizer: Any, questions: Questions, max_length: int) -> None:
        self._words = PromptTokenizer(tokenizer, chats=False)
        self._questions, self._max_length = questions, max_length

    def examples(self, documents: Sequence[Document], asked: Sequence[Asked]) -> list[ClozeExample]:
        """Makes the examples of questions.

        Args:
            documents: The documents.
            asked: What is asked of them.

        Raises:
            ConfigurationError: Two words are the same tokens, an answer has none, a question is too long
                without its text, or the template does not fit a document.
        """
        texts = [self._questions.prompt(documents[each.document], each) for each in asked]
        rows = zip(asked, self._words.prompts(texts), self._answers(asked, texts), strict=True)
        return [self._example(documents[own.document], own, prompt, answers) for own, prompt, answers in rows]

    def _example(
        self, document: Document, asked: Asked, prompt: list[int], answers: tuple[np.ndarray, ...]
    ) -> ClozeExample:
        ids = self._words.shortened(
            prompt,
            document,
            lambda text: self._questions.prompt(document, asked, text),
            max_length=self._max_length,
            spared=max(map(len, answers)) - 1,  # the last token of an answer is not read
        )
        facts = (np.array(ids, dtype=np.int32), answers, asked.right, self._words.pad_id)
        return ClozeExample(asked.document, asked.choice, asked.names, *facts)

    def _answers(self, asked: Sequence[Asked], texts: Sequence[str]) -> list[tuple[np.ndarray, ...]]:
        """Returns the tokens of the answers to each question."""
        ends = [text[-1:] for text in texts]
        behind = [self._questions.answers(each) for each in asked]
        pairs = list(dict.fromkeys((end, one) for end, own in zip(ends, behind, strict=True) for one in own))
        rows = self._words.continuations([end for end, _ in pairs], [text for _, text in pairs])
        ids = {pair: np.array(row, dtype=np.int32) for pair, row in zip(pairs, rows, strict=True)}
        if not all(map(len, rows)):
            raise ConfigurationError([Problem("model.tokenizer", "has no token for one of the answers")])
        if self._questions.form in ("label", "each") and behind:
            _require_distinct([(one, ids[ends[0], one]) for one in behind[0]])
        return [tuple(ids[end, one] for one in own) for end, own in zip(ends, behind, strict=True)]


def _require_distinct(words: Sequence[tuple[str, np.ndarray]]) -> None:
    """Refuses words that a tokenizer does not tell from each other."""
    seen: dict[tuple[int, ...], str] = {}
    for word, ids in words:
        other = seen.setdefault(tuple(ids.tolist()), word)
        if other != word:
            message = f"{other.strip()!r} and {word.strip()!r} are the same tokens for this model's tokenizer"
            raise ConfigurationError([Problem("task.words", message)])


def pad_questions(examples: Sequence[ClozeExample]) -> dict[str, Tensor]:
    """Pads questions on the right to the longest one.

    Returns:
        Those of `fedstrata.tasks.windows.pad_labelled`, for questions with their right answers; and what
        `fedstrata.tasks.choice.continuations.log_likelihoods` takes.
    """
    answers = list(chain.from_iterable(each.answers for each in examples))
    owner = np.repeat(np.arange(len(examples)), [len(each.answers) for each in examples])
    return {
        **pad_labelled(examples),
        "prompt": torch.tensor([len(each.prompt) for each in examples]),
        "pad_id": torch.tensor([each.pad_id for each in examples]),
        "answers": padded(answers, IGNORED),
        "owner": torch.from_numpy(owner),
    }

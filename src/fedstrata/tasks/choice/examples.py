"""Cloze questions as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.tasks.choice.questions import Asked, Questions
from fedstrata.tasks.instruction.prompts import PromptTokenizer
from fedstrata.tasks.windows import IGNORED, Row


@dataclass(frozen=True, slots=True)
class ClozeExample(Row):
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


def question_examples(
    documents: Sequence[Document],
    asked: Sequence[Asked],
    tokenizer: Any,
    questions: Questions,
    max_length: int,
) -> list[ClozeExample]:
    """Makes the examples of questions.

    Args:
        documents: The documents.
        asked: What is asked of them.
        tokenizer: A transformers tokenizer.
        questions: Words the questions.
        max_length: Tokens of a question with its longest answer. Where a text is too long for that, its end
            is cut off.

    Raises:
        ConfigurationError: Two words are the same tokens, an answer has none, a question is too long
            without its text, or the template does not fit a document.
    """
    words = PromptTokenizer(tokenizer, chats=False)
    texts = [questions.prompt(documents[each.document], each) for each in asked]
    rows = zip(asked, words.prompts(texts), _answers(asked, texts, questions, words), strict=True)
    examples = []
    for own, prompt, answers in rows:
        document = documents[own.document]
        fill = partial(questions.prompt, document, own)
        spared = max(map(len, answers)) - 1  # the last token of an answer is not read
        ids = words.shortened(prompt, document, fill, max_length=max_length, spared=spared)
        facts = (np.array(ids, dtype=np.int32), answers, own.right, words.pad_id)
        examples.append(ClozeExample(own.document, own.choice, own.names, *facts))
    return examples


def _answers(
    asked: Sequence[Asked], texts: Sequence[str], questions: Questions, words: PromptTokenizer
) -> list[tuple[np.ndarray, ...]]:
    """Returns the tokens of the answers to each question."""
    ends = [text[-1:] for text in texts]
    behind = [questions.answers(each) for each in asked]
    pairs = list(dict.fromkeys((end, one) for end, own in zip(ends, behind, strict=True) for one in own))
    rows = words.continuations([end for end, _ in pairs], [text for _, text in pairs])
    ids = {pair: np.array(row, dtype=np.int32) for pair, row in zip(pairs, rows, strict=True)}
    if not all(map(len, rows)):
        raise ConfigurationError([Problem("model.tokenizer", "has no token for one of the answers")])
    if questions.form in ("label", "each") and behind:
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

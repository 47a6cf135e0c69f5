"""Documents with labels, as a model reads and answers them.

A pair of texts is one window, joined as the model's tokenizer joins a pair.

- A tokenizer with a template for pairs is taken at its word: `[CLS] a [SEP] b [SEP]` with token types for
  BERT and MiniLM, `<s> a </s></s> b </s>` for RoBERTa, `<s> a <s> b` for Llama 2.
- One without (GPT-2 and its kin) would run the two texts into each other. Between them comes its
  end-of-sequence token, or its separator, and around them what it puts around a single text:
  `a <|endoftext|> b`.

A pair is never cut into several windows, since a window with one of the texts says nothing of the two. One
that is too long loses tokens of whichever text has more of them (`longest_first` of transformers).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedstrata.core.documents import Document
from fedstrata.core.errors import refused
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Count
from fedstrata.core.surveyed import Truncation
from fedstrata.tasks.corrupt import shuffled_windows
from fedstrata.tasks.texts import DOCUMENTS_PER_CALL, separator_id, special_around, token_counts
from fedstrata.tasks.windows import WindowTask, padded, token_windows

_TYPES = "token_type_ids"

EncodedText = tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]
"""A document as token ids, (tokens,) int32 for each of its windows, from left to right and at least one; and
the types of its tokens, 0 for the first text of a pair and 1 for the second, (tokens,) int8 for each window;
of these there may be none.
"""


@dataclass(frozen=True, slots=True)
class LabelledDocument:
    """A document as the model reads it.

    Attributes:
        document: Index of the document in the sequence that was encoded.
        windows: Token ids of its windows from left to right, at least one, (tokens,) int32 each: its rows.
        token_types: Which text of a pair each token belongs to, (tokens,) int8 for each window; empty where
            the tokenizer tells no types, and where none of the documents encoded together is a pair.
        targets: The numbers of its labels, (its labels,) int32.
        pad_id: The id with which its windows are padded.
        unknown: Which labels nobody looked for in it, (labels,) bool; none if all were.
    """

    document: int
    windows: tuple[np.ndarray, ...]
    token_types: tuple[np.ndarray, ...]
    targets: np.ndarray
    pad_id: int
    unknown: np.ndarray | None = None

    def __len__(self) -> int:
        return sum(map(len, self.windows))


@dataclass(frozen=True, slots=True)
class LabelAnswer:
    """What the model says of a document.

    Attributes:
        labels: The labels it gives, in the task's order.
        probabilities: Of each of the task's labels, (labels,) float64; with one label a document they sum to
            one.
    """

    labels: tuple[str, ...]
    probabilities: np.ndarray


class LabellingTask(WindowTask):
    """Base of the tasks that label documents by some of their windows, or by all."""

    max_windows: Count | None = Field(
        default=None, description="Maximum number of windows per document, from its beginning; all if null."
    )

    def truncation(self, documents: Sequence[Document], tokenizer: Any) -> Truncation | None:
        """Returns what lies behind the windows that are read, and what pairs lose; none if all is read.

        Special tokens do not count.
        """
        pairs = [document for document in documents if document.text_pair is not None]
        if self.max_windows is None and not pairs:
            return None
        special = tokenizer.num_special_tokens_to_add()
        window, more = self.max_length - special, (self.max_windows or 0) - 1
        most = window + more * (window - self.stride) if more >= 0 else math.inf
        singles = token_counts([own.text for own in documents if own.text_pair is None], tokenizer)
        texts = token_counts([text for document in pairs for text in document.texts], tokenizer)
        both = [one + other for one, other in zip(texts[::2], texts[1::2], strict=True)]
        around = max(tokenizer.num_special_tokens_to_add(pair=True), special + 1)  # or a separator alone
        room = self.max_length - around
        read = [*((count, most) for count in singles), *((count, room) for count in both)]
        return Truncation.of([(count, int(max(0, count - limit))) for count, limit in read])


def pool(logits: Tensor, document: Tensor, documents: int, pooling: str) -> Tensor:
    """Pools the logits of windows over the documents they belong to.

    Args:
        logits: Of each window, (windows, labels).
        document: The number of each window's document, (windows,) int64; all have one.
        documents: How many documents there are.
        pooling: `mean` or `max`; of equal maxima each gets its share of the gradient.

    Returns:
        Of each document, (documents, labels).
    """
    shape = (documents, logits.shape[1])
    if pooling == "max":
        start = logits.new_full(shape, -torch.inf)
        return start.scatter_reduce(0, document[:, None].expand_as(logits), logits, "amax")
    sums = logits.new_zeros(shape).index_add(0, document, logits)
    return sums / torch.bincount(document, minlength=documents)[:, None]


def text_windows(
    documents: Sequence[Document], tokenizer: Any, task: WindowTask, limit: int | None = None
) -> Iterator[EncodedText]:
    """Tokenizes documents: single texts as windows, pairs as one window each.

    What is given is as for `token_windows`.

    Yields:
        Each document's windows. Where one of the documents is a pair and the tokenizer tells types, all have
        them, so that what a model reads of a text does not depend on the batch it is in.

    Raises:
        ConfigurationError: As for `token_windows`; or the tokenizer has nothing to put between two texts.
    """
    pairs = [document for document in documents if document.text_pair is not None]
    singles = [document for document in documents if document.text_pair is None]
    typed = bool(pairs) and _TYPES in tokenizer.model_input_names
    joined = _joined(pairs, tokenizer, task.max_length)
    windows = token_windows(singles, tokenizer, task, limit)
    for document in documents:
        if document.text_pair is not None:
            yield next(joined)
        else:
            own = tuple(next(windows))
            yield own, tuple(np.zeros(len(ids), np.int8) for ids in own) if typed else ()


def _joined(pairs: Sequence[Document], tokenizer: Any, max_length: int) -> Iterator[EncodedText]:
    """Yields each pair as one window."""
    has_template = tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add()
    join = _by_template if has_template else _by_separator
    for start in range(0, len(pairs), DOCUMENTS_PER_CALL):
        yield from join(pairs[start : start + DOCUMENTS_PER_CALL], tokenizer, max_length)


def _by_template(pairs: Sequence[Document], tokenizer: Any, max_length: int) -> Iterator[EncodedText]:
    typed = _TYPES in tokenizer.model_input_names
    encoded = _tokenized(pairs, tokenizer, max_length, return_token_type_ids=typed)
    for row, ids in enumerate(encoded["input_ids"]):
        types = (np.array(encoded[_TYPES][row], dtype=np.int8),) if typed else ()
        yield (np.array(ids, dtype=np.int32),), types


def _by_separator(pairs: Sequence[Document], tokenizer: Any, max_length: int) -> Iterator[EncodedText]:
    separator = separator_id(tokenizer)
    if separator is None:
        wanted = "a template for them, or an end-of-sequence or separator token to put between them"
        message = f"pairs of texts need a tokenizer that has {wanted}"
        raise refused("model.tokenizer", message, "lacks_tokens")
    before, after = special_around(tokenizer)
    room = max_length - len(before) - len(after) - 1
    encoded = _tokenized(pairs, tokenizer, room, add_special_tokens=False, return_token_type_ids=False)
    for row, ids in enumerate(encoded["input_ids"]):
        first = encoded.sequence_ids(row).count(0)
        whole = [*before, *ids[:first], separator, *ids[first:], *after]
        yield (np.array(whole, dtype=np.int32),), ()


def _tokenized(pairs: Sequence[Document], tokenizer: Any, max_length: int, **options: bool) -> Any:
    return tokenizer(
        [document.text for document in pairs],
        [document.text_pair for document in pairs],
        truncation="longest_first",
        max_length=max_length,
        return_attention_mask=False,
        **options,
    )


def padded_types(examples: Sequence[LabelledDocument]) -> dict[str, Tensor]:
    """Returns `token_type_ids`, (windows, tokens) int64, or nothing if no example has types."""
    if not any(example.token_types for example in examples):
        return {}
    rows = [
        types
        for example in examples
        for types in example.token_types or [np.zeros(len(window), np.int8) for window in example.windows]
    ]
    return {"token_type_ids": padded(rows, 0)}


def corrupted_labels(
    examples: Sequence[LabelledDocument], kind: str, tokenizer: Any, rng: Seed, *, classes: int
) -> list[LabelledDocument]:
    """Returns the documents of a corrupt client; see `core.task.Task.corrupt`.

    The target of a document is the set of its labels, and classes are labels. To have the only label becomes
    to lack it, and the other way round.

    Args:
        examples: The documents.
        kind: As for `Task.corrupt`.
        tokenizer: As for `Task.corrupt`.
        rng: Seed of the permutations.
        classes: How many labels there are.
    """
    if kind == "shuffled_tokens":
        return [
            replace(each, windows=tuple(shuffled_windows(each.windows, tokenizer, rng.child(index))))
            for index, each in enumerate(examples)
        ]
    targets = [each.targets for each in examples]
    if kind == "shuffled_labels":
        targets = [targets[other] for other in rng.numpy().permutation(len(targets))]
    elif classes == 1:
        targets = [np.arange(1 - len(own), dtype=np.int32) for own in targets]
    else:
        targets = [np.sort((own + 1) % classes) for own in targets]
    return [replace(each, targets=own) for each, own in zip(examples, targets, strict=True)]

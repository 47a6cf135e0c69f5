"""Long documents as overlapping windows of tokens, in which every token counts exactly once.

A note is longer than what a model reads at a time. It is cut into windows that overlap by `task.stride`
tokens, so that every token has context on both sides, and the overlap of two neighbours is shared out at its
middle: its first half is owned by the earlier window, its second half by the later one. Losses and answers
of tasks on tokens use owned tokens only. Tasks on documents need no more than the ids: `token_windows`.
Pairs of texts are no notes, and are not cut: see `fedstrata.tasks.document_labels`.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import SettingError, refused
from fedstrata.core.task import Task
from fedstrata.tasks.texts import DOCUMENTS_PER_CALL, padding_id, require_offsets

IGNORED = -100
"""The tag of a token that counts in no loss; what torch's cross entropy ignores by default."""

CUT_INTO_WINDOWS = "cuts longer texts into overlapping windows"
"""What a model card says of a `WindowTask`."""


class WindowTask(Task):
    """Base of the tasks that read a long note as overlapping windows."""

    stride: Annotated[int, Field(ge=0)] = Field(
        default=32, description="Overlap of neighbouring windows in tokens."
    )

    def _misfits(self) -> Iterator[SettingError]:
        if self.stride > self.max_length // 2:
            yield SettingError(
                f"stride must be at most half of max_length ({self.max_length}), not {self.stride}",
                "out_of_range",
            )


class Row:
    """Base of the examples that fill one row of a batch: that of their `input_ids`, (tokens,)."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def input_ids(self) -> np.ndarray:
            """Token ids, (tokens,) int32."""

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def windows(self) -> tuple[np.ndarray, ...]:
        """The rows of a batch this example fills: its own token ids."""
        return (self.input_ids,)


@dataclass(frozen=True, slots=True)
class Window(Row):
    """A stretch of a document's tokens, special tokens included.

    Attributes:
        document: Index of the document in the sequence that was encoded.
        input_ids: Token ids, (tokens,) int32.
        tags: The class of each token that this window owns, else -100; (tokens,) int16.
        offsets: First and one past the last character of each token without the blanks around it, (tokens, 2)
            int32; both are equal for a token of blanks and for a special token.
        owned: Which tokens this window answers for, (tokens,) bool.
        pad_id: The id with which this window is padded.
        unknown: Which classes nobody looked for in the document, (classes,) bool; none if all were.
    """

    document: int
    input_ids: np.ndarray
    tags: np.ndarray
    offsets: np.ndarray
    owned: np.ndarray
    pad_id: int
    unknown: np.ndarray | None = None


def encode_windows(
    documents: Sequence[Document],
    tokenizer: Any,
    task: WindowTask,
    tag: Callable[[Document, np.ndarray], np.ndarray],
) -> list[Window]:
    """Tokenizes documents and cuts them into windows.

    Args:
        documents: The documents; one without tokens gets no window.
        tokenizer: A fast transformers tokenizer.
        task: The task; it says how long the windows are, and how far they overlap.
        tag: Returns the tag of each token of a document from the offsets of all its tokens, (tokens, 2) to
            (tokens,).

    Returns:
        The windows, by document and then from left to right.

    Raises:
        ConfigurationError: If the tokenizer cannot give offsets, or the windows are too short.
    """
    _require_usable(tokenizer, task)
    pad_id = padding_id(tokenizer)
    windows: list[Window] = []
    for index, (document, encoded, rows) in enumerate(_tokenize(documents, tokenizer, task, offsets=True)):
        ids = [np.array(encoded["input_ids"][row], dtype=np.int32) for row in rows]
        specials = [np.array(encoded["special_tokens_mask"][row], dtype=bool) for row in rows]
        raw = [np.array(encoded["offset_mapping"][row], dtype=np.int32) for row in rows]
        offsets, owned = without_blanks(document.text, raw), _owned(specials, task.stride)
        own_offsets = [each[mine] for each, mine in zip(offsets, owned, strict=True)]
        sizes = [len(own) for own in own_offsets]
        if not any(sizes):
            continue
        tags = tag(document, np.concatenate(own_offsets))
        own_tags = np.split(tags, np.cumsum(sizes)[:-1])
        for row, mine in enumerate(owned):
            window_tags = np.full(len(mine), IGNORED, dtype=np.int16)
            window_tags[mine] = own_tags[row]
            windows.append(Window(index, ids[row], window_tags, offsets[row], mine, pad_id))
    return windows


def token_windows(
    documents: Sequence[Document], tokenizer: Any, task: WindowTask, limit: int | None = None
) -> Iterator[list[np.ndarray]]:
    """Tokenizes documents and cuts them into windows of token ids, special tokens included.

    Args:
        documents: The documents.
        tokenizer: A fast transformers tokenizer.
        task: The task; it says how long the windows are, and how far they overlap.
        limit: Windows of a document that are kept, from its beginning; all if none.

    Yields:
        For each document its windows from left to right, at least one, (tokens,) int32 each. A document
        without tokens has the window of the tokenizer's special tokens, or of one padding token.

    Raises:
        ConfigurationError: As for `encode_windows`.
    """
    _require_usable(tokenizer, task)
    for _, encoded, rows in _tokenize(documents, tokenizer, task, offsets=False):
        windows = [np.array(encoded["input_ids"][row], dtype=np.int32) for row in rows[:limit]]
        yield [ids if len(ids) else np.array([padding_id(tokenizer)], dtype=np.int32) for ids in windows]


def pad_labelled(examples: Sequence[Any], of: str = "targets") -> dict[str, Tensor]:
    """Pads examples of one tokenizer on the right to the longest one.

    Args:
        examples: What has `input_ids`, (tokens,), and the `pad_id` with which it is padded.
        of: What the label of each of their tokens is called in an example, (tokens,); -100 where it counts in
            no loss.

    Returns:
        `input_ids`, `attention_mask` and `labels`, each (rows, tokens) int64; a label is -100 where a row is
        padded.
    """
    batch = pad_ids([each.input_ids for each in examples], examples[0].pad_id)
    return {**batch, "labels": padded([getattr(each, of) for each in examples], IGNORED)}


def pad_ids(windows: Sequence[np.ndarray], pad_id: int) -> dict[str, Tensor]:
    """Pads token ids on the right to the longest window.

    Args:
        windows: Token ids, (tokens,) each.
        pad_id: What they are padded with.

    Returns:
        `input_ids` and `attention_mask`, each (windows, tokens) int64.
    """
    mask = padded([np.ones(len(window), dtype=np.int64) for window in windows], 0)
    return {"input_ids": padded(windows, pad_id), "attention_mask": mask}


def padded(rows: Sequence[np.ndarray], value: int) -> Tensor:
    """Returns rows of integers padded on the right with a value, (rows, longest) int64."""
    whole = [torch.from_numpy(row.astype(np.int64)) for row in rows]
    return pad_sequence(whole, batch_first=True, padding_value=value)


def run_model(module: nn.Module, batch: Mapping[str, Tensor], *, columns: Tensor | None = None) -> Tensor:
    """Returns the model's logits for the windows of a batch, (windows, ...).

    Args:
        module: The model.
        batch: The windows.
        columns: Which tokens of each window logits are wanted of, of a causal language model, (columns,)
            int64; the layer that gives those of a large vocabulary then runs for these only. All if none.
    """
    inner = getattr(module, "get_base_model", lambda: module)()  # PEFT's wrapper hides the signature
    taken = inspect.signature(inner.forward).parameters
    further: dict[str, Any] = {}
    if "use_cache" in taken:  # a causal model would else build a key-value cache, which nothing reads
        further["use_cache"] = False
    # GPT-2 takes types too, but as further words: only a model that was given some knows them (not RoBERTa).
    typed = "token_type_ids" in batch and "token_type_ids" in taken
    if typed and (getattr(inner.config, "type_vocab_size", None) or 0) > 1:
        further["token_type_ids"] = batch["token_type_ids"]
    if spared := columns is not None and "logits_to_keep" in taken:
        further["logits_to_keep"] = columns
    output = module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **further)
    logits: Tensor = output.logits
    return logits if spared or columns is None else logits[:, columns]


def _tokenize(
    documents: Sequence[Document], tokenizer: Any, task: WindowTask, *, offsets: bool
) -> Iterator[tuple[Document, Mapping[str, Any], list[int]]]:
    """Yields each document with the tokenizer's output and which of its rows are the document's windows."""
    for start in range(0, len(documents), DOCUMENTS_PER_CALL):
        batch = documents[start : start + DOCUMENTS_PER_CALL]
        encoded = tokenizer(
            [document.text for document in batch],
            truncation=True,
            max_length=task.max_length,
            stride=task.stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=offsets,
            return_special_tokens_mask=offsets,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        rows: dict[int, list[int]] = defaultdict(list)
        for row, index in enumerate(encoded["overflow_to_sample_mapping"]):
            rows[index].append(row)
        for index, document in enumerate(batch):
            # A tokenizer that truncates on the left gives the end of the text first.
            yield document, encoded, rows[index][:: 1 if tokenizer.truncation_side == "right" else -1]


def _owned(specials: Sequence[np.ndarray], stride: int) -> list[np.ndarray]:
    """Shares out the overlaps of a document's windows.

    Args:
        specials: Which tokens of each window are special, (tokens,) bool each.
        stride: Tokens that neighbouring windows share.

    Returns:
        Which tokens of each window are its own, (tokens,) bool each.
    """
    masks = []
    for number, special in enumerate(specials):
        text = np.flatnonzero(~special)
        first = stride // 2 if number > 0 else 0
        last = len(text) - (stride - stride // 2) if number < len(specials) - 1 else len(text)
        mask = np.zeros(len(special), dtype=bool)
        mask[text[first:last]] = True
        masks.append(mask)
    return masks


def without_blanks(text: str, offsets: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Narrows offsets to the text without the white space around it.

    Byte-level tokenizers count the blank before a word as part of its token.

    Args:
        text: The document's text.
        offsets: Characters of the tokens of each window, (tokens, 2) each.

    Returns:
        The same; both ends of a token are equal where nothing is left of it.
    """
    solid = np.flatnonzero(~np.fromiter(map(str.isspace, text), dtype=bool, count=len(text)))
    at_or_after, before = np.append(solid, len(text)), np.insert(solid, 0, -1)
    narrowed = []
    for window in offsets:
        starts, ends = window.reshape(-1, 2).T
        first = np.minimum(at_or_after[np.searchsorted(solid, starts)], ends)
        last = np.maximum(before[np.searchsorted(solid, ends)] + 1, first)
        narrowed.append(np.stack([first, last], axis=1).astype(np.int32))
    return narrowed


def touched(spans: Sequence[Span], offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first token that each span touches, and one past the last, (spans,) int64 each.

    Both are equal where nothing of it is in any token.

    Args:
        spans: Spans of one document.
        offsets: Characters of its tokens without the blanks around them, (tokens, 2).
    """
    solid = np.flatnonzero(offsets[:, 1] > offsets[:, 0])
    first = np.searchsorted(offsets[solid, 1], [span.start for span in spans], side="right")
    last = np.searchsorted(offsets[solid, 0], [span.end for span in spans], side="left") - 1
    begins = np.append(solid, len(offsets))[first]
    return begins, np.where(first > last, begins, np.append(solid, -1)[last] + 1)


def _require_usable(tokenizer: Any, task: WindowTask) -> None:
    require_offsets(tokenizer)
    special = tokenizer.num_special_tokens_to_add()
    if task.max_length - special <= task.stride:
        left = f"{task.max_length} leaves {task.max_length - special} tokens besides the {special} that"
        message = f"{left} the tokenizer adds to every window; that must be more than task.stride"
        raise refused("task.max_length", f"{message} ({task.stride})", "out_of_range")

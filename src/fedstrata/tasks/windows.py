"""Long documents as overlapping windows of tokens, in which every token counts exactly once.

A note is longer than what a model reads at a time. It is cut into windows that overlap by `task.stride`
tokens, so that every token has context on both sides, and the overlap of two neighbours is shared out at its
middle: its first half is owned by the earlier window, its second half by the later one. Losses and answers
of tasks on tokens use owned tokens only. Tasks on documents need no more than the ids: `token_windows`.
Pairs of texts are no notes, and are not cut: see `fedstrata.tasks.pairs`.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedstrata.core.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedstrata.core.documents import Document
    from fedstrata.core.settings.task import WindowSettings

IGNORED = -100
"""The tag of a token that counts in no loss; what torch's cross entropy ignores by default."""

DOCUMENTS_PER_CALL = 64
"""Documents given to the tokenizer at a time: enough for its threads, few enough for its Python lists."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a document's tokens, special tokens included.

    Attributes:
        document: Index of the document in the sequence that was encoded.
        input_ids: Token ids, (tokens,) int32.
        tags: The class of each token that this window owns, else -100; (tokens,) int16.
        offsets: First and one past the last character of each token without the blanks around it, (tokens, 2)
            int32; both are equal for a token of blanks and for a special token.
        owned: Which tokens this window answers for, (tokens,) bool.
        pad_id: The id with which this window is padded.
    """

    document: int
    input_ids: np.ndarray
    tags: np.ndarray
    offsets: np.ndarray
    owned: np.ndarray
    pad_id: int

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def windows(self) -> tuple[np.ndarray, ...]:
        """The rows of a batch this example fills: its own token ids."""
        return (self.input_ids,)


def encode_windows(
    documents: Sequence[Document],
    tokenizer: Any,
    settings: WindowSettings,
    tag: Callable[[Document, np.ndarray], np.ndarray],
) -> list[Window]:
    """Tokenizes documents and cuts them into windows.

    Args:
        documents: The documents; one without tokens gets no window.
        tokenizer: A fast transformers tokenizer.
        settings: Length and overlap of the windows.
        tag: Returns the tag of each token of a document from the offsets of all its tokens, (tokens, 2) to
            (tokens,).

    Returns:
        The windows, by document and then from left to right.

    Raises:
        ConfigurationError: If the tokenizer cannot give offsets, or the windows are too short.
    """
    _require_usable(tokenizer, settings)
    pad_id = padding_id(tokenizer)
    windows: list[Window] = []
    for index, pieces in enumerate(_pieces(documents, tokenizer, settings)):
        own_offsets = [piece.offsets[piece.owned] for piece in pieces]
        sizes = [len(offsets) for offsets in own_offsets]
        if not any(sizes):
            continue
        tags = tag(documents[index], np.concatenate(own_offsets))
        for piece, own_tags in zip(pieces, np.split(tags, np.cumsum(sizes)[:-1]), strict=True):
            window_tags = np.full(len(piece.input_ids), IGNORED, dtype=np.int16)
            window_tags[piece.owned] = own_tags
            windows.append(Window(index, piece.input_ids, window_tags, piece.offsets, piece.owned, pad_id))
    return windows


def token_windows(
    documents: Sequence[Document], tokenizer: Any, settings: WindowSettings, limit: int | None = None
) -> Iterator[list[np.ndarray]]:
    """Tokenizes documents and cuts them into windows of token ids, special tokens included.

    Args:
        documents: The documents.
        tokenizer: A fast transformers tokenizer.
        settings: Length and overlap of the windows.
        limit: Windows of a document that are kept, from its beginning; all if none.

    Yields:
        For each document its windows from left to right, at least one, (tokens,) int32 each. A document
        without tokens has the window of the tokenizer's special tokens, or of one padding token.

    Raises:
        ConfigurationError: As for `encode_windows`.
    """
    _require_usable(tokenizer, settings)
    for _, encoded, rows in _tokenize(documents, tokenizer, settings, offsets=False):
        windows = [np.array(encoded["input_ids"][row], dtype=np.int32) for row in rows[:limit]]
        yield [ids if len(ids) else np.array([padding_id(tokenizer)], dtype=np.int32) for ids in windows]


def padding_id(tokenizer: Any) -> int:
    """Returns the id with which windows are padded: of the padding or the end token, else 0."""
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(id_) for id_ in ids if id_ is not None)


def special_around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Returns the special tokens that the tokenizer puts before and after a single text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    text = [place for place, is_special in enumerate(special) if not is_special] or [len(ids)]
    return ids[: text[0]], ids[text[-1] + 1 :]


def whole_texts(
    documents: Sequence[Document], tokenizer: Any, *, offsets: bool = False
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Tokenizes documents without cutting them, and without special tokens.

    Args:
        documents: The documents.
        tokenizer: A transformers tokenizer; a fast one for offsets.
        offsets: Whether offsets are wanted.

    Yields:
        The token ids of each document, and the characters of each token; none where they are not wanted.
    """
    for start in range(0, len(documents), DOCUMENTS_PER_CALL):
        encoded = tokenizer(
            [document.text for document in documents[start : start + DOCUMENTS_PER_CALL]],
            add_special_tokens=False,
            return_offsets_mapping=offsets,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # a text longer than the model reads at a time is cut later
        )
        ids = encoded["input_ids"]
        yield from zip(ids, encoded["offset_mapping"] if offsets else [[]] * len(ids), strict=True)


def separator_id(tokenizer: Any) -> int | None:
    """Returns the token between two texts: the end-of-sequence token or, as in BERT, the separator."""
    ids = (tokenizer.eos_token_id, tokenizer.sep_token_id)
    return next((int(id_) for id_ in ids if id_ is not None), None)


def require_single_texts(documents: Iterable[Document], task: str) -> None:
    """Refuses pairs of texts, for a task that would read the first and pass over the second.

    Args:
        documents: The documents.
        task: The task's name.

    Raises:
        ConfigurationError: There is a pair among them.
    """
    pairs = [document.id for document in documents if document.text_pair is not None]
    if pairs:
        message = (
            f"{task!r} reads single texts, and {len(pairs)} documents are pairs of texts (for example "
            f"{pairs[0]!r}); task classify reads pairs"
        )
        raise ConfigurationError([Problem("task.name", message)])


def pad(windows: Sequence[Window]) -> dict[str, Tensor]:
    """Pads windows on the right to the longest one.

    Args:
        windows: The windows of a batch.

    Returns:
        `input_ids`, `attention_mask` and `labels`, each (windows, tokens) int64.
    """
    batch = pad_ids([window.input_ids for window in windows], [window.pad_id for window in windows])
    labels = np.full(tuple(batch["input_ids"].shape), IGNORED, dtype=np.int64)
    for row, window in enumerate(windows):
        labels[row, : len(window)] = window.tags
    return {**batch, "labels": torch.from_numpy(labels)}


def pad_ids(windows: Sequence[np.ndarray], pad_ids: Sequence[int]) -> dict[str, Tensor]:
    """Pads token ids on the right to the longest window.

    Args:
        windows: Token ids, (tokens,) each.
        pad_ids: What each of them is padded with.

    Returns:
        `input_ids` and `attention_mask`, each (windows, tokens) int64.
    """
    shape = (len(windows), max(map(len, windows)))
    input_ids = np.zeros(shape, dtype=np.int64)
    attention_mask = np.zeros(shape, dtype=np.int64)
    for row, (window, pad_id) in enumerate(zip(windows, pad_ids, strict=True)):
        input_ids[row] = pad_id
        input_ids[row, : len(window)] = window
        attention_mask[row, : len(window)] = 1
    return {"input_ids": torch.from_numpy(input_ids), "attention_mask": torch.from_numpy(attention_mask)}


def run_model(module: nn.Module, batch: Mapping[str, Tensor], *, columns: Tensor | None = None) -> Tensor:
    """Returns the model's logits for the windows of a batch, (windows, ...).

    Args:
        module: The model.
        batch: The windows.
        columns: Which tokens of each window logits are wanted of, of a causal language model, (columns,)
            int64; the layer that gives those of a large vocabulary then runs for these only. All if none.
    """
    unwrap = getattr(module, "get_base_model", lambda: module)  # PEFT's wrapper hides the signature
    inner = unwrap()
    taken = inspect.signature(inner.forward).parameters
    further: dict[str, Any] = {}
    if "use_cache" in taken:  # a causal model would else build a key-value cache, which nothing reads
        further["use_cache"] = False
    # GPT-2 takes types too, but as further words: only a model that was given some knows them (not RoBERTa).
    if "token_type_ids" in batch and "token_type_ids" in taken and _token_types(inner) > 1:
        further["token_type_ids"] = batch["token_type_ids"]
    if spared := columns is not None and "logits_to_keep" in taken:
        further["logits_to_keep"] = columns
    output = module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **further)
    logits: Tensor = output.logits
    return logits if spared or columns is None else logits[:, columns]


def _token_types(module: Any) -> int:
    return getattr(module.config, "type_vocab_size", None) or 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """A window before its tokens have tags."""

    input_ids: np.ndarray
    offsets: np.ndarray
    owned: np.ndarray


def _pieces(
    documents: Sequence[Document], tokenizer: Any, settings: WindowSettings
) -> Iterator[list[_Piece]]:
    """Yields the pieces of each document, from left to right."""
    for document, encoded, rows in _tokenize(documents, tokenizer, settings, offsets=True):
        ids = [np.array(encoded["input_ids"][row], dtype=np.int32) for row in rows]
        specials = [np.array(encoded["special_tokens_mask"][row], dtype=bool) for row in rows]
        raw = [np.array(encoded["offset_mapping"][row], dtype=np.int32) for row in rows]
        offsets, owned = without_blanks(document.text, raw), _owned(specials, settings.stride)
        yield [_Piece(*parts) for parts in zip(ids, offsets, owned, strict=True)]


def _tokenize(
    documents: Sequence[Document], tokenizer: Any, settings: WindowSettings, *, offsets: bool
) -> Iterator[tuple[Document, Mapping[str, Any], list[int]]]:
    """Yields each document with the tokenizer's output and which of its rows are the document's windows."""
    for start in range(0, len(documents), DOCUMENTS_PER_CALL):
        batch = documents[start : start + DOCUMENTS_PER_CALL]
        encoded = tokenizer(
            [document.text for document in batch],
            truncation=True,
            max_length=settings.max_length,
            stride=settings.stride,
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


def require_offsets(tokenizer: Any) -> None:
    """Refuses a tokenizer that does not say which characters its tokens are.

    Raises:
        ConfigurationError: It does not.
    """
    if not tokenizer.is_fast:
        problem = Problem(
            "model.tokenizer",
            f"{type(tokenizer).__name__} gives no character offsets; a fast tokenizer is needed",
        )
        raise ConfigurationError([problem])


def _require_usable(tokenizer: Any, settings: WindowSettings) -> None:
    require_offsets(tokenizer)
    special = tokenizer.num_special_tokens_to_add()
    if settings.max_length - special <= settings.stride:
        problem = Problem(
            "task.max_length",
            f"{settings.max_length} leaves {settings.max_length - special} tokens besides the {special} that "
            f"the tokenizer adds to every window; that must be more than task.stride ({settings.stride})",
        )
        raise ConfigurationError([problem])

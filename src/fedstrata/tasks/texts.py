"""Texts as tokens: what every task asks of documents and of a tokenizer."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fedstrata.core.documents import Document
from fedstrata.core.errors import refused

DOCUMENTS_PER_CALL = 64
"""Documents given to the tokenizer at a time: enough for its threads, few enough for its Python lists."""


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


def token_counts(texts: Sequence[str], tokenizer: Any) -> list[int]:
    """Returns how many tokens each text has, without special ones."""
    counts: list[int] = []
    for start in range(0, len(texts), DOCUMENTS_PER_CALL):
        call = list(texts[start : start + DOCUMENTS_PER_CALL])
        # A longer text than the model reads at a time is no matter here.
        counts += map(len, tokenizer(call, add_special_tokens=False, verbose=False)["input_ids"])
    return counts


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
        raise refused("task.name", message, "not_supported")


def require_one_each(
    documents: Sequence[Document], examples: Sequence[Any], predictions: Sequence[Any]
) -> None:
    """Refuses anything but one example and one prediction a document."""
    if not len(documents) == len(examples) == len(predictions):
        raise ValueError(
            f"{len(documents)} documents, {len(examples)} examples and {len(predictions)} predictions"
        )


def require_offsets(tokenizer: Any) -> None:
    """Refuses a tokenizer that does not say which characters its tokens are.

    Raises:
        ConfigurationError: It does not.
    """
    if not tokenizer.is_fast:
        message = f"{type(tokenizer).__name__} gives no character offsets; a fast tokenizer is needed"
        raise refused("model.tokenizer", message, "no_offsets")

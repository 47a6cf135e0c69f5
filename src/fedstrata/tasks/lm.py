"""Language modelling: the next token, in texts that are packed into windows of one length.

The documents that are encoded together are one stream: an end token, and then each document followed by an
end token. It is cut into windows of `task.max_length` predicted tokens that overlap by one token: the last
token that one window predicts is the first that the next one reads. So every token of the texts, and every
end, is predicted exactly once, and nothing but the last window of a stream is padded.

Windows cross documents, as is usual in training language models, so a token is attributed to its document: a
document's answer is the likelihood of its own tokens, and any subset of documents can be scored. What stands
before a document's first tokens is then the end of another one. A task that is made for a saved model
(`from_labels`) reads every document alone, so that what it says of one does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.metrics.lm import TextLikelihood, language_scores
from fedstrata.tasks.corrupt import corrupted_targets
from fedstrata.tasks.windows import (
    IGNORED,
    pad_ids,
    padding_id,
    require_single_texts,
    run_model,
    separator_id,
    whole_texts,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedstrata.core.documents import Document
    from fedstrata.core.seeding import Seed
    from fedstrata.core.settings.task import LmSettings
    from fedstrata.data.split import Split

LOGITS_AT_A_TIME = 2**24
"""Logits that are in float32 at a time: 64 MiB."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A window of a stream of documents.

    Attributes:
        input_ids: The tokens that are read, (tokens,) int32.
        targets: What follows each of them, (tokens,) int32.
        documents: Index of the document that each target belongs to, in the sequence that was encoded;
            (tokens,) int32.
        pad_id: The id with which the window is padded.
    """

    input_ids: np.ndarray
    targets: np.ndarray
    documents: np.ndarray
    pad_id: int

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def windows(self) -> tuple[np.ndarray, ...]:
        """The rows of a batch this example fills: what it reads."""
        return (self.input_ids,)


class Predicting(Protocol):
    """An example in which tokens follow others."""

    @property
    def input_ids(self) -> np.ndarray:
        """The tokens that are read, (tokens,) int32."""

    @property
    def targets(self) -> np.ndarray:
        """What follows each of them, (tokens,) int32; -100 where it counts in no loss."""

    @property
    def pad_id(self) -> int:
        """The id with which the example is padded."""


class LanguageModelling:
    """Predicts the next token.

    Args:
        settings: The length of the windows.
        packed: Whether windows cross documents; if not, every document is a stream of its own.
    """

    kind: ClassVar[str] = "causal-lm"
    metric: ClassVar[str] = "perplexity"
    metrics: ClassVar[tuple[str, ...]] = ("perplexity", "loss")
    metric_names: ClassVar[tuple[str, ...]] = (*metrics, "bits_per_byte")
    lower_is_better: ClassVar[frozenset[str]] = frozenset(metric_names)
    needs_annotations: ClassVar[bool] = False
    gives: ClassVar[tuple[str, ...]] = ()
    reads_spans: ClassVar[bool] = False
    problem_type: ClassVar[None] = None
    labels: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: LmSettings, *, packed: bool = True) -> None:
        self.settings, self.packed = settings, packed

    @classmethod
    def from_documents(cls, settings: LmSettings, clients: Mapping[str, Split]) -> LanguageModelling:
        """Makes the task for a corpus; any text can be learnt from.

        Raises:
            ConfigurationError: Documents are pairs of texts.
        """
        require_single_texts((document for own in clients.values() for document in own.all), "lm")
        return cls(settings)

    @classmethod
    def from_labels(cls, settings: LmSettings, labels: Sequence[str]) -> LanguageModelling:
        """Makes the task again for a saved model, whatever transformers calls its classes.

        It reads every document alone.
        """
        return cls(settings, packed=False)

    def encode(self, documents: Sequence[Document], tokenizer: Any) -> list[Passage]:
        """Tokenizes documents and cuts their stream into windows.

        Raises:
            ConfigurationError: The tokenizer has no token that ends a text, or a document is a pair of texts.
        """
        require_single_texts(documents, "lm")
        end, pad_id = end_id(tokenizer), padding_id(tokenizer)
        texts = [np.array([*ids, end], dtype=np.int32) for ids, _ in whole_texts(documents, tokenizer)]
        streams = [(0, texts)] if self.packed else [(index, [text]) for index, text in enumerate(texts)]
        return [
            Passage(*window, pad_id)
            for first, own in streams
            if own
            for window in _windows(own, first, end, self.settings.max_length)
        ]

    def training_examples(self, documents: Sequence[Document], tokenizer: Any) -> list[Passage]:
        """Turns documents into all their examples."""
        return self.encode(documents, tokenizer)

    def corrupt(self, examples: Sequence[Passage], kind: str, tokenizer: Any, rng: Seed) -> list[Passage]:
        """Returns the windows of a corrupt client; see `fedstrata.tasks.corrupt.corrupted_targets`."""
        return corrupted_targets(examples, kind, tokenizer, rng)

    def collate(self, examples: Sequence[Passage]) -> dict[str, Tensor]:
        """Pads windows on the right to the longest one; see `pad_targets`."""
        return pad_targets(examples)

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the sum of the cross entropies of all predicted tokens, float32, and their number."""
        parts = cross_entropies(run_model(module, batch), batch["labels"])
        return torch.stack([part.sum() for part in parts]).sum(), (batch["labels"] != IGNORED).sum()

    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the negative log likelihood of each predicted token of each window, (tokens,) float32."""
        with torch.no_grad():
            parts = list(cross_entropies(run_model(module, batch), batch["labels"]))
            rows = torch.cat(parts).view(batch["labels"].shape).cpu().numpy()
        lengths = batch["attention_mask"].sum(dim=1).tolist()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def decode(
        self,
        documents: Sequence[Document],
        examples: Sequence[Passage],
        predictions: Sequence[np.ndarray],
    ) -> list[TextLikelihood]:
        """Adds up the likelihoods of each document's tokens.

        Args:
            documents: The documents that were encoded.
            examples: All their windows.
            predictions: The negative log likelihoods of each window, (tokens,).

        Returns:
            An answer for each document.
        """
        owners = np.concatenate([np.empty(0, np.int32), *(example.documents for example in examples)])
        nats = np.concatenate([np.empty(0), *predictions])
        sums = np.bincount(owners, weights=nats, minlength=len(documents)).tolist()
        counts = np.bincount(owners, minlength=len(documents)).tolist()
        sizes = [len(document.text.encode()) for document in documents]
        return list(map(TextLikelihood, sums, counts, sizes))

    def score(self, documents: Sequence[Document], answers: Sequence[TextLikelihood]) -> dict[str, float]:
        """Scores documents together; see `fedstrata.metrics.lm.language_scores`."""
        return language_scores(answers)

    def known(self, document: Document) -> Document:
        """Returns the document without annotations: none says anything of a likelihood."""
        return replace(document, spans=(), relations=(), labels=())

    def scorable(self, document: Document) -> bool:
        """Any document can be scored: its text is what is predicted."""
        return True

    def annotate(self, document: Document, answer: TextLikelihood) -> Document:
        """Returns the document without annotations; the metadata say how well it was predicted."""
        figures = {
            "perplexity": f"{answer.perplexity:.6g}",
            "nats": f"{answer.nats:.6g}",
            "tokens": str(answer.tokens),
            "bytes": str(answer.bytes),
        }
        return replace(self.known(document), metadata={**document.metadata, **figures})


def end_id(tokenizer: Any, task: str = "lm") -> int:
    """Returns the id of the token that ends a text: the end-of-sequence token or, as in BERT, the separator.

    Args:
        tokenizer: The tokenizer.
        task: The name of the task that needs it.

    Raises:
        ConfigurationError: The tokenizer has neither.
    """
    end = separator_id(tokenizer)
    if end is None:
        message = f"task {task} needs a tokenizer with an end-of-sequence token, which ends a text"
        raise ConfigurationError([Problem("model.tokenizer", message)])
    return end


def pad_targets(examples: Sequence[Predicting]) -> dict[str, Tensor]:
    """Pads examples on the right to the longest one.

    Returns:
        `input_ids`, `attention_mask` and `labels`, (rows, tokens) int64: a label is the token that follows,
        and -100 where it counts in no loss, as where a row is padded.
    """
    batch = pad_ids([each.input_ids for each in examples], [each.pad_id for each in examples])
    labels = np.full(tuple(batch["input_ids"].shape), IGNORED, dtype=np.int64)
    for row, example in enumerate(examples):
        labels[row, : len(example.targets)] = example.targets
    return {**batch, "labels": torch.from_numpy(labels)}


def counted_loss(module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Returns the sum of the cross entropies of all tokens that count, float32, and their number.

    For batches of `pad_targets` in which most tokens count in no loss: no logits are made of the tokens that
    count in no row.
    """
    labels = batch["labels"]
    counted = labels != IGNORED
    columns = counted.any(dim=0).nonzero().flatten()
    logits = run_model(module, batch, columns=columns)
    parts = cross_entropies(logits, labels[:, columns])
    return torch.stack([part.sum() for part in parts]).sum(), counted.sum()


def _windows(
    texts: Sequence[np.ndarray], first: int, end: int, length: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Cuts one stream of documents into windows.

    Args:
        texts: The tokens of each document with the end token behind them, (tokens,) int32; at least one.
        first: Index of the first document; the others follow.
        end: The end token, with which the stream begins.
        length: Tokens that a window predicts.

    Yields:
        What a window reads, what it predicts, and the documents of that; (tokens,) int32 each.
    """
    targets = np.concatenate(texts)
    inputs = np.insert(targets[:-1], 0, end)
    numbers = np.arange(first, first + len(texts), dtype=np.int32)
    owners = np.repeat(numbers, [len(text) for text in texts])
    for start in range(0, len(targets), length):
        piece = slice(start, start + length)
        yield inputs[piece], targets[piece], owners[piece]


def cross_entropies(logits: Tensor, labels: Tensor) -> Iterator[Tensor]:
    """Yields the cross entropies of a batch piece by piece, (tokens,) float32; 0 where a label is ignored.

    The logits of a large vocabulary are the largest tensor of a training step. They stay in the dtype in
    which the model gave them; a piece of them at a time is in float32, and again in the backward pass, so
    that neither copies nor probabilities of all of them are kept for it.

    Args:
        logits: (windows, tokens, vocabulary).
        labels: (windows, tokens) int64.
    """
    size = max(1, LOGITS_AT_A_TIME // logits.shape[-1])
    again = torch.is_grad_enabled() and labels.numel() > size
    pieces = torch.split(logits.flatten(0, 1), size), torch.split(labels.flatten(), size)
    for own_logits, own_labels in zip(*pieces, strict=True):
        if again:
            yield checkpoint(
                _float_cross_entropy, own_logits, own_labels, use_reentrant=False, preserve_rng_state=False
            )
        else:
            yield _float_cross_entropy(own_logits, own_labels)


def _float_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="none")

"""Language modelling: the next token, in texts that are packed into windows of one length.

The documents that are encoded together are one stream: an end token, and then each document followed by an
end token. It is cut into windows of `task.max_length` predicted tokens that overlap by one token: the last
token that one window predicts is the first that the next one reads. So every token of the texts, and every
end, is predicted exactly once, and nothing but the last window of a stream is padded.

Windows cross documents, as is usual in training language models, so a token is attributed to its document: a
document's answer is the likelihood of its own tokens, and any subset of documents can be scored. What stands
before a document's first tokens is then the end of another one. A task that is made for a saved model
(`restored`) reads every document alone, so that what it says of one does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedstrata.core.documents import Document
from fedstrata.core.task import CardWords
from fedstrata.core.types import Tally
from fedstrata.data.split import Split, every
from fedstrata.metrics.lm import TextLikelihood, scores_from, tally_of
from fedstrata.tasks.causal import CausalTask, cross_entropies, end_id, total_of
from fedstrata.tasks.floors import UNIGRAM
from fedstrata.tasks.texts import padding_id, require_single_texts, whole_texts
from fedstrata.tasks.windows import Row, run_model


@dataclass(frozen=True, slots=True)
class Passage(Row):
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


class LanguageModelling(CausalTask):
    """Language modelling: the next token of a text.

    Windows cross documents, unless it is made for a saved model: then every document is a stream of its own.
    """

    name: Literal["lm"] = "lm"
    max_length: Annotated[int, Field(ge=8)] = Field(
        default=128, description="Predicted tokens per window, each from the tokens before it in the window."
    )

    learns: ClassVar[str] = "the next token of a text"
    metrics: ClassVar[tuple[str, ...]] = ("perplexity", "loss")
    metric_names: ClassVar[tuple[str, ...]] = (*metrics, "bits_per_byte")
    lower_is_better: ClassVar[frozenset[str]] = frozenset(metric_names)
    needs_annotations: ClassVar[bool] = False
    floor_names: ClassVar[tuple[str, ...]] = (UNIGRAM,)

    _packed: bool = True

    @property
    def packed(self) -> bool:
        """Whether windows cross documents."""
        return self._packed

    def fitted(self, clients: Mapping[str, Split]) -> LanguageModelling:
        """Returns the task for a corpus; any text can be learnt from.

        Raises:
            ConfigurationError: Documents are pairs of texts.
        """
        require_single_texts(every(clients), self.name)
        return self

    def restored(self, classes: Sequence[str]) -> LanguageModelling:
        """Returns the task again for a saved model, whatever transformers calls its classes.

        It reads every document alone.
        """
        task = self.changed()
        task._packed = False
        return task

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Refuses a tokenizer without a token that ends a text."""
        end_id(tokenizer, self.name)

    def encode(self, documents: Sequence[Document], tokenizer: Any) -> list[Passage]:
        """Tokenizes documents and cuts their stream into windows.

        Raises:
            ConfigurationError: The tokenizer has no token that ends a text, or a document is a pair of texts.
        """
        require_single_texts(documents, self.name)
        end, pad_id = end_id(tokenizer, self.name), padding_id(tokenizer)
        texts = [np.array([*ids, end], dtype=np.int32) for ids, _ in whole_texts(documents, tokenizer)]
        numbered = list(enumerate(texts))
        passages = []
        for stream in [numbered] if self.packed and texts else [[each] for each in numbered]:
            targets = np.concatenate([text for _, text in stream])
            inputs = np.insert(targets[:-1], 0, end)
            owners = np.concatenate([np.full(len(text), index, np.int32) for index, text in stream])
            for start in range(0, len(targets), self.max_length):
                piece = slice(start, start + self.max_length)
                passages.append(Passage(inputs[piece], targets[piece], owners[piece], pad_id))
        return passages

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the sum of the cross entropies of all predicted tokens, float32, and their number."""
        total = total_of(cross_entropies(run_model(module, batch), batch["labels"]))
        return total, self.terms(batch).sum()

    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the negative log likelihood of each predicted token of each window, (tokens,) float32."""
        with torch.no_grad():
            parts = list(cross_entropies(run_model(module, batch), batch["labels"]))
            rows = torch.cat(parts).view(batch["labels"].shape).cpu().numpy()
        lengths = batch["attention_mask"].sum(dim=1).tolist()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def decode(
        self, documents: Sequence[Document], examples: Sequence[Passage], predictions: Sequence[np.ndarray]
    ) -> list[TextLikelihood]:
        """Adds up the likelihoods of each document's tokens."""
        owners = np.concatenate([np.empty(0, np.int32), *(example.documents for example in examples)])
        nats = np.concatenate([np.empty(0), *predictions])
        sums = np.bincount(owners, weights=nats, minlength=len(documents)).tolist()
        counts = np.bincount(owners, minlength=len(documents)).tolist()
        sizes = [len(document.text.encode()) for document in documents]
        return list(map(TextLikelihood, sums, counts, sizes))

    def tally(self, documents: Sequence[Document], answers: Sequence[TextLikelihood]) -> dict[str, float]:
        """Adds up the nats, tokens and bytes of documents."""
        return tally_of(answers)

    def scores(self, tally: Tally, apart: Mapping[str, float]) -> dict[str, float]:
        """Returns perplexity and its kin; see `fedstrata.metrics.lm.scores_from`."""
        return scores_from(tally)

    def floors(
        self, train: Sequence[Document], documents: Sequence[Document], tokenizer: Any
    ) -> Mapping[str, Sequence[TextLikelihood]]:
        """Takes every token for as likely as it was in the training documents, whatever is before it.

        Counts are of the tokens that are scored, ends of documents among them, and one is added to each.
        """
        end, counts = end_id(tokenizer, self.name), np.ones(len(tokenizer))
        for ids, _ in whole_texts(train, tokenizer):
            counts += np.bincount([*ids, end], minlength=len(counts))
        nats = np.log(counts.sum()) - np.log(counts)
        answers = [
            TextLikelihood(float(nats[[*ids, end]].sum()), len(ids) + 1, len(document.text.encode()))
            for document, (ids, _) in zip(documents, whole_texts(documents, tokenizer), strict=True)
        ]
        return {UNIGRAM: answers} if train else {}

    def known(self, document: Document) -> Document:
        """Returns the document without annotations: none says anything of a likelihood."""
        return replace(document, spans=(), relations=(), labels=())

    def annotate(self, document: Document, answer: TextLikelihood) -> Document:
        """Returns the document without annotations; the metadata say how well it was predicted."""
        figures = {
            "perplexity": f"{answer.perplexity:.6g}",
            "nats": f"{answer.nats:.6g}",
            "tokens": str(answer.tokens),
            "bytes": str(answer.bytes),
        }
        return replace(self.known(document), metadata={**document.metadata, **figures})

    def card_words(self) -> CardWords:
        """Returns what a model card says of the task."""
        return CardWords(
            "Says how likely a text is, and goes on with one: a language model.",
            "cuts longer texts into such windows",
            "the scores above are those of texts packed into such windows one after the other",
        )

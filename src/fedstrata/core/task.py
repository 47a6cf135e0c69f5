"""The protocol of a task: what a model learns, and how it is scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from fedstrata.core.documents import Document
    from fedstrata.core.seeding import Seed


class Task(Protocol):
    """What the model learns: documents to examples, examples to a loss, outputs to scores.

    `Any` stands for the task's own example type. Of an example the others know its length, `len(example)`
    tokens, and `example.windows`: the token ids, (tokens,) each, of the rows that it fills in a batch. The
    rows of a batch are the windows of its examples, one after the other. Where answers are generated
    `example.scored_length` is the number of tokens that are then read and may be written.
    """

    kind: ClassVar[str]
    """The transformers auto class: `token-classification`, `sequence-classification` or `causal-lm`."""
    lower_is_better: ClassVar[frozenset[str]]
    """Those of `metric_names` of which less is better; they are no fractions, the others are."""
    needs_annotations: ClassVar[bool]
    """Whether a document can be scored only against annotations; if not, its text is enough."""
    gives: ClassVar[tuple[str, ...]]
    """What of a document its answers may be: `spans`, `relations`, `labels`, `text_pair`."""
    reads_spans: ClassVar[bool]
    """Whether it learns mentions, or from them; if not, documents come without mentions and relations."""

    @property
    def packed(self) -> bool:
        """Whether documents that are encoded together are one text, so that their order matters."""

    @classmethod
    def from_documents(cls, settings: Any, clients: Mapping[str, Any]) -> Task:
        """Makes the task for a corpus.

        Args:
            settings: The task's settings.
            clients: Each client's documents by split.

        Raises:
            ConfigurationError: The documents do not have what the task learns from.
        """

    @classmethod
    def from_labels(cls, settings: Any, labels: Sequence[str]) -> Task:
        """Makes the task again for a saved model.

        Args:
            settings: The task's settings, as the run directory has them.
            labels: The model's output classes, in order.

        Raises:
            ConfigurationError: They are not those of such a model.
        """

    @property
    def settings(self) -> Any:
        """Its settings, with what `auto` stood for."""

    @property
    def metric(self) -> str:
        """The score a run is judged by, one of `metrics`."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every score that fully annotated documents always have in what `score` returns."""

    @property
    def problem_type(self) -> str | None:
        """What the saved model's configuration says of a sequence classifier, in transformers' words."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The model's output classes, in order."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Every score that `score` may return: those of `metrics`, then those of single labels."""

    def encode(self, documents: Sequence[Document], tokenizer: Any) -> list[Any]:
        """Turns documents into examples; an example knows the index of its document, or of each token's."""

    def training_examples(self, documents: Sequence[Document], tokenizer: Any) -> list[Any]:
        """Turns a client's documents into the examples that it trains on, the same ones each time."""

    def corrupt(self, examples: Sequence[Any], kind: str, tokenizer: Any, rng: Seed) -> list[Any]:
        """Returns a corrupt client's training examples, as many as before (`federation.corrupt`).

        Args:
            examples: The client's examples, at least one.
            kind: One of `core.federation.DATA_CORRUPTIONS`: `shuffled_labels` permutes the targets of all
                examples against their inputs; `shuffled_tokens` permutes the tokens of each window, special
                ones stay; `label_flips` puts for each class the next one, for the last the first.
            tokenizer: As for `encode`.
            rng: Seed of the permutations.
        """

    def collate(self, examples: Sequence[Any]) -> dict[str, Tensor]:
        """Pads examples to one batch.

        A batch with `input_ids` and `attention_mask`, (rows, tokens) padded on the right, can start from
        stored states of the frozen blocks, if the model is called with just these rows (`PrefixCache`).
        """

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the summed loss of a batch and the number of terms in the sum, both scalars."""

    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the model's answer for each example of the batch."""

    def decode(
        self, documents: Sequence[Document], examples: Sequence[Any], predictions: Sequence[np.ndarray]
    ) -> list[Any]:
        """Joins the answers to the examples of each document into one answer a document."""

    def score(self, documents: Sequence[Document], answers: Sequence[Any]) -> dict[str, float]:
        """Scores one answer a document; any subset of documents can be scored."""

    def known(self, document: Document) -> Document:
        """Returns the document with no annotations but those that an answer could be equal to."""

    def scorable(self, document: Document) -> bool:
        """Whether an answer can be scored against a document as `known` gives it."""

    def annotate(self, document: Document, answer: Any) -> Document:
        """Returns the document with the answer as its annotations, in place of its own."""

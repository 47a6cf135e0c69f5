"""A task: what a model learns, and how it is scored. It is its settings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field

from fedstrata.core.errors import Problem
from fedstrata.core.floors import Floored
from fedstrata.core.surveyed import SurveyedTask

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from fedstrata.core.documents import Document
    from fedstrata.core.errors import Problem
    from fedstrata.core.seeding import Seed
    from fedstrata.core.types import Tally


@dataclass(frozen=True, slots=True)
class CardWords:
    """What a model card says of a task; parts of sentences but for the first.

    Attributes:
        what: What the model does.
        cut: What `fedstrata predict` does with texts that are too long.
        beyond: What else there is to say of such texts.
        around: What a window of its is made around; empty where it is any stretch of a text.
        code: How the model is used; empty where it is as others of its kind are.
    """

    what: str
    cut: str
    beyond: str
    around: str = ""
    code: str = ""


class Task(SurveyedTask, Floored):
    """What the model learns: documents to examples, examples to a loss, outputs to scores.

    A task is its settings: its fields are those of the section `task` of a configuration. What `auto` stands
    for in them is known of a task that `fitted`, `restored` or `as_named` returns, and only that one is asked
    for anything that goes by it.

    `Any` stands for the task's own example type. Of an example the others know its length, `len(example)`
    tokens, and `example.windows`: the token ids, (tokens,) each, of the rows that it fills in a batch. The
    rows of a batch are the windows of its examples, one after the other. Where answers are generated
    `example.scored_length` is the number of tokens that are then read and may be written.
    """

    if TYPE_CHECKING:  # a field of every task, behind those that its bases have

        @property
        def name(self) -> str:
            """Its name in a configuration."""

    max_length: Annotated[int, Field(ge=8)] = Field(default=256, description="Tokens in a window.")

    kind: ClassVar[str]
    """The transformers auto class: `token-classification`, `sequence-classification` or `causal-lm`."""
    learns: ClassVar[str]
    """What it learns, in words."""
    gives: ClassVar[tuple[str, ...]] = ()
    """What of a document its answers may be: `spans`, `relations`, `labels`, `text_pair`."""
    naming: ClassVar[tuple[str, ...]] = ()
    """Those of its settings that name types or labels of documents."""
    lower_is_better: ClassVar[frozenset[str]] = frozenset()
    """Those of `metric_names` of which less is better; they are no fractions, the others are."""
    needs_annotations: ClassVar[bool] = True
    """Whether a document can be scored only against annotations; if not, its text is enough."""
    reads_spans: ClassVar[bool] = False
    """Whether it learns mentions, or from them; if not, documents come without mentions and relations."""
    knows_partial_annotation: ClassVar[bool] = False
    """Whether it learns and scores nothing of what nobody looked for in a document; else that is absent."""
    generates: ClassVar[bool] = False
    """Whether its answers are written token by token; its examples are then those of an instruction."""
    template_field: ClassVar[str] = ""
    """The field that every template names by which it asks; empty where it does not ask by templates."""

    whole_documents: ClassVar[bool] = False
    """Whether an example is a whole document, whatever rows it fills."""

    @property
    def packed(self) -> bool:
        """Whether documents that are encoded together are one text, so that their order matters."""
        return False

    @property
    def chats(self) -> bool:
        """Whether a prompt is the first turn of a chat, where the tokenizer has a template for chats."""
        return False

    @property
    def named(self) -> set[str]:
        """The types and labels that its settings name; a mapping names what its values are of, too."""
        named: set[str] = set()
        for setting in self.naming:
            own = getattr(self, setting)
            if isinstance(own, Mapping):
                named.update(own, *own.values())
            elif own != "auto":
                named.update(own)
        return named

    def added_texts(self) -> Iterator[str]:
        """Yields what the task puts around the texts of documents: templates, tags, the words of answers."""
        return iter(())

    def left_to_documents(self) -> Iterator[Problem]:
        """Yields what of the task is read from documents: it would tell of those that are to be protected."""
        for setting in self.naming:
            if getattr(self, setting) == "auto":
                message = "'auto' reads them from the documents that are to be protected; name them"
                yield Problem(f"task.{setting}", message, code="not_private")

    @property
    def without_relations(self) -> Sequence[str]:
        """Sites whose training documents serve without their relations."""
        return ()

    @property
    def needs_documents(self) -> bool:
        """Whether its classes are found in documents, since its settings leave something of them open."""
        return True

    def changed(self, **values: Any) -> Self:
        """Returns the task with other values of some settings, which are not checked."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_construct(**own | values)

    @abstractmethod
    def fitted(self, clients: Mapping[str, Any]) -> Self:
        """Returns the task for a corpus, with what `auto` stands for.

        Args:
            clients: Each client's documents by split.

        Raises:
            ConfigurationError: The documents do not have what the task learns from.
        """

    @abstractmethod
    def restored(self, classes: Sequence[str]) -> Self:
        """Returns the task again for a saved model.

        Its settings are those that the run directory has, in which little is `auto`.

        Args:
            classes: The model's output classes, in order.

        Raises:
            ConfigurationError: They are not those of such a model.
        """

    def as_named(self) -> Self:
        """Returns the task as far as it is known without documents: what it is scored by, and its classes.

        Raises:
            ConfigurationError: A setting is `auto`, for which there would have to be documents.
        """
        return self.restored(())

    def named_in_vain(self, documents: Sequence[Document]) -> list[Problem]:
        """Returns a problem for each type or label that is named to be learnt and that no document has."""
        return []

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Refuses a tokenizer that has not what the task needs of any; asked before anything is loaded.

        Raises:
            ConfigurationError: It has not.
        """

    def check_room(self, tokenizer: Any) -> None:
        """Refuses a tokenizer that does not go with what was found in documents.

        Raises:
            ConfigurationError: It does not.
        """

    @property
    def metric(self) -> str:
        """The score a run is judged by, the first of `metrics`."""
        return self.metrics[0]

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """Every score that fully annotated documents always have in what `score` returns.

        An attribute of the class where it is known of any such task.
        """

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Every score that `score` may return: those of `metrics`, then those of single labels."""
        return self.metrics

    @property
    def score_names(self) -> tuple[str, ...]:
        """Every score that `scored` may return: `metric_names`, then those of `extra_metrics`."""
        return (*self.metric_names, *(metric.name for metric in self.extra))

    @property
    def falling(self) -> frozenset[str]:
        """Those of `score_names` of which less is better; they are no fractions, the others are."""
        extra = (metric.name for metric in self.extra if metric.lower_is_better)
        return self.lower_is_better.union(extra)

    @property
    def classes(self) -> tuple[str, ...]:
        """The model's output classes, in order."""
        return ()

    @property
    def head_type(self) -> str | None:
        """What the saved model's configuration says of a sequence classifier, in transformers' words."""
        return None

    @property
    def known_types(self) -> tuple[str, ...]:
        """The types of mentions and relations that its answers may have."""
        return ()

    @abstractmethod
    def encode(self, documents: Sequence[Document], tokenizer: Any) -> list[Any]:
        """Turns documents into examples; an example knows the index of its document, or of each token's."""

    def training_examples(self, documents: Sequence[Document], tokenizer: Any) -> list[Any]:
        """Turns a client's documents into the examples that it trains on, the same ones each time.

        Those are all of them, unless the task says otherwise.
        """
        return self.encode(documents, tokenizer)

    @abstractmethod
    def corrupt(self, examples: Sequence[Any], kind: str, tokenizer: Any, rng: Seed) -> list[Any]:
        """Returns a corrupt client's training examples, as many as before (`federation.corrupt`).

        Args:
            examples: The client's examples, at least one.
            kind: One of `settings.federation.DATA_CORRUPTIONS`: `shuffled_labels` permutes the targets of all
                examples against their inputs; `shuffled_tokens` permutes the tokens of each window, special
                ones stay; `label_flips` puts for each class the next one, for the last the first.
            tokenizer: As for `encode`.
            rng: Seed of the permutations.
        """

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> dict[str, Tensor]:
        """Pads examples to one batch.

        A batch with `input_ids` and `attention_mask`, (rows, tokens) padded on the right, can start from
        stored states of the frozen blocks, if the model is called with just these rows (`PrefixCache`).
        """

    @abstractmethod
    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the summed loss of a batch and the number of terms in the sum, both scalars."""

    @abstractmethod
    def terms(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns how many terms each example of a batch has in the sum that `loss` returns, (examples,)."""

    @abstractmethod
    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the model's answer for each example of the batch."""

    @abstractmethod
    def decode(
        self, documents: Sequence[Document], examples: Sequence[Any], predictions: Sequence[np.ndarray]
    ) -> list[Any]:
        """Joins the answers to the examples of each document into one answer a document.

        Args:
            documents: The documents that were encoded.
            examples: All their examples, in the order in which `encode` gave them.
            predictions: What `predict` returned for each of them.

        Returns:
            An answer for each document.
        """

    def score(self, documents: Sequence[Document], answers: Sequence[Any]) -> dict[str, float]:
        """Scores one answer a document, by all metrics; any subset of documents can be scored."""
        return self.scored(self.counted(documents, answers), self.apart(documents, answers))

    def counted(self, documents: Sequence[Document], answers: Sequence[Any]) -> dict[str, float]:
        """Returns what `tally` does, and the numbers of `extra_metrics`."""
        counted = self.tally(documents, answers)
        for metric in self.extra:
            counted |= metric.counted(documents, answers)
        return counted

    def scored(self, counted: Tally, apart: Mapping[str, float]) -> dict[str, float]:
        """Returns what `scores` does of the sum of what `counted` gave, and the scores of `extra_metrics`."""
        scores = self.scores(counted, apart)
        return scores | {metric.name: metric.scored(counted) for metric in self.extra}

    @abstractmethod
    def tally(self, documents: Sequence[Document], answers: Sequence[Any]) -> dict[str, float]:
        """Returns what scores are made of and adds up, over documents and over the clients that have them.

        No number is negative, and the names are those of the task, whatever the documents: where only a sum
        over clients is seen, all have to give the same. Those of one type or label have it after a slash.

        Args:
            documents: Any number; of none all numbers are 0.
            answers: One a document.
        """

    def apart(self, documents: Sequence[Document], answers: Sequence[Any]) -> dict[str, float]:
        """Returns the scores that nothing adds up to, such as areas under curves.

        Where documents lie apart they are means over clients, weighted by documents.
        """
        return {}

    @abstractmethod
    def scores(self, tally: Tally, apart: Mapping[str, float]) -> dict[str, float]:
        """Returns the scores.

        Args:
            tally: The sum of what `tally` gave for one or several groups of documents. Where it comes from
                another site it may hold anything but what is no finite number.
            apart: What `apart` gave, or the means of it.
        """

    @abstractmethod
    def known(self, document: Document) -> Document:
        """Returns the document with no annotations but those that an answer could be equal to."""

    def scorable(self, document: Document) -> bool:
        """Whether an answer can be scored against a document as `known` gives it.

        One in which nobody looked for anything that is decided cannot.
        """
        return not self.decided or bool(self.looked_for(document))

    @abstractmethod
    def annotate(self, document: Document, answer: Any) -> Document:
        """Returns the document with the answer as its annotations, in place of its own."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The formats that can hold its answers; the first is the default."""
        return ("jsonl",)

    @property
    def finds(self) -> tuple[str, ...]:
        """The kinds of annotations, of `gives`, that it finds itself; others in an answer were given."""
        return self.gives

    @property
    def beyond_texts(self) -> tuple[str, str]:
        """What it reads of a document beyond its text, and for what; both empty if it does not."""
        return "", ""

    @property
    def main_mentions(self) -> tuple[str, ...] | None:
        """The types of mentions that are scored as such, where others are there as modifiers only."""
        return None

    def keeping_mentions(self) -> Task | None:
        """Returns the task that keeps the mentions of a document; none if it does not ask beyond them."""
        return None

    def answers_to(
        self, ask: Callable[[Task, Sequence[Document]], list[Any]], documents: Sequence[Document]
    ) -> list[Any]:
        """Returns the answers to documents whose annotations nobody knows.

        Args:
            ask: Returns the answers of a task to documents.
            documents: The documents.
        """
        return ask(self, documents)

    def card_words(self) -> CardWords:
        """Returns what a model card says of the task."""
        return CardWords(
            f"Learns {self.learns}.",
            "does with longer texts what the task says",
            "other ways to use it know nothing of that",
        )

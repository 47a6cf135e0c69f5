"""What the tasks share that learn types of annotations with a token classifier."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, Problem, refused
from fedstrata.core.task import Task
from fedstrata.core.types import Tally
from fedstrata.data.select import named_in_vain, occurring, types_of, unknown_types, unnamed
from fedstrata.data.split import PARTS, Split, every
from fedstrata.metrics.spans import OVERALL, score_names, scores_from
from fedstrata.tasks.texts import require_single_texts


class TypedTask(Task):
    """Base of the tasks whose classes go by the types of mentions, or of relations.

    Those are the ones that `types` names, or all that training documents have. What has them in a document is
    the first of `gives`.
    """

    if TYPE_CHECKING:  # a field of each of them, behind its name

        @property
        def types(self) -> list[str] | Literal["auto"]:
            """All types that are learnt; or those that documents have."""

    kind: ClassVar[str] = "token-classification"
    reads_spans: ClassVar[bool] = True
    knows_partial_annotation: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = OVERALL
    class_words: ClassVar[str]
    """What the model's classes are, in words."""

    _types: tuple[str, ...] = ()

    def of_types(self, types: Iterable[str]) -> Self:
        """Returns the task with these types to learn."""
        task = self.changed()
        task._types = tuple(sorted(set(types)))
        return task

    @property
    def known_types(self) -> tuple[str, ...]:
        """The types, sorted."""
        return self._types

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The micro scores, then those of every type."""
        return score_names(self._types)

    @property
    def needs_documents(self) -> bool:
        """Whether the types, or what else goes by them, are left to documents."""
        return any(self.left_to_documents())

    def restored(self, classes: Sequence[str]) -> Self:
        """Returns the task again for a model that was trained for it.

        Raises:
            ConfigurationError: Its classes are not those of types in their order.
        """
        task = self.of_types(self._types_of(classes))
        if not task.known_types or task.classes != tuple(classes):
            message = f"its classes are not those of task {self.name}, {self.class_words}: {list(classes)}"
            raise refused("model.name", message, "conflict")
        return task

    def as_named(self) -> Self:
        """Returns the task with the types that are named.

        Raises:
            ConfigurationError: None are.
        """
        return self.restored(()) if self.types == "auto" else self.of_types(self.types)

    def named_in_vain(self, documents: Sequence[Document]) -> list[Problem]:
        """Returns a problem for each type that is named and that no document has."""
        names = () if self.types == "auto" else self.types
        return named_in_vain("task.types", names, types_of(documents, self.gives[0]))

    def _found(self, clients: Mapping[str, Split]) -> tuple[tuple[str, ...], list[Problem]]:
        """Returns the types to learn, and a problem for each that other documents have.

        Raises:
            ConfigurationError: Documents are pairs of texts, or there is nothing to learn in the training
                documents.
        """
        require_single_texts(every(clients), self.name)
        train = every(clients, "train")
        types = types_of(train, self.gives[0])
        if fault := self._fault_of(types, len(train)):
            raise ConfigurationError([fault])
        if self.types != "auto":
            types = tuple(self.types)
            annotated = [document for part in PARTS for document in every(clients, part)]
            return types, unnamed("task.types", occurring(annotated, self.gives[0]), types)
        return types, [
            fault
            for part in ("validation", "test")
            for fault in unknown_types(every(clients, part), self.gives[0], types, part)
        ]

    def scores(self, tally: Tally, apart: Mapping[str, float]) -> dict[str, float]:
        """Returns the scores of mentions or relations; see `fedstrata.metrics.spans.scores_from`."""
        return scores_from(tally, self._types)

    @abstractmethod
    def _fault_of(self, types: Sequence[str], count: int) -> Problem | None:
        """Returns what is wrong with the types of so many training documents, if anything."""

    @abstractmethod
    def _types_of(self, classes: Sequence[str]) -> Sequence[str]:
        """Returns the types that a model's classes stand for."""

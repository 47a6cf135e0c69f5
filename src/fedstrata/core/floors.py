"""What a task says of scores that mean little: what they must beat, and answers that are all one thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from fedstrata.core.documents import Document
    from fedstrata.core.types import Tally

UNTRAINED = "untrained model"
"""The floor that every task has: the model as it was before the first round."""


class Floored:
    """A task's floors: answers that take no model, made of a site's own training documents."""

    floor_names: ClassVar[tuple[str, ...]] = ()
    """Every floor that `floors` may give, by its name for people."""

    def floors(
        self, train: Sequence[Document], documents: Sequence[Document], tokenizer: Any
    ) -> Mapping[str, Sequence[Any]]:
        """Returns answers that a model must beat; none unless the task says otherwise.

        Args:
            train: A site's training documents, any number, as the task knows them or not.
            documents: Its documents that are scored, each of them scorable.
            tokenizer: The model's.

        Returns:
            By the name of the floor an answer a document, as `counted` takes them. A floor for which the
            training documents hold nothing is not there.
        """
        return {}

    def degenerate(self, tally: Tally, documents: int) -> str:
        """Says, if so, that the answers to all documents were one thing or nothing; else it is empty.

        Args:
            tally: The sum of what `counted` gave for these documents; it may lack anything.
            documents: How many they are, at least one.
        """
        return ""

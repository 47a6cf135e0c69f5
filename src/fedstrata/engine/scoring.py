"""Scores of a run: the global ones on everybody's documents, and every client's on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedstrata.record.summary import mean_of
from fedstrata.train.evaluate import predict

if TYPE_CHECKING:
    from fedstrata.core.config import TrainingSettings
    from fedstrata.core.documents import Document
    from fedstrata.core.method import Task
    from fedstrata.core.types import State
    from fedstrata.engine.simulate import Site
    from fedstrata.models.state import Model

Scores = dict[str, float]


class Scorer:
    """Scores one split of all clients, one client's documents in memory as examples at a time.

    Args:
        sites: The clients.
        part: `validation` or `test`.
        model: The shared model.
        task: The task.
        settings: Batch size and precision.
    """

    def __init__(
        self, sites: Sequence[Site], part: str, model: Model, task: Task, settings: TrainingSettings
    ) -> None:
        self._model, self._task, self._settings = model, task, settings
        self._documents: dict[str, list[Document]] = {
            site.id: list(getattr(site.documents, part)) for site in sites
        }

    @property
    def has_documents(self) -> bool:
        """Whether there is anything to score."""
        return any(self._documents.values())

    def shared(self, state: State) -> dict[str, Any]:
        """Scores one model for everybody, in one pass.

        Returns:
            `global`, `clients` (null for a client without documents here) and `mean_client`.
        """
        self._model.restore()
        self._model.load(state.tensors)
        answers = {client: self._answers(client) for client in self._documents}
        clients = {client: self._score([client], answers) for client in answers}
        return {
            "global": self._score(list(answers), answers),
            "clients": clients,
            "mean_client": mean_of(list(clients.values())),
        }

    def personal(self, enter: Callable[[str], None], *, pooled: bool) -> dict[str, Any]:
        """Scores every client's own model.

        Args:
            enter: Makes the shared model this client's own.
            pooled: Whether each model is also scored on everybody's documents; their mean is then `global`.
        """
        clients: dict[str, Scores | None] = {}
        everywhere = []
        for client in self._documents:
            enter(client)
            wanted = list(self._documents) if pooled else [client]
            answers = {other: self._answers(other) for other in wanted}
            clients[client] = self._score([client], answers)
            everywhere.append(self._score(wanted, answers) if pooled else None)
        return {
            "global": mean_of(everywhere),
            "clients": clients,
            "mean_client": mean_of(list(clients.values())),
        }

    def _answers(self, client: str) -> list[Any]:
        documents = self._documents[client]
        examples = self._task.encode(documents, self._model.tokenizer)
        return self._task.decode(
            documents, examples, predict(self._model, self._task, examples, self._settings)
        )

    def _score(self, clients: Sequence[str], answers: Mapping[str, Sequence[Any]]) -> Scores | None:
        documents = [document for client in clients for document in self._documents[client]]
        found = [answer for client in clients for answer in answers[client]]
        return self._task.score(documents, found) if documents else None

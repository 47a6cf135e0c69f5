"""Scores of a run: the global ones on everybody's documents, and every client's on its own.

Also what the server has besides the shared model: a few documents of its own, to try models on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.client.site import Site
from fedstrata.core.documents import Document
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.federation import FEW_CLIENTS, BootstrapSettings, FederationSettings
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.core.task import Task
from fedstrata.core.types import LossMean, State, Tally, Tensors
from fedstrata.engine.prepare import Experiment
from fedstrata.metrics.counts import added
from fedstrata.metrics.stats import interval
from fedstrata.models.state import Model
from fedstrata.record.summary import mean_scores
from fedstrata.train.evaluate import Predictor, answer_owners, mean_loss

Scores = dict[str, float]
Answers = Mapping[str, Sequence[Any]]
"""A model's answers to the documents of each site."""


def due_for_scoring(number: int, settings: FederationSettings) -> bool:
    """Whether the validation split is scored after this round."""
    return number % settings.evaluate_every == 0 or number == settings.rounds


def scored_when_trained(number: int, settings: FederationSettings) -> Sequence[str]:
    """Returns the parts on which a client's just-trained model is scored in this round."""
    if not settings.score_clients:
        return ()
    due = {"validation": due_for_scoring(number, settings), "test": number == settings.rounds}
    return [part for part, wanted in due.items() if wanted]


def alike(task: Task, tallies: Iterable[Tally | None], documents: int) -> dict[str, str]:
    """Returns `degenerate`, what all answers were if that is one thing or nothing; else nothing.

    Args:
        task: The task.
        tallies: What the answers count to, client by client.
        documents: How many documents there are.
    """
    counted = added(filter(None, tallies))
    said = task.degenerate(counted, documents) if counted and documents else ""
    return {"degenerate": said} if said else {}


def scores_everywhere(experiment: Experiment) -> bool:
    """Whether clients' own models are at the end scored on all clients' documents."""
    asked = experiment.settings.federation.score_everywhere
    clients = sum(bool(own.train) for own in experiment.clients.values())
    return clients <= FEW_CLIENTS if asked == "auto" else asked


class Scorer:
    """Scores one split of all clients, a few clients' documents in memory as examples at a time.

    Args:
        sites: The clients, and the sites that are held out: those without training documents.
        part: `validation` or `test`.
        model: The shared model.
        task: The task.
        settings: Batch size and precision.
        bootstrap: Draws for intervals around the scores of shared, own and held-out documents; none without.
        rng: Seed of the draws.
        seen_by: Returns the context in which the shared model is what a site's documents are answered with,
            which is yielded; none where that is the shared model as it is.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        part: str,
        model: Model,
        task: Task,
        settings: TrainingSettings,
        *,
        bootstrap: BootstrapSettings | None = None,
        rng: Seed | None = None,
        seen_by: Callable[[str], AbstractContextManager[Model]] | None = None,
    ) -> None:
        self._seen_by = seen_by
        self._model, self._task, self._settings = model, task, settings
        self._bootstrap, self._rng = bootstrap, rng
        self._documents: dict[str, list[Document]] = {site.id: site.scored(part) for site in sites}
        self._clients = [site.id for site in sites if site.documents.train]
        self._external = [site.id for site in sites if not site.documents.train and self._documents[site.id]]

    @property
    def has_documents(self) -> bool:
        """Whether there is anything to score."""
        return any(self._documents.values())

    def shared(self, state: State, predictor: Predictor | None = None) -> dict[str, Any]:
        """Scores one model for everybody, in one pass.

        Args:
            state: What is shared.
            predictor: Answers with this model elsewhere; none for here.

        Returns:
            `global` (over all clients' documents), `clients` (null for a client without documents here),
            `mean_client`, `external`: a held-out site's scores; and where there is a bootstrap, what
            `_intervals` gives.
        """
        self._model.restore()
        self._model.load_known(state.tensors)
        # Apart, so that clients' scores are to the last bit what they are without held-out sites.
        answers = self._answers(self._clients, predictor) | self._answers(self._external, predictor)
        tallies = {client: self._tally(client, answers) for client in self._clients}
        clients = {client: self._score([client], answers, tallies) for client in self._clients}
        return {
            "global": self._score(self._clients, answers, tallies),
            "clients": clients,
            "mean_client": mean_scores(list(clients.values())),
            "external": {site: self._score([site], answers) for site in self._external},
            **self._intervals([answers], answers),
            **alike(self._task, tallies.values(), self._count),
        }

    @property
    def _count(self) -> int:
        """How many documents the clients have."""
        return sum(len(self._documents[client]) for client in self._clients)

    def untrained(self, predictor: Predictor | None = None) -> dict[str, Tally]:
        """Returns what the model as it was before the first round counts to on each client's documents.

        Args:
            predictor: Answers with this model elsewhere; none for here.
        """
        self._model.restore()
        answers = self._answers(self._clients, predictor)
        tallies = {client: self._tally(client, answers) for client in self._clients}
        return {client: tally for client, tally in tallies.items() if tally is not None}

    def _intervals(self, models: Sequence[Answers], own: Answers) -> dict[str, Any]:
        """Returns the lower and the upper end of each score, none without a bootstrap.

        Documents are drawn; a score is the mean over the models of what each scores on those drawn.

        Args:
            models: What each model answers for everybody's documents; empty where none was asked.
            own: What the model of each client answers for its own documents.

        Returns:
            `intervals` of the global scores, `mean_client_intervals` (each client's documents are drawn by
            themselves), and `external_intervals` by site. A score that some draw has not, such as that of a
            rare type, has none.
        """
        if self._bootstrap is None or self._rng is None:
            return {}
        rng = self._rng
        having = [client for client in self._clients if self._documents[client]]
        by_client = [self._redrawn([client], [own], rng.child("client", client)) for client in having]
        return {
            "intervals": self._ends(self._redrawn(self._clients, models, rng)),
            "mean_client_intervals": self._ends([mean_scores(each) for each in zip(*by_client, strict=True)]),
            "external_intervals": {
                site: self._ends(self._redrawn([site], models, rng.child("external", site)))
                for site in self._external
            },
        }

    def _redrawn(self, sites: Sequence[str], models: Sequence[Answers], rng: Seed) -> list[Scores | None]:
        """Returns the mean scores of these models on each draw of these sites' documents."""
        documents = [document for site in sites for document in self._documents[site]]
        bootstrap = self._bootstrap
        if bootstrap is None or not documents or not models:
            return []
        found = [[answer for site in sites for answer in answers[site]] for answers in models]
        size = min(bootstrap.instances or len(documents), len(documents))
        draws = rng.numpy().integers(len(documents), size=(bootstrap.resamples, size))
        counted = [_Counted(self._task, documents, own) for own in found]
        return [mean_scores([own.scores(draw) for own in counted]) for draw in draws]

    def _ends(self, scores: Sequence[Scores | None]) -> dict[str, list[float]]:
        """Returns the ends of the interval of each score that all draws have."""
        drawn = [own or {} for own in scores]
        if self._bootstrap is None or not drawn:
            return {}
        level = self._bootstrap.level
        ends = {
            name: interval(np.array([own[name] for own in drawn]), level)
            for name in drawn[0]
            if all(name in own for own in drawn)
        }
        return {name: [own.low, own.high] for name, own in ends.items()}

    def pooled(self) -> Scores | None:
        """Scores the model as it is on the documents of all clients; none where they have none here."""
        return self._score(self._clients, self._answers(self._clients))

    def personal(self, enter: Callable[[str], Predictor | None], *, pooled: bool) -> dict[str, Any]:
        """Scores every client's own model.

        Args:
            enter: Makes the shared model this client's own, and returns what answers with it elsewhere.
            pooled: Whether each model is also scored on everybody's documents, and on those of held-out
                sites; `global` and `external` are then the means over the models.
        """
        clients: dict[str, Scores | None] = {}
        everywhere = []
        own: dict[str, list[Any]] = {}
        models: list[Answers] = []
        outside: dict[str, list[Scores | None]] = {site: [] for site in self._external}
        tallies: list[Tally | None] = []
        for client in self._clients:
            predictor = enter(client)
            answers = self._answers(self._clients if pooled else [client], predictor)
            answers |= self._answers(self._external if pooled else (), predictor)
            tallies.append(self._tally(client, answers))
            clients[client] = self._score([client], answers, {client: tallies[-1]})
            if self._bootstrap is not None:
                own[client] = answers[client]
                models += [answers] if pooled else []
            everywhere.append(self._score(self._clients, answers) if pooled else None)
            for site in self._external if pooled else ():
                outside[site].append(self._score([site], answers))
        return {
            "global": mean_scores(everywhere),
            "clients": clients,
            "mean_client": mean_scores(list(clients.values())),
            "external": {site: mean_scores(scores) for site, scores in outside.items()},
            **self._intervals(models, own),
            **alike(self._task, tallies, self._count),
        }

    def _answers(self, sites: Iterable[str], predictor: Predictor | None = None) -> dict[str, list[Any]]:
        documents = {site: self._documents[site] for site in sites}
        if self._seen_by is None:
            return answer_owners(self._model, self._task, documents, self._settings, predictor)
        found: dict[str, list[Any]] = {}
        for site, own in documents.items():
            with self._seen_by(site) as model:
                found |= answer_owners(model, self._task, {site: own}, self._settings)
        return found

    def _tally(self, site: str, answers: Answers) -> Tally | None:
        """Returns what the scores of a site's documents are made of; none where it has none."""
        documents = self._documents[site]
        return self._task.counted(documents, answers[site]) if documents else None

    def _score(
        self, sites: Sequence[str], answers: Answers, tallies: Mapping[str, Tally | None] | None = None
    ) -> Scores | None:
        """Returns the scores of some sites' documents together; none where they have none."""
        documents = [document for site in sites for document in self._documents[site]]
        if not documents:
            return None
        found = [answer for site in sites for answer in answers[site]]
        own = [(tallies or {}).get(site) or self._tally(site, answers) for site in sites]
        return self._task.scored(added(filter(None, own)), self._task.apart(documents, found))


class ServerDocuments:
    """The server's documents, which are encoded when they are first needed.

    Args:
        documents: The documents, annotated; without any there is no loss to ask for.
        model: The shared model.
        task: The task.
        settings: Batch size and precision.
    """

    def __init__(
        self, documents: Sequence[Document], model: Model, task: Task, settings: TrainingSettings
    ) -> None:
        self._documents, self._model, self._task, self._settings = documents, model, task, settings

    def loss(self, tensors: Tensors, over: LossMean = "terms") -> float:
        """Returns the mean loss of the shared model with these tensors in it, which is then as it was."""
        with self._model.holding(tensors):
            return mean_loss(self._model, self._task, self._examples, self._settings, over)

    @cached_property
    def _examples(self) -> list[Any]:
        return self._task.encode(self._documents, self._model.tokenizer)


class _Counted:
    """What one model's answers count to in each document, of which scores of any draw are made.

    Args:
        task: Scores them.
        documents: The documents.
        answers: The model's answers, one a document.
    """

    def __init__(self, task: Task, documents: Sequence[Document], answers: Sequence[Any]) -> None:
        self._task, self._documents, self._answers = task, documents, answers
        counted = [
            task.counted([document], [answer]) for document, answer in zip(documents, answers, strict=True)
        ]
        self._names = list(dict.fromkeys(name for own in counted for name in own))
        self._counts = np.array([[own.get(name, 0.0) for name in self._names] for own in counted])

    def scores(self, draw: NDArray[np.integer]) -> Scores:
        """Returns the scores of these documents, given by their numbers, each as often as it is drawn."""
        times = np.bincount(draw, minlength=len(self._documents))
        tally = dict(zip(self._names, (times @ self._counts).tolist(), strict=True))
        drawn = [self._documents[index] for index in draw], [self._answers[index] for index in draw]
        return self._task.scored(tally, self._task.apart(*drawn))

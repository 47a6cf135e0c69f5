"""The engine of a simulation: one copy of the model in this process, and clients that take turns with it.

Between clients the model is put back to its base values, so a client sees what its own process would hold:
base weights, its store, and the plan it just received. Memory does not grow with the number of clients: what
a client keeps between rounds lies on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata.adapters.attach import plain_where_needed
from fedstrata.client.caches import ClientCaches
from fedstrata.client.failures import release_memory
from fedstrata.client.site import Site
from fedstrata.client.store import client_folder
from fedstrata.client.turn import Done, Failed, Order, Workplace
from fedstrata.core.cohort import Service
from fedstrata.core.errors import refused
from fedstrata.core.handlers import is_exchange
from fedstrata.core.types import ClientInfo, Message, State, Tally, Tensors
from fedstrata.data.split import PARTS
from fedstrata.engine import budgets
from fedstrata.engine.agreed import agreed, agreed_hash
from fedstrata.engine.conversation import Conversation
from fedstrata.engine.corpus import corpus_facts
from fedstrata.engine.facts import document_counts
from fedstrata.engine.floors import simulated
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.protocol import Engine, Turns
from fedstrata.engine.ray_cluster import RAY
from fedstrata.engine.scoring import Scorer, scores_everywhere
from fedstrata.engine.sites import fingerprint, sites_of
from fedstrata.engine.workers.forked_workers import ForkedWorkers
from fedstrata.engine.workers.jobs import WorkerSource
from fedstrata.engine.workers.turns import Workers
from fedstrata.models.state import Model
from fedstrata.record.log import Listener
from fedstrata.train.evaluate import Predictor, predict_batch
from fedstrata.wire.meter import Meter

if TYPE_CHECKING:
    from fedstrata.client.secure_turns import SecureTurns


class LocalEngine(Engine):
    """Computes within this process, and in those it starts.

    Args:
        experiment: What is run; all documents are in it.
        folder: The run directory.
        listen: Told of progress.
        sites: All sites, and of these the clients; those of the experiment if none.
    """

    command = "fedstrata run"

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        listen: Listener,
        sites: tuple[Sequence[Site], Sequence[Site]] | None = None,
    ) -> None:
        self._experiment, self._folder = experiment, folder
        self._sites, self._trainers = sites or sites_of(experiment)
        self._site = {site.id: site for site in self._trainers}
        self._caches = ClientCaches(folder, experiment.settings, listen)
        self._scorers: dict[str, Scorer] = {}
        self.workplace = Workplace(
            method=experiment.method,
            model=experiment.model,
            training=experiment.settings.training,
            metric=experiment.metric,
            seed=experiment.seed,
            folder=folder,
            listen=listen,
            cache_of=self._caches.of,
            score=self._score_trained,
            privacy=experiment.privacy,
        )
        self._secure = self._secure_turns() if experiment.privacy.settings.secure_aggregation else None
        source = self._source() if experiment.workers > 1 else None
        self._workers = Workers(experiment.workers, folder, self._heard, source) if source else None

    def _source(self) -> WorkerSource:
        """Returns where workers come from: this machine, or a cluster."""
        experiment, folder = self._experiment, self._folder
        if experiment.settings.workers != RAY:
            return ForkedWorkers(experiment, folder, LocalEngine)
        from fedstrata.engine.workers.ray_workers import RayWorkers  # noqa: PLC0415 - optional

        return RayWorkers(experiment, folder, LocalEngine, self._fingerprint, list(self._site))

    def _secure_turns(self) -> SecureTurns:
        """Returns what answers the orders of masked sums; clients have their identities then."""
        from fedstrata.client.secure_turns import SecureTurns  # noqa: PLC0415 - for masks alone
        from fedstrata.engine.simulated_identities import files_of, simulated_identities  # noqa: PLC0415

        self.sums = simulated_identities(self._folder, list(self._site))
        self.workplace.agreed = agreed_hash(agreed(self._experiment))
        return SecureTurns(self.workplace, partial(files_of, self._folder))

    @property
    def whole(self) -> Model:
        """The model."""
        return self._experiment.model

    def facts(self) -> dict[str, Any]:
        """Returns what the record's `run` event says of the clients and their documents."""
        return {
            "data": self._fingerprint(),
            "server_documents": [document.id for document in self._experiment.server],
            "corrupt": self._corrupt(),
            "clients": {
                site.id: document_counts(
                    {part: len(getattr(site.documents, part)) for part in PARTS},
                    self._experiment,
                    served=False,
                )
                for site in self._sites
            },
            "corpus": corpus_facts(
                self._experiment, {site.id: site.documents for site in self._sites}, served=False
            ),
        }

    def _fingerprint(self) -> str:
        settings = self._experiment.settings
        private = settings.privacy.by_unit and settings.privacy.unit == "patient"
        named = settings.data.patients is not None or private
        return fingerprint(self._sites, self._experiment.server, patients=named)

    def _corrupt(self) -> dict[str, Any] | None:
        """Who is corrupt, and how; none if nobody is."""
        corrupt = {site.id: site.corruption.settings for site in self._sites if site.corruption}
        if not corrupt:
            return None
        settings = next(iter(corrupt.values()))
        facts = {"clients": list(corrupt), "kind": settings.kind, "strength": settings.strength_used}
        return facts | ({"portion": settings.portion} if settings.portion < 1 else {})

    def require_same(self, begun: Mapping[str, Any]) -> None:
        """Refuses to go on with other documents.

        Raises:
            ConfigurationError: They are not those the run began with.
        """
        if begun["data"] != self._fingerprint():
            message = "the documents are not those the run began with; a run cannot change its data"
            raise refused("data", message, "changed")

    def clients(self) -> Sequence[str]:
        """Returns the names of all clients that train."""
        return list(self._site)

    def info(self, client: str) -> ClientInfo:
        """Returns what is known of a client; its documents are encoded for it."""
        return ClientInfo(client, self._site[client].count)

    def reserve(self) -> None:
        """Reserves in the budget of its clients what the run may spend there."""
        budgets.reserve(self._experiment, self.workplace, self._trainers)

    def budget(self) -> dict[str, Any] | None:
        """Returns what of that budget is spent and left; none without one."""
        return budgets.spent(self._experiment, self._trainers)

    def turns_begun(self, client: str) -> int:
        """Returns in how many turns a client has begun to train privately."""
        return self.workplace.releases(client).turns_begun

    def turns(self, orders: Iterable[Order]) -> Turns:
        """Computes turns one after the other, each when it is asked for; or as many at once as may be."""
        if self._workers is not None:
            yield from self._workers.turns(orders)
            return
        for order in orders:
            yield order, self.compute(order)

    def compute(self, order: Order) -> Done | Failed:
        """Computes one turn."""
        if is_exchange(order.handler) and self._secure is not None:
            return self._secure.compute(order, self._site[order.client])
        return self.workplace.compute(order, self._site[order.client])

    def converse(self, orders: Iterable[Order], service: Service, meter: Meter) -> Turns:
        """Computes turns of clients that talk with a service, one client at a time."""
        begun: dict[str, Order] = {}

        def work() -> Iterator[tuple[str, Any]]:
            for order in orders:
                begun[order.client] = order
                yield order.client, partial(self.workplace.compute, order, self._site[order.client])

        turns: Iterator[tuple[str, Done | Failed]] = Conversation(service, meter).hold(work())
        for client, result in turns:
            yield begun[client], result

    def undo(self, client: str, number: int, error: Exception) -> None:
        """Drops what a client's turn has left in the model and in its store."""
        self.workplace.undo(client, number)
        release_memory(error)

    def score(self, number: int, state: State, part: str, *, final: bool) -> dict[str, Any]:
        """Scores the shared model, or each client's own one; nothing where nobody has such documents."""
        scorer = self._scorer(part)
        if not (final or scorer.has_documents):
            return {}
        floors = self._floors if final else lambda: {}
        if not self._experiment.method.personal:
            return {**scorer.shared(state, self._predictor(None, number, state)), **floors()}

        def enter(client: str) -> Predictor | None:
            self.enter(client, number, state.tensors)
            return self._predictor(client, number, state)

        scores = scorer.personal(enter, pooled=final and scores_everywhere(self._experiment))
        return {**scores, **floors()}

    def _floors(self) -> dict[str, Any]:
        """Returns `floors` of the test scores; no run fails for what only stands beside them."""

        def untrained() -> Mapping[str, Tally]:
            return self._scorer("test").untrained(self._predictor(None, 0, State()))

        try:
            found = simulated(self._experiment, self._sites, untrained)
        except Exception as error:
            message = f"there are no floors beside the scores ({type(error).__name__})"
            self.workplace.listen("warning", {"message": message})
            return {}
        return {"floors": found} if found else {}

    def enter(self, client: str | None, number: int, shared: Tensors) -> None:
        """Makes the model a client's own, or what is shared alone if none."""
        if client is not None:
            self.workplace.enter(client, number, shared)
        else:
            self._experiment.model.restore()
            self._experiment.model.load_known(shared)

    def predict(self, batch: Sequence[Any]) -> Sequence[Any]:
        """Returns the answers of the model, as it is, to the examples of a batch."""
        experiment = self._experiment
        return predict_batch(experiment.model, experiment.task, batch, experiment.settings.training)

    def _predictor(self, client: str | None, number: int, state: State) -> Predictor | None:
        """Returns what answers at several processes; none where there is only this one."""
        if self._workers is None:
            return None
        return self._workers.predictor(client, number, Message(state.tensors))

    def _score_trained(self, parts: Sequence[str]) -> dict[str, Any] | None:
        """Scores the model while it holds what a client has just trained."""
        scorers = {part: self._scorer(part) for part in parts}
        return {part: own.pooled() for part, own in scorers.items() if own.has_documents} or None

    def save(self, number: int, state: State) -> None:
        """Saves the shared model; or each client's own one, where there is none that is everybody's."""
        for client in self._site if self._experiment.method.personal else (None,):
            self.enter(client, number, state.tensors)
            folder = self._folder if client is None else client_folder(self._folder, client)
            self.whole.save(folder / "model", plain=plain_where_needed(self.whole))

    def _heard(self, event: str, facts: Mapping[str, Any]) -> None:
        """Passes on what a process tells; each tells once of a client what all are to tell once."""
        if event == "cache":
            self._caches.tell(facts)
        else:
            self.workplace.listen(event, facts)

    def memory(self) -> Sequence[Mapping[str, int | None]]:
        """Returns the most memory that each of its processes has had."""
        return () if self._workers is None else self._workers.memory

    def end(self) -> None:
        """Removes the caches, and lets go what is reserved: a run that is finished needs none."""
        self._caches.remove()
        budgets.end(self._experiment, self._folder, list(self._site))

    def close(self) -> None:
        """Ends the processes that it has started."""
        if self._workers is not None:
            self._workers.close()

    def _scorer(self, part: str) -> Scorer:
        """Returns what scores a part of the split, which is made once."""
        if part not in self._scorers:
            experiment = self._experiment
            own = (self._sites, part, experiment.model, experiment.task, experiment.settings.training)
            bootstrap = experiment.settings.federation.bootstrap if part == "test" else None
            rng = experiment.seed.child("bootstrap")
            seen_by = experiment.method.seen_by(experiment.model, experiment.seed.child("scores"))
            self._scorers[part] = Scorer(*own, bootstrap=bootstrap, rng=rng, seen_by=seen_by)
        return self._scorers[part]

"""How a client in a process of its own scores its documents, and what of that the server hears."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

from fedstrata.adapters.attach import plain_where_needed
from fedstrata.client.site import Site
from fedstrata.client.store import client_folder
from fedstrata.client.turn import Workplace
from fedstrata.core.client import Client
from fedstrata.core.documents import Document
from fedstrata.core.errors import FrameError
from fedstrata.core.floors import UNTRAINED
from fedstrata.core.seeding import Seed
from fedstrata.core.types import JSON, Plan, Tally, Update
from fedstrata.data.split import PARTS
from fedstrata.engine.check import divided_method
from fedstrata.engine.corpus import corpus_facts
from fedstrata.engine.facts import document_counts, model_facts, saved_weights
from fedstrata.engine.floors import floors_of, has_untrained, joined, leaving, may_leave, told_by_sites
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.run_folder import DOCUMENTS, SETTINGS, write_documents, write_settings
from fedstrata.engine.scoring import alike
from fedstrata.metrics.cost import peak_memory
from fedstrata.record.log import Listener, RecordLog, read_events
from fedstrata.record.summary import summarise, write_summary
from fedstrata.split.ends import Ends
from fedstrata.split.inference import RemoteMiddle
from fedstrata.train.evaluate import answer


class SiteScoring:
    """Scores the documents of one client with what the server sends, or with what the client keeps.

    Args:
        experiment: What is run.
        workplace: Where the client computes.
        site: The client.
        listen: Told of progress.
    """

    def __init__(self, experiment: Experiment, workplace: Workplace, site: Site, listen: Listener) -> None:
        self._experiment, self._workplace = experiment, workplace
        self._site, self._listen = site, listen

    @property
    def tells(self) -> bool:
        """Whether the server hears how documents are answered: with secure aggregation in a sum alone."""
        settings = self._experiment.privacy.settings
        return settings.scores == "summed" or not (settings.by_unit or settings.secure_aggregation)

    @cached_property
    def corpus(self) -> dict[str, Any]:
        """What is to be known of the client's documents, which stays here."""
        return corpus_facts(self._experiment, {self._site.id: self._site.documents}, served=True)

    def score(self, plan: Plan, client: Client, rng: Seed, *, masked: bool = False) -> Update:
        """Scores the client's documents of a part of the split; what was learnt at the end is kept.

        Args:
            plan: What is shared, and which part it is.
            client: The client.
            rng: The turn's seed.
            masked: Whether what was counted goes into a masked sum.

        Raises:
            FrameError: The server asks for something else.
        """
        part, task, private = plan.values.get("part"), self._site.task, self._experiment.privacy.settings
        if part not in PARTS:
            message = f"the server asks for scores of {part!r}, which is no part of the data"
            raise FrameError(message, code="unknown_name")
        if (private.by_unit or masked) and part == PARTS[0]:
            message = "the server asks for scores of documents that are trained on privately"
            raise FrameError(message, code="not_private")
        self._listen("scoring", {"part": part})
        started, documents = time.perf_counter(), self._site.scored(str(part))
        floors = {} if masked or not plan.values.get("floors") else self._floors(client, documents)
        if masked and not documents:
            message = f"there are no {part} documents here, and a sum with nothing in it hides nobody"
            raise FrameError(message, code="not_enough_data")
        model = self._experiment.model
        model.load(plan.tensors)
        if self._experiment.method.personal:  # what else a store holds is not what was learnt
            model.load_known(client.store.read().tensors)
        counted: dict[str, JSON] = {"tally": None}
        scores, tells = None, self.tells and masked == private.secure_aggregation
        if documents:
            with self._connected(client, rng):
                answers = answer(model, task, documents, client.training)
            tally, apart = task.counted(documents, answers), task.apart(documents, answers)
            scores = task.scored(tally, apart)
            if tells:
                counted = {"tally": {**tally}, "apart": {**apart}}
                counted |= self._leaving(floors)
        if plan.values.get("final") and self._experiment.method.divides(self._site.id) is None:
            said = alike(task, [tally], len(documents)) if documents else {}
            id_, metric = self._site.id, self._experiment.metric
            beside = joined(task, metric, {id_: floors}, {id_: len(documents)})
            self._keep_model(scores, started, {**said, "floors": beside})
        return Update({}, counted, weight=float(len(documents) * tells))

    def _connected(self, client: Client, rng: Seed) -> AbstractContextManager[object]:
        """Returns the context in which the model answers: with the server's middle, where that has one."""
        if (cut := self._experiment.method.divides(self._site.id)) is None:
            return nullcontext()
        if client.line is None:
            raise FrameError("the server asks for scores, and runs no middle for them", code="not_supported")
        method = divided_method(self._experiment.method)
        remote = RemoteMiddle(client.line, method.wire, cut)
        noise = method.noise_of(rng if client.secret is None else Seed(client.secret, rng.path))
        return Ends(self._experiment.model, cut).connected(remote, noise=noise)

    def _floors(self, client: Client, documents: Sequence[Document]) -> dict[str, Tally]:
        """Returns what floors count to on the client's documents; nothing if that may not leave it.

        The model is left as it was. Where the server has a part of it, that has learnt already.
        """
        settings, model, task = self._experiment.settings, self._experiment.model, self._site.task
        if not told_by_sites(settings) or not may_leave(self._site, documents):
            return {}
        floors = floors_of(self._site, documents)
        if has_untrained(settings, task) and self._experiment.method.divides(self._site.id) is None:
            model.restore()
            floors[UNTRAINED] = task.counted(documents, answer(model, task, documents, client.training))
            model.load_known(client.store.read().tensors)
        return floors

    def _leaving(self, floors: Mapping[str, Tally]) -> dict[str, JSON]:
        """Returns what the server is told of floors: of one that stays here, that there is one."""
        task, metric = self._site.task, self._experiment.metric
        found = {name: leaving(task, metric, own) for name, own in floors.items()}
        told: dict[str, JSON] = {name: None if own is None else {**own} for name, own in found.items()}
        return {"floors": told} if told else {}

    def _keep_model(
        self, scores: Mapping[str, float] | None, started: float, beside: Mapping[str, object]
    ) -> None:
        """Makes this client's folder one of a finished run, whose model is the client's own.

        Args:
            scores: Of its test documents; none where it has none.
            started: When that was begun.
            beside: What stands beside them.
        """
        experiment, folder = self._experiment, client_folder(self._workplace.folder, self._site.id)
        model = experiment.model
        model.save(folder / "model", plain=plain_where_needed(model))
        log = RecordLog(folder / "record.jsonl")
        documents = {part: len(getattr(self._site.documents, part)) for part in PARTS}
        log.append(
            "run",
            {
                **model_facts(experiment, model),
                "id": self._workplace.folder.name.removeprefix("run-"),
                "data": None,
                "client": self._site.id,  # whose folder it is, and not the server's
                "clients": {self._site.id: document_counts(documents, experiment, served=True)},
                "corpus": self.corpus,
            },
        )
        facts = {
            "global": scores,
            "clients": {self._site.id: scores},
            "mean_client": scores,
            "external": {},
            **beside,
            "saved": saved_weights(folder),
            "seconds": time.perf_counter() - started,
            **peak_memory(model.device),
        }
        log.append("final", facts, durable=True)
        log.close()
        write_documents({self._site.id: self._site.documents}, folder / DOCUMENTS)
        write_settings(experiment.settings, folder / SETTINGS)  # by which a folder is one of a run
        write_summary(summarise(read_events(folder / "record.jsonl")), folder / "summary.json")
        self._listen("kept", {"folder": str(folder)})

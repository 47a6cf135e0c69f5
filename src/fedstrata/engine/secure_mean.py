"""Means under secure aggregation, and sums of what clients have counted; the exchanges are `masked_sums`.

A sum that fails before a share has left costs its round, which changes nothing. One of which shares have left
is never given up: the run stops until it can be finished, or until it is clear that it cannot be used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from fedstrata.client.secure_turns import COUNTED
from fedstrata.core.cohort import Mean
from fedstrata.core.errors import ClientsLostError, FedstrataError, FrameError, TrainingError
from fedstrata.core.files import private_folder, write_atomically
from fedstrata.core.method import Method
from fedstrata.core.settings.privacy import MOST_SITES
from fedstrata.core.types import ClientInfo, Plan, Tensors
from fedstrata.engine.book import Book, RoundAbandonedError
from fedstrata.engine.masked_sums import MaskedSums
from fedstrata.engine.protocol import Counted, Exchanging
from fedstrata.engine.server_steps import ServerSteps
from fedstrata.models.state import Model
from fedstrata.privacy.joint_terms import bound_of, noise_terms
from fedstrata.privacy.mechanism import EVERYBODY, Privacy
from fedstrata.privacy.secure_sum.mean import (
    SummedMean,
    counted_in,
    counted_tensor,
    hash_of_frame,
    mean_from,
)
from fedstrata.privacy.secure_sum.messages import MeanTerms, SummedTensor, SumName
from fedstrata.privacy.secure_sum.refusals import NotFinished, SecureSumRefusal, UnusableSum
from fedstrata.wire import frame

COUNTED_LAST = "counted.json"
FOLDER = "secure_sums"
"""In the run directory: sums that are not committed yet, and the ranges of the next."""
STEPS = ".safetensors"
"""The ending of what the optimiser keeps, beside the ranges."""
_WARNED = 0.01
"""Share of cut values in a mean of which a round warns."""
_EPOCH = 1735689600.0
"""From when on attempts are counted, in seconds: 2025-01-01. A server that was restored from a backup has no
record of its last attempts, and its clock has gone on."""


@dataclass
class SecureAggregation:
    """The masked sums of a run.

    Attributes:
        privacy: The run's.
        run: Its id, which all sums are named by.
        folder: The run directory.
        method: The method.
        model: The server's model.
        agreed: SHA-256 of all that the sites of the run must agree on.
        known: How many clients the run has.
        steps: Takes the step of a round whose clients send gradients, with joint noise; none without.
        attempt: How often the run has gone on: a sum that was begun before is begun under a higher number.
    """

    privacy: Privacy
    run: str
    folder: Path
    method: Method
    model: Model
    agreed: str
    known: int
    steps: ServerSteps | None = None
    attempt: int = 0
    _facts: dict[str, Any] = field(default_factory=dict)
    _bounds: dict[str, dict[str, float]] = field(default_factory=dict)  # by handler and tensor
    _last: tuple[str, Counted] | None = None  # the plan that was counted last, and what came of it

    def __post_init__(self) -> None:
        self._sums = MaskedSums(self.privacy, self.folder / FOLDER, self.model, self.agreed, self.known)

    def mean(self, cohort: Exchanging, handler: str, plan: Plan) -> Mean:
        """Returns the weighted mean of what a handler returns everywhere, and sees nothing of any client's.

        Args:
            cohort: The clients of the round.
            handler: The handler.
            plan: What all of them are sent.

        Raises:
            RoundAbandonedError: The sum could not be made, and no share of it has left; the message says why.
            ClientsLostError: Shares have left and too few to unmask it: the run can be resumed.
            UnusableSum: It was released and cannot be used.
        """
        terms = self._terms(cohort, handler, plan)
        self._facts = {"asked": len(cohort.clients), "survivors": [], "refused": None}
        again = f"{cohort.book.command} --resume --out {self.folder}"
        try:
            terms, survivors, total = self._sums.run(cohort, plan, terms, self._facts)
            base = {} if self.method.sends_changes or self.steps else plan.tensors
            found = mean_from(total, base, terms, survivors, self.privacy.settings.range)
        except NotFinished as error:
            raise ClientsLostError(
                f"round {terms.sum.round}: {error}. When these clients are back: {again}"
            ) from error
        except UnusableSum as error:
            cohort.take_back(error)
            self._sums.unusable(terms, str(error))
            raise UnusableSum(
                f"round {terms.sum.round}: {error}. To make another sum with the same clients: {again}. "
                "Without a client SITE, of which the server then learns the update: fedstrata join "
                "--allow-without SITE at each of the others, before that"
            ) from error
        except (SecureSumRefusal, FrameError) as error:
            self._refuse(cohort, error)
        self._take(cohort, handler, terms, found)
        if self.steps is not None:
            stepped = self.steps.step(terms.sum.round, plan.tensors, found.mean.tensors)
            return replace(found.mean, tensors=stepped)
        return found.mean

    def counted(self, cohort: Exchanging, plan: Plan, part: str, names: Sequence[str]) -> Counted | None:
        """Returns the sum of what clients have counted; see `protocol.Counting`.

        A plan that was counted last is not counted again, as in a round that has changed nothing: with other
        clients the difference of the two sums would be the counts of one.
        """
        name = self._name(cohort.book, COUNTED[part])
        own, tensors = Plan(plan.tensors, {**plan.values, "names": list(names)}), (counted_tensor(names),)
        hashed = hash_of_frame(frame.encode(own))
        if self._last is not None and self._last[0] == hashed:
            return self._last[1]
        terms = MeanTerms(sum=name, plan=hashed, tensors=tensors, scale=1, loss=False, counts=True)
        try:
            _, survivors, total = self._sums.run(cohort, own, terms, {})
        except (SecureSumRefusal, FrameError) as error:
            cohort.book.warn(f"the {part} scores could not be summed: {error}")
            return None
        self._last = hashed, (*counted_in(total, names), survivors)
        self._save_counted()
        return self._last[1]

    def facts(self, book: Book) -> dict[str, Any]:
        """Returns, once, what the record says of a round's sum."""
        told, self._facts = self._facts, {}
        return {**told, "bytes_up": book.meter.said_up, "bytes_down": book.meter.said_down}

    def load(self, committed: int, attempt: int) -> set[str]:
        """Goes on after a round with the ranges that there were.

        Args:
            committed: The round.
            attempt: How often the run has gone on.

        Returns:
            Whose updates of the next round are in a sum that can still be finished, so that they count.
        """
        self.attempt = attempt
        path = self._path(committed)
        kept = json.loads(path.read_text()) if path.exists() else {}
        self._bounds = kept.get("ranges", {})
        if (counted := self.folder / FOLDER / COUNTED_LAST).exists():
            hashed, tally, documents, clients = json.loads(counted.read_bytes())
            self._last = hashed, (tally, documents, tuple(clients))
        if self.steps is not None:
            self.steps.load(path.with_suffix(STEPS))
        return self._sums.counted_after(committed)

    def save(self, number: int) -> None:
        """Keeps the ranges of the next round, before this one is committed."""
        private_folder(self.folder / FOLDER)
        if self.steps is not None:
            self.steps.save(self._path(number).with_suffix(STEPS))
        write_atomically(self._path(number), [json.dumps({"ranges": self._bounds}).encode()])

    def _save_counted(self) -> None:
        """Keeps what was counted last: a resumed run does not count the same with other clients."""
        private_folder(self.folder / FOLDER)
        hashed, (tally, documents, clients) = self._last or ("", ({}, 0, ()))
        told = json.dumps([hashed, {**tally}, documents, list(clients)])
        write_atomically(self.folder / FOLDER / COUNTED_LAST, [told.encode()])

    def committed(self, number: int) -> None:
        """Removes what only a round that is not committed needs: with the shares goes what could unmask."""
        self._sums.remove(number)
        kept = {self._path(number).stem, self._path(number - 1).stem}
        for path in (self.folder / FOLDER).glob("ranges-*"):
            if path.stem not in kept:
                path.unlink()

    def _path(self, number: int) -> Path:
        return self.folder / FOLDER / f"ranges-{number:05d}.json"

    def _terms(self, cohort: Exchanging, handler: str, plan: Plan) -> MeanTerms:
        """Returns what this mean is made of; the same if it is asked for again after a crash."""
        name = self._name(cohort.book, handler)
        bounds = self._bounds.get(handler, {})
        return mean_terms(self.privacy, self.method, self.model, name, plan, cohort.clients, bounds)

    def _name(self, book: Book, handler: str) -> SumName:
        """Returns the name of the next sum of a handler."""
        return SumName(
            run=self.run,
            round=book.number,
            handler=handler,
            call=book.calls[handler] + 1,
            attempt=first_attempt(self.attempt),
        )

    def _refuse(self, cohort: Exchanging, error: FedstrataError) -> NoReturn:
        """Ends a round whose sum is not there; what clients have stored of it does not count either.

        Raises:
            RoundAbandonedError: Always.
        """
        cohort.take_back(error)
        self._facts |= {"refused": type(error).__name__}
        raise RoundAbandonedError(str(error)) from error

    def _take(self, cohort: Exchanging, handler: str, terms: MeanTerms, found: SummedMean) -> None:
        """Takes down what a sum has brought."""
        error = found.error
        if (noise := self.privacy.joint) is None:
            self._bounds[handler] = found.bounds
            self._facts |= {"range": max(each.bound for each in terms.tensors), "saturated": found.cut}
            self._warn_of_cut(cohort.book, found)
            self._warn_of_diverged(cohort.book, found)
        else:
            settings, sites = self.privacy.settings, found.mean.clients
            most = sum(settings.declared(site) for site in sites)
            error = noise.error(len(sites) * (settings.expected_batch or 1), most)
        self._facts |= {"error": error.largest, "deviation": error.deviation}
        cohort.book.calls[handler] = terms.sum.call  # one that a crash has left was asked for before
        if "loss" in found.mean.values:
            weight = next(iter(found.mean.weights.values()))
            cohort.book.losses[EVERYBODY] = (found.mean.values["loss"], weight)

    @staticmethod
    def _warn_of_cut(book: Book, found: SummedMean) -> None:
        """Warns of a mean that has lost many values to its range, or whose count of them is a lie."""
        if found.cut is None:
            book.warn(
                f"round {book.number}: the clients report more cut values than the {found.values} that they "
                "have sent: one of them has lied. The mean is used, and its range stays as it is"
            )
        elif found.cut > _WARNED * found.values:
            book.warn(
                f"round {book.number}: {found.cut} of {found.values} changed values were larger than the "
                "range and were cut; the next round has a wider range (privacy.range sets the first)"
            )

    @staticmethod
    def _warn_of_diverged(book: Book, found: SummedMean) -> None:
        """Warns of clients whose training has diverged, of which only the number is known.

        Raises:
            TrainingError: It is that of all.
        """
        clients = len(found.mean.clients)
        if found.diverged == clients:
            raise TrainingError(
                f"round {book.number}: training has diverged at all {clients} clients; lower "
                "training.learning_rate. Each client's own terminal says more",
                code="diverged",
            )
        if found.diverged is None:
            book.warn(
                f"round {book.number}: the clients report more training that has diverged than there can be: "
                "one of them has lied. The mean is used"
            )
        elif found.diverged:
            book.warn(
                f"round {book.number}: training has diverged at {found.diverged} of {clients} clients, which "
                "changed nothing and count as a loss of 0; each client's own terminal says more"
            )


def first_attempt(resumed: int = 0) -> int:
    """Returns the number under which a sum begins; after it a sum begins anew once for each client at most.

    Args:
        resumed: How often the run has been resumed.
    """
    return max(int(time.time() - _EPOCH), 0) + resumed * (MOST_SITES + 1)


def mean_terms(
    privacy: Privacy,
    method: Method,
    model: Model,
    name: SumName,
    plan: Plan,
    clients: Sequence[ClientInfo],
    bounds: Mapping[str, float],
) -> MeanTerms:
    """Returns what a mean is made of.

    Args:
        privacy: The run's.
        method: The method, whose handler the name says.
        model: The server's model.
        name: The sum's.
        plan: What all clients are sent.
        clients: Who is asked.
        bounds: Of tensors whose changes are known; what is not in it has the range of the settings.
    """
    trained = {
        each: tensor.to("meta") for each, tensor in model.tensors(method.trainable(model.layout)).items()
    }
    sent: Tensors = method.sends(name.handler, plan, {"loss": 0.0}, trained, model.layout)
    noise = noise_terms(privacy)
    least = privacy.settings.range if noise is None else bound_of(noise)
    equal = noise is not None or privacy.settings.weights == "uniform"
    weights = [1] if equal else [int(method.weighs(info)) for info in clients]
    return MeanTerms(
        sum=name,
        plan=hash_of_frame(frame.encode(plan)),
        tensors=tuple(
            SummedTensor(name=each, shape=tuple(tensor.shape), bound=bounds.get(each, least))
            for each, tensor in sent.items()
        ),
        scale=max(weights),
        loss=privacy.mechanism == "none",  # under differential privacy none leaves its client
        noise=noise,
        ring=privacy.settings.ring if noise is None else 32,
    )

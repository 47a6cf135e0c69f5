"""Holds a run against a site's own policy: before the site joins it, and before each of its turns.

What is wrong is told at the site, with the line of the policy; the server hears that it was refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from fedstrata.client.store import client_folder
from fedstrata.client.turn import Order
from fedstrata.core.errors import (
    ConfigurationError,
    PolicyError,
    PolicyRefusedError,
    Problem,
    did_you_mean,
    refuse,
)
from fedstrata.core.files import write_atomically
from fedstrata.core.handlers import is_scoring
from fedstrata.core.plugins import is_reference
from fedstrata.core.settings.policy import SitePolicy
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import Source, read_source, validate
from fedstrata.engine.floors import told_by_sites
from fedstrata.engine.prepare import Experiment
from fedstrata.methods import METHODS
from fedstrata.privacy.ledger_verification import LEDGER, read_ledger
from fedstrata.record.log import Listener

BEGAN = "began.json"
"""A file in a client's folder: when the first turn of a run began there."""
_MEGABYTE = 2**20


class PolicyGuard:
    """A site's policy, and where each of its lines stands.

    Args:
        policy: The policy.
        source: Where it was read from.
    """

    def __init__(self, policy: SitePolicy, source: Source) -> None:
        self._policy, self._source = policy, source

    @classmethod
    def read(cls, path: Path) -> PolicyGuard:
        """Reads a policy.

        Raises:
            ConfigurationError: It cannot be read, or names what there is not; all such problems at once.
        """
        source = read_source(path, [])
        policy, problems = validate(SitePolicy, source)
        if policy is None:
            raise ConfigurationError(problems)
        named = [name for name in policy.methods or () if not is_reference(name)]
        unknown = [name for name in named if name not in METHODS]
        told = [f"there is no method {name!r}{did_you_mean(name, METHODS, before='; ')}" for name in unknown]
        refuse([source.problem("methods", message) for message in told])
        return cls(policy, source)

    @property
    def trusted(self) -> tuple[str, ...]:
        """The code that a server may name: methods that the policy has by their reference."""
        return tuple(filter(is_reference, self._policy.methods or ()))

    def require_settings(self, settings: RunSettings) -> None:
        """Checks a run by what the server says of it, before anything of it is loaded.

        Raises:
            PolicyError: The policy does not allow it; all lines that it is against at once.
        """
        if wrong := [self._source.problem(*each) for each in self._against(settings)]:
            raise PolicyError(wrong)

    def require_experiment(self, experiment: Experiment, client: str) -> None:
        """Checks the model that was loaded, and what its noise spends.

        Raises:
            PolicyError: The policy does not allow it.
        """
        policy, problems = self._policy, []
        if policy.models is not None and (found := fingerprint_of(experiment)) not in policy.models:
            problems.append(Problem("models", f"the model of this run, {found}, is none of those"))
        privacy = experiment.privacy
        if policy.epsilon is not None and privacy.mechanism != "none":
            spends = privacy.epsilon(client, privacy.turns)
            if spends is None or spends > policy.epsilon:
                told = "without bound" if spends is None else f"up to {spends:.4g}"
                message = f"at most {policy.epsilon:g} here, and the run spends {told}"
                problems.append(Problem("epsilon", message))
        if problems:
            raise PolicyError(self._source.located(problems))

    def permit(self, order: Order, folder: Path, listen: Listener) -> None:
        """Checks a turn before anything is computed for it.

        Args:
            order: What the server asks for, by the name of the handler that would run.
            folder: Where the client keeps what is of this run.
            listen: Told which line of the policy is against it.

        Raises:
            PolicyRefusedError: The policy does not allow it; the server hears the message, and no more.
        """
        if is_scoring(order.handler):
            return
        wrong = next(self._against_turn(order, client_folder(folder, order.client)), None)
        if wrong is not None:
            listen("policy_refused", {"message": str(self._source.problem(*wrong))})
            raise PolicyRefusedError("this site's policy does not allow it; nothing was computed")

    def _against(self, settings: RunSettings) -> Iterator[tuple[str, str]]:
        """Yields the lines of the policy that settings are against, and why."""
        policy, privacy, training = self._policy, settings.privacy, settings.training
        asks, method = "and the server asks for", settings.method["name"]
        if policy.methods is not None and method not in policy.methods:
            yield "methods", f"{', '.join(policy.methods)} here, {asks} {method}"
        for name, most, asked in (
            ("rounds", policy.rounds, settings.federation.rounds),
            ("epochs", policy.epochs, 0 if privacy.by_unit else training.epochs),
            ("steps", policy.steps, (privacy.steps or 1) if privacy.by_unit else 0),
        ):
            if most is not None and asked > most:
                yield name, f"at most {most} here, {asks} {asked}"
        if policy.secure_aggregation and not privacy.secure_aggregation:
            yield "secure_aggregation", f"demanded here, {asks} updates in the clear"
        tells = privacy.scores == "summed" or not (privacy.by_unit or privacy.secure_aggregation)
        if not policy.scores and tells:
            yield "scores", "what is counted of held-out documents stays here, and the server asks for it"
        if not policy.floors and told_by_sites(settings):
            yield "floors", "what floors count to stays here, and the server asks for it (federation.floors)"
        if policy.mechanisms is not None and privacy.mechanism not in policy.mechanisms:
            yield "mechanisms", f"{' or '.join(policy.mechanisms)} here, {asks} {privacy.mechanism!r}"
        elif policy.epsilon is not None and privacy.mechanism == "none":
            yield "epsilon", f"at most {policy.epsilon:g} here, and the run has no differential privacy"
        if policy.units is not None and privacy.by_unit and privacy.unit not in policy.units:
            yield "units", f"{' or '.join(policy.units)} here, {asks} {privacy.unit}"
        if policy.delta is not None and privacy.delta is not None and privacy.delta > policy.delta:
            yield "delta", f"at most {policy.delta:g} here, {asks} {privacy.delta:g}"

    def _against_turn(self, order: Order, folder: Path) -> Iterator[tuple[str, str]]:
        policy = self._policy
        if policy.handlers is not None and order.handler not in policy.handlers:
            yield "handlers", f"{', '.join(policy.handlers)} here, and the server asks for {order.handler}"
        if policy.rounds is not None and order.round > policy.rounds:
            yield "rounds", f"at most {policy.rounds} here, and this is round {order.round}"
        if policy.megabytes_up is not None:
            sent = sum(line["bytes"] for line in read_ledger(folder / LEDGER) if line["again"] is None)
            if sent >= policy.megabytes_up * _MEGABYTE:
                told = f"{sent / _MEGABYTE:.4g} have left in this run"
                yield "megabytes_up", f"at most {policy.megabytes_up:g} here, and {told}"
        if policy.hours is not None and (passed := _hours_since_begin(folder)) > policy.hours:
            yield "hours", f"at most {policy.hours:g} here, and the run began {passed:.4g} hours ago"


def fingerprint_of(experiment: Experiment) -> str:
    """Returns the hash of what a client has loaded of a model: embedding and blocks, as they came."""
    model, layout = experiment.model, experiment.model.layout
    model.restore()
    plain = (*layout.embedding, *(name for block in layout.blocks for name in block), *layout.final_norm)
    return model.fingerprint(layout.frozen or plain)


def _hours_since_begin(folder: Path) -> float:
    """Returns for how long a run has gone on here; from now on if this is its first turn."""
    path, now = folder / BEGAN, time.time()
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [json.dumps({"seconds": now}).encode()])
        return 0.0
    return (now - float(json.loads(path.read_bytes())["seconds"])) / 3600

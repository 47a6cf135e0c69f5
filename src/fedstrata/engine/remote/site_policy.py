"""Holds a run against a site's own policy: before the site joins it, and before each of its tasks.

What is wrong is told at the site, with the line of the policy; the server hears that it was refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedstrata.client.turn import Order
from fedstrata.core.errors import (
    ConfigurationError,
    PolicyRefusedError,
    Problem,
    did_you_mean,
    printable,
    refuse,
    refuse_by_policy,
)
from fedstrata.core.handlers import counts_documents, is_scoring
from fedstrata.core.plugins import is_reference
from fedstrata.core.settings.policy import SitePolicy
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import Source, read_source, validate
from fedstrata.core.types import Plan
from fedstrata.engine.floors import told_by_sites
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.remote.joined_runs import JoinedRuns
from fedstrata.methods import METHODS
from fedstrata.record.log import Listener
from fedstrata.wire import frame

_MEGABYTE = 2**20
_REFUSED = "policy_refused"
"""The code of what a line of the policy is against."""


class PolicyGuard:
    """A site's policy, and where each of its lines stands.

    Args:
        policy: The policy; the defaults if none.
        source: Where it was read from.

    Attributes:
        policy: The policy.
    """

    def __init__(self, policy: SitePolicy | None = None, source: Source | None = None) -> None:
        self.policy, self._source = policy or SitePolicy(), source or Source()

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
        refuse([source.problem("methods", message, "unknown_name") for message in told])
        return cls(policy, source)

    def require_method(self, said: Mapping[str, Any]) -> None:
        """Checks the method that the server names, before it is imported.

        Raises:
            PolicyError: The policy does not allow it, and it is none of fedstrata's own.
        """
        section = said.get("method")
        name = section.get("name") if isinstance(section, Mapping) else None
        if isinstance(name, str) and not METHODS.is_own(name):
            refuse_by_policy(self._source.problem(*each, _REFUSED) for each in self._against_method(name))

    def require_settings(self, settings: RunSettings) -> None:
        """Checks a run by what the server says of it, before anything of it is loaded.

        Raises:
            PolicyError: The policy does not allow it; all lines that it is against at once.
        """
        refuse_by_policy(self._source.problem(*each, _REFUSED) for each in self._against(settings))

    def require_experiment(self, experiment: Experiment, client: str) -> None:
        """Checks the model that was loaded, and what its noise spends.

        Raises:
            PolicyError: The policy does not allow it.
        """
        policy, problems = self.policy, []
        if policy.models is not None and (found := fingerprint_of(experiment)) not in policy.models:
            message = f"the model of this run, {found}, is none of those"
            problems.append(Problem("models", message, code=_REFUSED))
        privacy = experiment.privacy
        if policy.epsilon is not None and privacy.mechanism != "none":
            spends = privacy.epsilon(client, privacy.turns)
            if spends is None or spends > policy.epsilon:
                told = "without bound" if spends is None else f"up to {spends:.4g}"
                message = f"at most {policy.epsilon:g} here, and the run spends {told}"
                problems.append(Problem("epsilon", message, code="unbounded" if spends is None else _REFUSED))
        refuse_by_policy(self._source.located(problems))

    def permit(self, order: Order, runs: JoinedRuns, rounds: int, listen: Listener) -> None:
        """Checks a task before anything is computed for it: a handler of the method, scoring, or a sum.

        Args:
            order: What the server asks for, by the name of the handler that would run.
            runs: What the client has counted of its run.
            rounds: The rounds that the server named when this process joined.
            listen: Told which line of the policy is against it.

        Raises:
            PolicyRefusedError: The policy does not allow it; the server hears the message, and no more.
        """
        wrong = next(self._against_task(order, runs, rounds), None)
        if wrong is not None:
            listen("policy_refused", {"message": str(self._source.problem(*wrong, _REFUSED))})
            raise PolicyRefusedError("this site's policy does not allow it; nothing was computed")

    def _against(self, settings: RunSettings) -> Iterator[tuple[str, str]]:
        """Yields the lines of the policy that settings are against, and why."""
        policy, privacy, training = self.policy, settings.privacy, settings.training
        asks = "and the server asks for"
        yield from self._against_method(settings.method["name"])
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
        if privacy.noise == "seeded":  # which the server can draw again, and subtract
            for name in ("mechanisms", "epsilon"):
                if getattr(policy, name) is not None:
                    yield name, f"noise that protects is demanded here, {asks} privacy.noise: seeded"

    def _against_method(self, name: str) -> Iterator[tuple[str, str]]:
        allowed = self.policy.methods
        if allowed is not None and name not in allowed:
            yield "methods", f"{', '.join(allowed)} here, and the server asks for {printable(name)}"

    def _against_task(self, order: Order, runs: JoinedRuns, agreed: int) -> Iterator[tuple[str, str]]:
        """Yields the lines that a task is against, and why; the first task starts the clock of `hours`."""
        policy, handler = self.policy, order.handler
        counts = counts_documents(handler)
        of_method = not counts and not is_scoring(handler)
        if of_method and policy.handlers is not None and handler not in policy.handlers:
            yield "handlers", f"{', '.join(policy.handlers)} here, and the server asks for {handler}"
        most = agreed if policy.rounds is None else min(policy.rounds, agreed)
        if not (0 if counts else 1) <= order.round <= most:
            yield "rounds", f"at most {most} here, and this is round {order.round}"
        if policy.megabytes_up is not None and (sent := runs.sent()) >= policy.megabytes_up * _MEGABYTE:
            told = f"{sent / _MEGABYTE:.4g} have left in this run"
            yield "megabytes_up", f"at most {policy.megabytes_up:g} here, and {told}"
        passed = runs.hours()
        if policy.hours is not None and passed > policy.hours:
            yield "hours", f"at most {policy.hours:g} here, and the run began {passed:.4g} hours ago"
        if counts and not runs.may_score(order.round, _what_is_scored(order), policy.scorings):
            yield "scorings", f"at most {policy.scorings} a round here, and the server asks for another"


def _what_is_scored(order: Order) -> str:
    """Returns the hash by which scorings of a round differ: the part of the split, and what is shared.

    A request that is repeated has the same, also where it is repeated under masks, or without.
    """
    plan = frame.decode(order.plan, Plan)
    values = {name: plan.values.get(name) for name in ("part", "final")}
    return frame.encode(Plan(plan.tensors, values)).sha256()


def fingerprint_of(experiment: Experiment) -> str:
    """Returns the hash of what a client has loaded of a model: embedding and blocks, as they came."""
    model, layout = experiment.model, experiment.model.layout
    model.restore()
    plain = (*layout.embedding, *(name for block in layout.blocks for name in block), *layout.final_norm)
    return model.fingerprint(layout.frozen or plain)

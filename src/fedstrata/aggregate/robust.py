"""Means that a few hostile clients cannot move at will.

All rules work on the changes x_i = update_i - plan of a round's n clients, of which f may be hostile:

- median: of every coordinate; of an even number, the mean of the middle two (Yin et al. 2018, "Byzantine-
  Robust Distributed Learning", Definition 1).
- trimmed_mean: the mean of every coordinate without its f smallest and f largest values (the same,
  Definition 2).
- krum: the change with the least score, the sum of its squared distances to its n - f - 2 nearest others
  (Blanchard et al. 2017, "Machine Learning with Adversaries", section 3).
- multi_krum: the mean of the m changes with the least scores (the same, section 5); m = n - f by default.
- norm_clipping: each change scaled down to a multiple of the running median of the norms of past rounds'
  clipped changes, then the mean (Sun et al. 2019, "Can You Really Backdoor Federated Learning?", with a
  limit that follows the training).
- cosine: the mean of the changes whose cosine with the sum of all x_i / |x_i| reaches a threshold.

Median, trimmed mean and Krum are unweighted, as published: a weight is one more thing to lie about. The other
three weigh by n_k. A change that is not finite is left out, and counts as one of the f.

Order statistics need every value of a coordinate. All other rules are weighted sums whose weights follow from
the Gram matrix <x_i, x_j>, which is added up slice by slice in float64: two passes over the changes, and no
more of them in memory than `fedstrata.aggregate.changes` allows.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedstrata.aggregate import rules
from fedstrata.aggregate.changes import Changes, add
from fedstrata.aggregate.rules import RobustRule
from fedstrata.core.cohort import Cohort
from fedstrata.core.errors import TrainingError
from fedstrata.core.types import JSON, Plan, State, Tensors

FACTS = "aggregation"
"""Where the state's values say what the rule did in the last round, and what it remembers."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a round's changes become one.

    In facts, names of clients are keys or in lists: an export of the run replaces them there.

    Attributes:
        weights: Of each change in a sum, (clients,) float64; none where every coordinate is looked at.
        trimmed: How many values of a coordinate are left out at either end, where there are no weights.
        facts: What is to be recorded, small.
    """

    weights: np.ndarray | None = None
    trimmed: int = 0
    facts: Mapping[str, JSON] = field(default_factory=dict)


def robust_average(state: State, cohort: Cohort, rule: RobustRule) -> State:
    """FedAvg's server half with another rule in place of the mean.

    The new state's `aggregation` value says how many updates there were and which clients were not finite,
    chosen (krum), left out (multi_krum, cosine) or clipped, and holds what norm clipping remembers. It is not
    sent to clients.

    Raises:
        TrainingError: Too few updates arrived for the rule, or they do not hold the tensors that were sent.
    """
    values = {name: value for name, value in state.values.items() if name != FACTS}
    plan = Plan(state.tensors, values)
    change, facts, _ = robust_change(state.tensors, plan, cohort, rule, state.values)
    return State(add(state.tensors, change), {**values, FACTS: facts})


def robust_change(
    base: Tensors, plan: Plan, cohort: Cohort, rule: RobustRule, past: Mapping[str, JSON]
) -> tuple[dict[str, Tensor], dict[str, JSON], float]:
    """Lets the clients of a round train, and makes one change of what they send.

    Args:
        base: What a client would send that changed nothing.
        plan: What every client is sent.
        cohort: The clients of the round.
        rule: The rule.
        past: The values of the state before, among which are the facts of the last round, if there was one.

    Returns:
        The merged change of each tensor, flattened, float32; the facts, which are recorded and given to the
        next round; and the median of the clients' training losses: the mean would trust them all.

    Raises:
        TrainingError: Too few updates arrived for the rule, or they do not hold the tensors of `base`.
    """
    losses = []
    with Changes(base, rule.memory_gigabytes * 1e9) as changes:
        for client, update in cohort.each("train", lambda _: plan):
            changes.add(client.id, update)
            losses.append(float(cast("float", update.values.get("loss", math.nan))))
        hostile = _remaining_hostile(changes, rule, len(cohort.clients))
        verdict = judge(changes, rule, hostile, cast("Mapping[str, JSON]", past.get(FACTS, {})))
        merged = {name: torch.empty(tensor.numel()) for name, tensor in base.items()}
        for name, where, rows in changes.slices():
            if verdict.weights is None:
                merged[name][where] = trimmed_mean(rows, verdict.trimmed)
            else:
                merged[name][where] = (torch.from_numpy(verdict.weights) @ rows.double()).float()
    not_finite = cast("list[JSON]", sorted(changes.not_finite))
    facts = {"updates": len(losses), "not_finite": not_finite, **verdict.facts}
    return merged, facts, statistics.median(losses)


def _remaining_hostile(changes: Changes, rule: RobustRule, clients: int) -> int:
    """Returns f less those who are found out already; refuses a round that the rule cannot judge."""
    hostile, found = rule.hostile_among(clients), len(changes.not_finite)
    left, arrived = len(changes.clients), len(changes.clients) + len(changes.not_finite)
    told = f" with f = {hostile}" if hostile else ""
    if arrived < rule.needed(clients):
        raise TrainingError(
            f"{arrived} of a round's {clients} updates arrived; {rule.rule} needs {rule.condition}{told}: "
            f"set federation.min_clients to {rule.needed(clients)} or more, or another method.aggregation",
            code="clients_lost",
        )
    counting = isinstance(rule, rules.CountingRule)
    needed = rule.needed(clients) - 2 * min(found, hostile) if counting else 1
    if left < needed:
        raise TrainingError(
            f"{found} of {arrived} updates were not finite; {rule.rule}{told} cannot judge the other {left}",
            code="not_finite",
        )
    return max(0, hostile - found)


def judge(changes: Changes, rule: RobustRule, hostile: int, past: Mapping[str, JSON]) -> Verdict:
    """Decides how a round's changes become one.

    Args:
        changes: The changes, all finite.
        rule: The rule.
        hostile: f, the hostile clients among them.
        past: The facts of the round before; empty at first.
    """
    clients = changes.clients
    if isinstance(rule, rules.MedianRule):
        return Verdict(trimmed=(len(clients) - 1) // 2)
    if isinstance(rule, rules.TrimmedMeanRule):
        return Verdict(trimmed=hostile)
    products = gram_matrix(changes)
    counts = np.array([changes.weights[client] for client in clients])
    if isinstance(rule, rules.KrumRule):
        best = int(np.argmin(krum_scores(products, hostile)))
        return Verdict(np.eye(len(clients))[best], facts={"chosen": [clients[best]]})
    if isinstance(rule, rules.MultiKrumRule):
        most = len(clients) - hostile
        ranks = np.argsort(krum_scores(products, hostile), kind="stable")
        kept = np.isin(np.arange(len(clients)), ranks[: min(rule.keep or most, most)])
        return _mean_of_kept(clients, counts, kept)
    if isinstance(rule, rules.CosineRule):
        return _mean_of_kept(clients, counts, cosines(products) >= rule.threshold)
    if isinstance(rule, rules.NormClippingRule):
        return _clipped(clients, counts, np.sqrt(np.diag(products)), rule, past)
    raise TypeError(f"no robust rule is called {rule.rule!r}")


def trimmed_mean(rows: Tensor, trimmed: int) -> Tensor:
    """Returns the mean of every coordinate without its smallest and largest values.

    Args:
        rows: (clients, numbers) float32.
        trimmed: How many values are left out at either end, fewer than half.

    Returns:
        (numbers,) float32; within the range of the values it is the mean of.
    """
    if trimmed:  # numpy sorts short columns several times faster than torch
        rows = torch.from_numpy(np.sort(rows.numpy(), axis=0)[trimmed : len(rows) - trimmed])
    return rows.double().mean(dim=0).float()


def gram_matrix(changes: Changes) -> np.ndarray:
    """Returns the products <x_i, x_j> of all pairs of changes, (clients, clients) float64."""
    products = torch.zeros(len(changes.clients), len(changes.clients), dtype=torch.float64)
    for _, _, rows in changes.slices():
        exact = rows.double()
        products += exact @ exact.T
    return ((products + products.T) / 2).numpy()  # symmetric to the last bit, so that ties are ties


def krum_scores(products: np.ndarray, hostile: int) -> np.ndarray:
    """Returns each change's sum of squared distances to its n - f - 2 nearest others.

    Args:
        products: The Gram matrix, (clients, clients) float64.
        hostile: f.

    Returns:
        (clients,) float64.
    """
    norms = np.diag(products)
    distances = np.maximum(norms[:, None] + norms[None, :] - 2 * products, 0.0)
    np.fill_diagonal(distances, np.inf)  # nobody is its own neighbour
    nearest = max(1, len(products) - hostile - 2)
    scores: np.ndarray = np.sort(distances, axis=1)[:, :nearest].sum(axis=1)
    return scores


def cosines(products: np.ndarray) -> np.ndarray:
    """Returns the cosine of each change with the sum of all changes at length 1; 0 for one of length 0.

    Args:
        products: The Gram matrix, (clients, clients) float64.

    Returns:
        (clients,) float64.
    """
    norms = np.sqrt(np.diag(products))
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    between = inverse[:, None] * products * inverse[None, :]
    length = math.sqrt(max(0.0, float(between.sum())))
    with_sum: np.ndarray = between.sum(axis=1) / length if length > 0 else np.zeros_like(norms)
    return with_sum


def _mean_of_kept(clients: list[str], counts: np.ndarray, kept: np.ndarray) -> Verdict:
    """Returns the mean, weighted by n_k, of some changes; of none, no change."""
    weights = np.where(kept, counts, 0.0)
    left_out: list[JSON] = [client for client, stays in zip(clients, kept, strict=True) if not stays]
    return Verdict(weights / max(weights.sum(), counts.min()), facts={"left_out": left_out})


def _clipped(
    clients: list[str],
    counts: np.ndarray,
    norms: np.ndarray,
    rule: rules.NormClippingRule,
    past: Mapping[str, JSON],
) -> Verdict:
    """Returns the mean, weighted by n_k, of changes that are scaled down to a limit.

    Of every round the median of the clipped norms is remembered, so that what is remembered is small and
    nobody can raise the limit by more than `multiple` a round. In the first round its own median counts.
    """
    medians = cast("list[float]", list(cast("list[JSON]", past.get("medians", []))))
    limit = rule.multiple * float(np.median(medians or norms))
    factors = np.divide(limit, norms, out=np.ones_like(norms), where=norms > limit)
    median = float(np.median(norms * factors))
    if median > 0:  # a round in which most changed nothing must not stop all later ones
        medians = [*medians, median][-rule.rounds :]
    clipped: dict[str, JSON] = {
        client: float(factor) for client, factor in zip(clients, factors, strict=True) if factor < 1
    }
    facts: dict[str, JSON] = {"limit": limit, "clipped": clipped, "medians": cast("list[JSON]", medians)}
    return Verdict(factors * counts / counts.sum(), facts=facts)

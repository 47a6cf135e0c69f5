"""What a membership audit found, in words, as a table and as JSON; and what it does not prove."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fedstrata.auditing.membership import REFERENCE, Falsified, Membership, Shown
from fedstrata.privacy.attacks.audit import FALSE_BY_HALF, Bound
from fedstrata.privacy.attacks.rates import CONFIDENCE, FALSE_POSITIVES, Estimate, Rates
from fedstrata.privacy.mechanism import ADJACENCY
from fedstrata.record.findings import Finding, FindingTable
from fedstrata.record.words import ABSENT, duration, plural

DECISIVE = "one_run_gaussian"
"""The bound that decides, named before any run."""
BOUNDS = (DECISIVE, "one_run", "clopper_pearson")
"""The bounds, the one that decides first."""
COLUMNS = (
    "score",
    "bound",
    "epsilon\nat least",
    "had it\nnever erred",
    "ideal, were\nit false",
    "refuted\nthen",
)
"""The columns of the table of bounds: what was found, and the last two by the power of an ideal attacker."""
TITLE = "epsilon, by what leaves the clients; the first row decides"
"""The title of the table of bounds."""
RATE_COLUMNS = (
    "score",
    "noise",
    "area under\nthe curve",
    *(f"found at\n{100 * share:g} % false" for share in FALSE_POSITIVES),
    "epsilon\nat least",
    "refuted",
)
"""The columns of the table of scores; the last two by the bound that decides."""
RATE_TITLE = f"who was trained on, by each score; {100 * CONFIDENCE:g} % intervals"
"""The title of the table of scores."""
SEES = {
    "updates": "every update",
    "losses": "the first and the last model",
    "threshold": "the last model",
    "lira": "the last model and shadow runs",
}
"""What whoever scores has to see, by score."""


def facts_of(found: Membership) -> dict[str, Any]:
    """Returns all that was found, for JSON; scores and coins of single canaries are left out."""
    claim = found.decisive.claim
    return {
        **found.attacked,
        "canaries": found.decisive.canaries,
        "included": found.decisive.included,
        "clients": list(found.clients),
        "unit": found.unit or None,
        "adjacency": ADJACENCY if found.unit else None,
        "claim": {"epsilon": found.epsilon, "delta": claim.delta},
        "confidence": claim.confidence,
        "decides": {"score": found.score, "bound": DECISIVE, "epsilon": bound_of(found).epsilon},
        "refuted": _refutes(found, found.shown, found.score),
        **_shown_facts(found.shown),
        "shadows": found.shadows,
        "power": asdict(found.power) if found.power else None,
        "falsified": _falsified_facts(found),
        "units_raised_by": found.factor,
        "updates": found.updates,
        "coordinates": found.share,
        "seconds": found.seconds,
    }


def _shown_facts(shown: Shown) -> dict[str, Any]:
    """Returns what scores show, by score."""
    return {
        "bounds": {
            name: {each: asdict(getattr(audit, each)) for each in BOUNDS}
            for name, audit in shown.audits.items()
        },
        "rates": {name: rates and asdict(rates) for name, rates in shown.rates.items()},
    }


def _falsified_facts(found: Membership) -> dict[str, Any] | None:
    """Returns what scores would have found, were the claim false."""
    if (own := found.falsified) is None:
        return None
    refuted = {name: _refutes(found, own.shown, name) for name in own.shown.audits}
    facts = {"falsity": own.falsity, "epsilon": own.epsilon, "sigma": own.sigma, "refuted": refuted}
    return {**facts, **_shown_facts(own.shown)}


def bound_of(found: Membership) -> Bound:
    """Returns the bound that decides."""
    return _bound(found.shown, found.score)


def _bound(shown: Shown, score: str) -> Bound:
    bound: Bound = getattr(shown.audits[score], DECISIVE)
    return bound


def _refutes(found: Membership, shown: Shown, score: str) -> bool | None:
    """Returns whether a score refutes the claim; none without one."""
    return None if found.epsilon is None else _bound(shown, score).epsilon > found.epsilon


def words_of(found: Membership) -> Iterator[str]:
    """Yields in sentences what was attacked, what was found, and what that proves."""
    audit, claim, bound = found.decisive, found.decisive.claim, bound_of(found).epsilon
    sure = f"{100 * claim.confidence:g} %"
    yield (
        f"{audit.canaries:,} canaries at {', '.join(found.clients)}, of whom coins let "
        f"{audit.included} be trained on; {plural(found.updates, 'update')} seen in {duration(found.seconds)}"
    )
    if found.factor > 1:
        yield (
            f"declared units and privacy.expected_batch are {found.factor} times those of the configuration: "
            "chances and noise are the same, and each patient moves the model by so much less"
        )
    if found.share < 1.0:
        share = f"{100 * found.share:.2g} %"
        yield f"updates: canaries are told apart by {share} of the coordinates, a weaker attack"
    for name in _in_order(found):
        yield f"{name} (sees {SEES[name]}): {_told(found.shown.rates[name])}"
    if found.epsilon is None:
        yield "claim: none; nothing is claimed of a run without noise"
        yield (
            f"found: what leaves shows as much of a canary as the Gaussian mechanism of epsilon {bound:.2f} "
            f"at delta {claim.delta:g}, or more, with confidence {sure}"
        )
        yield "a small number here proves no privacy: a better attack may find more"
        return
    yield (
        f"claim: epsilon {found.epsilon:.3g} at delta {claim.delta:g}, by {found.unit} ({ADJACENCY}), of "
        "what these clients have spent at most, by the accountant"
    )
    yield f"found: epsilon is at least {bound:.2f}, with confidence {sure} (score {found.score}, {DECISIVE})"
    yield from _verdict(found, bound)


def _verdict(found: Membership, bound: float) -> Iterator[str]:
    assert found.epsilon is not None and found.power is not None  # noqa: S101 - there is a claim
    expected = getattr(found.power, DECISIVE)
    if bound > found.epsilon:
        sure = f"{100 * (1 - found.decisive.claim.confidence):.0f} in 100"
        yield (
            "this is more than is claimed: the mechanism does not hold what the accountant says of it, or "
            f"this is one of the {sure} runs in which a true claim is refuted; repeat it with another seed"
        )
        if found.decisive.one_run.epsilon <= found.epsilon:
            yield "one_run, which assumes no Gaussian trade-off, does not refute it"
    else:
        yield (
            "the claim is not refuted, which does not prove it: this is one attack on one run, with one kind "
            "of patients, and epsilon is a bound over all of them"
        )
    yield (
        f"power: were {found.power.epsilon:.3g} true, {FALSE_BY_HALF:g} times the claim, an attacker who "
        f"sees each canary's own noise would refute it in {100 * expected.found:.0f} % of runs, and find "
        f"{expected.median:.2f} in the median; whoever sees updates finds less"
    )
    if found.falsified:
        yield from _were_it_false(found, found.falsified)


def _were_it_false(found: Membership, falsified: Falsified) -> Iterator[str]:
    """Yields what each score would have found, and whether that would have been enough."""
    case = "were the noise forgotten"
    if falsified.epsilon is not None:
        case = f"were the claim false by half (noise of epsilon {falsified.epsilon:.3g})"
    for name in _in_order(found):
        refuted = "yes" if _refutes(found, falsified.shown, name) else "no"
        bound = _bound(falsified.shown, name).epsilon
        yield f"{case}, score {name} would have found {bound:.2f} (refuted: {refuted}); tried in one run"


def _in_order(found: Membership) -> list[str]:
    """Returns the names of the scores, the one that decides first."""
    return sorted(found.shown.audits, key=lambda name: name != found.score)


def _told(rates: Rates | None) -> str:
    """Returns in words how well a score tells apart."""
    if rates is None:
        return "canaries were all trained on, or all left out, but for one at most: nothing to tell apart"
    finds = ", ".join(
        f"{_estimated(own, 100)} % at {100 * share:g} % false positives" for share, own in rates.found.items()
    )
    area = f"area under the curve {_estimated(rates.auc)}"
    return f"{area}; finds, of those trained on, {finds}; {100 * CONFIDENCE:g} % intervals in brackets"


def _estimated(estimate: Estimate, times: float = 1.0) -> str:
    """Returns a figure and its interval, in whole numbers or to two decimals."""
    value, low, high = (
        f"{times * each:.{0 if times > 1 else 2}f}" for each in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low} to {high})"


def rate_rows_of(found: Membership) -> Iterator[tuple[str, ...]]:
    """Yields the rows of the table of scores, the one that decides first: as claimed, then as falsified."""
    runs = [("as set", found.shown)]
    if found.falsified:
        own = found.falsified
        runs.append(("none" if own.epsilon is None else f"of epsilon {own.epsilon:.3g}", own.shown))
    for noise, shown in runs:
        for name in _in_order(found):
            rates, refuted = shown.rates[name], _refutes(found, shown, name)
            told = [ABSENT] * (1 + len(FALSE_POSITIVES))
            if rates is not None:
                told = [_estimated(rates.auc), *(f"{_estimated(own, 100)} %" for own in rates.found.values())]
            verdict = ABSENT if refuted is None else "yes" if refuted else "no"
            yield name, noise, *told, f"{_bound(shown, name).epsilon:.2f}", verdict


def rows_of(found: Membership) -> Iterator[tuple[str, ...]]:
    """Yields the rows of the table of bounds, the one that decides first."""
    for name in _in_order(found):
        for each in BOUNDS:
            bound: Bound = getattr(found.shown.audits[name], each)
            expected = getattr(found.power, each) if found.power else None
            told = (f"{expected.median:.2f}", f"{100 * expected.found:.0f} %") if expected else (ABSENT,) * 2
            yield name, each, f"{bound.epsilon:.2f}", f"{bound.most:.2f}", *told


def finding_of(found: Membership) -> Finding:
    """Returns what was found in the form that all attacks have."""
    says = list(words_of(found))
    if not found.epsilon:
        says.append(f"guesses are planned for a claim of epsilon {REFERENCE.epsilon:g}")
    tables = [
        FindingTable(TITLE, COLUMNS, list(rows_of(found))),
        FindingTable(RATE_TITLE, RATE_COLUMNS, list(rate_rows_of(found))),
    ]
    each = {name: own.tolist() for name, own in found.shown.scores.items()}
    details = {"of_each": {"included": found.included.tolist(), **each}}
    return Finding("membership", tables, says, facts_of(found), details=details)

"""What a membership audit found, in words, as a table and as JSON; and what it does not prove."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedstrata.auditing.membership import REFERENCE, Membership
from fedstrata.core.files import write_atomically
from fedstrata.privacy.attacks.audit import FALSE_BY_HALF, Bound
from fedstrata.privacy.mechanism import ADJACENCY
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
    "were the\nclaim false",
    "refuted\nthen",
)
"""The columns of the table: what was found, and the last two by the power."""
TITLE = "epsilon, by what leaves the clients; the first row decides"
"""The title of the table."""


def facts_of(found: Membership) -> dict[str, Any]:
    """Returns all that was found, for JSON; scores and coins of single canaries are left out."""
    claim = found.decisive.claim
    return {
        "canaries": found.decisive.canaries,
        "included": found.decisive.included,
        "clients": list(found.clients),
        "unit": found.unit or None,
        "adjacency": ADJACENCY if found.unit else None,
        "claim": {"epsilon": found.epsilon, "delta": claim.delta},
        "confidence": claim.confidence,
        "decides": {"score": found.score, "bound": DECISIVE, "epsilon": bound_of(found).epsilon},
        "refuted": None if found.epsilon is None else bound_of(found).epsilon > found.epsilon,
        "bounds": {
            name: {each: asdict(getattr(audit, each)) for each in BOUNDS}
            for name, audit in found.audits.items()
        },
        "power": asdict(found.power) if found.power else None,
        "units_raised_by": found.factor,
        "updates": found.updates,
        "coordinates": found.share,
        "seconds": found.seconds,
        "says": list(words_of(found)),
    }


def bound_of(found: Membership) -> Bound:
    """Returns the bound that decides."""
    bound: Bound = getattr(found.decisive, DECISIVE)
    return bound


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
        yield f"canaries are told apart by {100 * found.share:.2g} % of the coordinates: a weaker attack"
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


def rows_of(found: Membership) -> Iterator[tuple[str, ...]]:
    """Yields the rows of the table, the bound that decides first."""
    for name in sorted(found.audits, key=lambda each: each != found.score):
        for each in BOUNDS:
            bound: Bound = getattr(found.audits[name], each)
            expected = getattr(found.power, each) if found.power else None
            told = (f"{expected.median:.2f}", f"{100 * expected.found:.0f} %") if expected else (ABSENT,) * 2
            yield name, each, f"{bound.epsilon:.2f}", f"{bound.most:.2f}", *told


def write_membership(found: Membership, folder: Path) -> None:
    """Writes `membership.json`, single canaries with it, and `membership.md`; each complete or not at all."""
    facts = facts_of(found)
    facts["of_each"] = {
        "included": found.included.tolist(),
        **{name: own.tolist() for name, own in found.scores.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "membership.json", [(json.dumps(facts, allow_nan=False) + "\n").encode()])
    write_atomically(folder / "membership.md", [markdown(found).encode()])


def markdown(found: Membership) -> str:
    """Returns what was found as a page."""
    headings = [heading.replace("\n", " ") for heading in COLUMNS]
    table = ["| " + " | ".join(row) + " |" for row in (headings, *rows_of(found))]
    table.insert(1, "|---|---|" + "---:|" * (len(COLUMNS) - 2))
    planned = (
        f"Guesses are planned for a claim of epsilon {REFERENCE.epsilon:g}." if not found.epsilon else ""
    )
    says = "".join(f"- {line}\n" for line in words_of(found))
    return (
        "# Membership audit\n\n"
        + says
        + f"\n{TITLE}:\n\n"
        + "\n".join(table)
        + "\n"
        + (planned and f"\n{planned}\n")
    )

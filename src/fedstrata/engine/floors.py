"""Floors beside the score that a run is judged by: made within each site, and joined as scores are.

A site's own training documents answer its own test documents (`Task.floors`), in a simulation as in processes
of their own, and what was counted adds up. Held-out sites have no training documents, and no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedstrata.client.site import Site
from fedstrata.core.documents import Document
from fedstrata.core.floors import UNTRAINED
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.task import Task
from fedstrata.core.types import Tally
from fedstrata.engine.prepare import Experiment
from fedstrata.metrics.counts import added

LEAST = 5
"""Of fewer documents or annotations no floor leaves a site."""
_COUNTED = ("spans", "relations", "labels")


def told_by_sites(settings: RunSettings) -> bool:
    """Whether sites elsewhere tell what floors count to: with nothing that protects what was trained on."""
    private = settings.privacy
    return settings.federation.floors and private.mechanism == "none" and not private.secure_aggregation


def has_untrained(settings: RunSettings, task: Task) -> bool:
    """Whether a run scores the model as it was before its first round: not where answers are written.

    That takes as long as the last scores, and a model that has not learnt to end writes to its limit.
    """
    return settings.federation.rounds > 0 and not task.generates


def floors_of(site: Site, documents: Sequence[Document]) -> dict[str, Tally]:
    """Returns what the task's floors count to on a site's documents; nothing of a site that does not train.

    Args:
        site: The site.
        documents: Those of its documents that are scored.
    """
    task, train = site.task, site.documents.train
    if not (train and documents):
        return {}
    answers = task.floors(train, documents, site.tokenizer)
    return {name: task.counted(documents, own) for name, own in answers.items()}


def may_leave(site: Site, documents: Sequence[Document]) -> bool:
    """Whether floors on these documents of a site are made of enough to leave it."""
    task = site.task
    known = [task.known(document) for document in documents]
    kinds = [kind for kind in task.finds if kind in _COUNTED]
    annotated = [sum(len(getattr(document, kind)) for document in known) for kind in kinds]
    return min(len(documents), len(site.documents.train), *annotated) >= LEAST


def leaving(task: Task, metric: str, tally: Tally) -> Tally | None:
    """Returns what of a floor's counts leaves a site; none where a count that has to is a small one.

    Only what the score is made of leaves it, which a tally of other numbers shows: counts of single types do
    not where the score is one over all of them.

    Args:
        task: The task.
        metric: The score that the floor is of.
        tally: What the floor counts to on the site's documents.
    """
    probe = {name: LEAST * place + 1.0 for place, name in enumerate(sorted(tally), start=2)}
    score = _judged(task, metric, probe)
    if score is None:  # it does not add up
        return None
    kept = {name: value for name, value in probe.items() if "/" not in name}
    if _judged(task, metric, kept) != score:
        kept = probe  # the score is made of those of types or labels
    else:
        for name in list(kept):
            without = {other: value for other, value in kept.items() if other != name}
            if _judged(task, metric, without) == score:
                kept = without
    counts = [tally[name] for name in kept if float(tally[name]).is_integer()]
    return None if any(0 < count < LEAST for count in counts) else {name: tally[name] for name in kept}


def _judged(task: Task, metric: str, tally: Tally) -> float | None:
    """Returns the score of counts; none if they make none."""
    try:
        return task.scored(tally, {}).get(metric)
    except (ArithmeticError, LookupError, ValueError):
        return None


def withheld(tallies: Mapping[str, Mapping[str, Tally | None]]) -> list[str]:
    """Returns the floors that some site keeps to itself, sorted.

    Those of the other sites alone would mislead: whether one leaves a site depends on how good it is there.
    """
    return sorted({name for own in tallies.values() for name, tally in own.items() if tally is None})


def joined(
    task: Task, metric: str, tallies: Mapping[str, Mapping[str, Tally | None]], documents: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Returns the floors that sites have counted.

    Args:
        task: The task.
        metric: The score of which they are.
        tallies: What each floor of each site counts to, by site and by floor; none of one that is withheld.
        documents: How many documents that is of, by site.

    Returns:
        By floor `global`, the score over all documents of the sites that have it; `mean_client`, the mean of
        the sites' own; and `documents`, their number. A score that does not add up has no floor, and one that
        a site withholds is not there.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in (*task.floor_names, UNTRAINED):
        every = {site: floors[name] for site, floors in tallies.items() if name in floors}
        own = {site: tally for site, tally in every.items() if tally is not None}
        if not own or len(own) < len(every):
            continue
        over_all = task.scored(added(own.values()), {}).get(metric)
        each = [score for tally in own.values() if (score := task.scored(tally, {}).get(metric)) is not None]
        if over_all is not None:
            counted = sum(documents[site] for site in own)
            found[name] = {"global": over_all, "mean_client": fmean(each), "documents": counted}
    return found


def simulated(
    experiment: Experiment,
    sites: Sequence[Site],
    untrained: Callable[[], Mapping[str, Tally]],
) -> dict[str, dict[str, Any]]:
    """Returns the floors of a simulation's test scores; see `joined`.

    Args:
        experiment: What is run.
        sites: All its sites.
        untrained: Returns what the model as it was at first counts to on each site's documents.
    """
    settings, task = experiment.settings, experiment.task
    if not settings.federation.floors:
        return {}
    scored = {site.id: site.scored("test") for site in sites}
    tallies = {site.id: floors_of(site, scored[site.id]) for site in sites}
    if has_untrained(settings, task):
        for name, tally in untrained().items():
            tallies[name][UNTRAINED] = tally
    return joined(
        task, experiment.metric, tallies, {name: len(documents) for name, documents in scored.items()}
    )

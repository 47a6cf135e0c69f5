"""The clients of a run: which there are, and who of them is corrupt or drops out."""

import hashlib
from collections.abc import Sequence

from fedstrata.client.site import Corruption, Site
from fedstrata.core.documents import Document
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.federation import DATA_CORRUPTIONS, CorruptSettings, share_of
from fedstrata.data.choices import choices_of
from fedstrata.data.split import PARTS, Split
from fedstrata.engine.prepare import Experiment


def sites_of(experiment: Experiment) -> tuple[list[Site], list[Site]]:
    """Returns all sites, and the clients that train: those not held out, or one that holds everything."""
    task, tokenizer = experiment.task, experiment.model.tokenizer
    names = [name for name, data in experiment.clients.items() if data.train]
    settings, pooled = experiment.settings.federation.corrupt, experiment.method.pooled
    corrupt = corrupt_clients(names, settings, experiment.seed.child("corrupt"))
    if pooled and settings.kind not in DATA_CORRUPTIONS:
        corrupt = {}  # nobody sends an update
    privacy = experiment.settings.privacy
    unit, units = privacy.unit if privacy.by_unit else "", privacy.units or {}
    sites = [
        Site(name, data, task, tokenizer, corrupt.get(name), unit=unit, declared=units.get(name, 0))
        for name, data in experiment.clients.items()
    ]
    clients = [site for site in sites if site.documents.train]
    return sites, [_pool(clients)] if pooled else clients


def _pool(sites: list[Site]) -> Site:
    """Returns one client that holds all training documents; scores stay those of the sites."""
    documents = tuple(document for site in sites for document in site.documents.train)
    first, declared = sites[0], sum(site.declared for site in sites)
    return Site("pooled", Split(train=documents), first.task, first.tokenizer, parts=sites, declared=declared)


def corrupt_clients(clients: Sequence[str], settings: CorruptSettings, rng: Seed) -> dict[str, Corruption]:
    """Returns the corrupt clients: those that are named, or as many as are drawn.

    Those that are drawn are the same for every kind, and a client that is corrupt at one share also is at
    every greater one.

    Args:
        clients: All clients that train.
        settings: How many, and what is wrong with them.
        rng: Seed of the draw.

    Returns:
        What is wrong with each corrupt client, by its name, in the order of the clients.
    """
    if settings.clients is not None:
        corrupt = [client for client in clients if client in settings.clients]
    else:
        count = share_of(settings.share, len(clients))
        drawn = sorted(rng.numpy().permutation(len(clients))[:count].tolist())
        corrupt = [clients[index] for index in drawn]
    return {client: Corruption(settings, rng.child(client)) for client in corrupt}


def drop_outs(experiment: Experiment, number: int, clients: Sequence[str]) -> frozenset[str]:
    """Draws the clients that drop out of a round, each by itself; pooled data has no client to lose.

    A client that drops out at one chance also does at every greater one.

    Args:
        experiment: What is run.
        number: The round.
        clients: The clients of the round.
    """
    chance = 0.0 if experiment.method.pooled else experiment.settings.federation.dropout
    rng = experiment.seed.child("round", number, "dropout")
    return frozenset(client for client in clients if rng.child(client).numpy().random() < chance)


def fingerprint(sites: Sequence[Site], server: Sequence[Document], *, patients: bool) -> str:
    """Returns a hash of all documents, their annotations, whose they are and their splits.

    Args:
        sites: All sites.
        server: The server's own documents.
        patients: Whether patients are part of it, beyond the split that is made by them. Runs are as old as
            their data: only where something asks for them, so that runs of before can go on.
    """
    digest = hashlib.sha256()
    parts = ((site.id, part, getattr(site.documents, part)) for site in sites for part in PARTS)
    owned = [(owner, part, document) for owner, part, documents in parts for document in documents]
    task = sites[0].task
    for owner, part, document in [*owned, *(("", "server", document) for document in server)]:
        facts = (owner, part, document.id, *document.texts, document.spans, document.labels)
        learnt = task.known(document).relations  # and no others: runs are as old as their data
        told = () if task.scorable(document) else ("not scored",)
        if document.annotates is not None:
            told += tuple(sorted(document.annotates))
        named = (document.site, document.patient) if patients else ()
        digest.update(repr((*facts, *learnt, *choices_of(document).items(), *told, *named)).encode())
    return digest.hexdigest()

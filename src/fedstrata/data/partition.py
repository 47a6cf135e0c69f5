"""How documents come to clients: by site, or by an artificial division of the federated learning literature.

Documents are divided after they were split into training, validation and test, and each part by the same
client shares: what a client is tested on comes from the distribution it was trained on. Nothing here depends
on the order of the input.

- `site`: a client is a site (hospital).
- `iid`: equal numbers at random.
- `dirichlet`: label skew. For each label, client shares are drawn from a symmetric Dirichlet distribution and
  the documents of that label are divided by them (Yurochkin et al., "Bayesian Nonparametric Federated
  Learning of Neural Networks", ICML 2019; Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022).
  A document's label is its dominant one.
- `dirichlet_equal`: label skew with clients of equal size, as in FedNLP and DropPEFT; see
  `fedstrata.data.label_mixtures`.
- `quantity`: quantity skew. One draw of client shares divides all documents (Li et al.).
- `tokens`: FedTLU's rule for language modelling, a budget of words for every client; see
  `fedstrata.data.word_budget`. Validation and test documents are dealt in equal numbers.
- `speciality`: the rule of Layer-Skipping Federated Learning: documents lean to the client of their dominant
  entity type or speciality.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from fedstrata.core.documents import Document
from fedstrata.core.errors import refused
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.partition import PartitionSettings
from fedstrata.data.label_mixtures import deal_equally
from fedstrata.data.split import PARTS, Split
from fedstrata.data.word_budget import by_words

DRAWS = 100
"""How often a random division is drawn before a client without training documents is an error."""

Parts: TypeAlias = "Mapping[str, Sequence[Document]]"
Groups: TypeAlias = "Mapping[str, Sequence[Sequence[str]]]"
"""Document ids by label and, within it, by part of the split."""
Assignment: TypeAlias = "dict[str, int]"
"""The number of each document's client, by document id."""


def partition(documents: Split, settings: PartitionSettings, seed: Seed) -> dict[str, Split]:
    """Gives every document to one client.

    Args:
        documents: The corpus, already split.
        settings: The rule and the number of clients.
        seed: The seed of this purpose.

    Returns:
        Each client's own split by client id, in the order of the ids: the sites' names, or `client-01` and so
        on.

    Raises:
        ConfigurationError: If the rule does not apply to these documents, or leaves a client without training
            documents.
    """
    parts = {part: sorted(getattr(documents, part), key=attrgetter("id")) for part in PARTS}
    if settings.by == "site":
        _require_sites(documents, settings)
        sites = sorted({document.site for document in documents.all})
        return _collect(parts, {document.id: document.site for document in documents.all}, sites)
    clients = settings.clients or 0
    width = max(2, len(str(clients)))
    names = [f"client-{number:0{width}d}" for number in range(1, clients + 1)]
    if settings.by == "tokens":
        return _by_tokens(parts, names, seed.child("tokens"))
    _require_enough(documents, settings, clients)
    groups = _groups(parts, settings.by)
    idle: set[int] = set()
    for draw in range(DRAWS):
        assignment = _assign(groups, clients, settings, seed.child(settings.by, draw).numpy())
        idle = set(range(clients)).difference(assignment[document.id] for document in parts["train"])
        if not idle:
            return _collect(parts, {id_: names[client] for id_, client in assignment.items()}, names)
    setting, cure = ("lean", "lower") if settings.by == "speciality" else ("alpha", "raise")
    raise refused(
        f"partition.{setting}",
        f"with {setting}={getattr(settings, setting):g}, {clients} clients and {len(documents.train)} "
        f"training documents, each of {DRAWS} draws left a client without any ({names[min(idle)]} in the "
        f"last); {cure} partition.{setting} or lower partition.clients",
        "not_enough_data",
    )


def dominant_label(document: Document) -> str:
    """Returns a document's most frequent mention type, else its first document label, else nothing."""
    counts = Counter(span.label for span in document.spans)
    if counts:
        return min(counts, key=lambda label: (-counts[label], label))
    return document.labels[0] if document.labels else ""


def kind(document: Document) -> str:
    """Returns what the `speciality` rule goes by: the speciality the data names, else the dominant label."""
    return document.metadata.get("speciality") or dominant_label(document)


LABEL_OF = {"dirichlet": dominant_label, "dirichlet_equal": dominant_label, "speciality": kind}
"""What a rule that looks at documents sees in one."""


def _groups(parts: Parts, by: str) -> Groups:
    """Sorts documents by what the rule goes by: nothing, for the rules that do not look at documents."""
    label_of = LABEL_OF.get(by)
    groups: dict[str, list[list[str]]] = {}
    for position, documents in enumerate(parts.values()):
        for document in documents:
            label = label_of(document) if label_of else ""
            groups.setdefault(label, [[] for _ in parts])[position].append(document.id)
    return dict(sorted(groups.items()))


def _assign(
    groups: Groups, clients: int, settings: PartitionSettings, rng: np.random.Generator
) -> Assignment:
    """Draws one division of all documents by a random rule."""
    if settings.by == "speciality":
        return _lean(groups, clients, settings.lean, rng)
    if settings.by == "dirichlet_equal":
        return deal_equally(groups, clients, settings.alpha, rng)
    assignment: Assignment = {}
    for members in groups.values():
        even = np.full(clients, 1.0 / clients)
        shares = even if settings.by == "iid" else rng.dirichlet(np.full(clients, settings.alpha))
        for ids in members:
            assignment.update(_deal(ids, shares, rng))
    return assignment


def _lean(groups: Groups, clients: int, lean: float, rng: np.random.Generator) -> Assignment:
    """Deals kinds to clients in turn; a document leans to its kind's client or goes anywhere."""
    kinds = [label for label in groups if label]
    home = {
        # One client where there are at least as many kinds as clients, else all that serve the kind.
        label: np.isin(np.arange(clients), range(index % clients, clients, len(kinds)))
        for index, label in enumerate(kinds)
    }
    assignment: Assignment = {}
    for label, members in groups.items():
        for ids in members:
            leaning = (rng.random(len(ids)) < lean) & bool(label)
            away = [id_ for id_, leans in zip(ids, leaning, strict=True) if not leans]
            assignment.update(zip(away, rng.integers(clients, size=len(away)).tolist(), strict=True))
            if leaning.any():
                at_home = [id_ for id_, leans in zip(ids, leaning, strict=True) if leans]
                assignment.update(_deal(at_home, home[label] / home[label].sum(), rng))
    return assignment


def _deal(ids: Sequence[str], shares: np.ndarray, rng: np.random.Generator) -> Assignment:
    """Deals documents to clients with these shares, (clients,), summing to 1, by systematic sampling.

    Cutting at rounded cumulative shares would favour the last clients when documents are few. Here every
    client's expected number is exactly `len(ids) * share`, and its number is one of the two integers around
    that.
    """
    positions = (rng.permutation(len(ids)) + rng.random()) / max(len(ids), 1)
    edges = np.cumsum(shares)
    return dict(zip(ids, np.searchsorted(edges / edges[-1], positions, side="right").tolist(), strict=True))


def _by_tokens(parts: Parts, names: Sequence[str], seed: Seed) -> dict[str, Split]:
    whole = [item.id for item in parts["train"] if item.spans or item.relations or len(item.texts) > 1]
    if whole:
        raise refused(
            "partition.by",
            f"'tokens' cuts documents, and {len(whole)} of them have mentions or are pairs of texts (for "
            f"example {whole[0]!r}); it is for tasks on running text, such as lm",
            "not_supported",
        )
    clients, rng = len(names), seed.numpy()
    own = by_words(parts["train"], clients, rng)
    if not all(own):
        count = sum(len(document.text.split()) for document in parts["train"])
        message = f"{clients} clients cannot have 2 words each: the training documents have {count} words"
        raise refused("partition.clients", message, "not_enough_data")
    rest = {part: [item.id for item in documents] for part, documents in parts.items() if part != "train"}
    assignment = {
        id_: names[client]
        for ids in rest.values()
        for id_, client in _deal(ids, np.full(clients, 1.0 / clients), rng).items()
    }
    others = _collect({part: parts[part] for part in rest}, assignment, names)
    return {name: replace(others[name], train=train) for name, train in zip(names, own, strict=True)}


def _collect(parts: Parts, client_of: Mapping[str, str], clients: Sequence[str]) -> dict[str, Split]:
    members: dict[str, dict[str, list[Document]]] = {
        client: {part: [] for part in PARTS} for client in clients
    }
    for part, documents in parts.items():
        for document in documents:
            members[client_of[document.id]][part].append(document)
    return {client: Split(**{part: tuple(own[part]) for part in PARTS}) for client, own in members.items()}


def _require_sites(documents: Split, settings: PartitionSettings) -> None:
    nowhere = [document.id for document in documents.all if not document.site]
    if nowhere:
        raise refused(
            "partition.by",
            f"'site' needs a site for every document, and {len(nowhere)} of {len(documents.all)} have none "
            f"(for example {nowhere[0]!r}); give each site its own sub-folder, or choose another rule",
            "missing",
        )
    sites = sorted({document.site for document in documents.all})
    if not sites:
        raise refused("partition.by", "there are no documents, so there is no site", "not_enough_data")
    if settings.clients is not None and settings.clients != len(sites):
        raise refused(
            "partition.clients",
            f"{settings.clients}, but the data has {len(sites)} sites ({', '.join(map(repr, sites))}); "
            "leave it null to partition by site",
            "conflict",
        )
    idle = sorted(set(sites).difference(document.site for document in documents.train))
    if idle:
        message = f"'site' leaves a client without training documents: {', '.join(map(repr, idle))}"
        raise refused("partition.by", message, "not_enough_data")


def _require_enough(documents: Split, settings: PartitionSettings, clients: int) -> None:
    available = len(documents.train)
    if clients > available:
        raise refused(
            "partition.clients",
            f"{clients} clients cannot each have a training document: there are {available} of them "
            f"({len(documents.all)} documents in all)",
            "not_enough_data",
        )
    label_of = LABEL_OF.get(settings.by)
    if label_of and not any(label_of(document) for document in documents.all):
        raise refused(
            "partition.by",
            f"{settings.by!r} goes by labels, and none of the {len(documents.all)} documents has any",
            "not_enough_data",
        )

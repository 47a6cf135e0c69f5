"""Training, validation and test documents: divided before anything else happens to them.

They are divided by patient where documents name one (`metadata["patient"]`), since several documents of one
must not come to different parts, and else by document (`data.split.by`).
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from fedstrata.core.documents import Document
from fedstrata.core.errors import Problem, refuse, refused
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.data import SplitSettings

logger = logging.getLogger(__name__)

PARTS = ("train", "validation", "test")
"""The parts of a split, in the order in which they are served when documents are few."""


@dataclass(frozen=True, slots=True)
class Split:
    """Documents by what they are used for; each part is sorted by document id.

    Attributes:
        train: Documents that are trained on.
        validation: Documents that are scored during the rounds.
        test: Documents that are scored at the end.
    """

    train: tuple[Document, ...] = ()
    validation: tuple[Document, ...] = ()
    test: tuple[Document, ...] = ()

    @property
    def all(self) -> tuple[Document, ...]:
        """Every document, training first."""
        return self.train + self.validation + self.test


def every(clients: Mapping[str, Split], part: str = "all") -> list[Document]:
    """Returns the documents of all clients together, or those of one part."""
    return [document for own in clients.values() for document in getattr(own, part)]


def split(documents: Sequence[Document], settings: SplitSettings, seed: Seed) -> Split:
    """Divides a corpus into training, validation and test documents.

    Where the data names its own parts (`metadata["split"]`, one of `train`, `validation`, `test`) those are
    honoured; a part it does not have is cut off its training documents, in proportion to the settings' shares
    (so with shares 0.7, 0.1 and 0.2 and no validation part, 0.1 / 0.8 of the training documents become
    validation). Otherwise documents are divided at random within each site: a site of three or more documents
    has at least one in each part whose share is above 0, and a smaller one has at least one training
    document.

    By patient, all of this holds for patients in place of documents: the shares are shares of a site's
    patients (`metadata["patient"]`, one site's apart from another's), and all documents of a patient come to
    one part. Parts that the data names are then checked to share no patient. With `auto`, a document that
    names no patient stands for itself, and patients whom the data's own parts share are logged.

    The rank of a document (or patient) in the random order depends on the seed, its site and its id (or its
    patient's) alone, never on the order of the input.

    Args:
        documents: The corpus; ids are unique.
        settings: The shares.
        seed: The seed of this purpose.

    Returns:
        The parts; every document is in exactly one.

    Raises:
        ConfigurationError: If the parts that the data names are incomplete or unknown, or documents that are
            to be divided by patient name none or have one in two parts.
    """
    if settings.by == "patient":
        _require_patients(documents)
    elif settings.by == "auto" and (torn := _torn(documents)):
        logger.warning("%s", torn)
    named: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        named[document.metadata.get("split", "")].append(document)
    shares = {part: float(getattr(settings, part)) for part in PARTS}
    if set(named) <= {""}:
        return _make(_divide(documents, shares, settings.by, seed))
    _require_usable_names(named)
    missing = {part: share for part, share in shares.items() if part == "train" or part not in named}
    divided = _divide(named.pop("train"), missing, settings.by, seed)
    return _make({part: named.get(part) or divided[part] for part in PARTS})


def hold_out(
    documents: Sequence[Document], settings: SplitSettings
) -> tuple[list[Document], dict[str, Split]]:
    """Sets the sites aside that are only tested on.

    Args:
        documents: The corpus.
        settings: Names the sites.

    Returns:
        The documents of all other sites, and each held-out site's split, which has a test part only.

    Raises:
        ConfigurationError: If a site has no documents, or no other site has any.
    """
    sites: dict[str, list[Document]] = {name: [] for name in settings.test_sites}
    rest: list[Document] = []
    for document in documents:
        sites.get(document.site, rest).append(document)
    known = ", ".join(repr(site) for site in sorted({document.site for document in documents}))
    problems = [
        Problem(
            "data.split.test_sites", f"there is no site {name!r}; the sites are {known}", code="unknown_name"
        )
        for name, own in sites.items()
        if not own
    ]
    if not rest:
        message = "every document belongs to a site that is held out, and none is left to train on"
        problems.append(Problem("data.split.test_sites", message, code="not_enough_data"))
    refuse(problems)
    return rest, {name: Split(test=tuple(sorted(own, key=attrgetter("id")))) for name, own in sites.items()}


def set_aside(parts: Split, settings: SplitSettings, seed: Seed) -> tuple[Split, tuple[Document, ...]]:
    """Sets documents aside for the server, out of those that would be trained on.

    The sites take turns, in random order, until there are enough; each gives documents at random and keeps at
    least one. By patient (see `split`) all training documents of one are given together, so that there may be
    a few more than asked for.

    Args:
        parts: The divided corpus.
        settings: How many, and whether by patient.
        seed: The seed of this purpose.

    Returns:
        The parts with fewer training documents, and what was set aside, sorted by document id.

    Raises:
        ConfigurationError: If there are not so many.
    """
    sites = _units(parts.train, settings.by)
    offered = {site: _shuffled(sites[site], site, seed)[1:] for site in sites}
    order = sorted(sites, key=lambda site: seed.child(site).integer())
    taken: list[Document] = []
    while len(taken) < settings.server:
        giving = [site for site in order if offered[site]]
        if not giving:
            message = f"must be at most {len(taken)}, so that every site keeps something to train on"
            raise refused("data.split.server", f"{message}, not {settings.server}", "out_of_range")
        for site in giving:
            if len(taken) < settings.server:
                taken += sites[site][offered[site].pop()]
    gone = {document.id for document in taken}
    left = tuple(document for document in parts.train if document.id not in gone)
    return replace(parts, train=left), tuple(sorted(taken, key=attrgetter("id")))


def _make(parts: Mapping[str, Sequence[Document]]) -> Split:
    return Split(**{part: tuple(sorted(parts[part], key=attrgetter("id"))) for part in PARTS})


def _divide(
    documents: Sequence[Document], shares: Mapping[str, float], by: str, seed: Seed
) -> dict[str, list[Document]]:
    parts: dict[str, list[Document]] = {part: [] for part in PARTS}
    for site, units in _units(documents, by).items():
        order = _shuffled(units, site, seed)
        start = 0
        for part, count in _counts(len(order), shares).items():
            for unit in order[start : start + count]:
                parts[part] += units[unit]
            start += count
    return parts


def units_of(documents: Iterable[Document], by: str) -> dict[tuple[str, str], list[Document]]:
    """Returns what stays together, by its site and its name: in a split, and as a unit of privacy.

    Args:
        documents: Documents; a patient of one site is another one than that of another.
        by: `patient` or `auto`, where a document that names no patient stands for itself; or `document`.
    """
    units: dict[tuple[str, str], list[Document]] = defaultdict(list)
    for document in documents:
        patient = document.patient if by != "document" else ""
        units[document.site, patient or document.id].append(document)
    return units


def _units(documents: Sequence[Document], by: str) -> dict[str, dict[str, list[Document]]]:
    """Returns for each site what must stay together."""
    sites: dict[str, dict[str, list[Document]]] = defaultdict(dict)
    for (site, name), own in units_of(documents, by).items():
        sites[site][name] = own
    return sites


def _shuffled(units: Iterable[str], site: str, seed: Seed) -> list[str]:
    """Returns the units of a site in random order; where one stands depends on no other."""
    return sorted(units, key=lambda unit: seed.child(site, unit).integer())


def _counts(total: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Apportions documents by largest remainders; no part with a share goes empty while documents suffice."""
    whole = sum(shares.values())
    quotas = {part: total * share / whole for part, share in shares.items()}
    # The tiny term keeps a quota such as 2.9999999999999996 from losing a document to rounding.
    counts = {part: int(quota + 1e-9) for part, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda part: counts[part] - quotas[part])
    for part in by_remainder[: total - sum(counts.values())]:
        counts[part] += 1
    for part in [part for part in PARTS if shares.get(part, 0.0) > 0.0 and counts[part] == 0]:
        richest = max(counts, key=lambda other: counts[other])
        if counts[richest] > 1 or part == "train":
            counts[richest] -= 1
            counts[part] += 1
    return counts


def _require_patients(documents: Sequence[Document]) -> None:
    nameless = [document.id for document in documents if not document.patient]
    if nameless:
        message = (
            f"'patient' needs a patient for every document, and {len(nameless)} of {len(documents)} "
            f"have none (for example {nameless[0]!r}); data.patients can name them"
        )
        raise refused("data.split.by", message, "missing")
    if torn := _torn(documents):
        raise refused("data.split.by", torn, "conflict")


def _torn(documents: Sequence[Document]) -> str:
    """Says how many patients are in several of the data's own parts; empty if none is."""
    parts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for document in documents:
        if document.patient:
            parts[document.site, document.patient].add(document.metadata.get("split", ""))
    torn = sum(len(found) > 1 for found in parts.values())
    if not torn:
        return ""
    return f"the data names its own splits, and {torn} of {len(parts)} patients are in several"


def _require_usable_names(named: Mapping[str, Sequence[Document]]) -> None:
    problems = []
    for name, documents in named.items():
        which = f"{len(documents)} documents (for example {documents[0].id!r})"
        if not name:
            message = f"{which} name no split, while others do; name one for all documents, or for none"
            problems.append(Problem("data.path", message, code="missing"))
        elif name not in PARTS:
            message = f"{which} name the split {name!r}; allowed are {', '.join(PARTS)}"
            problems.append(Problem("data.path", message, code="unknown_name"))
    if "train" not in named:
        name, documents = max(named.items())  # not those that name no split
        message = f"no document is named 'train' (for example {documents[0].id!r} is named {name!r})"
        problems.append(
            Problem("data.path", f"the data names its own splits, and {message}", code="not_enough_data")
        )
    refuse(problems)

"""From the settings of the data to who has which documents."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, DataError, Problem, refuse, refused
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.data import CorpusSettings
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.task import Task
from fedstrata.data.limit import Limited, limit
from fedstrata.data.partial_annotation import (
    as_if_complete,
    declare,
    mark_unannotated,
    require_sites,
    set_relations_aside,
)
from fedstrata.data.partition import partition
from fedstrata.data.patients import with_patients
from fedstrata.data.select import select_labels, select_relations, select_types, types_of
from fedstrata.data.split import Split, every, hold_out, set_aside, split
from fedstrata.record.words import limited_to

logger = logging.getLogger(__name__)

MIMIC_LABELS = 50
"""How many codes are kept of MIMIC-III by default, the most frequent ones, as in Mullenbach et al. (CAML)."""


@dataclass(frozen=True, slots=True)
class Division:
    """Who has which documents.

    Attributes:
        clients: Each client's by split; held-out sites, which have test documents only, come last.
        server: The server's own.
        limited: How far `data.limit` has cut the corpus down; none without.
    """

    clients: dict[str, Split]
    server: tuple[Document, ...] = ()
    limited: Limited | None = None

    def with_relations_aside(self, sites: Collection[str]) -> Division:
        """Returns the division without the relations of these sites' training documents."""
        clients = {
            name: replace(own, train=set_relations_aside(own.train, sites))
            for name, own in self.clients.items()
        }
        return replace(self, clients=clients, server=set_relations_aside(self.server, sites))


def divide(settings: RunSettings, task: Task, *, apart: bool = False) -> Division:
    """Reads, splits, limits, sets aside what is the server's, then partitions the rest among clients.

    Relations that `Task.without_relations` leaves out are still there: they say what a task's types are.

    Args:
        settings: The run's settings.
        task: Its task, as it is given; by it goes what of a document is read.
        apart: Whether other clients have documents elsewhere: what the task names need not occur in these.
    """
    _require_effect(settings, task)
    seed, named = Seed(settings.seed), task.named
    absent = named if apart else ()
    documents = _prepared(
        task, read_documents(settings.data, seed, absent=absent, annotated=task.reads_spans)
    )
    types = types_of(documents, "spans")
    documents, held_out = hold_out(documents, settings.data.split)
    whole = split(documents, settings.data.split, seed.child("split"))
    fewer = partial(limit, most=settings.data.limit, seed=seed.child("limit"))
    parts = fewer(whole)
    require_sites(task.without_relations, parts.train)
    parts, server = set_aside(parts, settings.data.split, seed.child("server"))
    clients = partition(parts, settings.partition, seed.child("partition"))
    if settings.data.not_annotated == "absent":
        clients, server = _with_absent(clients, server)
    blank = [name for name, own in clients.items() if all(item.is_blank for item in own.train)]
    if blank:
        message = f"the training documents of {', '.join(blank)} hold no text; every client must have some"
        raise refused("partition", message, "not_enough_data")
    if taken := held_out.keys() & clients.keys():
        message = f"{', '.join(sorted(taken))} is also the name of a client; rename the site"
        raise refused("data.split.test_sites", message, "duplicate")
    outside = _external(settings, task, [*types, *sorted(named.difference(types))])
    if taken := outside.keys() & (clients.keys() | held_out.keys()):
        message = f"{', '.join(sorted(taken))} is also the name of a client or site; choose another name"
        raise refused("data.external", message, "duplicate")
    tested = held_out | outside
    kept = {name: fewer(own) for name, own in tested.items()}
    limited = _limited(settings.data.limit, [parts, *kept.values()], [whole, *tested.values()])
    return Division(clients | kept, server, limited)


def _with_absent(
    clients: dict[str, Split], server: tuple[Document, ...]
) -> tuple[dict[str, Split], tuple[Document, ...]]:
    """Returns what is trained on as if everything had been looked for in it.

    Raises:
        ConfigurationError: Everything was.
    """
    trained = [*every(clients, "train"), *server]
    if all(document.annotates is None for document in trained):
        message = "'absent' has no effect: every type is annotated everywhere; see data.annotates"
        raise refused("data.not_annotated", message, "no_effect")
    clients = {name: replace(own, train=as_if_complete(own.train)) for name, own in clients.items()}
    return clients, as_if_complete(server)


def _limited(most: int | None, kept: Sequence[Split], whole: Sequence[Split]) -> Limited | None:
    """Returns how far documents were cut down, and logs it; none without a limit."""
    if most is None:
        return None
    made = Limited(most, *(sum(len(own.all) for own in each) for each in (kept, whole)))
    logger.warning("%s", limited_to(made.most, made.kept, made.of))
    return made


def read_documents(
    settings: CorpusSettings,
    seed: Seed,
    *,
    absent: Collection[str] = (),
    section: str = "data",
    annotated: bool = False,
) -> list[Document]:
    """Reads or generates the corpus a configuration names, with the annotations it asks for.

    Args:
        settings: The configuration.
        seed: Root of the seeds.
        absent: Types and labels that need not occur though they are to be kept.
        section: Where the configuration says so, for messages about patients.
        annotated: Whether a corpus without any file of annotations is refused, where its format has such.
    """
    if settings.format == "synthetic":
        from fedstrata.data.synthetic import generate  # noqa: PLC0415 - its lexicons are not needed with real data

        corpus = settings.synthetic
        number = seed.root if corpus.seed is None else corpus.seed
        documents: Sequence[Document] = generate(
            seed=number,
            sites=corpus.sites,
            notes=corpus.notes,
            imbalance=corpus.imbalance,
            notes_per_patient=corpus.notes_per_patient,
        )
    else:
        documents = _from_disk(settings, section, annotated=annotated)
    if settings.patients is not None:  # before documents are left out: the file may name those too
        documents = with_patients(documents, Path(settings.patients), f"{section}.patients")
    usual = MIMIC_LABELS if settings.format == "mimic" else None
    documents = select_types(documents, settings.types, absent=absent)
    documents = select_relations(documents, settings, absent=absent)
    documents = select_labels(documents, settings.labels, usual=usual, absent=absent)
    return declare(documents, settings.annotates, absent, f"{section}.annotates")


def _require_effect(settings: RunSettings, task: Task) -> None:
    """Refuses to be told what is annotated by a task that takes all else for absent.

    Raises:
        ConfigurationError: It is told so.
    """
    if task.knows_partial_annotation:
        return
    outside = {f"data.external.{name}": corpus for name, corpus in settings.data.external.items()}
    corpora: dict[str, CorpusSettings] = {"data": settings.data, **outside}
    told = [f"{section}.annotates" for section, own in corpora.items() if own.annotates is not None]
    message = f"has no meaning for task {task.name}, which knows no types or labels that may be unknown"
    refuse([Problem(setting, message, code="no_effect") for setting in told])


def _from_disk(settings: CorpusSettings, section: str, *, annotated: bool) -> list[Document]:
    """Reads a corpus of files, or of the hub."""
    from fedstrata.data.readers import formats_of, read, read_parts  # noqa: PLC0415 - not needed for synthetic ones

    options: dict[str, Any] = {
        "unannotated": settings.unannotated,
        "formats": formats_of(settings),
        "dataset": settings.dataset,
        "columns": settings.columns,
        "annotated": annotated,
    }
    if settings.files is not None:
        return read_parts(settings.files, settings.format, setting=f"{section}.files", **options)
    return read(Path(str(settings.path)), settings.format, **options)


def _external(settings: RunSettings, task: Task, types: Sequence[str]) -> dict[str, Split]:
    """Reads the corpora that are only tested on; their documents' ids begin with the corpus's name.

    Of a corpus that chooses no types these are kept: those of the run's documents, and those its task names.
    """
    outside = {}
    for name, corpus in settings.data.external.items():
        # Of a synthetic corpus without a seed of its own: other notes than those of the run.
        seed = Seed(Seed(settings.seed).child("external", name).integer())
        section = f"data.external.{name}"
        try:
            read = read_documents(corpus, seed, section=section, annotated=task.reads_spans)
        except DataError as error:
            raise ConfigurationError(
                [Problem(f"{section}.path", str(each), code=each.code) for each in error.each]
            ) from None
        documents = _prepared(task, read)
        found = types_of(documents, "spans")
        if found and corpus.types is None:
            common = [label for label in found if label in types]
            if not common:
                message = f"none of its types ({', '.join(found)}) is one of the run's ({', '.join(types)})"
                raise refused(f"{section}.types", f"{message}; map them", "conflict")
            documents = select_types(documents, common)
        outside[name] = Split(
            test=tuple(replace(document, id=f"{name}/{document.id}", site=name) for document in documents)
        )
    return outside


def _prepared(task: Task, documents: list[Document]) -> list[Document]:
    """Returns a corpus as the task reads it.

    Without mentions and relations where the task reads none, so that a division by labels is one by those of
    whole documents; and for a task that learns relations with a mark where nobody looked for any.
    """
    if not task.reads_spans:
        return [replace(document, spans=(), relations=()) for document in documents]
    return mark_unannotated(documents) if "relations" in task.gives else documents

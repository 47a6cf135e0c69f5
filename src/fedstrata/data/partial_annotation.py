"""Sites that are annotated for some types only: what nobody looked for in which documents.

That a document has no mention of a type says something only where somebody looked for that type. What was
looked for is `Document.annotates`; tasks learn and score nothing of the rest. Documents say so themselves
(JSON lines, `annotation.conf` of BRAT), or a configuration does (`data.annotates`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fedstrata.core.documents import Document
from fedstrata.core.errors import Problem, did_you_mean, refuse, refused
from fedstrata.core.settings.data import Annotates
from fedstrata.core.surveyed import RELATIONS
from fedstrata.data.select import keep_looked_for, types_of

NAMED = 30
"""Names that a message says there are, at most: labels may be thousands."""


def declare(
    documents: Sequence[Document], annotates: Annotates, known: Collection[str], setting: str
) -> list[Document]:
    """Marks what is annotated where, and leaves out what else there is.

    Args:
        documents: The corpus, with the types and labels that are kept, under the task's names.
        annotates: Types and labels that somebody looked for: at all sites, or by site; sites that are not
            named stay as their documents say. None leaves all as they are.
        known: Further types and labels that may be named.
        setting: Where it was set, for messages.

    Raises:
        ConfigurationError: A site is none of the corpus's, or a type or label is neither in the corpus nor
            known.
    """
    if annotates is None:
        return list(documents)
    sites = {document.site for document in documents}
    named = annotates if isinstance(annotates, Mapping) else dict.fromkeys(sites, annotates)
    names = {*types_of(documents, "spans"), *types_of(documents, "relations"), *known}
    names.update(label for document in documents for label in document.labels)
    refuse([*_strangers(named, sites, setting, "site", "sites"), *_unknown(annotates, names, setting)])
    return mark_looked_for(documents, annotates)


def mark_looked_for(documents: Sequence[Document], annotates: Annotates) -> list[Document]:
    """Does as `declare` for documents that may be some of the corpus, or of another: no name is checked."""
    if annotates is None:
        return list(documents)
    relations = types_of(documents, "relations")
    own = {
        document.site: annotates.get(document.site) if isinstance(annotates, Mapping) else annotates
        for document in documents
    }
    looked = {site: frozenset(names) for site, names in own.items() if names is not None}
    return [
        _declared(document, looked[document.site], relations) if document.site in looked else document
        for document in documents
    ]


def _declared(document: Document, names: frozenset[str], relations: Collection[str]) -> Document:
    lacks = document.lacks_relations or (bool(relations) and names.isdisjoint(relations))
    return keep_looked_for(replace(document, annotates=names, lacks_relations=lacks))


def _unknown(annotates: Annotates, names: Collection[str], setting: str) -> Iterator[Problem]:
    by_site = annotates if isinstance(annotates, Mapping) else {"": annotates or ()}
    for site, own in by_site.items():
        where = f"{setting}.{site}".removesuffix(".")
        yield from _strangers(own, names, where, "type or label", "types or labels")


def _strangers(
    named: Iterable[str], known: Collection[str], setting: str, what: str, many: str
) -> Iterator[Problem]:
    """Yields a problem for each name that is none of those known."""
    there = ", ".join(sorted(map(repr, known))[:NAMED]) or "(none)"
    there += f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    for name in named:
        if name not in known:
            message = f"{name!r} is no {what} of the documents, whose {many} are {there}"
            yield Problem(setting, f"{message}{did_you_mean(name, known, before='; ')}", code="unknown_name")


def as_if_complete(documents: Iterable[Document]) -> tuple[Document, ...]:
    """Returns documents as if everything had been looked for in them, which teaches that it is absent."""
    return tuple(
        document if document.annotates is None else replace(document, annotates=None, lacks_relations=False)
        for document in documents
    )


def types_missing(
    documents: Iterable[Document], kinds: Collection[str], types: Collection[str]
) -> dict[str, tuple[list[str], list[str]]]:
    """Returns of each site the types that it has nowhere without saying so, and all others, both sorted.

    Others are learnt, too, or those of the mentions that relations are between.

    Args:
        documents: Those of all sites.
        kinds: What has types: `spans`, `relations`.
        types: Types that are learnt.
    """
    by_site: dict[str, list[Document]] = {}
    for document in documents:
        by_site.setdefault(document.site, []).append(document)
    missing = {}
    for site, own in by_site.items():
        there = {label for kind in kinds for label in types_of(own, kind)}
        open_ = {label for label in types if any(all(document.looked_for([label])) for document in own)}
        if lacking := sorted(open_ - there):
            related = types_of(own, "spans") if RELATIONS in kinds else ()
            kept = {*types} & (open_ | there) | {*related}
            missing[site] = lacking, sorted(kept.difference(lacking))
    return missing


def mark_unannotated(documents: Sequence[Document]) -> list[Document]:
    """Marks the documents in which nobody looked for relations (`Document.lacks_relations`).

    Those are all documents of a site that has not one relation. Which client has which documents does not
    matter, so this comes before they are divided.

    Args:
        documents: The whole corpus, in any order.
    """
    related = {document.site for document in documents if document.relations}
    return [document if document.site in related else _lacking(document) for document in documents]


def require_sites(names: Collection[str], documents: Sequence[Document]) -> None:
    """Checks the names of sites whose training documents are to serve for mentions only.

    Args:
        names: As `task.mentions_only` has them.
        documents: All training documents.

    Raises:
        ConfigurationError: A site of such a name has none of them.
    """
    known = sorted({document.site for document in documents})
    if strangers := [name for name in names if name not in known]:
        there = ", ".join(map(repr, known))
        message = f"no training document is of a site {strangers[0]!r}; the sites are {there}"
        raise refused("task.mentions_only", message, "unknown_name")


def set_relations_aside(documents: Sequence[Document], sites: Collection[str]) -> tuple[Document, ...]:
    """Returns documents without the relations of some sites, as if nobody had looked for any there."""
    return tuple(_lacking(document) if document.site in sites else document for document in documents)


def _lacking(document: Document) -> Document:
    return replace(document, relations=(), lacks_relations=True)

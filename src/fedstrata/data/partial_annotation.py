"""Sites that are annotated for some tasks only: which documents say nothing of relations."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, Problem


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
        raise ConfigurationError([Problem("task.mentions_only", message)])


def set_relations_aside(documents: Sequence[Document], sites: Collection[str]) -> tuple[Document, ...]:
    """Returns documents without the relations of some sites, as if nobody had looked for any there."""
    return tuple(_lacking(document) if document.site in sites else document for document in documents)


def _lacking(document: Document) -> Document:
    return replace(document, relations=(), lacks_relations=True)

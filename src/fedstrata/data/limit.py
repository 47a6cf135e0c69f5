"""Fewer documents for a quick try (`data.limit`): so many of each site and part, drawn by seed."""

from collections import defaultdict
from dataclasses import dataclass
from operator import attrgetter

from fedstrata.core.documents import Document
from fedstrata.core.seeding import Seed
from fedstrata.data.split import PARTS, Split


@dataclass(frozen=True, slots=True)
class Limited:
    """How far a corpus was cut down.

    Attributes:
        most: The documents of a site and part, at most.
        kept: The documents that are left.
        of: How many there were.
    """

    most: int
    kept: int
    of: int


def limit(parts: Split, most: int | None, seed: Seed) -> Split:
    """Keeps at most so many documents of each site in each part.

    Which of them depends on the seed, their site and their ids alone, so that a larger limit keeps what a
    smaller one keeps and some more. No document comes to another part. They are drawn one by one: of a
    patient some may be kept and others not.

    Args:
        parts: The divided corpus.
        most: How many; all if none.
        seed: The seed of this purpose.
    """
    if most is None:
        return parts

    def drawn(documents: tuple[Document, ...]) -> tuple[Document, ...]:
        sites: dict[str, list[Document]] = defaultdict(list)
        for document in sorted(documents, key=lambda item: seed.child(item.site, item.id).integer()):
            sites[document.site].append(document)
        return tuple(sorted((item for own in sites.values() for item in own[:most]), key=attrgetter("id")))

    return Split(**{part: drawn(getattr(parts, part)) for part in PARTS})

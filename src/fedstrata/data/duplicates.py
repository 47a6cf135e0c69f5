"""Documents whose text another document has too, word for word or nearly so.

Two texts are equal if their words are, whatever their case, punctuation and blanks. They are near-duplicates
if of all stretches of three words that either has four in five are in both.

Source: Broder, "On the resemblance and containment of documents" (SEQUENCES 1997): shingles of words, and
    their Jaccard similarity from MinHash; the signatures are those of datasketch. Lee et al., "Deduplicating
    Training Data Makes Language Models Better" (ACL 2022): pairs of signatures that share a band, verified
    exactly, and near-duplicates as connected components, at a similarity of 0.8.

Notes of one site share headings and phrases that say nothing of a patient. A stretch that many documents of
a client have is therefore none of what is compared.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeAlias

import numpy as np

from fedstrata.core.documents import Document
from fedstrata.data.split import PARTS, Split

SIMILARITY = 0.8
"""Jaccard similarity from which two texts are near-duplicates."""
SHINGLE = 3
"""Words of a stretch."""
FEWEST = 8
"""Stretches that a text must have to be compared; shorter ones are alike by chance."""
COMMON, MANY = 0.2, 20
"""A stretch that is in more than this share of a client's texts, where it has so many, is a phrase of its."""
BANDS, ROWS = 40, 6
"""Of a signature: two texts of the least similarity share no band in 5 of a million cases."""
SURE = 0.65
"""Share of numbers that two signatures must have in common; at least so many have in all but one in a hundred
million pairs of the least similarity (five standard deviations)."""
MOST_WORDS = 20_000_000
"""Words of all texts among which near-duplicates are looked for: they take a minute and half a gigabyte."""

_WORD = re.compile(r"\w+")
_MIX = np.uint64(0x9E3779B97F4A7C15)

Texts: TypeAlias = "Mapping[str, Mapping[str, Sequence[str]]]"
"""The folded text of each document, by client and part of the split."""
Owner: TypeAlias = "tuple[str, str]"
"""A client and a part of the split."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """How many of some documents others repeat.

    Attributes:
        documents: The documents.
        equal: Those whose words another one has.
        near: Of the others those of which another one is a near-duplicate.
    """

    documents: int
    equal: int
    near: int


@dataclass(frozen=True, slots=True)
class Duplicates:
    """What documents repeat.

    Attributes:
        learnt: Of each client's validation and test documents those that training documents repeat, of any
            client.
        elsewhere: Of each client's documents those that documents of another client repeat.
        compared: Whether near-duplicates were looked for; not among very many words.
    """

    learnt: Mapping[str, Mapping[str, Repeated]]
    elsewhere: Mapping[str, Repeated]
    compared: bool = True


def folded(text: str) -> str:
    r"""Returns the words of a text, without case and punctuation.

    >>> folded("No  acute\nDISTRESS.")
    'no acute distress'
    """
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def find_duplicates(clients: Mapping[str, Split], text_of: Callable[[Document], str]) -> Duplicates:
    """Finds the documents that others repeat.

    Args:
        clients: Each client's documents by split.
        text_of: Returns the text of a document that counts.
    """
    texts = {
        name: {part: [folded(text_of(document)) for document in getattr(own, part)] for part in PARTS}
        for name, own in clients.items()
    }
    words = sum(text.count(" ") + 1 for parts in texts.values() for text in _of(parts))
    compared = words <= MOST_WORDS
    cluster = clusters(texts) if compared else {}
    equal, near = _owners(texts, lambda text: text), _owners(texts, lambda text: cluster.get(text, text))

    def repeated(own: Iterable[str], counts: Callable[[Owner], bool]) -> Repeated:
        """Counts the texts that owners who count have too."""
        found = [text for text in own if text]
        same = [any(map(counts, equal[text])) for text in found]
        alike = [any(map(counts, near[cluster.get(text, text)])) for text in found]
        return Repeated(len(found), sum(same), sum(alike) - sum(same))

    learnt = {name: {part: repeated(own[part], _learns) for part in PARTS[1:]} for name, own in texts.items()}
    elsewhere = {name: repeated(_of(own), partial(_is_another, name)) for name, own in texts.items()}
    return Duplicates(learnt, elsewhere, compared)


def _learns(owner: Owner) -> bool:
    return owner[1] == PARTS[0]


def _is_another(client: str, owner: Owner) -> bool:
    return owner[0] != client


def _owners(texts: Texts, key: Callable[[str], object]) -> dict[object, set[Owner]]:
    """Returns whose the texts of each key are: a client and a part."""
    owners: dict[object, set[Owner]] = defaultdict(set)
    for name, parts in texts.items():
        for part, own in parts.items():
            for text in filter(None, own):
                owners[key(text)].add((name, part))
    return owners


def clusters(texts: Texts) -> dict[str, int]:
    """Returns a number for each text; near-duplicates, and what they have in common, share one."""
    every = list(dict.fromkeys(text for parts in texts.values() for text in _of(parts)))
    shingles = own_shingles(texts, every)
    compared = [index for index, own in enumerate(shingles) if len(own) >= FEWEST]
    number = np.arange(len(every))
    if len(compared) > 1:
        own = number[compared]
        signatures = _signatures([shingles[index] for index in compared])
        for one, other in _candidates(signatures, own):
            if similarity(shingles[compared[one]], shingles[compared[other]]) >= SIMILARITY:
                own[own == own[other]] = own[one]
        number[compared] = own
    return dict(zip(every, number.tolist(), strict=True))


def similarity(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the Jaccard similarity of two sets of stretches, (stretches,) uint64 each, not both empty."""
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / (len(one) + len(other) - common)


def own_shingles(texts: Texts, every: Sequence[str]) -> list[np.ndarray]:
    """Returns the stretches that each text is compared by, (stretches,) uint64 each, sorted.

    Those are the ones that are no phrases of a client's, unless a text has hardly anything else.

    Args:
        texts: Whose they are.
        every: The different texts.
    """
    numbers: dict[str, int] = defaultdict(count().__next__)
    found = {text: _shingles([numbers[word] for word in text.split()]) for text in every}
    phrases = [_phrases([found[text] for text in {*_of(parts)}]) for parts in texts.values()]
    common = np.unique(np.concatenate([*phrases, np.empty(0, np.uint64)]))
    own = [whole[~np.isin(whole, common, assume_unique=True)] for whole in found.values()]
    return [left if len(left) >= FEWEST else whole for left, whole in zip(own, found.values(), strict=True)]


def _of(parts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    return (text for own in parts.values() for text in own)


def _shingles(words: Sequence[int]) -> np.ndarray:
    """Returns a number for each different stretch; two million words can be told apart."""
    ids = np.array(words, dtype=np.uint64)
    size = len(ids) - SHINGLE + 1
    if size < 1:
        return np.empty(0, np.uint64)
    whole = np.zeros(size, np.uint64)
    for place in range(SHINGLE):
        whole = (whole << np.uint64(21)) ^ ids[place : place + size]
    return np.unique(whole)


def _phrases(shingles: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the stretches that many of a client's texts have."""
    if len(shingles) < MANY:
        return np.empty(0, np.uint64)
    values, counts = np.unique(np.concatenate(shingles), return_counts=True)
    return values[counts > COMMON * len(shingles)]


def _signatures(shingles: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the MinHash signature of each set, (sets, numbers) uint32."""
    from datasketch import MinHash  # noqa: PLC0415 - it imports much of scipy

    hashes = (((own * _MIX) >> np.uint64(32)).tolist() for own in shingles)
    made = MinHash.generator(hashes, num_perm=BANDS * ROWS, hashfunc=int)
    return np.stack([each.hashvalues for each in made])


def _candidates(signatures: np.ndarray, clusters: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields pairs that share a band and may be near-duplicates, each once.

    Args:
        signatures: (sets, numbers).
        clusters: The cluster of each set, (sets,), which changes as pairs are verified; pairs within one are
            left out.
    """
    seen: set[tuple[int, int]] = set()
    for members in _buckets(signatures):
        for place, one in enumerate(members[:-1].tolist()):
            rest = members[place + 1 :]
            if (clusters[rest] == clusters[one]).all():
                continue
            rest = rest[clusters[rest] != clusters[one]]
            alike = (signatures[rest] == signatures[one]).mean(axis=1)
            for other in rest[alike >= SURE].tolist():
                if (one, other) not in seen and clusters[one] != clusters[other]:
                    seen.add((one, other))
                    yield one, other


def _buckets(signatures: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the sets, (sets,) rising, that are equal in a band, band by band."""
    for band in np.split(signatures, BANDS, axis=1):
        _, buckets, sizes = np.unique(band, axis=0, return_inverse=True, return_counts=True)
        (shared,) = np.nonzero(sizes[buckets] > 1)
        order = shared[np.argsort(buckets[shared], kind="stable")]
        yield from np.split(order, np.flatnonzero(np.diff(buckets[order])) + 1)

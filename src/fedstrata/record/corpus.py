"""What a record says of documents, in few words: how much of them is not read, and warnings."""

from collections.abc import Mapping, Sequence
from typing import Any

PARTS = ("train", "validation", "test")


def cut_shares(corpus: Mapping[str, Any] | None) -> dict[str, dict[str, float] | None] | None:
    """Returns what share of documents is cut, and what share of their tokens is not read, by part.

    Args:
        corpus: What a `run` event says of documents (`fedstrata.engine.corpus.corpus_facts`); none if it says
            nothing.

    Returns:
        `documents` and `tokens` of all clients that say so, none of a part that has none; none where all of
        any text is read, or nothing is known.
    """
    if not corpus or not corpus.get("cut"):
        return None
    return {part: _shares([own.get(part) for own in corpus["cut"].values()]) for part in PARTS}


def _shares(clients: Sequence[Mapping[str, int] | None]) -> dict[str, float] | None:
    told = [own for own in clients if own is not None]
    documents, cut, tokens, lost = (
        sum(own[name] for own in told) for name in ("documents", "cut", "tokens", "lost")
    )
    if not documents:
        return None
    return {"documents": cut / documents, "tokens": lost / tokens if tokens else 0.0}


def cut_line(shares: Mapping[str, Mapping[str, float] | None] | None) -> str:
    """Says what is cut; empty where nothing is.

    >>> cut_line({"train": {"documents": 0.58, "tokens": 0.41}, "test": {"documents": 0.0, "tokens": 0.0}})
    '58 % of training documents are cut, and 41 % of all their tokens are not read'
    """
    told = []
    for part, own in (shares or {}).items():
        if own and own["documents"]:
            noun = {"train": "training"}.get(part, part)
            documents, tokens = (_percent(own[name]) for name in ("documents", "tokens"))
            rest = f"{tokens} of all their tokens are not read" if own["tokens"] else "all of them is read"
            told.append(f"{documents} of {noun} documents are cut, and {rest}")
    return "; ".join(told)


def _percent(share: float) -> str:
    """Returns a share in percent; one above nothing is not said to be nothing.

    >>> _percent(0.584), _percent(0.004)
    ('58 %', '0.4 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1g} %"


def data_lines(corpus: Mapping[str, Any] | None) -> list[str]:
    """Returns what is to be told of documents before a run: warnings, and what is cut."""
    told = list((corpus or {}).get("warnings", ()))
    if corpus and (line := cut_line(cut_shares(corpus))):
        told.append(f"{line} ({corpus['room']})")
    return told

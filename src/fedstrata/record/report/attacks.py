"""What attacks on a run have found, as a report shows it: with a picture of what an attacker reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from fedstrata.record.findings import Finding, Reading, read_findings

READINGS = 8
"""Texts that are shown of an attack, at most."""
WORDS = 60
"""Of each, at most."""

Marked = Sequence[tuple[str, bool]]
"""A text in pieces, and whether each was read as it is."""


@dataclass(frozen=True, slots=True)
class MarkedReading:
    """A text beside what was read of it.

    Attributes:
        seen: In what it was read.
        text: What the client has.
        read: What the attacker reads.
    """

    seen: str
    text: Marked
    read: Marked


@dataclass(frozen=True, slots=True)
class AttackSection:
    """What a report shows of one attack.

    Attributes:
        finding: What was found.
        readings: Texts beside what was read of them.
        more: How many there are beside these.
    """

    finding: Finding
    readings: Sequence[MarkedReading]
    more: int


def attack_sections(run: Path) -> list[AttackSection]:
    """Returns what attacks on a run have found, for its report."""
    return [
        AttackSection(own, [marked(each) for each in own.readings[:READINGS]], len(own.readings[READINGS:]))
        for own in read_findings(run)
    ]


def marked(reading: Reading) -> MarkedReading:
    """Returns a text and what was read of it, with the words marked that both have in the same order."""
    text, read = reading.text.split()[:WORDS], reading.read.split()[:WORDS]
    blocks = SequenceMatcher(None, text, read, autojunk=False).get_matching_blocks()
    sides = (
        list(_pieces(words, [(block[side], block.size) for block in blocks]))
        for side, words in enumerate((text, read))
    )
    return MarkedReading(reading.seen, *sides)


def _pieces(words: Sequence[str], blocks: Sequence[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    at = 0
    for start, size in blocks:  # the last one is empty, at the end
        if start > at:
            yield " ".join(words[at:start]), False
        if size:
            yield " ".join(words[start : start + size]), True
        at = start + size

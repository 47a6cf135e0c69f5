"""What has left a client, added up by round and kind: what a ledger tells people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fedstrata.core.files import write_atomically
from fedstrata.core.types import JSON
from fedstrata.privacy.ledger import UNPROTECTED
from fedstrata.privacy.ledger_verification import LEDGER, NOTHING, Line, read_ledger
from fedstrata.record.findings import read_findings
from fedstrata.record.log import read_events
from fedstrata.record.privacy_statement import statement


@dataclass
class Sent:
    """What was sent of one kind in a round.

    Attributes:
        round: The round; 0 for none.
        what: Its kind.
        handler: What ran at the client.
        protection: How it was protected.
        times: How often something was sent; the same bytes again do not count.
        repeats: How often the same bytes were sent again.
        bytes: What all of it has.
        tensors: The most tensors that one of them had.
        values: What they said beside tensors, by name; of several the last.
        epsilon: What the client had spent with the last; none where nothing bounds it.
    """

    round: int
    what: str
    handler: str
    protection: str
    times: int = 0
    repeats: int = 0
    bytes: int = 0
    tensors: int = 0
    values: dict[str, JSON] = field(default_factory=dict)
    epsilon: float | None = None

    def add(self, line: Line) -> None:
        """Counts one line in."""
        if line["again"] is not None:
            self.repeats += 1
            return
        self.times += 1
        self.bytes += line["bytes"]
        self.tensors = max(self.tensors, len(line["tensors"]))
        self.values |= line["values"]
        self.epsilon = line["epsilon"]


@dataclass
class Summary:
    """What a ledger tells.

    Attributes:
        sent: What was sent, in the order of the first of each kind.
        client: Who has sent it; nobody where there is no line.
        run: The id of the run; none in a simulation, and of what was said before it was known.
        lines: How many lines there are.
        head: The hash of the last.
        epsilon: What the client had spent last; none where nothing is claimed.
    """

    sent: list[Sent] = field(default_factory=list)
    client: str = ""
    run: str | None = None
    lines: int = 0
    head: str = NOTHING
    epsilon: float | None = None

    @property
    def times(self) -> int:
        """How often something was sent; the same bytes again do not count."""
        return sum(one.times for one in self.sent)

    @property
    def bytes(self) -> int:
        """What all of it has."""
        return sum(one.bytes for one in self.sent)

    @property
    def unprotected(self) -> int:
        """How often something was sent without any protection."""
        return sum(one.times for one in self.sent if one.protection.startswith(UNPROTECTED))


def summary_of(lines: Iterable[Line], *, by_round: bool = True) -> Summary:
    """Returns what lines tell, added up.

    Args:
        lines: The lines.
        by_round: Whether rounds are told apart.
    """
    summary, found = Summary(), dict[tuple[int, str, str, str], Sent]()
    for line in lines:
        number = line["round"] if by_round else 0
        key = (number, line["what"], line["handler"], line["protection"])
        found.setdefault(key, Sent(*key)).add(line)
        summary.client, summary.run, summary.head = line["client"], line["run"], line["hash"]
        summary.lines += 1
        if line["epsilon"] is not None:
            summary.epsilon = line["epsilon"]
    summary.sent = list(found.values())
    return summary


def sent_by_all(run: Path) -> list[Sent]:
    """Returns what all clients of a run directory have sent, by kind.

    Nothing where no client has its ledger there: those of a served run keep theirs themselves.

    Raises:
        LedgerError: A ledger is not what its client wrote.
    """
    ledgers = sorted(run.glob(f"clients/*/{LEDGER}"))
    return summary_of((line for each in ledgers for line in read_ledger(each)), by_round=False).sent


def write_privacy_statement(run: Path) -> list[Path]:
    """Writes `privacy.md` of a run directory, if the run has a mechanism; it appears complete or not at all.

    Returns:
        The file that was written, if any.

    Raises:
        LedgerError: A ledger is not what its client wrote.
    """
    events, sent = read_events(run / "record.jsonl"), sent_by_all(run)
    if (text := statement(events, sent, list(read_findings(run)))) is None:
        return []
    write_atomically(run / "privacy.md", [text.encode()])
    return [run / "privacy.md"]

"""What attacks on a run have found: one form for all of them, on the terminal, as files and in the report."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedstrata.core.files import write_atomically

AUDITS = "audits"
"""The folder of a run that holds what attacks on it have found."""
ATTACKS = ("span", "invert", "hidden", "membership")
"""The attacks, in the order in which a report shows them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A text of a client, and what an attacker reads in its place.

    Attributes:
        seen: In what it was read: a client's update, or a sum.
        text: What the client has.
        read: What is nearest to it of what was read; empty where nothing was.
    """

    seen: str
    text: str
    read: str


@dataclass(frozen=True, slots=True)
class FindingTable:
    """Figures for people.

    Attributes:
        title: What they are.
        columns: The headings.
        rows: The rows, each with a cell for every column.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one attack has found.

    Attributes:
        attack: Its name, one of `ATTACKS`.
        tables: What was found, for people.
        says: In sentences what was attacked, what was found and what that proves.
        facts: All of it as JSON.
        readings: Texts with what was read of them; there only where everybody may see them.
        details: What else is written to the file as JSON, and not printed.
    """

    attack: str
    tables: Sequence[FindingTable]
    says: Sequence[str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    readings: Sequence[Reading] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        """Returns it as JSON, without details."""
        everything = {"attack": self.attack, **self.facts, "tables": [asdict(own) for own in self.tables]}
        everything |= {"says": list(self.says)}
        if self.readings:
            everything["readings"] = [asdict(own) for own in self.readings]
        return json.dumps(everything, indent=2, allow_nan=False)

    def as_markdown(self) -> str:
        """Returns the tables and the sentences for people; no text of a document is in it."""
        lines = [f"# Attack: {self.attack}", "", *(f"- {sentence}" for sentence in self.says)]
        for table in self.tables:
            rows = (table.columns, *table.rows)
            cells = [[cell.replace("\n", " ").replace("|", "\\|") for cell in row] for row in rows]
            head, *body = (f"| {' | '.join(row)} |" for row in cells)
            lines += ["", f"{table.title}:", "", head, "|" + "---|" * len(table.columns), *body]
        return "\n".join([*lines, ""])


def write_finding(finding: Finding, folder: Path) -> None:
    """Writes `<attack>.json` and `<attack>.md`; each appears complete or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    everything = {**json.loads(finding.as_json()), **finding.details}
    text = json.dumps(everything, indent=None if finding.details else 2, allow_nan=False)
    write_atomically(folder / f"{finding.attack}.json", [f"{text}\n".encode()])
    write_atomically(folder / f"{finding.attack}.md", [finding.as_markdown().encode()])


def read_findings(run: Path) -> Iterator[Finding]:
    """Yields what attacks on a run have found; a file that is none of theirs is passed over."""
    for attack in ATTACKS:
        try:
            own = json.loads((run / AUDITS / f"{attack}.json").read_bytes())
            tables = [FindingTable(**each) for each in own["tables"]]
            readings = [Reading(**each) for each in own.get("readings", [])]
            yield Finding(attack, tables, own["says"], own, readings)
        except (OSError, ValueError, KeyError, TypeError):
            continue

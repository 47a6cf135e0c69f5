"""What attacks on a run have found: one form for all of them, on the terminal, as files and in the report."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
class Finding:
    """What one attack has found.

    Attributes:
        attack: Its name, one of `ATTACKS`.
        title: That of the table.
        columns: The headings of the table.
        rows: Its rows, each with a cell for every column.
        says: In sentences what was attacked, what was found and what that proves.
        facts: All of it as JSON.
        readings: Texts with what was read of them; there only where everybody may see them.
    """

    attack: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    says: Sequence[str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    readings: Sequence[Reading] = ()

    def as_json(self) -> str:
        """Returns it as JSON."""
        table = {"title": self.title, "columns": list(self.columns), "rows": [list(row) for row in self.rows]}
        shown = [{"seen": own.seen, "text": own.text, "read": own.read} for own in self.readings]
        everything = {"attack": self.attack, **self.facts, "table": table, "says": list(self.says)}
        return json.dumps(everything | ({"readings": shown} if shown else {}), indent=2, allow_nan=False)

    def as_markdown(self) -> str:
        """Returns the table and the sentences for people; no text of a document is in it."""
        rows = [
            [cell.replace("\n", " ").replace("|", "\\|") for cell in row]
            for row in (self.columns, *self.rows)
        ]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        lines.insert(1, "|" + "---|" * len(self.columns))
        return "\n".join(
            [f"# {self.title}", "", *lines, "", *(f"- {sentence}" for sentence in self.says), ""]
        )


def write_finding(finding: Finding, folder: Path) -> None:
    """Writes `<attack>.json` and `<attack>.md`; each appears complete or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{finding.attack}.json", [f"{finding.as_json()}\n".encode()])
    write_atomically(folder / f"{finding.attack}.md", [finding.as_markdown().encode()])


def read_findings(run: Path) -> Iterator[Finding]:
    """Yields what attacks on a run have found; a file that is none of theirs is passed over."""
    for attack in ATTACKS:
        try:
            own = json.loads((run / AUDITS / f"{attack}.json").read_bytes())
            table = own["table"]
            readings = [Reading(**each) for each in own.get("readings", [])]
            yield Finding(attack, table["title"], table["columns"], table["rows"], own["says"], own, readings)
        except (OSError, ValueError, KeyError, TypeError):
            continue

"""What attacks on a run have found: one form for all of them, on the terminal, as files and in the report."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedstrata.core.errors import refused
from fedstrata.core.files import private_folder, write_atomically
from fedstrata.core.settings.run import USUAL_METHOD, RunSettings

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
        what_if: Why the run sends nothing that the attack reads, where it was made all the same; else empty.
    """

    attack: str
    tables: Sequence[FindingTable]
    says: Sequence[str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    readings: Sequence[Reading] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    what_if: str = ""

    @property
    def title(self) -> str:
        """What it is called above its tables."""
        if self.what_if:
            return f"What if: attack {self.attack}, no finding on this run"
        return f"Attack: {self.attack}"

    def as_json(self) -> str:
        """Returns it as JSON, without details."""
        everything = {"attack": self.attack, **self.facts, "tables": [asdict(own) for own in self.tables]}
        everything |= {"says": list(self.says), "what_if": self.what_if or None}
        if self.readings:
            everything["readings"] = [asdict(own) for own in self.readings]
        return json.dumps(everything, indent=2, allow_nan=False)

    def as_markdown(self) -> str:
        """Returns the tables and the sentences for people; no text of a document is in it."""
        lines = [f"# {self.title}", "", *(f"- {sentence}" for sentence in self.says)]
        for table in self.tables:
            rows = (table.columns, *table.rows)
            cells = [[cell.replace("\n", " ").replace("|", "\\|") for cell in row] for row in rows]
            head, *body = (f"| {' | '.join(row)} |" for row in cells)
            lines += ["", f"{table.title}:", "", head, "|" + "---|" * len(table.columns), *body]
        return "\n".join([*lines, ""])


_TABLES, _SENTENCES, _READINGS = (
    TypeAdapter(list[FindingTable]),
    TypeAdapter(list[str]),
    TypeAdapter(list[Reading]),
)
_WHAT_IF: TypeAdapter[str | None] = TypeAdapter(str | None)
"""What of a file is shown; the rest is whatever the attack has to say."""


def write_finding(finding: Finding, folder: Path) -> None:
    """Writes `<attack>.json` and `<attack>.md`; each appears complete or not at all."""
    private_folder(folder)
    everything = {**json.loads(finding.as_json()), **finding.details}
    text = json.dumps(everything, indent=None if finding.details else 2, allow_nan=False)
    write_atomically(folder / f"{finding.attack}.json", [f"{text}\n".encode()])
    write_atomically(folder / f"{finding.attack}.md", [finding.as_markdown().encode()])


def require_no_other_run(folder: Path, run: Path | None) -> None:
    """Checks that what is found would not be taken for a finding on a run that it is not of.

    Args:
        folder: Where it is to be written.
        run: The run that is attacked, as it was made; none where something else is.

    Raises:
        ConfigurationError: The folder is that of the findings on another run.
    """
    other = folder.resolve().parent
    of_a_run = folder.resolve().name == AUDITS and (other / "record.jsonl").exists()
    if of_a_run and (run is None or other != run.resolve()):
        what = f"{folder} is for attacks on the run {other.name} as it was made, and this is none"
        raise refused("", f"{what}; give another folder with --out", "conflict")


def what_was_attacked(settings: RunSettings) -> dict[str, Any]:
    """Returns what a reader has to know of a configuration to make the attack again."""
    return {
        "name": settings.name,
        "method": settings.method.get("name", USUAL_METHOD),
        "model": settings.model.title,
        "seed": settings.seed,
    }


def read_findings(run: Path) -> Iterator[Finding]:
    """Yields what attacks on a run have found; a file that is none of theirs is passed over."""
    for attack in ATTACKS:
        try:
            own = json.loads((run / AUDITS / f"{attack}.json").read_bytes())
            tables = _TABLES.validate_python(own["tables"])
            says = _SENTENCES.validate_python(own["says"])
            readings = _READINGS.validate_python(own.get("readings", []))
            what_if = _WHAT_IF.validate_python(own.get("what_if")) or ""
        except (OSError, ValueError, KeyError, TypeError):
            continue
        yield Finding(attack, tables, says, own, readings, what_if=what_if)

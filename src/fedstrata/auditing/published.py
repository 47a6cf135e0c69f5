"""What an attack has found goes to a folder, and where it is of a run to its report and its statement."""

from pathlib import Path

from fedstrata.privacy.ledger_summary import write_privacy_statement
from fedstrata.record.findings import AUDITS, Finding, write_finding
from fedstrata.record.report import write_report


def publish(finding: Finding, folder: Path, run: Path | None) -> list[Path]:
    """Writes what was found.

    Args:
        finding: It.
        folder: Where to.
        run: The run that was attacked, as it was made; none where something else was.

    Returns:
        The files that were written.
    """
    write_finding(finding, folder)
    told = [folder / f"{finding.attack}.{ending}" for ending in ("json", "md")]
    if run is None or folder.resolve() != (run / AUDITS).resolve():
        return told
    write_report([run], run / "report.html")
    return [*told, run / "report.html", *write_privacy_statement(run)]

"""A report of one run, or a comparison of several: one HTML file that needs nothing else.

It is made from run directories alone, so it can be made again at any time, also of a run that failed, was
stopped or is still under way. The same directory gives the same bytes.
"""

from collections.abc import Sequence
from pathlib import Path

from fedstrata.core.files import write_atomically
from fedstrata.record.history import read_history
from fedstrata.record.report.comparison import comparison_page
from fedstrata.record.report.run import run_page


def report_page(folders: Sequence[Path]) -> str:
    """Returns a report as HTML.

    Args:
        folders: Run directories: one for a report of its own, several for a comparison.

    Raises:
        ConfigurationError: A folder holds no run.
    """
    histories = [read_history(folder) for folder in folders]
    return run_page(histories[0]) if len(histories) == 1 else comparison_page(histories)


def write_report(folders: Sequence[Path], file: Path) -> None:
    """Writes a report; it appears complete or not at all.

    Args:
        folders: Run directories: one for a report of its own, several for a comparison.
        file: The HTML file to write.

    Raises:
        ConfigurationError: A folder holds no run.
    """
    write_atomically(file, [report_page(folders).encode()])

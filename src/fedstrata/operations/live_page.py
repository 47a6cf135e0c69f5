"""The report of one run as a page that stays up to date while the run goes on."""

from collections.abc import Mapping
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from threading import Lock

from fedstrata.core.errors import FedstrataError
from fedstrata.operations.local_server import HTML, SCRIPT, Answer, Route
from fedstrata.record.history import read_history
from fedstrata.record.log import Follower
from fedstrata.record.report.page import render
from fedstrata.record.report.run import run_page

_NOT_SHOWN = {"client", "cache"}
"""Events of which the report says nothing before their round is committed."""


class LivePage:
    """The pages of a run that is watched.

    The report is made anew when the record has grown, and only if somebody asks: drawing takes longer than a
    small round.

    Args:
        folder: The run directory.

    Raises:
        ConfigurationError: It holds no run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._follower, self._lock = folder, Follower(folder / "record.jsonl"), Lock()
        self._version, self._report, self._state = 0, b"", ""
        self._stale = True
        self._make()

    def routes(self) -> Mapping[str, Route]:
        """Returns what is answered, by path."""
        page = render("live.html", name=self._folder.resolve().name).encode()
        script = (files("fedstrata.record.report") / "templates" / "live.js").read_bytes()
        return {
            "": lambda headers: Answer(page, HTML),
            "live.js": lambda headers: Answer(script, SCRIPT),
            "report": self._answer,
        }

    def _answer(self, headers: Mapping[str, str]) -> Answer:
        """Answers with the report, or that whoever asks has it already."""
        with self._lock:
            try:
                self._make()
            except (FedstrataError, OSError):  # it was moved, or its disk is gone
                return Answer(b"", HTML, HTTPStatus.SERVICE_UNAVAILABLE)
            version = f'"{self._version}"'
            known = {"ETag": version, "Run-State": self._state}
            if headers.get("if-none-match") == version:
                return Answer(b"", HTML, HTTPStatus.NOT_MODIFIED, known)
            return Answer(self._report, HTML, headers=known)

    def _make(self) -> None:
        """Makes the report anew if there is anything new that it shows."""
        if any(event["event"] not in _NOT_SHOWN for event in self._follower.new()):
            self._stale = True
        if not self._stale:
            return
        history = read_history(self._folder)
        self._report, self._state = run_page(history).encode(), history.state
        self._version, self._stale = self._version + 1, False

"""What the server of a run tells of it on its own machine, and how others there find it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from fedstrata.core.files import is_somebodys_turn, secret_bytes, taking_turns, write_atomically
from fedstrata.operations.local_server import JSON_TEXT, Answer, LocalServer
from fedstrata.operations.metrics import metrics_of, require_metrics
from fedstrata.operations.standing import ENDS, FINISHED, Standing
from fedstrata.record.history import require_run, state_of
from fedstrata.record.log import as_written, read_events
from fedstrata.transport.addresses import require_free
from fedstrata.transport.credentials import require_safe

if TYPE_CHECKING:
    from fedstrata.core.types import JSON
    from fedstrata.transport.hub import Hub

SETTING = "--operations"
"""Where the address for everybody on this machine is set."""
ADDRESS = "operations.json"
"""The file, within a run's folder, that says where its server answers; there as long as it does."""
_ANY = "127.0.0.1:0"
_PATIENCE = 5.0
"""Seconds to wait for a server that is there to answer."""
RUNNING, STALLED, SILENT, GONE = "running", "stalled", "not answering", "not running"


def require_operations(address: str | None) -> None:
    """Checks, before anything is prepared, that metrics can be told at an address; none asks for nothing.

    Raises:
        ConfigurationError: It is not of this machine alone, or a package is missing.
        LineError: It is taken.
    """
    if address is not None:
        require_safe(address, insecure=True, setting=SETTING)
        require_metrics(SETTING)
        require_free(address)


class Operations:
    """Answers for a served run; a context manager around its rounds.

    Behind a token, which stands in the run's folder for its owner alone, who is there and what they do. To
    everybody on this machine, at an address that was asked for, `/healthz` and `/metrics`.

    Args:
        folder: The run directory.
        hub: The lines to the sites.
        standing: Where the run stands; listens to it.
        address: `HOST:PORT` of what is told to everybody on this machine; nothing if none.

    Attributes:
        place: `HOST:PORT`, with the port that was taken.
        public: Whether anything is told to everybody on this machine.
    """

    def __init__(self, folder: Path, hub: Hub, standing: Standing, address: str | None) -> None:
        self._file, self._hub, self._standing = folder / ADDRESS, hub, standing
        standing.replay(read_events(folder / "record.jsonl"))
        standing.wait()
        self.public = address is not None
        public = {"/healthz": self._health, "/metrics": self._metrics} if self.public else {}
        secret = {"status": lambda headers: _as_json(self.picture())}
        self._server = LocalServer(address or _ANY, secret, public, setting=SETTING)
        self.place = self._server.place
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._server)
        where = {"url": self._server.url}
        self._stack.callback(self._file.unlink, missing_ok=True)
        # In place of what a killed server has left: no other is at work on this run.
        write_atomically(self._file, [json.dumps(where).encode()], durable=False, mode=0o600)
        self._stack.enter_context(taking_turns(self._file))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def picture(self) -> dict[str, JSON]:
        """Returns where the run stands, with its sites."""
        server = STALLED if self._stalled else RUNNING
        return {"server": server, **self._standing.picture(self._hub.members)}

    @property
    def _stalled(self) -> bool:
        """Whether the server has not looked at its lines for so long that a site gives it up."""
        since = self._hub.at_work_since
        limits = [self._hub.timing.answer, *(member.patience for member in self._hub.members)]
        return since is not None and monotonic() - since > min(limits)

    def _health(self, headers: Mapping[str, str]) -> Answer:
        """Says that the run goes on or has come to its end, or that it has failed or hangs (503)."""
        picture = self.picture()
        well = picture["server"] == RUNNING and picture["state"] not in ENDS - {FINISHED}
        shown = ("server", "state", "round", "rounds", "committed", "fedstrata")
        status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
        return _as_json({name: picture[name] for name in shown}, status)

    def _metrics(self, headers: Mapping[str, str]) -> Answer:
        return metrics_of(self.picture(), headers.get("accept", ""))


def picture_of(folder: Path) -> dict[str, Any]:
    """Returns where a run stands: by its server if it is there, else by its record.

    Raises:
        ConfigurationError: The folder holds no run, or its server answers to another user alone.
        DataError: Its record is damaged.
    """
    require_run(folder)
    if (told := _asked(folder / ADDRESS)) is None:
        standing, record = Standing(), folder / "record.jsonl"
        with as_written(record):
            standing.replay(events := read_events(record))
            state = state_of(events)
        server = SILENT if is_somebodys_turn(folder / ADDRESS) else GONE
        told = {"server": server, **standing.picture(), "state": state}
    return told | {"name": told["name"] or folder.resolve().name}


def _asked(file: Path) -> dict[str, Any] | None:
    """Returns what a server says; none if there is none, or only what a killed one has left."""
    if not file.is_file():
        return None
    try:
        there = urlsplit(str(json.loads(secret_bytes(file))["url"]))
        require_safe(there.netloc, insecure=True, setting=str(file))
        if not is_somebodys_turn(file):  # whoever has a killed server's port now is told no token
            return None
        connection = http.client.HTTPConnection(there.netloc, timeout=_PATIENCE)  # past any proxy
        try:
            connection.request("GET", f"{there.path}status")
            answer = connection.getresponse()
            told = dict(json.load(answer)) if answer.status == HTTPStatus.OK else {}
            return told if told.keys() >= {"server", *Standing().picture()} else None  # another has its port
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None


def _as_json(value: Mapping[str, Any], status: int = HTTPStatus.OK) -> Answer:
    return Answer(json.dumps(value).encode(), JSON_TEXT, status)

"""What an actor of Ray does: the same as any other worker, on a machine that may have nothing of the run.

It prepares the experiment from the run's settings, with the data and the model that lie on its machine under
the same paths. What clients keep is sent to it with their jobs, and what has become of it goes back with what
came of them; until the actor ends a copy lies in a folder of its own.
"""

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import ray

from fedstrata.client.folder_copy import Changes, apply, changes, listing
from fedstrata.client.store import client_folder
from fedstrata.core.errors import FedstrataError, refused
from fedstrata.core.settings.source import Source
from fedstrata.engine.prepare import prepare
from fedstrata.engine.workers.process import Computed, EngineOf, Event, Place, begin, computed, heard
from fedstrata.wire.frame import Frame

_PREFIX = "fedstrata-worker-"
_LOCK = ".lock"
_UNCHANGED = 0
"""The time that files are said to be of which are as they are in the run directory."""


def versions() -> dict[str, str]:
    """Returns what numbers depend on and has to be the same on all machines."""
    return {name: version(name) for name in ("fedstrata", "torch", "transformers")}


def let_frames_travel() -> None:
    """Has Ray send frames as bytes, each tensor copied once into its store and once out of it."""

    def pieces(frame: Frame) -> tuple[bytes, list[Any]]:
        return frame.head, [np.asarray(body) for body in frame.bodies]  # which Ray copies, and pickles not

    ray.util.register_serializer(Frame, serializer=pieces, deserializer=_frame_of)


@dataclass(frozen=True)
class RayPreparation:
    """What an actor is to compute with.

    Attributes:
        engine_of: Returns what computes.
        settings: The run's, as plain values; they are those of one process.
        tokenizer: The files of the tokenizer that the run has built from its texts; none if it has not.
        identities: The files of each client's identity; none without masked sums.
        documents: The hash of all documents.
        versions: Of what numbers depend on.
        folder: The working directory, which paths of the settings may be relative to.
    """

    engine_of: EngineOf
    settings: dict[str, Any]
    tokenizer: Changes
    identities: Mapping[str, Changes]
    documents: str
    versions: Mapping[str, str]
    folder: str

    def place(self, own: Path) -> Place:
        """Loads the data and the model from this machine.

        Args:
            own: A folder for what clients keep.

        Raises:
            ConfigurationError: They are not here, or are others; the message names the machine.
        """
        try:
            return self._place(own)
        except (FedstrataError, OSError) as error:
            message = (
                f"ray cannot have a worker on the machine {socket.gethostname()}, which needs the data and "
                f"the model under the same paths, and the same versions: {error}"
            )
            code = error.code if isinstance(error, FedstrataError) else "unreadable"
            raise refused("workers", message, code) from None

    def _place(self, own: Path) -> Place:
        if (here := versions()) != self.versions:
            message = f"it has {_listed(here)}, and the run {_listed(self.versions)}"
            raise FedstrataError(message, code="other_version")
        with suppress(FileNotFoundError):  # paths may be absolute
            os.chdir(self.folder)
        built = own / "tokenizer"
        apply(self.tokenizer, built, _UNCHANGED, durable=False)
        for client, files in self.identities.items():
            apply(files, client_folder(own, client), _UNCHANGED, durable=False)
        experiment = prepare(
            Source(self.settings), tokenizer_folder=built if self.tokenizer.written else None
        )
        events: list[Event] = []
        listen = heard(events, lambda event, facts: None)  # nobody watches from another machine
        engine = self.engine_of(replace(experiment, workers=1), own, listen)
        engine.require_same({"data": self.documents})
        return Place(engine, experiment.model.device, events)


class RayActor:
    """A worker on a machine of the cluster."""

    def __init__(self) -> None:
        os.umask(0o077)  # what clients keep is nobody else's
        _remove_what_killed_actors_left()
        made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
        self._lock = (made / _LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._own = made.rename(made.with_name(made.name[1:]))  # others see it once it is held

    def prepare(self, preparation: RayPreparation) -> None:
        """Loads what it computes with."""
        let_frames_travel()
        begin(preparation.place(self._own))

    def compute(
        self, compute: Callable[..., Any], arguments: tuple[Any, ...], client: str | None, sent: Changes
    ) -> tuple[Computed, Changes]:
        """Computes a job; returns what came of it, and of the client's folder.

        Args:
            compute: What computes it.
            arguments: Its arguments.
            client: Whose folder it needs; none if nobody's.
            sent: What has become of that since this actor had it.
        """
        if client is None:
            return computed(compute, arguments), sent
        folder = client_folder(self._own, client)
        apply(sent, folder, _UNCHANGED, durable=False)
        before = {name: (*version[:2], _UNCHANGED) for name, version in listing(folder).items()}
        try:
            done = computed(compute, arguments)
        except BaseException:  # what it has left there is in no run directory
            apply(Changes({}, tuple(listing(folder))), folder, _UNCHANGED, durable=False)
            raise
        made = changes(folder, before)
        for name in made.written:
            os.utime(folder / name, ns=(_UNCHANGED, _UNCHANGED))
        return done, made

    def end(self) -> None:
        """Removes what it has kept."""
        shutil.rmtree(self._own, ignore_errors=True)


def _frame_of(pieces: tuple[bytes, list[Any]]) -> Frame:
    """Returns a frame of its own: what lies in Ray's store may not be written to."""
    head, bodies = pieces
    return Frame(head, tuple(map(memoryview, bodies))).aligned()


def _remove_what_killed_actors_left() -> None:
    """Removes folders of this user's actors that nobody holds any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, one that is held, or that another actor has just removed
            if folder.stat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def _listed(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in found.items())

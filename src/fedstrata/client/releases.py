"""What a client has spent of its units' privacy in a run, and what it sent for it: durable before it counts.

A turn is taken down before anything is drawn for it, so that one that is killed has spent what a whole one
spends. A finished update is kept until a later one takes its place, and a repeated order is answered with it:
it is one release, however often it is sent. Of joint noise none is kept: a share is drawn for one roster.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstrata.client.accounts import TurnAccount
from fedstrata.client.store import ClientStore
from fedstrata.core.errors import BudgetSpentError, FrameError
from fedstrata.core.files import hash_of, keep_names, private_folder
from fedstrata.core.types import JSON, Message, Update
from fedstrata.record.log import RecordLog, read_events
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame

RECORD = "releases.jsonl"
"""The turns of one client, one a line: round, handler, call, the hash of the plan, and the noise."""


def turns_begun(folder: Path) -> int:
    """Returns how many turns a client has begun to train in, those that were killed included.

    Args:
        folder: The client's.
    """
    return len(_begun(folder))


def _begun(folder: Path) -> list[dict[str, Any]]:
    """Returns what was taken down of each turn that a client has begun."""
    return [event for event in read_events(folder / RECORD) if event["event"] == "begun"]


class Release:
    """One turn of a client that trains under differential privacy.

    Args:
        folder: The client's.
        turn: Its round, its handler, and how often that was called in the round.
        plan: What the client is sent.
        allowed: How many turns its noise allows.
        account: What its site's budget has of the run; none without a budget.
        noise: The noise of the turn's steps; all turns of a run have the same.
        keeps: Whether a finished update may be sent again.
    """

    def __init__(
        self,
        folder: Path,
        turn: tuple[int, str, int],
        plan: Frame,
        allowed: int,
        account: TurnAccount | None = None,
        *,
        noise: Mapping[str, JSON] | None = None,
        keeps: bool = True,
    ) -> None:
        self._noise = dict(noise or {})
        self._folder, self._allowed, self._account, self._keeps = folder, allowed, account, keeps
        self._facts = dict(zip(("round", "handler", "call"), turn, strict=True)) | {"plan": plan.sha256()}
        self._begun = False

    def begin(self) -> None:
        """Takes the turn down as spent.

        Raises:
            BudgetSpentError: The noise allows for no more, or the site's budget does not; or what was begun
                before had other noise.
        """
        begun = _begun(self._folder)
        spent = len(begun)
        if others := [turn for turn in begun if turn.get("noise", self._noise) != self._noise]:
            raise BudgetSpentError(
                f"client {self._folder.name} has begun {len(others)} turns of this run with other noise than "
                "is asked for now, of which no epsilon of the run would be true; what was committed stays"
            )
        if spent >= self._allowed:
            raise BudgetSpentError(
                f"client {self._folder.name} has begun {spent} turns under differential privacy, and its "
                f"noise allows for {self._allowed}: one in each of its rounds, and privacy.spare_turns. What "
                "was committed stays; begin another run, with more spare turns, for more"
            )
        if self._account is not None:
            self._account.begin()
        self.take_down()
        self._begun = True

    def take_down(self) -> None:
        """Takes the turn down in the client's folder, whatever its noise allows.

        Also where that is at another place than the turn, whose process is lost: nobody can say whether it
        had begun.
        """
        private_folder(self._folder)
        self._append("begun", noise=self._noise)
        keep_names(self._folder)

    def finish(self, update: Update, store: ClientStore) -> None:
        """Keeps an update, and what the client has stored of the turn, if anything was spent for it."""
        if not self._begun:
            return
        if not self._keeps:
            if self._account is not None:
                self._account.commit()
            return
        if store.version is not None:
            frame.encode(store.read()).write(self._path("kept"))
        else:
            self._path("kept").unlink(missing_ok=True)
        frame.encode(update).write(self._path("sent"))
        if self._account is not None:
            self._account.commit()  # before it is finished, from when on it may be sent without a new turn
        self._append("finished", hash=hash_of(self._path("sent")))

    def finished(self, store: ClientStore) -> Update | None:
        """Returns the update that this turn came to before, and has the store as it then was; or none."""
        if not self._keeps:
            return None
        last = read_events(self._folder / RECORD)[-1:]
        wanted = {"event": "finished", **self._facts}
        if not last or any(last[0].get(key) != value for key, value in wanted.items()):
            return None
        try:
            if hash_of(self._path("sent")) != last[0]["hash"]:
                return None
            kept = self._path("kept")
            if kept.exists():
                store.write(frame.decode(frame.read(kept), Message))
            return frame.decode(frame.read(self._path("sent")), Update)
        except (FrameError, OSError, KeyError):  # what cannot be read again is computed anew, and spent
            return None

    def _append(self, event: str, **facts: JSON) -> None:
        log = RecordLog(self._folder / RECORD)
        log.append(event, {**self._facts, **facts}, durable=True)
        log.close()

    def _path(self, what: str) -> Path:
        return self._folder / f"release-{what}.safetensors"

"""Where a run stands, and each of its sites: from the run's events, as they happen or from its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from fedstrata.core.handlers import is_scoring, only_says
from fedstrata.core.types import JSON
from fedstrata.record.log import Listener
from fedstrata.record.summary import headline
from fedstrata.transport.header import Kind

if TYPE_CHECKING:
    from fedstrata.transport.members import Member

WAITING, UNDER_WAY, FINISHING = "waiting for sites", "under way", "scoring the test split"
FINISHED, FAILED, INTERRUPTED = "finished", "failed", "interrupted"
ENDS = frozenset({FINISHED, FAILED, INTERRUPTED})
"""States of a run that does not go on by itself."""
DELIVERED, LOST = "delivered", "lost"
"""What becomes of a turn."""


@dataclass
class Site:
    """What is known of a site.

    Attributes:
        came: Whether it has ever been there.
        seen: When it last was heard of, ISO 8601.
        round: The last round it had a turn in.
        turns: How many of its turns came to what.
        bytes_up: What it has sent in its turns.
        bytes_down: What it was sent in them.
        failure: What was the matter when it was last lost to a round, if it has not delivered since.
    """

    came: bool = False
    seen: str | None = None
    round: int | None = None
    turns: Counter[str] = field(default_factory=Counter)
    bytes_up: int = 0
    bytes_down: int = 0
    failure: str | None = None


class Standing:
    """Listens to a run; may be looked at from any thread.

    Args:
        sites: Who is expected.
        listen: Told every event after it.
    """

    def __init__(self, sites: Sequence[str] = (), listen: Listener = lambda event, facts: None) -> None:
        self._listen, self._lock = listen, Lock()
        self._sites = {name: Site() for name in sites}
        self._run: dict[str, JSON] = {
            **dict.fromkeys(("name", "round", "rounds", "loss", "metric", "score", "message")),
            **{"state": WAITING, "committed": 0, "round_began": None, "round_seconds": None},
        }
        self._rounds_done, self._seconds_of_rounds = 0, 0.0

    def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        """Takes one event, and then passes it on: whoever hears of a round finds it in the picture."""
        self._take(event, facts)
        self._listen(event, facts)

    def replay(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Takes the events of a record, of which nobody else is told."""
        for event in events:
            self._take(event["event"], event)

    def _take(self, event: str, facts: Mapping[str, Any]) -> None:
        handler = getattr(self, f"_on_{event}", None)
        if handler is not None:
            with self._lock:
                handler(facts)

    def wait(self) -> None:
        """Says that a run waits for its sites, however it has ended before."""
        with self._lock:
            self._run |= {"state": WAITING, "message": None}

    def picture(self, members: Iterable[Member] | None = None) -> dict[str, JSON]:
        """Returns where the run stands, as JSON.

        Args:
            members: Who has a session; none if that is not known, as there is no server.
        """
        here = None if members is None else {member.client: member for member in members}
        with self._lock:
            for name, member in (here or {}).items():
                since = timedelta(seconds=monotonic() - member.link.heard)
                self._site(name).seen = _moment(datetime.now(UTC) - since)
            sites = [_site_facts(name, own, here) for name, own in self._sites.items()]
            done = {"rounds_done": self._rounds_done, "seconds_of_rounds": self._seconds_of_rounds}
            return {"fedstrata": version("fedstrata"), **self._run, **done, "sites": [*sites]}

    def _site(self, name: str) -> Site:
        site = self._sites.setdefault(name, Site())
        site.came = True
        return site

    def _on_joined(self, facts: Mapping[str, Any]) -> None:
        self._site(facts["client"]).seen = _time_of(facts)

    def _on_run(self, facts: Mapping[str, Any]) -> None:
        self._run |= {"name": facts["name"], "rounds": facts["rounds"], "metric": facts["metric"]}
        self._run |= {"state": UNDER_WAY, "message": None}
        for name in facts["clients"]:
            self._sites.setdefault(name, Site())

    def _on_resumed(self, facts: Mapping[str, Any]) -> None:
        self._run |= {"rounds": facts["rounds"], "metric": facts["metric"], "committed": facts["round"]}
        self._run |= {"state": UNDER_WAY, "message": None}

    def _on_round_started(self, facts: Mapping[str, Any]) -> None:
        self._run |= {"state": UNDER_WAY, "round": facts["round"], "round_began": _time_of(facts)}

    def _on_client(self, facts: Mapping[str, Any]) -> None:
        site = self._turn(facts, DELIVERED)
        site.bytes_up += facts["bytes_up"]
        site.failure = None

    def _on_client_failed(self, facts: Mapping[str, Any]) -> None:
        if not facts.get("part"):  # of documents that it was to score: it has had its turn
            site = self._turn(facts, LOST)
            site.failure = facts["message"] or facts["error"]

    def _turn(self, facts: Mapping[str, Any], result: str) -> Site:
        site = self._site(facts["client"])
        site.turns[result] += 1
        site.round, site.seen = facts["round"], _time_of(facts)
        site.bytes_down += facts["bytes_down"]
        self._run["round"] = facts["round"]
        return site

    def _on_round(self, facts: Mapping[str, Any]) -> None:
        score, seconds = headline(facts, str(self._run["metric"])), facts["seconds"]
        self._run |= {"round": facts["round"], "committed": facts["round"], "loss": facts["loss"]}
        self._run["round_seconds"] = seconds
        self._rounds_done += 1
        self._seconds_of_rounds += seconds
        self._run["score"] = score if score is not None else self._run["score"]

    def _on_finishing(self, facts: Mapping[str, Any]) -> None:
        self._run["state"] = FINISHING

    def _on_final(self, facts: Mapping[str, Any]) -> None:
        self._run["state"] = FINISHED

    def _on_failed(self, facts: Mapping[str, Any]) -> None:
        self._run["state"] = INTERRUPTED if facts["error"] == "KeyboardInterrupt" else FAILED
        self._run["message"] = facts["message"]


def _time_of(facts: Mapping[str, Any]) -> str:
    """Returns when an event was recorded, or that it happens now."""
    return facts.get("time") or _moment(datetime.now(UTC))


def _moment(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")


def _site_facts(name: str, site: Site, here: Mapping[str, Member] | None) -> dict[str, JSON]:
    """Returns what is said of a site; `there` and `doing` are null where nobody can know."""
    member = None if here is None else here.get(name)
    task = member.task if member is not None else None  # once: another thread may end it meanwhile
    asked = task.round if task is not None else 0
    return {
        "site": name,
        "there": None if here is None else member is not None,
        "doing": None if here is None else _doing(member, site),
        "seen": site.seen,
        "round": asked or site.round,
        "bytes_up": site.bytes_up,
        "bytes_down": site.bytes_down,
        DELIVERED: site.turns[DELIVERED],
        LOST: site.turns[LOST],
        "failure": site.failure,
    }


def _doing(member: Member | None, site: Site) -> str:
    """Says what a site is doing, as far as its server knows."""
    if member is None:
        return "lost" if site.came else "awaited"
    if member.link.down_since is not None:
        return "reconnecting"
    task = member.task
    if task is None:
        return "waiting"
    if task.kind == Kind.FETCH:
        return "sending"
    if is_scoring(task.handler):
        return "scoring"
    return "summing" if only_says(task.handler) else "training"

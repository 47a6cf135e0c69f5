"""What the supervisor leaves in a run's folder for the controller, and the controller for the supervisor.

A job names the folder, and which submission it is. All else lies here, where only the user of both can write:
who may submit jobs can have no run served that was not begun at the server.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field

from fedstrata.core.errors import FedstrataError, refused
from fedstrata.core.files import is_somebodys_turn, private_folder, require_secret, write_atomically
from fedstrata.core.settings.base import Settings
from fedstrata.core.settings.run import RunSettings
from fedstrata.engine.run_folder import HANDOVER, write_settings

ASKED = "config.yaml"
"""The file of the settings that are to be served."""
AT_WORK = "at_work"
"""The file that is locked as long as a controller is at work."""
_HANDOVER, _OUTCOME = "handover.json", "outcome.json"


class Handover(Settings):
    """What is to be served, beside the settings.

    Attributes:
        submission: The number of the submission; a job of an earlier one is over.
        directory: Where relative paths begin.
        clients: Who takes part.
        cache_bytes: Memory for keys and values while documents are scored.
        largest: Bytes of a message at most.
        patience: Seconds to wait for clients that are not there.
        timing: How long to wait otherwise, by the names of `Timing`.
    """

    submission: int
    directory: str
    clients: list[str]
    cache_bytes: int
    largest: int
    patience: float
    timing: dict[str, float]


class Outcome(Settings):
    """How a submission has ended.

    Attributes:
        submission: Its number.
        status: The exit status of `fedstrata serve`.
        message: What went wrong.
        code: The same, as programs tell it.
        again: Whether another submission may do better, with clients that this one has lost.
    """

    submission: int
    status: int = 0
    message: str = ""
    code: str = "failed"
    again: bool = Field(default=False)


def leave(folder: Path, handover: Handover, settings: RunSettings) -> None:
    """Leaves what is to be served."""
    place = folder / HANDOVER
    private_folder(place, existing=True)
    write_settings(settings, place / ASKED)
    write_atomically(place / _HANDOVER, [handover.model_dump_json().encode()])


def take(folder: Path, submission: int) -> Handover:
    """Returns what is to be served.

    Raises:
        ConfigurationError: Nothing was left there, or others could have left it.
        FedstrataError: There was another submission since.
    """
    place = folder / HANDOVER
    if not (place / _HANDOVER).is_file():
        message = f"{folder} was not handed over by: fedstrata serve --on nvflare"
        raise refused("folder", message, "not_found")
    require_secret(place)
    found = Handover.model_validate_json((place / _HANDOVER).read_bytes())
    if found.submission != submission:
        message = f"submission {found.submission} has taken the place of {submission}"
        raise FedstrataError(message, code="replaced")
    return found


def tell(folder: Path, outcome: Outcome) -> None:
    """Leaves how a submission has ended."""
    write_atomically(folder / HANDOVER / _OUTCOME, [outcome.model_dump_json().encode()])


def outcome_of(folder: Path, submission: int) -> Outcome | None:
    """Returns how a submission has ended, if it has."""
    try:
        found = Outcome.model_validate_json((folder / HANDOVER / _OUTCOME).read_bytes())
    except FileNotFoundError:
        return None
    return found if found.submission == submission else None


def last_submission(folder: Path) -> int:
    """Returns the number of the last submission; 0 if there was none."""
    try:
        return int(json.loads((folder / HANDOVER / _HANDOVER).read_bytes())["submission"])
    except FileNotFoundError:
        return 0


def is_at_work(folder: Path) -> bool:
    """Whether a controller is at work on a run, however it was submitted and whatever is said of its job."""
    return is_somebodys_turn(folder / HANDOVER / AT_WORK)

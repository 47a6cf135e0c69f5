"""`fedstrata serve --on nvflare`: has NVFlare serve a run, and again when what served it is gone.

What NVFlare says of a job is not relied on: a job whose server was killed says that it runs. Whether a
controller is at work is told by a lock that ends with its process; how far the run has come, by its record.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from fedstrata.core.errors import FedstrataError, printable, refused
from fedstrata.core.settings.run import RunSettings
from fedstrata.nvflare.handover import Handover, Outcome, is_at_work, last_submission, leave, outcome_of
from fedstrata.record.log import Follower, Listener, committed_rounds, read_events

RECORD = "record.jsonl"
_PAUSE = 0.5
"""Seconds between two looks at the run."""
_IN_VAIN = 3
"""Submissions in a row without a round that was committed, after which there is no other; and submissions for
the sake of one client."""
_SELDOM = 10.0
"""Seconds between two looks at who takes part in the job."""
_START = 300.0
"""Seconds that a job which is said to run may take until a controller is at work."""
_ABORTED = "FINISHED:ABORTED"

_Answer = TypeVar("_Answer")


class JobError(FedstrataError):
    """The run has failed where it was served.

    Args:
        message: What the controller has told.
        status: The exit status that `fedstrata serve` would have had there.
        code: As for any of our errors.
    """

    def __init__(self, message: str, status: int, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.exit_status = status


class Supervisor:
    """Has NVFlare serve a run to its end.

    Args:
        kit: The startup kit of the administrator who submits jobs.
        folder: The run directory, on the machine of NVFlare's server.
        settings: The run's settings.
        handover: How it is served; the number of the submission is filled in.
        listen: Told of the events of the record.
        say: Told what becomes of jobs.

    Raises:
        ConfigurationError: NVFlare is not installed, or there is no such kit.
    """

    def __init__(
        self,
        kit: Path,
        folder: Path,
        settings: RunSettings,
        handover: Handover,
        listen: Listener,
        say: Callable[[str], None],
    ) -> None:
        self._kit, self._user = kit, _user_of(kit)
        self._folder, self._settings, self._handover = folder, settings, handover
        self._listen, self._say = listen, say
        self._session: Any = None
        self._trouble = ""  # why it could not be asked, the last time
        self._job, self._submission, self._in_vain, self._rounds = "", last_submission(folder), 0, -1
        self._fetched: Counter[str] = Counter()  # how often a client was out of a job
        self._idle: set[str] = set()
        self._looked = 0.0  # when it was last asked who is in the job
        self._begun = False  # whether the job's controller has been at work
        self._seen = 0.0  # when it last was, or was about to be

    def run(self) -> None:
        """Submits the run, and again until it has come to its end.

        Raises:
            JobError: It has failed.
            KeyboardInterrupt: A person has had enough; the job is aborted.
        """
        follower = Follower(self._folder / RECORD)
        follower.new()  # what a run that goes on has told before
        try:
            self._submit()
            while not self._has_ended():
                for event in follower.new():
                    self._listen(str(event["event"]), event)
                time.sleep(_PAUSE)
        except BaseException:
            self._abort()
            raise
        finally:
            for event in follower.new():
                self._listen(str(event["event"]), event)
            if self._session is not None:
                self._session.close()

    def _has_ended(self) -> bool:
        """Whether the run has; submits it again where it has not and nobody is at work on it.

        Raises:
            JobError: It has failed.
        """
        outcome = outcome_of(self._folder, self._submission)
        if outcome is not None and not outcome.status:
            return True
        if outcome is not None:
            self._say(f"submission {self._submission} has failed: {outcome.message}")
            self._submit_again(outcome)
        elif reason := self._gone() or self._left_out():
            self._say(f"submission {self._submission}: {reason}")
            self._submit_again(Outcome(submission=self._submission, status=1, message=reason, again=True))
        return False

    def _gone(self) -> str:
        """Says why nobody is at work on the run, nor will be; empty as long as that is not known."""
        now = time.monotonic()
        if is_at_work(self._folder):
            self._seen, self._begun = now, True
            return ""
        status = self._ask(lambda session: session.get_job_status(self._job))
        if status is None or outcome_of(self._folder, self._submission) is not None:
            return ""  # nobody to submit to; or it has ended meanwhile
        if status == _ABORTED:
            raise JobError(f"the job {self._job} was aborted; go on with --resume", 1)
        if status.startswith("FINISHED"):
            return str(status)
        if status != "RUNNING":  # it has yet to begin
            self._seen = now
        allowed = self._handover.timing["reconnect"] if self._begun else _START
        return f"{status}, and for {allowed:g} s nobody is at work" if now - self._seen > allowed else ""

    def _left_out(self) -> str:
        """Says which client is there and has no part in the job: one whose NVFlare was started again."""
        if not self._begun or time.monotonic() - self._looked < _SELDOM:
            return ""
        self._looked = time.monotonic()
        found = self._ask(lambda session: session.get_client_job_status(self._handover.clients)) or []
        at_it = {each.get("client_name") for each in found if each.get("job_id") == self._job}
        idle = {str(each.get("client_name")) for each in found if each.get("status") == "no_jobs"} - at_it
        before, self._idle = self._idle, idle
        for client in sorted(idle & before):  # and not on its way into the job
            self._fetched[client] += 1
            if at_it and self._fetched[client] <= _IN_VAIN:
                return f"{client} is there, and not in the job"
        return ""

    def _submit_again(self, outcome: Outcome) -> None:
        rounds = len(committed_rounds(read_events(self._folder / RECORD)))
        self._in_vain = 1 if rounds > self._rounds else self._in_vain + 1
        if not outcome.again or self._in_vain >= _IN_VAIN:
            raise JobError(outcome.message, outcome.status, outcome.code)
        self._abort()
        self._submit()

    def _submit(self) -> None:
        self._submission += 1
        self._rounds = len(committed_rounds(read_events(self._folder / RECORD)))
        handover = self._handover.model_copy(update={"submission": self._submission})
        leave(self._folder, handover, self._settings)
        with tempfile.TemporaryDirectory() as place:
            job = _write_job(Path(place), self._folder, handover, self._settings.federation.min_clients)
            told = False
            while (submitted := self._ask(lambda session: session.submit_job(str(job)))) is None:
                if not told:
                    self._say(f"NVFlare's server cannot be reached yet: {self._trouble}")
                told = True
                time.sleep(_PAUSE)
        self._job, self._seen, self._begun = submitted, time.monotonic(), False
        self._say(f"submitted as job {self._job}")

    def _abort(self) -> None:
        """Ends the job, if there is one and it can be told."""
        if self._job:
            self._ask(lambda session: session.abort_job(self._job))

    def _ask(self, question: Callable[[Any], _Answer]) -> _Answer | None:
        """Returns what NVFlare's server answers; nothing if it cannot be reached.

        Raises:
            ConfigurationError: It does not know this administrator, or refuses what is asked.
        """
        from nvflare.fuel.flare_api import api_spec, flare_api  # noqa: PLC0415 - an extra

        of_nvflare = (
            api_spec.AuthenticationError,
            api_spec.AuthorizationError,
            api_spec.InvalidJobDefinition,
        )
        try:
            if self._session is None:
                self._session = flare_api.new_secure_session(self._user, str(self._kit))
            return question(self._session)
        except of_nvflare as error:
            message = printable(f"NVFlare refuses: {error}")
            raise refused("--admin", message, "refused") from None
        except (api_spec.JobNotFound, api_spec.JobNotRunning):
            return None
        except Exception as error:  # whatever it is: a server that is gone has many names
            self._trouble = printable(f"{type(error).__name__}: {error}")
            with suppress(Exception):
                if self._session is not None:
                    self._session.close()
            self._session = None
            return None


def _user_of(kit: Path) -> str:
    """Returns whose startup kit a folder is."""
    try:
        import nvflare  # noqa: F401, PLC0415 - an extra
    except ImportError:
        message = "NVFlare is not installed; install it with: pip install 'fedstrata[nvflare]'"
        raise refused("--on", message, "not_installed") from None
    try:
        return str(json.loads((kit / "startup" / "fed_admin.json").read_bytes())["admin"]["username"])
    except (OSError, ValueError, KeyError, TypeError):
        message = f"{kit} is no startup kit of an NVFlare administrator (startup/fed_admin.json)"
        raise refused("--admin", message, "wrong_kit") from None


def _write_job(place: Path, folder: Path, handover: Handover, min_clients: int | None) -> Path:
    """Writes a job: what is to be started at the server and at the sites, both of what is installed there."""
    job, config = place / "fedstrata", place / "fedstrata" / "app" / "config"
    config.mkdir(parents=True)
    clients = handover.clients
    meta = {
        "name": "fedstrata",
        "resource_spec": {},
        "min_clients": min_clients or len(clients),
        "deploy_map": {"app": ["server", *clients]},
    }
    arguments = {"folder": str(folder), "submission": handover.submission}
    controller = {"id": "serve", "path": "fedstrata.nvflare.controller.ServeController", "args": arguments}
    executor = {"path": "fedstrata.nvflare.executor.JoinExecutor", "args": {}}
    files = {
        job / "meta.json": meta,
        config / "config_fed_server.json": {"format_version": 2, "workflows": [controller], "components": []},
        config / "config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": executor}],
            "components": [],
        },
    }
    for path, content in files.items():
        path.write_text(json.dumps(content))
    return job

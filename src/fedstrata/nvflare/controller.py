"""What NVFlare starts at the server: what `fedstrata serve` does, over the cells of a job."""

import os
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from nvflare.apis.impl.controller import Controller
from nvflare.fuel.f3.cellnet.fqcn import FQCN

from fedstrata.core.errors import ClientsLostError, FedstrataError
from fedstrata.core.files import taking_turns
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import JSON
from fedstrata.engine.remote.agreeing import Agreements
from fedstrata.engine.remote.serving import Serving, open_service
from fedstrata.engine.run_folder import HANDOVER, SETTINGS, resumable
from fedstrata.nvflare.handover import ASKED, AT_WORK, Handover, Outcome, take, tell
from fedstrata.nvflare.hub import CellHub
from fedstrata.nvflare.job_cell import JobCell
from fedstrata.transport.timing import Timing

_PAUSE = 0.2
"""Seconds between two looks at whether the job is aborted."""
_ABORTED = 9
"""What NVFlare calls the exit status of a job's process that was."""


class ServeController(Controller):
    """Serves a run that `fedstrata serve --on nvflare` has handed over.

    Args:
        folder: The run directory.
        submission: Which submission of it this is.
    """

    def __init__(self, folder: str, submission: int) -> None:
        super().__init__()
        self._folder, self._submission = Path(folder), submission

    def start_controller(self, fl_ctx: Any) -> None:
        """Has nothing to do before the run."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Has nothing to do after it."""

    def process_result_of_unknown_task(self, *args: Any, **named: Any) -> None:
        """Hears of no task: there are none."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Runs all rounds that are not yet committed, and leaves how that has ended."""
        outcome, over = Outcome(submission=self._submission), Event()
        handover = take(self._folder, self._submission)
        Thread(target=_leave_with, args=(abort_signal, over), daemon=True).start()
        with taking_turns(self._folder / HANDOVER / AT_WORK):
            take(self._folder, self._submission)  # which may have changed meanwhile
            try:
                self._serve(handover, JobCell(fl_ctx.get_engine().get_cell(), abort_signal), fl_ctx)
            except FedstrataError as error:
                again = isinstance(error, ClientsLostError)  # of whom some may have been started again
                told = {"message": str(error), "code": error.code}
                outcome = outcome.model_copy(update={"status": error.exit_status, "again": again, **told})
            except Exception as error:  # a bug; its text may quote a note, so only its type is told
                self.log_error(fl_ctx, "".join(traceback.format_tb(error.__traceback__)))
                message = f"unexpected {type(error).__name__}; the log of the job at the server says where"
                outcome = outcome.model_copy(update={"status": 1, "message": message})
            over.set()
            tell(self._folder, outcome)
        if outcome.status:
            self.system_panic(outcome.message, fl_ctx)

    def _serve(self, handover: Handover, cell: JobCell, fl_ctx: Any) -> None:
        """Serves the run from where it stands."""
        os.chdir(handover.directory)
        asked, resume = self._folder / HANDOVER / ASKED, (self._folder / SETTINGS).is_file()
        begun = partial(resumable, self._folder, asked, [], command="fedstrata serve")
        source = begun() if resume else read_source(asked, [])
        job = fl_ctx.get_job_id()
        sites = {
            each.name: FQCN.join([each.get_fqcn(), job])
            for each in fl_ctx.get_engine().get_clients()
            if each.name in handover.clients
        }
        serving = Serving(tuple(handover.clients), handover.cache_bytes, handover.largest, handover.patience)

        def hub_of(agree: Agreements, welcome: Any, settings: Mapping[str, JSON]) -> CellHub:
            timing = Timing(**handover.timing)
            return CellHub(cell, sites, agree, timing=timing, welcome=welcome, settings=settings)

        def listen(event: str, facts: Mapping[str, Any]) -> None:
            """Hears nothing that the record does not hold, which the supervisor reads."""

        run, hub = open_service(source, self._folder, listen, serving, hub_of, resume=resume)
        complete = False
        try:
            hub.listen()
            run.execute()
            complete = True
        finally:
            hub.stop(complete=complete)


def _leave_with(abort: Any, over: Event) -> None:
    """Ends the process when its job is aborted, before a round counts clients as lost that end with it."""
    while not over.wait(_PAUSE):
        if abort.triggered:
            os._exit(_ABORTED)

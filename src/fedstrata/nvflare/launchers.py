"""Start the process of a job again that a signal has ended; a site names them in its kit."""

import logging
import os
import shlex
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.utils.job_launcher_utils import get_credential_env
from nvflare.utils.process_utils import spawn_process

_logger = logging.getLogger(__name__)


class _Process(ProcessHandle):
    """A job's process, and those that take its place when a signal ends it: out of memory, or kill -9."""

    def __init__(self, command: list[str], environment: dict[str, str], restarts: int) -> None:
        self._command, self._environment, self._left = command, environment, restarts
        self._ended = False
        self.adapter: Any = None  # set by what follows
        super().__init__(process_adapter=spawn_process(command, dict(environment)))

    def terminate(self) -> None:
        """Ends the process for good."""
        self._ended = True
        super().terminate()

    def wait(self) -> None:
        """Waits until the process has ended, and none takes its place."""
        while True:
            super().wait()
            code: int | None = self.adapter.poll()
            if self._ended or not self._left or code is None or code >= 0:
                return
            self._left -= 1
            _logger.warning("the process of a job was ended by signal %d, and is started again", -code)
            self.adapter = spawn_process(self._command, dict(self._environment))


class _Restarting:
    """Launches a job's process as NVFlare does, but for code in the job, which has no place here.

    Args:
        restarts: How often a process of a job is started again.
    """

    def __init__(self, restarts: int = 20) -> None:
        super().__init__()
        self._restarts = restarts

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> _Process:
        """Starts the process of a job."""
        credentials = get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {})
        command = shlex.split(self.get_command(job_meta, fl_ctx), comments=True)  # type: ignore[attr-defined]
        return _Process(command, {**os.environ, **credentials}, self._restarts)


class ClientLauncher(_Restarting, ClientProcessJobLauncher):
    """At a site."""


class ServerLauncher(_Restarting, ServerProcessJobLauncher):
    """At the server."""

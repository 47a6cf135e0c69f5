"""What NVFlare starts at a site: what `fedstrata join` does, over the cells of a job."""

import logging
from pathlib import Path
from threading import Thread
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.fqcn import FQCN

from fedstrata.core.errors import FedstrataError
from fedstrata.core.plugins import search_here
from fedstrata.core.settings.source import read_source
from fedstrata.engine.remote.joining import RemoteClient, join_run
from fedstrata.engine.remote.shared_settings import names_code
from fedstrata.engine.remote.site_policy import PolicyGuard
from fedstrata.nvflare.job_cell import JobCell
from fedstrata.nvflare.membership import CellMembership, settings_of
from fedstrata.nvflare.site import SiteSettings
from fedstrata.record.client_events import TROUBLE, line_of
from fedstrata.transport.timing import Timing

_logger = logging.getLogger(__name__)


class JoinExecutor(Executor):
    """Takes part in the run of a job, as the site's own kit says."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = Signal()

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """Knows no task: there are none."""
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Joins when the job begins."""
        if event_type == EventType.START_RUN:
            server = FQCN.join([FQCN.ROOT_SERVER, fl_ctx.get_job_id()])
            kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
            cell = JobCell(fl_ctx.get_engine().get_cell(), self._ended)
            arguments = (cell, server, fl_ctx.get_identity_name(), kit)
            Thread(target=self._join, args=arguments, name="join", daemon=True).start()
        elif event_type == EventType.END_RUN:
            self._ended.trigger("the job has ended")

    def _join(self, cell: JobCell, server: str, client: str, kit: Path) -> None:
        try:
            _join(cell, server, client, SiteSettings.read(kit))
        except FedstrataError as error:
            _logger.error("%s", error)
        except Exception as error:  # a bug; its text may quote a note, so only its type is told
            _logger.error("unexpected %s", type(error).__name__)
        else:
            _logger.info("the run has ended")


def _join(cell: JobCell, server: str, client: str, site: SiteSettings) -> None:
    timing = Timing(answer=site.deadline, reconnect=site.reconnect, keepalive=site.keepalive)

    def session_of(own: RemoteClient) -> CellMembership:
        return CellMembership(
            cell, server, client, own.agreement, greeting=own.greeting, timing=timing, warn=_logger.warning
        )

    guard = PolicyGuard.read(Path(site.policy)) if site.policy is not None else None
    source = read_source(Path(site.configuration), [])
    search_here(names_code(source.values, guard))
    join_run(
        source,
        client,
        lambda refused: settings_of(cell, server, timing, _logger.warning, refused=refused),
        session_of,
        Path(site.home),
        _tell,
        identity=Path(site.identity) if site.identity is not None else None,
        lock=Path(site.lock) if site.lock is not None else None,
        guard=guard,
        allow_without=site.allow_without,
        runs=site.runs,
    )


def _tell(event: str, facts: Any) -> None:
    if told := line_of(event, facts):
        _logger.log(logging.WARNING if event in TROUBLE else logging.INFO, "%s", told)

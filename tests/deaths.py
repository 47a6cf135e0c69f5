"""Runs that end at a given moment, or stall: processes of sites and servers, and secure sums in this process.

A process imports it by name, so it is not in a test; gRPC is imported only in processes that live on.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import TINY

from fedstrata.client.secure_turns import SecureTurns
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import prepare_server
from fedstrata.engine.run import Run
from fedstrata.engine.run_folder import SETTINGS, write_settings
from fedstrata.engine.secure_mean import SecureAggregation
from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.unmasking import SumUnmasking

SITES = ("site-1", "site-2", "site-3", "site-4")
SECURE = (
    "privacy.secure_aggregation=true",
    "method={name: layer_skipping, top: 1}",
    "data.synthetic.sites=4",
    "data.synthetic.notes=8",
    "federation.min_clients=1",
    "federation.floors=false",
    "threads=1",
)
"""A run of masked sums of four sites."""
_KILL_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def live(moments: Sequence[str]) -> None:
    """Returns in a process for each round, killed before its exchange (`secure/unmask:2`); then here."""
    for number, moment in enumerate(moments, start=1):
        if not (child := os.fork()):
            ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL)
            die_before(moment, number)
            return
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            os._exit(os.waitstatus_to_exitcode(status))


def die_before(moment: str, number: int) -> None:
    """Has this process killed when it is asked for an exchange of a round."""
    compute, asked = SecureTurns.compute, Counter[str]()
    handler, _, time = moment.partition(":")

    def dying(turns: SecureTurns, order: Any, site: Any) -> Any:
        asked[order.handler] += order.round == number
        if order.round == number and order.handler == handler and asked[handler] == int(time or 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return compute(turns, order, site)

    SecureTurns.compute = dying  # type: ignore[method-assign]


def stall_before(handler: str, mark: Path) -> None:
    """Has this process never answer to an exchange; it makes a file when it is asked for it."""
    compute = SecureTurns.compute

    def stalling(turns: SecureTurns, order: Any, site: Any) -> Any:
        if order.handler == handler:
            mark.touch()
            signal.pause()
        return compute(turns, order, site)

    SecureTurns.compute = stalling  # type: ignore[method-assign]


def serve(address: str, folder: Path, moment: str, *overrides: str) -> None:
    """Runs a server, or goes on with its run, to the end or to a call of a function (`take:3`)."""
    from remote_run import LARGEST, PATIENT

    from fedstrata.engine.remote.agreeing import Agreements
    from fedstrata.engine.remote.engine import RemoteEngine
    from fedstrata.transport.grpc.hub import GrpcHub

    name, _, call = moment.partition(":")
    if name:
        kill_before(SecureAggregation if name == "save" else SumUnmasking, name, int(call))
    experiment = prepare_server(read_source(None, [*TINY, *overrides]), SITES)
    begun = (folder / SETTINGS).exists()
    folder.mkdir(parents=True, exist_ok=True)
    write_settings(experiment.settings, folder / SETTINGS)
    engine_of = partial(RemoteEngine, names=SITES, cache_bytes=2**30, patience=300.0)
    run = Run(experiment, folder, lambda event, facts: print(event, dict(facts), flush=True), engine_of)
    if begun:
        run.load()
    agreements = Agreements(experiment, SITES, LARGEST)
    hub = GrpcHub(agreements, largest=LARGEST, clients=SITES, timing=PATIENT, welcome=run.engine.welcome)
    run.engine.connect(hub)
    hub.listen(address)
    run._report = lambda: None  # type: ignore[method-assign]
    run.execute()
    hub.stop(complete=True)


def kill_before(where: type, name: str, call: int) -> None:
    """Has this process killed before a call of a function."""
    setattr(where, name, ending_at(call, getattr(where, name), lambda: os.kill(os.getpid(), signal.SIGKILL)))


def ending_at(call: int, function: Callable[..., Any], end: Callable[[], None]) -> Callable[..., Any]:
    """Returns a function before a call of which all ends."""
    calls = 0

    def ends(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            end()
        return function(*arguments, **more)

    return ends


class Killed(BaseException):
    """Ends a run in this process; nothing catches it."""


@contextmanager
def killed_at(where: type, name: str, call: int = 1) -> Iterator[None]:
    """Holds that a run ends before a call of a function."""

    def end() -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(where, name, ending_at(call, getattr(where, name), end))
        yield


def fail_in(
    patched: pytest.MonkeyPatch, exchange: str, *sites: str, round_: int | None = None, handler: str = ""
) -> None:
    """Lets an exchange of a masked sum fail at some sites, in all sums or in some."""
    answer = getattr(SumClient, exchange)

    def fails(client: SumClient, *said: Any) -> Any:
        asked = client._name
        if client._site in sites and round_ in {None, asked.round} and handler in {"", asked.handler}:
            raise OSError(28, "No space left on device")
        return answer(client, *said)

    patched.setattr(SumClient, exchange, fails)


def sums(events: Iterable[Mapping[str, Any]]) -> list[Any]:
    """What rounds say of their masked sums."""
    return [event["secure_aggregation"] for event in events]

"""Processes of a served run that are killed at a given moment, or stall: what sites and servers start with.

A process imports it by name, so it is not in a test; gRPC is imported only in processes that live on.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from support import TINY

from fedstrata.client.secure_turns import SecureTurns
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import prepare_server
from fedstrata.engine.run import Run
from fedstrata.engine.run_folder import SETTINGS, write_settings
from fedstrata.engine.secure_mean import SecureAggregation
from fedstrata.privacy.secure_sum.unmasking import SumUnmasking

SITES = ("site-1", "site-2", "site-3", "site-4")
_KILL_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def live(moments: Sequence[str]) -> None:
    """Returns in a process of its own for each moment, in which it is killed, and at last in this one.

    Args:
        moments: For each round the exchange before which it is killed: `secure/unmask:2` for the second.
    """
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
    """Runs a server, or goes on with its run, until it is killed or the run is complete.

    Args:
        address: Where it listens.
        folder: The run directory.
        moment: Before which call of a function it is killed: `take:3`; never if empty.
        overrides: Settings.
    """
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
    function, calls = getattr(where, name), [0]

    def dying(*arguments: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)

    setattr(where, name, dying)

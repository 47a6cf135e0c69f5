"""The server that processes of a run are forked from: it has imported everything and computed nothing.

What has computed on several threads cannot be forked safely, and a process that starts from nothing takes
seconds to import torch and transformers, whose pages it would not share. This module imports nothing heavy.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

_PRELOADED = ["fedstrata.engine.workers.turns", "fedstrata.engine.local"]


class _Process(ForkServerProcess):
    """A process that does not run the program's main module again.

    It needs nothing of it: what a run is made of is named by installed modules (`engine.processors`). So a
    script may call `fedstrata.run` with workers at its top level.
    """

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - as multiprocessing calls it
        with _main_module_hidden():
            return ForkServerProcess._Popen(process_obj)


class _Context(ForkServerContext):
    Process = _Process


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Has multiprocessing find no file of a main module, which it would tell a process that starts to run."""
    main: dict[str, Any] = vars(sys.modules["__main__"])
    known: dict[str, Any] = {name: main[name] for name in ("__spec__", "__file__") if name in main}
    main.update(__spec__=None, __file__=None)
    try:
        yield
    finally:
        del main["__file__"]
        main.update(known)


def fork_server() -> ForkServerContext:
    """Returns what starts processes that have everything imported; the server begins with it now.

    Ctrl-C, which every process of a terminal hears, is for the one that was started there: the server never
    hears it, nor does what is forked from it.
    """
    context = _Context()
    context.set_forkserver_preload(_PRELOADED)
    resource_tracker.ensure_running()  # which lets signals through again when it starts
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    return context


def end_fork_server() -> None:
    """Ends the server, if it runs, whatever it is at: nothing is going to be forked from it."""
    server: Any = forkserver._forkserver  # there is no public way
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGTERM)
        server._stop()

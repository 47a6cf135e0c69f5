"""The server that processes of a run are forked from: it has imported everything and computed nothing.

What has computed on several threads cannot be forked safely, and a process that starts from nothing takes
seconds to import torch and transformers, whose pages it would not share. This module imports nothing heavy.
"""

import os
import signal
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.context import ForkServerContext
from typing import Any

_PRELOADED = ["fedstrata.engine.workers.turns", "fedstrata.engine.local"]


def fork_server() -> ForkServerContext:
    """Returns what starts processes that have everything imported; the server begins with it now.

    Ctrl-C, which every process of a terminal hears, is for the one that was started there: the server never
    hears it, nor does what is forked from it.
    """
    context = get_context("forkserver")
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

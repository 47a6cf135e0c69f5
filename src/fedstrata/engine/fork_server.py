"""The server that processes of a run are forked from: it has imported everything and computed nothing.

What has computed on several threads cannot be forked safely, and a process that starts from nothing takes
seconds to import torch and transformers, whose pages it would not share. This module imports nothing heavy.
"""

from __future__ import annotations

from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext

_PRELOADED = ["fedstrata.engine.workers", "fedstrata.engine.local"]


def fork_server() -> ForkServerContext:
    """Returns what starts processes that have everything imported."""
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def start_fork_server() -> None:
    """Lets the server import while this process does other things."""
    fork_server()
    forkserver.ensure_running()

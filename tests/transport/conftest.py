"""A server for the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from remote_run import Clients, Serve, serving


@pytest.fixture(scope="session")
def clients() -> Iterator[Clients]:
    """Where client processes come from."""
    source = Clients()
    yield source
    source.close()


@pytest.fixture
def serve(tmp_path: Path, clients: Clients) -> Iterator[Serve]:
    """Starts a server that clients in other processes can join."""
    with serving(tmp_path, clients) as start:
        yield start

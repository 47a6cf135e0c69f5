"""A server for the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from remote_run import Serve, serving


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a server that clients in other processes can join."""
    with serving(tmp_path) as start:
        yield start

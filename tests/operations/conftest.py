"""Run directories of chosen events, as the tests of reports write them."""

from __future__ import annotations

from record.conftest import events, write_in, write_run

__all__ = ["events", "write_in", "write_run"]

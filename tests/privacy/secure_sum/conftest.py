"""Fixtures of masked sums between five sites, of which one keeps a real record of what it has released."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from secure_federation import SITES, Federation

from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.messages import ConsistencyProof, ReleasedShares
from fedstrata.privacy.secure_sum.release_guard import ReleaseGuard


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[ReleasedShares]:
    """Everything that any client gives away."""
    left: list[ReleasedShares] = []
    unmask = SumClient.unmask

    def watched(client: SumClient, proof: ConsistencyProof) -> ReleasedShares:
        left.append(unmask(client, proof))
        return left[-1]

    monkeypatch.setattr(SumClient, "unmask", watched)
    return left


@pytest.fixture
def guards(tmp_path: Path) -> Mapping[str, ReleaseGuard]:
    return {SITES[0]: ReleaseGuard(tmp_path / "site.sqlite", SITES[0])}


@pytest.fixture
def federation(tmp_path: Path, guards: Mapping[str, ReleaseGuard]) -> Federation:
    return Federation(SITES[:5], tmp_path / "sum", guards=guards)

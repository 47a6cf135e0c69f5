"""Under differential privacy a site has a budget over all runs unless its own file says otherwise."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lying_server import DATA, OTHER, RUN, SITES, told

from fedstrata.client.turn import Done, Order
from fedstrata.core.errors import BudgetRefusedError
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Plan
from fedstrata.engine.remote import joining
from fedstrata.engine.remote.joining import RemoteClient, join_run
from fedstrata.wire import frame

PRIVATE = (
    "privacy={mechanism: local, unit: document, delta: 0.01, epsilon: 8.0, expected_batch: 2, steps: 1, "
    "units: {site-1: 16, site-2: 16, site-3: 16, site-4: 16}}",
    "federation.rounds=1",
)


def trained(folder: Path, run: str, runs: int, *own: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Has a site join a run and train in its first round; returns what it has reported."""
    log: list[tuple[str, Mapping[str, Any]]] = []
    source = read_source(None, [*DATA, *own])

    def take_part(client: RemoteClient, _: Any) -> None:
        client.enter({"run": run, "counted": 0})
        state = client._experiment.method.start(client._experiment.model)
        plan = frame.encode(Plan({name: tensor.clone() for name, tensor in state.tensors.items()}, {}))
        assert isinstance(client._workplace.compute(Order(SITES[0], 1, "train", 1, plan), client._site), Done)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(joining.RemoteClient, "take_part", take_part)
        join_run(
            source,
            SITES[0],
            lambda refused: told(*PRIVATE),
            lambda client: pytest.fail("no session is begun"),
            folder / "home",
            lambda event, facts: log.append((event, facts)),
            runs=runs,
        )
    return log


@pytest.mark.claim("budgets#default-budget")
def test_a_second_run_spends_nothing_that_the_first_one_has_spent(tmp_path: Path) -> None:
    log = trained(tmp_path, RUN, 1)
    bounds = dict(log)["bounds"]
    assert bounds["private"]
    assert 8.0 <= bounds["budget"] < 8.1
    for name in ("budget.db", "budget.db.key"):
        (path,) = (tmp_path / "home").glob(name.replace(".db.key", "*key") if name.endswith("key") else name)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(BudgetRefusedError):
        trained(tmp_path, OTHER, 2)


def test_a_site_that_says_so_has_none(tmp_path: Path) -> None:
    for run, runs in ((RUN, 1), (OTHER, 2)):
        bounds = dict(trained(tmp_path, run, runs, "privacy.budget=unlimited"))["bounds"]
        assert bounds["budget"] is None
    assert not (tmp_path / "home" / "budget.db").exists()

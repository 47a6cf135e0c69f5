"""What a round takes down of its clients, by a clock that only their turns move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedstrata.client.turn import Done, Failed, Order
from fedstrata.core.errors import TrainingError
from fedstrata.core.types import ClientInfo, Plan, Update
from fedstrata.engine import cohort
from fedstrata.engine.book import Attendance, Book
from fedstrata.engine.cohort import RoundCohort
from fedstrata.wire import frame


@pytest.mark.parametrize(
    ("pauses", "seconds", "worked"),
    [
        ((10.0, 10.0), (8.0, 9.0), 17.0),  # one after the other, each put into its place by the engine first
        ((10.0, 1.0), (9.0, 9.5), 11.0),  # at once: the second has nearly ended when the first has
        ((3.0, 1.0), (0.0, 2.0), 2.0),  # the first is lost
    ],
)
def test_time_in_which_clients_work_at_once_counts_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pauses: tuple[float, ...],
    seconds: tuple[float, ...],
    worked: float,
) -> None:
    now = 0.0

    def turns(orders: Iterable[Order]) -> Iterator[tuple[Order, Done | Failed]]:
        nonlocal now
        begun = list(orders)
        for order, pause, own in zip(begun, pauses, seconds, strict=True):
            now += pause
            sent = frame.encode(Update({"x": torch.ones(1)}, weight=1.0))
            yield order, Done(sent, own) if own else Failed(TrainingError("lost"))

    monkeypatch.setattr(cohort, "time", SimpleNamespace(perf_counter=lambda: now))
    infos = [ClientInfo("a", 1), ClientInfo("b", 1)]
    book = Book(1, tmp_path, lambda event, facts: None, Attendance(["a", "b"], min_clients=1), "run")
    none: Any = None
    engine: Any = SimpleNamespace(turns=turns)
    round_ = RoundCohort(none, none, engine, infos, none, book)
    for _ in round_.each("train", lambda info: Plan({})):
        now += 100.0  # what the server makes of an update is nobody's work but its own
    assert round_.train_seconds == sum(seconds)
    assert round_.worked_seconds == worked

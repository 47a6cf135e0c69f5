"""Clients that talk with a service in one process, one at a time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable

import pytest
import torch
from torch import nn

from fedstrata.core.errors import FrameError
from fedstrata.core.types import Message
from fedstrata.engine.conversation import Conversation, SimulatedLine, TimedService
from fedstrata.wire.meter import Meter

CPU = torch.device("cpu")


class Silent:
    together = True
    ordered = False

    def hear(self, client: str, message: Message) -> Iterable[tuple[str, Message]]:
        return ()

    def leave(self, client: str, *, lost: bool = False) -> Iterable[tuple[str, Message]]:
        return ()


def test_an_error_ends_the_clients_that_wait_and_what_they_hold() -> None:
    """The third has never begun; random numbers afterwards are as if nobody had drawn any."""
    models: list[weakref.ref[nn.Module]] = []
    begun, went_on = [], []

    def waits(line: SimulatedLine) -> None:
        model = nn.Linear(3, 3)
        models.append(weakref.ref(model))
        begun.append(line.client)
        try:
            line.send(Message({}, {}))
            line.receive()
            went_on.append(line.client)
        except Exception:
            went_on.append(line.client)
        finally:
            torch.rand(3)

    def fails(line: SimulatedLine) -> None:
        raise KeyError("a bug")

    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with pytest.raises(KeyError, match="a bug"):
        list(Conversation(Silent(), Meter()).hold([("a", waits), ("b", fails), ("c", waits)]))
    gc.collect()
    assert (begun, went_on) == (["a"], [])
    assert [model() for model in models] == [None]
    assert torch.equal(torch.rand(1), expected)


class Answering(Silent):
    """Answers twice, after three seconds each of a clock that only it and the listener move, and fails."""

    def __init__(self) -> None:
        self.now = 0.0

    def hear(self, client: str, message: Message) -> Iterable[tuple[str, Message]]:
        for _ in range(2):
            self.now += 3.0
            yield client, message
        self.now += 5.0
        raise FrameError("not what was agreed")


def test_a_service_is_timed_without_the_travel_of_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    service, worked = Answering(), list[float]()
    monkeypatch.setattr("fedstrata.engine.conversation.time.perf_counter", lambda: service.now)
    timed = TimedService(service, worked.append, CPU)
    with pytest.raises(FrameError):
        for _ in timed.hear("a", Message({}, {})):
            service.now += 100.0
    assert list(timed.leave("a")) == []
    assert sum(worked) == 3.0 + 3.0 + 5.0


def test_a_service_on_the_processor_waits_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = list[object]()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.synchronize", lambda *devices: waited.extend(devices or ["all"]))
    for device in (CPU, torch.device("cuda:0")):
        list(TimedService(Silent(), lambda seconds: None, device).hear("a", Message({}, {})))
    assert waited == [torch.device("cuda:0")]

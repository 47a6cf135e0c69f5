"""Clients that talk with a service in one process, one at a time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable

import pytest
import torch
from torch import nn

from fedstrata.core.types import Message
from fedstrata.engine.conversation import Conversation, SimulatedLine
from fedstrata.wire.meter import Meter


class Silent:
    """Hears everything and answers nothing; implements `core.method.Service`."""

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
        list(Conversation(Silent(), Meter()).hold({"a": waits, "b": fails, "c": waits}))
    gc.collect()
    assert (begun, went_on) == (["a"], [])
    assert [model() for model in models] == [None]
    assert torch.equal(torch.rand(1), expected)

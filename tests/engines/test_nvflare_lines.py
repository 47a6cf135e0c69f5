"""Lines over NVFlare's cells: messages come as they were sent, and nobody speaks in another's name."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support import refused

from fedstrata.core.errors import LineError, RefusedError, SessionOverError
from fedstrata.core.types import Message
from fedstrata.transport.agreement import Agreement
from fedstrata.transport.header import Header, Kind
from fedstrata.transport.membership import TurnLine
from fedstrata.transport.timing import Timing
from fedstrata.wire import frame

pytest.importorskip("nvflare")
pytestmark = pytest.mark.engines

AGREED = Agreement({}, run="demo", blocks=4, numbers=2_000_000, trained={})
BRIEF = Timing(answer=30.0, reconnect=20.0, keepalive=0.2)
SERVER = "server"

Cells = Callable[..., Any]


@pytest.fixture(scope="module")
def cells() -> Iterator[Cells]:
    """Gives the cells of a server and of clients, each of which says whose token it has."""
    from nvflare.fuel.f3.cellnet.cell import Cell
    from nvflare.fuel.sec.authn import set_add_auth_headers_filters

    with socket.create_server(("127.0.0.1", 0)) as found:
        url = f"tcp://127.0.0.1:{found.getsockname()[1]}"
    made: dict[str, Any] = {}

    def cell(name: str, told: str = "") -> Any:
        if name not in made:
            made[name] = Cell(fqcn=name, root_url=url, secure=False, credentials={})
            made[name].start()
            set_add_auth_headers_filters(made[name], told or name, "token", "signature")
        return made[name]

    cell(SERVER, "server_job")
    yield cell
    for each in made.values():
        each.stop()


@pytest.fixture
def hub(cells: Cells) -> Iterator[Any]:
    """A hub that lets `north` and `south` in."""
    from nvflare.apis.signal import Signal

    from fedstrata.nvflare.hub import CellHub
    from fedstrata.nvflare.job_cell import JobCell

    cell, sites = JobCell(cells(SERVER), Signal()), {name: name for name in ("north", "south")}
    made = CellHub(
        cell,
        sites,
        lambda client, greeting: AGREED,
        timing=BRIEF,
        welcome=lambda client: {"run": "demo"},
        settings={"name": "demo"},
    )
    made.listen()
    yield made
    made.stop(1.0)


@contextmanager
def joined(hub: Any, cell: Any, client: str = "north") -> Iterator[Any]:
    from fedstrata.nvflare.membership import CellMembership

    agreed = {"greeting": {}, "timing": BRIEF, "warn": lambda message: None}
    with CellMembership(cell, SERVER, client, AGREED, **agreed) as membership:  # type: ignore[arg-type]
        hub.wait_for([client], 10)
        yield membership


def job_cell(cell: Any) -> Any:
    from nvflare.apis.signal import Signal

    from fedstrata.nvflare.job_cell import JobCell

    return JobCell(cell, Signal())


def numbers_of(hub: Any, count: int) -> list[Any]:
    """What so many messages have that come next."""
    arrivals = [hub.receive(10) for _ in range(count)]
    return [frame.decode(each.frame, Message).values["number"] for each in arrivals]


def test_messages_come_as_they_were_sent_and_in_order(hub: Any, cells: Cells) -> None:
    """Small ones, and some of several chunks, both ways."""
    with joined(hub, job_cell(cells("north"))) as membership:
        assert membership.welcome["run"] == "demo"
        line, many = TurnLine(membership, 1), torch.arange(1_500_000, dtype=torch.float32)
        hub.send("north", Header(Kind.PLAN, turn=1), frame.encode(Message({"plan": many})))
        header, content = membership.receive()
        assert header.kind == Kind.PLAN
        assert torch.equal(frame.decode(content, Message).tensors["plan"], many)
        for number in range(40):
            line.send(Message({}, {"number": number}))
        assert numbers_of(hub, 40) == list(range(40))


def test_a_connection_that_breaks_loses_no_message(hub: Any, cells: Cells) -> None:
    with joined(hub, job_cell(cells("north"))) as membership:
        hub.send("north", Header(Kind.PLAN, turn=1), frame.encode(Message()))
        membership.receive()
        for number in range(10):
            TurnLine(membership, 1).send(Message({}, {"number": number}))
            if number % 3 == 0:
                membership._broken.set()
        assert numbers_of(hub, 10) == list(range(10))


def test_what_a_server_says_of_the_run_is_heard_by_those_it_knows(hub: Any, cells: Cells) -> None:
    from fedstrata.nvflare.membership import settings_of

    def ask(name: str, **more: bool) -> Any:
        return settings_of(job_cell(cells(name)), SERVER, BRIEF, lambda message: None, **more)

    assert ask("north") == {"name": "demo"}
    with refused(RefusedError, "unknown_name", values=["'stranger'"]):
        ask("stranger")
    ask("north", refused=True)
    ask("south", refused=True)
    with refused(LineError, "policy_refused", values=["north, south"]):
        hub.wait_for(["north", "south"], 10)


def test_a_cell_with_the_token_of_another_site_is_nobody(hub: Any, cells: Cells) -> None:
    """NVFlare's server holds the name against the token; the hub the cell against the name."""
    from fedstrata.nvflare.job_cell import Topic

    other = job_cell(cells("east", "north"))
    with refused(RefusedError, "unknown_name", values=["'east'"]):
        other.ask(SERVER, Topic.HELLO, b"", seconds=5)


@pytest.mark.claim("security_review#nvflare-lines")
def test_nobody_speaks_to_a_site_in_the_name_of_the_server(hub: Any, cells: Cells) -> None:
    """Not from another cell, nor with the server's token, nor from its cell without the connection's name."""
    from fedstrata.nvflare.job_cell import Topic

    with joined(hub, job_cell(cells("north"))) as membership:
        for liar in (cells("south"), cells("west", "server_job")):
            with refused(RefusedError, "wrong_server"):
                job_cell(liar).ask("north", Topic.MESSAGE, b"", connection=membership._name, seconds=5)
        with refused(LineError, "line_lost"):
            job_cell(cells(SERVER)).ask("north", Topic.MESSAGE, b"", connection="another", seconds=5)
        hub.send("north", Header(Kind.PLAN, turn=1), frame.encode(Message()))
        assert membership.receive()[0].kind == Kind.PLAN, "the line is what it was"


def test_who_joins_a_second_time_takes_the_place_of_the_first(hub: Any, cells: Cells) -> None:
    cell = job_cell(cells("north"))
    with joined(hub, cell) as first, joined(hub, cell):
        with pytest.raises((RefusedError, SessionOverError)):
            first.receive(patient=True)
        assert hub.present == ("north",)


def test_who_sends_what_was_not_agreed_is_refused_for_good(hub: Any, cells: Cells) -> None:
    with joined(hub, job_cell(cells("north"))) as membership:
        membership.send(Header(Kind.SAID, turn=1), frame.encode(Message({"tokens": torch.ones(2)})))
        membership.send(Header(Kind.HELLO), frame.encode(Message({"tokens": torch.ones(2)})))
        with refused(RefusedError, "not_agreed"):
            membership.receive(patient=True)

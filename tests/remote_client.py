"""Client processes for tests, each forked from one that has imported everything already.

Reads orders from standard input, one JSON object a line: `{"start": [arguments of main], "out": FILE}` is
answered with the number of a new process, `{"wait": NUMBER}` with its exit status. A behaviour makes a client
fail in its second step, `stop` to come again and `die`; or at the end of its turn, those of `DELIVERED` by
what it delivers. With `endless` it takes its steps again and again, and with `asks` it does so with its
questions while it scores.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from deaths import live, serve, stall_before
from support import TINY

import fedstrata.engine.run  # noqa: F401 - what takes long; not gRPC, which cannot be forked
from fedstrata.core.errors import FedstrataError
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Message, Update

SECOND_STEP = 3
"""Which message of a turn is the first of the second step."""


def misbehave(behaviour: str) -> None:
    """Stops or ends this process before it sends its second step."""
    from fedstrata.transport.membership import TurnLine

    send, count = TurnLine.send, [0]

    def instead(self: Any, message: Message) -> None:
        count[0] += 1
        if count[0] == SECOND_STEP:
            os.kill(os.getpid(), signal.SIGKILL if behaviour == "die" else signal.SIGSTOP)
        send(self, message)

    TurnLine.send = instead  # type: ignore[method-assign]


def repeat(behaviour: str) -> None:
    """Has a client do fifty times what it is to do once; each time it is in order."""
    from fedstrata.split.client_step import Exchange
    from fedstrata.split.inference import RemoteMiddle

    holder, name = {"endless": (Exchange, "gradients"), "asks": (RemoteMiddle, "run")}[behaviour]
    once = getattr(holder, name)
    setattr(holder, name, lambda *args: [once(*args) for _ in range(50)][-1])


def _spoilt(update: Update, value: float) -> Update:
    for tensor in update.tensors.values():
        tensor.view(-1)[0] = value
    return update


DELIVERED: dict[str, Callable[[Update], Update]] = {
    "weight": lambda update: replace(update, weight=1e9),
    "infinite": lambda update: _spoilt(update, float("inf")),
    "huge": lambda update: _spoilt(update, 3e38),
    "empty": lambda update: replace(update, tensors={}),
    "cut short": lambda update: replace(
        update, tensors={name: tensor.flatten()[:-1] for name, tensor in update.tensors.items()}
    ),
    "blocks": lambda update: replace(update, values={**update.values, "shared": [10**6]}),
    "no blocks": lambda update: replace(update, values={"loss": 1.0, "shared": [0], "personal": 5}),
    "no loss": lambda update: replace(update, values={**update.values, "loss": None}),
    "another": lambda update: replace(update, tensors={**update.tensors, "another": torch.ones(1)}),
    "loss": lambda update: replace(update, values={**update.values, "loss": 1.7e308}),
}


def misdeliver(behaviour: str) -> None:
    """Changes what a client does when its turn is over."""
    from fedstrata.transport.header import Kind
    from fedstrata.transport.membership import Membership
    from fedstrata.wire import frame

    send = Membership.send

    def instead(self: Any, header: Any, content: Any) -> None:
        if header.kind == Kind.UPDATE:
            content = frame.encode(DELIVERED[behaviour](frame.decode(content, Update)))
        send(self, header, content)

    Membership.send = instead  # type: ignore[method-assign]


def main(address: str, client: str, folder: str, behaviour: str, *overrides: str) -> None:
    stays = behaviour in {"stop", "stays"} or behaviour.startswith("dies before ")
    if behaviour.startswith("dies before "):
        live(behaviour.removeprefix("dies before ").split(", "))
        behaviour = "good"
    from fedstrata.engine.prepare import prepare_client
    from fedstrata.engine.remote.joining import RemoteClient
    from fedstrata.transport.grpc.membership import GrpcMembership
    from fedstrata.transport.timing import Timing

    torch.set_num_threads(1)
    if behaviour.startswith("serves"):
        serve(address, Path(folder), behaviour.removeprefix("serves").strip(), *overrides)
        return
    if behaviour.startswith("stalls before "):
        stall_before(behaviour.removeprefix("stalls before "), Path(folder, "stalls"))
    elif behaviour in {"die", "stop"}:
        misbehave(behaviour)
    elif behaviour in {"endless", "asks"}:
        repeat(behaviour)
    elif behaviour not in {"good", "stays"}:
        misdeliver(behaviour)
    experiment = prepare_client(read_source(None, [*TINY, *overrides]), client)

    def listen(event: str, facts: Any) -> None:
        print(event, flush=True)

    remote = RemoteClient(experiment, client, Path(folder), listen, **pinned(Path(folder)))
    timing = Timing(answer=60.0, reconnect=20.0, keepalive=20.0)

    def session_of(own: RemoteClient) -> GrpcMembership:
        return GrpcMembership(address, client, own.agreement, greeting=own.greeting, timing=timing)

    if stays:
        remote.take_part(session_of)
        return
    with session_of(remote) as membership:
        print("joined", flush=True)
        remote.serve(membership)


def pinned(home: Path) -> dict[str, Path]:
    """The site's identity and lock, if a test has put them into its home."""
    files = {"identity": home / "identity.pem", "lock": home / "federation.lock"}
    return {name: path for name, path in files.items() if path.exists()}


def start(arguments: list[str], out: str) -> int:
    """Starts a client that writes to a file; returns the number of its process."""
    if (process := os.fork()) != 0:
        return process
    status = 0
    try:
        written = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(written, 1)
        os.dup2(written, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        main(*arguments)
    except FedstrataError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        status = 1
    except BaseException:
        traceback.print_exc()
        status = 3
    os._exit(status)


def warm_up() -> None:
    """Prepares a client once: much is imported only then, and every process would do so anew."""
    from fedstrata.engine.prepare import prepare_client

    overrides = [*TINY, "method={name: fl_llama}", "adapter={kind: lora}", "device=cpu"]
    prepare_client(read_source(None, overrides), "site-1")


if __name__ == "__main__":
    warm_up()
    assert "grpc" not in sys.modules
    while line := sys.stdin.readline():
        order = json.loads(line)
        if "start" in order:
            print(start(order["start"], order["out"]), flush=True)
        else:
            print(os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1]), flush=True)

"""An enrolled site that does harm: `fedstrata join` with one thing changed, for `hostile.py`.

python benchmarks/reliability/hostile_site.py CASE KIT
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import torch

from fedstrata.cli.main import app
from fedstrata.client.secure_turns import SecureTurns
from fedstrata.client.turn import Workplace
from fedstrata.core.types import Message, Update
from fedstrata.engine.remote.joining import RemoteClient
from fedstrata.engine.remote.site_scoring import SiteScoring
from fedstrata.privacy.secure_sum import client, shares
from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.mean import CUT, WEIGHT, SummedUpdate
from fedstrata.transport.credentials import Certificates, read_token
from fedstrata.transport.header import METHOD, SERVICE, Header, Kind
from fedstrata.transport.kit import Kit
from fedstrata.transport.membership import Membership
from fedstrata.transport.versions import own_versions
from fedstrata.wire import frame

ENDLESS = 10**6
"""Seconds of who never answers."""
Change = Callable[[Update], Update]


def instead(where: type, name: str, change: Callable[..., Any]) -> None:
    """Puts a function in the place of one of the site's; it is given the one that was there."""
    before = getattr(where, name)
    setattr(where, name, lambda *args, **more: change(before, *args, **more))


def delivering(change: Change) -> None:
    """Has the site deliver something else than what it has learnt."""

    def send(before: Any, own: Membership, header: Header, content: Any) -> None:
        if header.kind == Kind.UPDATE:
            content = frame.encode(change(frame.decode(content, Update)))
        before(own, header, content)

    instead(Membership, "send", send)


def first_number(value: float) -> Change:
    """Returns what puts a number into each tensor."""

    def change(update: Update) -> Update:
        for tensor in update.tensors.values():
            tensor.view(-1)[0] = value
        return update

    return change


def computing(act: Callable[[], None]) -> None:
    """Has the site do something else when it is to compute."""

    def compute(before: Any, own: Workplace, *args: Any, **more: Any) -> Any:
        act()
        return before(own, *args, **more)

    instead(Workplace, "compute", compute)


def die() -> None:
    """Ends the process as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)


def sleep() -> None:
    """Never answers."""
    time.sleep(ENDLESS)


def speaking_of_other_turns(*, again: bool) -> None:
    """Speaks of a turn that there is not, once or every half second, and does nothing else."""

    def compute(before: Any, own: Workplace, *args: Any, **more: Any) -> Any:
        while True:
            speaking_of_other_turns.session.send(  # type: ignore[attr-defined]
                Header(Kind.SAID, turn=10**6), frame.encode(Message({}, {}))
            )
            time.sleep(0.5 if again else ENDLESS)

    def enter(before: Any, own: Membership) -> Membership:
        speaking_of_other_turns.session = own  # type: ignore[attr-defined]
        return before(own)  # type: ignore[no-any-return]

    instead(Membership, "__enter__", enter)
    instead(Workplace, "compute", compute)


def scoring(change: Callable[[], Update]) -> None:
    """Has the site say other scores than its own."""
    instead(SiteScoring, "score", lambda *args, **more: change())


def opening_silent_streams() -> None:
    """Opens two hundred connections with its own name and token, and says nothing on them."""
    kit = Kit.read(Path(sys.argv[2]))
    files = [kit.folder / f"{name}.pem" for name in ("certificate", "key", "authority")]
    channel = grpc.secure_channel(kit.settings.server, Certificates(*files).for_client())
    shown = [
        ("client-bin", str(kit.settings.client).encode()),
        ("authorization", f"Bearer {read_token(kit.folder / 'token')}"),
        *own_versions(),
    ]
    call = channel.stream_stream(f"/{SERVICE}/{METHOD}")
    opened = [call(iter(Event().wait, True), metadata=shown) for _ in range(200)]
    opening_silent_streams.opened = opened  # type: ignore[attr-defined] # as long as the process lives


def claiming_other_weights() -> None:
    """Says when it joins that it has another model than all others."""

    def begin(before: Any, own: RemoteClient, *args: Any, **more: Any) -> None:
        before(own, *args, **more)
        greeting: Any = own.greeting
        own.greeting = {**greeting, "weights": dict.fromkeys(greeting["weights"], "0" * 64)}

    instead(RemoteClient, "__init__", begin)


def exchange(name: str, act: Callable[[], None]) -> None:
    """Has the site do something else when an exchange of a masked sum is asked of it."""

    def compute(before: Any, own: SecureTurns, order: Any, site: Any) -> Any:
        if order.handler == f"secure/{name}":
            act()
        return before(own, order, site)

    instead(SecureTurns, "compute", compute)


def said(name: str, change: Callable[[Any], Any]) -> None:
    """Has the site say something else in an exchange of a masked sum."""
    instead(SumClient, name, lambda before, *args: change(before(*args)))


def garbled_shares(sent: Any) -> Any:
    """Returns shares that nobody can open."""
    spoilt = [each.model_copy(update={"sealed": secrets.token_hex(92)}) for each in sent.shares]
    return sent.model_copy(update={"shares": tuple(spoilt)})


def false_release(released: Any) -> Any:
    """Returns shares that are none."""
    spoilt = [each.model_copy(update={"share": secrets.token_hex(32)}) for each in released.self_masks]
    return released.model_copy(update={"self_masks": tuple(spoilt)})


def elements(name: str, value: int) -> None:
    """Puts another number into the masked input."""

    def lying(before: Any, own: SummedUpdate) -> Iterator[tuple[str, torch.Tensor]]:
        for each, tensor in before(own):
            yield each, torch.full_like(tensor, value) if each == name else tensor

    instead(SummedUpdate, "elements", lying)


def false_secrets() -> None:
    """Deals shares of other secrets than those that it uses and has committed itself to."""
    split = shares.split
    vars(client)["split"] = lambda secret, *of: split(secrets.token_bytes(len(secret)), *of)


@dataclass(frozen=True, slots=True)
class Cost:
    """What the documents say that a site can cost the others.

    Attributes:
        claim: Where they say so, `PAGE#ID`.
        losses: How often each kind of loss may be there.
    """

    claim: str
    losses: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Case:
    """One way of doing harm.

    Attributes:
        claim: Where the documents say that it costs the others nothing, `PAGE#ID`.
        told: What the site does.
        act: Has this process do so.
        cost: What it costs them all the same, by the documents; nothing if none.
    """

    claim: str
    told: str
    act: Callable[[], None]
    cost: Cost | None = None


FALSE_SHARES = Cost("secure_aggregation#false-shares", {"run ended": 1})
FALSE_WEIGHT = Cost("secure_aggregation#false-weight", {"run ended": 1})
SPOILT, MORE, LOST, TURN = (
    f"processes#{name}" for name in ("spoilt-update", "claims-more", "lost-client", "other-turn")
)
KILLED, SILENT, LIAR = (f"secure_aggregation#{name}" for name in ("killed-site", "silent-site", "lying-site"))
OTHERS = ("site-1", "site-2", "site-3")
TALLY = Update({}, {"tally": {"gold": [10**9]}, "apart": {}}, weight=1.0)
PLAIN: dict[str, Case] = {
    "weight": Case(
        SPOILT, "says that it has a billion examples", lambda: delivering(lambda u: replace(u, weight=1e9))
    ),
    "infinite": Case(SPOILT, "delivers an infinite number", lambda: delivering(first_number(float("inf")))),
    "huge": Case(SPOILT, "delivers the largest number", lambda: delivering(first_number(3e38))),
    "empty": Case(SPOILT, "delivers nothing", lambda: delivering(lambda u: replace(u, tensors={}))),
    "more": Case(
        SPOILT,
        "delivers a tensor that nobody asked for",
        lambda: delivering(lambda u: replace(u, tensors={**u.tensors, "another": torch.ones(1)})),
    ),
    "shorter": Case(
        SPOILT,
        "delivers tensors that are cut short",
        lambda: delivering(lambda u: replace(u, tensors={n: t.flatten()[:-1] for n, t in u.tensors.items()})),
    ),
    "loss": Case(
        SPOILT, "says an absurd loss", lambda: delivering(lambda u: replace(u, values={"loss": 1.7e308}))
    ),
    "no loss": Case(SPOILT, "says no loss", lambda: delivering(lambda u: replace(u, values={}))),
    "scores": Case(MORE, "says absurd scores", lambda: scoring(lambda: TALLY)),
    "dies": Case(LOST, "is killed in each of its turns", lambda: computing(die)),
    "sleeps": Case(LOST, "never answers", lambda: computing(sleep)),
    "other turns": Case(
        TURN,
        "speaks every half second of a turn that there is not",
        lambda: speaking_of_other_turns(again=True),
    ),
    "another turn": Case(
        TURN,
        "speaks once of a turn that there is not, and then is silent",
        lambda: speaking_of_other_turns(again=False),
    ),
    "other weights": Case(
        "processes#other-weights",
        "says that it has another model, and is the first to say so",
        claiming_other_weights,
    ),
    "streams": Case(
        "processes#silent-connections", "opens 200 connections and is silent on them", opening_silent_streams
    ),
    "another's name": Case(
        "federation#own-name", "says that it is another site", lambda: sys.argv.extend(["--client", "site-1"])
    ),
    "absent": Case("processes#absent-client", "does not come", lambda: sys.exit(1)),
}
SECURE: dict[str, Case] = {
    "dies at shares": Case(KILLED, "is killed when it is to send shares", lambda: exchange("shares", die)),
    "dies at delivery": Case(KILLED, "is killed when it has got shares", lambda: exchange("delivery", die)),
    "dies at input": Case(KILLED, "is killed when it is to send its input", lambda: exchange("input", die)),
    "dies at signing": Case(KILLED, "is killed when it is to sign", lambda: exchange("consistency", die)),
    "dies at unmasking": Case(
        KILLED, "is killed when it is to release shares", lambda: exchange("unmask", die)
    ),
    "sleeps at shares": Case(
        SILENT, "is silent when it is to send shares", lambda: exchange("shares", sleep)
    ),
    "sleeps at input": Case(
        SILENT, "is silent when it is to send its input", lambda: exchange("input", sleep)
    ),
    "sleeps at unmasking": Case(
        SILENT, "is silent when it is to release shares", lambda: exchange("unmask", sleep)
    ),
    "garbled shares": Case(LIAR, "sends shares that nobody can open", lambda: said("shares", garbled_shares)),
    "no shares": Case(
        LIAR,
        "sends shares for some of the others alone",
        lambda: said("shares", lambda sent: sent.model_copy(update={"shares": sent.shares[:-1]})),
    ),
    "other model": Case(
        LIAR,
        "says that it masks for another model",
        lambda: said("shares", lambda sent: sent.model_copy(update={"context": "0" * 64})),
    ),
    "accuses": Case(
        LIAR,
        "says that it knows none of the others' keys",
        lambda: said("shares", lambda sent: sent.model_copy(update={"shares": (), "distrusted": OTHERS})),
    ),
    "opens nothing": Case(
        LIAR,
        "says that it can open nobody's shares",
        lambda: said("receive", lambda opened: opened.model_copy(update={"unopened": OTHERS})),
    ),
    "false shares": Case(LIAR, "deals shares of other secrets than its own", false_secrets, FALSE_SHARES),
    "impossible count": Case(
        LIAR, "reports more cut values than there are values", lambda: elements(CUT, 2**25)
    ),
    "false count": Case(LIAR, "reports cut values that are none", lambda: elements(CUT, 10**4)),
    "false weight": Case(
        LIAR, "sends a weight that no site can have", lambda: elements(WEIGHT, 2**20), FALSE_WEIGHT
    ),
    "false release": Case(LIAR, "releases shares that are none", lambda: said("unmask", false_release)),
    "other transcript": Case(
        LIAR,
        "signs something else than all others",
        lambda: said("sign", lambda signed: signed.model_copy(update={"transcript": "0" * 64})),
    ),
    "forged signature": Case(
        LIAR,
        "signs with what is no signature",
        lambda: said("sign", lambda signed: signed.model_copy(update={"signature": "0" * 128})),
    ),
    "forged keys": Case(
        LIAR,
        "sends keys that its identity has not signed",
        lambda: said("keys", lambda keys: keys.model_copy(update={"signature": "0" * 128})),
    ),
}


def main() -> None:
    case, kit = sys.argv[1:3]
    if (known := {**PLAIN, **SECURE}.get(case)) is not None:
        known.act()
    app(["join", kit, *sys.argv[3:]])


if __name__ == "__main__":
    main()

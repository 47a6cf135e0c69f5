"""Secure aggregation between processes that are killed or stall: what is summed, refused, and finished."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import deaths
import pytest
from deaths import SITES, fail_in, sums
from remote_run import PATIENT, RELATIONS, ClientProcess, Clients, give_identities, kept_by, served
from support import Finished, RunTiny, assert_same_tensors

from fedstrata.engine.checkpoint import Checkpoints
from fedstrata.record.log import read_events
from fedstrata.transport.hub import Hub
from fedstrata.transport.members import Arrival

pytestmark = pytest.mark.slow

SECURE = (
    *deaths.SECURE,
    "method={name: layer_skipping, top: 1, head: local}",
    "federation.score_everywhere=false",
    "federation.evaluate_every=9",
)
MOMENTS = {
    "secure/keys": "keys",
    "secure/shares": "shares",
    "secure/delivery": "receive",
    "secure/input": "mask",
    "secure/consistency": "sign",
    "secure/unmask": "unmask",
}
"""Before which exchange of a round a site is killed, and what answers to it."""


JOINT = (
    *SECURE,
    "method={name: layer_skipping, top: 1}",
    "task={name: ner, types: [problem, test, treatment, drug]}",
    "privacy={mechanism: joint, secure_aggregation: true, unit: document, units: {site-1: 8, site-2: 8, "
    "site-3: 8, site-4: 8}, delta: 0.01, sigma: 1.0, expected_batch: 2, noise: seeded}",
)


def with_one_killed(
    folder: Path, clients: Clients, *overrides: str, before: str, all_there: bool = False
) -> Finished:
    """Runs between processes, of which that of a site is killed before these exchanges of a round."""
    give_identities(folder, SITES)
    behaviour, timing = {"site-2": f"dies before {before}"}, replace(PATIENT, reconnect=1.0)
    how = {"names": SITES, "patience": 300.0, "all_there": all_there}
    return served(folder, clients, *overrides, behaviour=behaviour, timing=timing, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("joint", [False, True], ids=["plain", "joint noise"])
@pytest.mark.claim("secure_aggregation#killed-site")
def test_a_site_that_is_killed_in_any_exchange_is_lost_to_it_and_comes_again(
    run_tiny: RunTiny, clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joint: bool
) -> None:
    """The others sum what they do in a simulation; what has lost its session counts if it has sent."""
    moments = list(MOMENTS)
    overrides = (*(JOINT if joint else SECURE), f"federation.rounds={len(moments) + 1}")
    with monkeypatch.context() as patched:
        for number, moment in enumerate(moments, start=1):
            fail_in(patched, MOMENTS[moment], "site-2", round_=number)
        local = run_tiny(*overrides)
    run = with_one_killed(tmp_path / "served", clients, *overrides, before=", ".join(moments))
    others = ["site-1", "site-3", "site-4"]
    survivors = [each["survivors"] for each in sums(run.of("round"))]
    assert survivors == [others] * 4 + [list(SITES)] * (len(moments) - 3)
    assert survivors == [each["survivors"] for each in sums(local.of("round"))]
    assert_same_tensors(local.state.tensors, run.state.tensors)
    for client in SITES:
        one, other = (kept_by(own, client, len(moments) + 1).tensors for own in (local, run))
        assert one or joint, "with joint noise nothing is a client's own"
        assert_same_tensors(one, other)


SCORED = (
    *deaths.SECURE,
    *("privacy.scores=summed", "privacy.range=16", "federation.score_everywhere=false"),
    *RELATIONS,
    *("training.learning_rate=0.03", "training.epochs=6", "data.synthetic.notes=24", "federation.rounds=1"),
)


def test_a_site_that_is_killed_while_it_scores_costs_the_scores_alone(
    run_tiny: RunTiny, clients: Clients, tmp_path: Path
) -> None:
    """Its update was summed and stays so; the counts are those of the others, and at the end of all again."""
    local = run_tiny(*SCORED)
    run = with_one_killed(tmp_path / "served", clients, *SCORED, before="@score/input", all_there=True)
    assert_same_tensors(local.state.tensors, run.state.tensors)
    (event,) = run.of("round")
    assert event["secure_aggregation"]["survivors"] == list(SITES)
    assert [(each["client"], each["part"]) for each in run.of("client_failed")] == [("site-2", "validation")]
    assert run.summary["metrics"]["global"] == local.summary["metrics"]["global"]
    whole = local.of("round")[0]["global"]
    if whole["f1"] == 0:  # 0 is 0 of anybody
        pytest.skip("a processor's arithmetic has taught the tiny model nothing")
    assert whole["f1"] != event["global"]["f1"]


@pytest.mark.claim("secure_aggregation#silent-site")
def test_a_site_that_stalls_after_its_keys_is_done_without(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every exchange has the time of a turn; the server loses patience once it waits for this one alone."""
    receive, mark = Hub.receive, tmp_path / "served" / "home of site-2" / "stalls"

    def impatient(hub: Hub, seconds: float, **unless: Any) -> Arrival | None:
        asked = [client for client, member in hub._members.items() if member.asked is not None]
        waits = mark.exists() and asked == ["site-2"]
        hub.timing = replace(PATIENT, answer=0.1) if waits else PATIENT
        return receive(hub, hub.timing.answer if waits else seconds, **unless)

    monkeypatch.setattr(Hub, "receive", impatient)
    give_identities(tmp_path / "served", SITES)
    run = served(
        tmp_path / "served",
        clients,
        *SECURE,
        "federation.rounds=1",
        behaviour={"site-2": "stalls before secure/shares"},
        names=SITES,
    )
    assert sums(run.of("round"))[0]["survivors"] == ["site-1", "site-3", "site-4"]
    lost = [event for event in run.of("client_failed") if "part" not in event]
    assert [(event["client"], event["message"]) for event in lost] == [
        ("site-2", "client 'site-2' has not answered for 0.1 s")
    ]


class Federation:
    """Sites and a server, all of them processes that can be killed and started again."""

    def __init__(self, folder: Path, clients: Clients, *overrides: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.folder, self._clients, self._overrides = folder, clients, overrides
        self.started: list[ClientProcess] = []
        give_identities(folder, SITES)

    def site(self, client: str) -> ClientProcess:
        """Starts a site, which joins whatever server there is, and again if that is another one."""
        return self._start(client, str(self.folder / f"home of {client}"), "stays")

    def server(self, moment: str = "") -> int:
        """Runs a server until it is killed or done; returns its exit status."""
        return self._start("server", str(self.folder / "run"), f"serves {moment}").wait()

    def _start(self, name: str, folder: str, behaviour: str) -> ClientProcess:
        out = self.folder / f"{name}.txt"
        arguments = [self.address, name, folder, behaviour, *self._overrides]
        number = self._clients.order(start=arguments, out=str(out))
        self.started.append(ClientProcess(self._clients, number, out))
        return self.started[-1]

    def rounds(self) -> list[dict[str, Any]]:
        events = read_events(self.folder / "run" / "record.jsonl")
        return [event for event in events if event["event"] == "round"]


@contextmanager
def federation(folder: Path, clients: Clients, *overrides: str) -> Iterator[Federation]:
    own = Federation(folder, clients, *overrides)
    try:
        yield own
    finally:
        for process in own.started:
            process.end()


def assert_same_as(local: Finished, own: Federation, rounds: int) -> None:
    _, state = Checkpoints(own.folder / "run" / "checkpoints").load(rounds)
    assert_same_tensors(local.state.tensors, state.tensors)
    run = replace(local, folder=own.folder / "run")
    for client in SITES:
        one, other = (kept_by(each, client, rounds).tensors for each in (local, run))
        assert one
        assert_same_tensors(one, other)


def test_a_server_that_is_killed_finishes_the_sum_with_the_sites_that_are_still_there(
    run_tiny: RunTiny, clients: Clients, tmp_path: Path
) -> None:
    """Before the signatures, while shares come, and when all are there."""
    rounds = "federation.rounds=4"
    local = run_tiny(*SECURE, rounds)
    deaths = (
        "prove:1",  # of round 1, which is begun anew: no share has left
        "take:2",  # of round 1, one share has come
        "take:6",  # 3 are left of round 1; of round 2 two have come
        "save:2",  # 2 are left of round 2, which is committed; of round 3 all shares are there
    )
    with federation(tmp_path / "served", clients, *SECURE, rounds) as own:
        sites = [own.site(client) for client in SITES]
        for moment in deaths:
            assert own.server(moment) == -signal.SIGKILL
        assert own.server() == 0
        assert [site.wait() for site in sites] == [0] * 4
        assert [each["refused"] for each in sums(own.rounds())] == [None] * 4
        assert [each["survivors"] for each in sums(own.rounds())] == [list(SITES)] * 4
        assert_same_as(local, own, 4)


@pytest.mark.claim("secure_aggregation#never-abandoned")
def test_a_sum_is_made_again_with_the_same_sites_if_too_few_still_have_what_they_have_begun(
    run_tiny: RunTiny, clients: Clients, tmp_path: Path
) -> None:
    local = run_tiny(*SECURE)
    with federation(tmp_path / "served", clients, *SECURE) as own:
        sites = {client: own.site(client) for client in SITES}
        assert own.server("take:2") == -signal.SIGKILL
        for client in SITES[2:]:
            sites[client].end()
            own.site(client)
        assert own.server() == 0
        assert [event["abandoned"] for event in own.rounds()] == [False, False]
        assert [each["survivors"] for each in sums(own.rounds())] == [list(SITES)] * 2
        assert_same_as(local, own, 2)

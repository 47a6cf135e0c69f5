"""Runs between processes: the same weights as in simulation, whatever happens to connections and clients."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch
from proxy import Proxy
from remote_run import CLIENTS, PATIENT, RUN, Serve, Server
from support import Finished, RunTiny

from fedstrata.client.store import ClientStore, client_folder
from fedstrata.core.types import Message, State
from fedstrata.engine.conversation import SimulatedLine
from fedstrata.transport.members import Arrival
from fedstrata.transport.timing import Timing

SECOND = 3
"""Which message of a turn is the first of the second batch, where a client that is to be killed is."""
ONE_EACH = ("training.batch_size=8", "data.synthetic.notes=12")
SELDOM = "federation.evaluate_every=2"
"""What a simulation is compared by is not its scores."""
BATCH = "method={name: fl_llama, mode: client_batch}"
LORA = "adapter={kind: lora, rank: 4}"


def assert_same_run(server: Server, state: State, simulated: Finished) -> None:
    """The same weights but for the order of sums, the same loss, the same bytes.

    The server never sees ends that their clients keep.
    """
    model, expected = server.experiment.model, simulated.state.tensors
    if server.experiment.method.personal:
        expected = {name: tensor for name, tensor in expected.items() if name in model.layout.all}
    assert state.tensors.keys() == expected.keys()
    for name, tensor in state.tensors.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4)
    last = simulated.of("round")[-1]
    assert server.cohort.book.meter.exchanges() == last["exchanges"]
    assert server.cohort.book.loss == pytest.approx(last["loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (
            "method={name: fl_llama, in_flight: 2, cuts: {site-2: {front: 0, back: 1}}}",
            "training.accumulation=2",
        ),
        (BATCH, LORA),
        ("method={name: fl_llama, full: [front, back]}", LORA),
        ("method={name: fl_llama, full: [middle]}", LORA),
        ("method={name: fl_llama, front: 0, back: 0}", "adapter={kind: bottleneck, width: 4}"),
        ("method={name: fl_llama, average_ends: never, turns: step, wire: bfloat16}",),
        ("method={name: fl_llama, average_ends: hand_on}",),
        ("method={name: fl_llama, average_ends: never}", LORA),
    ],
)
def test_a_run_between_processes_gives_the_weights_of_a_simulation(
    run_once: RunTiny, serve: Serve, overrides: tuple[str, ...]
) -> None:
    simulated = run_once(*overrides, *ONE_EACH, SELDOM)
    server = serve(*overrides, *ONE_EACH)
    for client in CLIENTS:
        server.start(client)
    assert_same_run(server, server.run(2), simulated)
    for client in CLIENTS:  # what it has kept, of which each process draws its own beginning
        homes = (server.folder / f"home of {client}" / f"run-{RUN}", simulated.folder)
        own, expected = (ClientStore(client_folder(home, client), 2).read().tensors for home in homes)
        assert own.keys() == expected.keys()
        for name, tensor in own.items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_connections_that_are_cut_lose_nothing_and_repeat_nothing(run_once: RunTiny, serve: Serve) -> None:
    simulated = run_once(BATCH, *ONE_EACH, SELDOM)
    server = serve(BATCH, *ONE_EACH)
    proxies = [Proxy(server.address, lives=[120_000 + 37_000 * index] * 4) for index in range(2)]
    for client, proxy in zip(CLIENTS, proxies, strict=False):
        server.start(client, address=proxy.address)
    server.start(CLIENTS[2])
    assert_same_run(server, server.run(2), simulated)
    for proxy in proxies:
        proxy.close()
        assert proxy.cuts >= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "accumulation", "at"),
    [("sequential", 2, 1), ("client_batch", 1, SECOND), ("hierarchical", 1, SECOND)],
    ids=str,
)
@pytest.mark.claim("processes#lost-client")
def test_a_round_goes_on_without_a_client_that_is_killed_in_a_step(
    run_tiny: RunTiny, serve: Serve, monkeypatch: pytest.MonkeyPatch, mode: str, accumulation: int, at: int
) -> None:
    """To the weights of a simulation in which it fails before the step: of that nothing is left."""
    send, sent = SimulatedLine.send, [0]

    def failing(line: SimulatedLine, message: Message) -> None:
        sent[0] += line.client == "site-2"
        if line.client == "site-2" and sent[0] == at:
            raise OSError(5, "gone")
        send(line, message)

    monkeypatch.setattr(SimulatedLine, "send", failing)
    method = (f"method={{name: fl_llama, mode: {mode}}}", f"training.accumulation={accumulation}", *ONE_EACH)
    simulated = run_tiny(*method, "federation.min_clients=2", "federation.rounds=1")
    assert [event["client"] for event in simulated.of("client_failed")] == ["site-2"]
    timing = Timing(answer=300.0, reconnect=2.0, keepalive=20.0)
    server = serve(*method, timing=timing)
    processes = {client: server.start(client, "die" if client == "site-2" else "good") for client in CLIENTS}
    state = server.run(min_clients=2)
    assert {facts["client"] for facts in server.of("client")} == {"site-1", "site-3"}
    (failed,) = server.of("client_failed")
    assert (failed["client"], failed["error"]) == ("site-2", "LineError")
    assert "'site-2'" in failed["message"] and failed["message"].endswith(" connection for 2 s")
    assert processes["site-2"].wait() == -signal.SIGKILL
    for name, tensor in state.tensors.items():
        torch.testing.assert_close(tensor, simulated.state.tensors[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.claim("processes#lost-client")
def test_a_client_that_stalls_is_lost(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have all the time they need: the server loses patience once it waits for this one alone."""
    server = serve(BATCH, *ONE_EACH)
    hub, heard = server.hub, [0]
    receive = hub.receive

    def impatient(seconds: float, **unless: Any) -> Arrival | None:
        asked = [client for client, member in hub._members.items() if member.asked is not None]
        waits = heard[0] == SECOND - 1 and asked == ["site-2"]
        hub.timing = replace(PATIENT, answer=0.1) if waits else PATIENT
        arrival = receive(hub.timing.answer if waits else seconds, **unless)
        heard[0] += arrival is not None and arrival.client == "site-2"
        return arrival

    monkeypatch.setattr(hub, "receive", impatient)
    processes = {client: server.start(client, "stop" if client == "site-2" else "good") for client in CLIENTS}
    server.run(min_clients=2)
    (failed,) = server.of("client_failed")
    assert (failed["client"], failed["error"]) == ("site-2", "LineError")
    assert "'site-2'" in failed["message"] and failed["message"].endswith("answered for 0.1 s")
    os.kill(processes["site-2"].number, signal.SIGCONT)
    hub.wait_for(["site-2"], 600)  # it comes again, too late for the only round
    hub.stop(complete=True)
    assert processes["site-2"].wait() == 1
    told = processes["site-2"].said.splitlines()[-1]
    assert told.startswith("TrainingError: ") and "'site-2'" in told
    assert "answered for 0.1 s" in processes["site-2"].said


@pytest.mark.parametrize(
    ("method", "one", "other"),
    [
        ("method={name: fedavg}", ("cut short", "float32 ("), ("another", "'another' came")),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (BATCH, ("weight", "weighs 1e+09"), ("infinite", "not finite")),
                (BATCH, ("huge", "beyond 1e+18"), ("loss", "loss=1.7e+308")),
                (BATCH, ("empty", "update lacks"), ("good", None)),
                ("method={name: droppeft}", ("infinite", "not finite"), ("blocks", "shared=1000000")),
                ("method={name: droppeft}", ("no blocks", "personal=5"), ("no loss", "loss")),
            )
        ),
    ],
)
@pytest.mark.claim("processes#spoilt-update")
def test_an_update_that_would_spoil_the_mean_costs_the_round_its_client(
    serve: Serve, method: str, one: tuple[str, str], other: tuple[str, str | None]
) -> None:
    server = serve(method, *ONE_EACH, "federation.floors=false")
    behaviours = zip(CLIENTS, (one[0], other[0], "good"), strict=True)
    processes = {client: server.start(client, behaviour) for client, behaviour in behaviours}
    state = server.run(min_clients=1)
    failed = {facts["client"]: facts["message"] for facts in server.of("client_failed")}
    expected = {client: told for client, (_, told) in zip(CLIENTS, (one, other), strict=False) if told}
    assert failed.keys() == expected.keys()
    assert all(told in failed[client] for client, told in expected.items())
    assert all(bool(tensor.isfinite().all()) for tensor in state.tensors.values())
    server.hub.stop(complete=True)
    for client, process in processes.items():
        assert process.wait() == (client in expected), "a client whose updates are of no use says so"
        if client in expected:
            assert expected[client] in process.said.splitlines()[-1]

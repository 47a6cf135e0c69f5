"""What a server tells of a run on its own machine, asked over HTTP; its sites are real sessions."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from local_requests import ask
from prometheus_client.parser import text_string_to_metric_families
from support import Call, refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.files import taking_turns
from fedstrata.core.types import Message
from fedstrata.operations.local_server import JSON_TEXT, Answer, LocalServer
from fedstrata.operations.metrics import require_metrics
from fedstrata.operations.serving import Operations, picture_of
from fedstrata.operations.standing import Standing
from fedstrata.transport.agreement import Agreement
from fedstrata.transport.grpc.hub import GrpcHub
from fedstrata.transport.grpc.membership import GrpcMembership
from fedstrata.transport.header import Header, Kind
from fedstrata.transport.timing import Timing
from fedstrata.wire import frame

AGREED = Agreement({}, run="run", blocks=1, numbers=100, trained={})
TIMING = Timing(answer=60.0, reconnect=30.0, keepalive=20.0)
RUN = {"name": "run", "rounds": 3, "metric": "f1", "clients": {"north": {}, "south": {}}}
TURN = {"round": 1, "client": "north", "bytes_up": 80, "bytes_down": 100, "loss": 0.5, "examples": 7}
LOST = {"round": 1, "client": "south", "error": "LineError", "message": "it is silent", "bytes_down": 100}
ROUND = {"round": 1, "loss": 0.5, "global": {"f1": 0.25}, "seconds": 2.0}


class Served:
    """A server with its operations, in this process."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.told = folder, list[tuple[str, Any]]()
        self.standing = Standing(["north", "south"], self.hear)
        self.hub = GrpcHub(
            lambda client, greeting: AGREED, largest=2**20, clients=["north", "south"], timing=TIMING
        )
        stack.callback(self.hub.stop, 0.1)
        self.address = self.hub.listen("127.0.0.1:0")
        self.operations = stack.enter_context(Operations(folder, self.hub, self.standing, "127.0.0.1:0"))

    def hear(self, event: str, facts: Mapping[str, Any]) -> None:
        """Takes what is passed on, with the rounds that are committed by then."""
        self.told.append((event, self.standing.picture()["committed"]))

    def site(self, name: str) -> Mapping[str, Any]:
        (found,) = [site for site in picture_of(self.folder)["sites"] if site["site"] == name]
        return found

    def health(self) -> tuple[int, Mapping[str, Any]]:
        heard = ask(f"http://{self.operations.place}/healthz")
        return heard.status, json.loads(heard.text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    (tmp_path / "record.jsonl").touch()
    return tmp_path


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    with ExitStack() as stack:
        yield Served(folder, stack)


def record(folder: Path, events: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    lines = [
        json.dumps({"event": event, "time": "2026-01-01T10:00:00.000+00:00", **facts})
        for event, facts in events
    ]
    (folder / "record.jsonl").write_text("\n".join([*lines, ""]))


def test_what_a_site_does_is_told_as_it_does_it(served: Served) -> None:
    assert served.site("north")["doing"] == "awaited"
    with GrpcMembership(served.address, "north", AGREED, timing=TIMING) as membership:
        served.hub.wait_for(["north"], 30)
        north = served.site("north")
        assert (north["there"], north["doing"], served.site("south")["there"]) == (True, "waiting", False)
        for turn, (handler, doing) in enumerate(
            [("train", "training"), ("@score", "scoring"), ("secure/keys", "summing")], start=1
        ):
            plan = Header(Kind.PLAN, turn=turn, round=turn + 4, handler=handler)
            served.hub.send("north", plan, frame.encode(Message()))
            north = served.site("north")
            assert (north["doing"], north["round"]) == (doing, turn + 4)
            membership.receive()
            membership.send(Header(Kind.READY, turn=turn), frame.encode(Message()))
            assert served.hub.receive(30) is not None
            assert served.site("north")["doing"] == "waiting"
            served.hub.send("north", Header(Kind.FETCH, turn=turn), frame.encode(Message()))
            assert served.site("north")["doing"] == "sending"
            membership.receive()
            membership.send(Header(Kind.UPDATE, turn=turn), frame.encode(Message()))
            assert served.hub.receive(30) is not None
    served.hub.receive(30)  # that it has left
    north = served.site("north")
    assert (north["there"], north["doing"]) == (False, "lost")
    assert north["seen"] is not None


def test_a_turn_that_was_ended_leaves_nothing_to_do(served: Served) -> None:
    with GrpcMembership(served.address, "north", AGREED, timing=TIMING):
        served.hub.wait_for(["north"], 30)
        served.hub.send("north", Header(Kind.PLAN, turn=1, handler="train"), frame.encode(Message()))
        served.hub.tell("north", Header(Kind.FAILED, turn=1), frame.encode(Message()))
        assert served.site("north")["doing"] == "waiting"


def test_what_has_happened_is_counted(served: Served) -> None:
    for event, facts in (
        ("run", RUN),
        ("round_started", {"round": 1, "rounds": 3, "clients": 2}),
        ("client", TURN),
        ("client_failed", LOST),
    ):
        served.standing(event, facts)
    picture = picture_of(served.folder)
    assert (picture["server"], picture["state"], picture["round"]) == ("running", "under way", 1)
    assert (picture["committed"], picture["rounds"], picture["score"]) == (0, 3, None)
    south = served.site("south")
    assert (south["lost"], south["failure"], south["bytes_down"]) == (1, "it is silent", 100)
    served.standing("round", ROUND)
    served.standing("client", {**TURN, "client": "south", "round": 2})
    picture = picture_of(served.folder)
    assert (picture["committed"], picture["score"], picture["round_seconds"]) == (1, 0.25, 2.0)
    south = served.site("south")
    assert (south["delivered"], south["lost"], south["failure"]) == (1, 1, None)
    assert (south["bytes_up"], south["bytes_down"], south["round"]) == (80, 200, 2)
    told = [("run", 0), ("round_started", 0), ("client", 0)]
    assert served.told[:3] == told, "whoever else listens is told"


def test_a_run_that_goes_on_begins_with_what_its_record_has(folder: Path) -> None:
    record(folder, [("run", RUN), ("client", TURN), ("round", ROUND)])
    with ExitStack() as stack:
        served = Served(folder, stack)
        assert served.site("north")["bytes_up"] == 80
        assert picture_of(folder)["committed"] == 1
        assert served.told == [], "which is nothing new"


def test_a_run_that_goes_on_waits_for_its_sites_and_is_well(folder: Path) -> None:
    """However it has ended before: what looks after its health would else end it while they join again."""
    record(folder, [("run", RUN), ("failed", {"error": "KeyboardInterrupt", "message": "stopped"})])
    with ExitStack() as stack:
        status, told = Served(folder, stack).health()
        assert (status, told["state"]) == (200, "waiting for sites")
        assert picture_of(folder)["message"] is None


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_record_that_was_not_written_so_is_named(call: Call, folder: Path, command: str) -> None:
    record(folder, [("run", RUN), ("round", ROUND), ("run", {})])
    done = call(command, folder)
    assert done.status == 2
    assert "record.jsonl: " in done.err and "[damaged]" in done.err


def test_a_time_that_is_none_is_a_damaged_line(call: Call, folder: Path) -> None:
    record(folder, [("run", RUN)])
    with (folder / "record.jsonl").open("a") as file:
        file.write('{"event": "round_started", "round": 1, "time": "yesterday"}\n')
    assert call("status", folder).out.startswith("run: unfinished, 0 of 3")


def test_health_is_lost_with_the_run_or_when_the_server_hangs(served: Served) -> None:
    status, told = served.health()
    assert (status, told["server"], told["state"]) == (200, "running", "waiting for sites")
    served.hub.receive(0.0)
    assert served.health()[0] == 200
    served.hub.at_work_since = time.monotonic() - 50
    assert served.health()[0] == 200, "a server may be at work"
    impatient = GrpcMembership(
        served.address, "north", AGREED, timing=Timing(answer=20.0, reconnect=30.0, keepalive=20.0)
    )
    with impatient:
        status, told = served.health()
        assert (status, told["server"]) == (503, "stalled"), "for as long as its sites wait"
        served.hub.wait_for(["north"], 30)
        assert served.health()[0] == 200
    served.standing("run", RUN)
    served.standing("final", {})
    assert served.health()[0] == 200
    served.standing("failed", {"error": "LineError", "message": "too few are left"})
    status, told = served.health()
    assert (status, told["state"]) == (503, "failed")
    assert "message" not in told, "which names sites"


def test_everybody_on_the_machine_sees_health_and_nobody_the_sites(served: Served) -> None:
    for path in ("", "status", "operations.json"):
        assert ask(f"http://{served.operations.place}/{path}").status == 404


def test_the_address_is_its_owners_and_goes_with_the_server(folder: Path) -> None:
    with ExitStack() as stack:
        Served(folder, stack)
        file = folder / "operations.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        kept = file.read_bytes()
    assert not file.exists()
    file.write_bytes(kept)  # as of a server that was killed
    file.chmod(0o600)
    assert picture_of(folder)["server"] == "not running"
    with ExitStack() as stack:
        Served(folder, stack)
        assert picture_of(folder)["server"] == "running"
    file.write_bytes(kept)
    file.chmod(0o644)
    with refused(ConfigurationError, "not_secret", values=[file]):
        picture_of(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"url": "http://127.0.0.1:1/token/"}'])
def test_a_damaged_address_is_no_server(folder: Path, text: bytes) -> None:
    (folder / "operations.json").write_bytes(text)
    (folder / "operations.json").chmod(0o600)
    assert picture_of(folder)["server"] == "not running"


def test_another_program_at_the_port_of_a_killed_server_is_not_asked(folder: Path) -> None:
    """Nor told the token; a server that is there holds the file with its address."""
    asked: list[str] = []

    def status(headers: Mapping[str, str]) -> Answer:
        asked.append("status")
        return Answer(b'{"server": "running"}', JSON_TEXT)

    with LocalServer("127.0.0.1:0", {"status": status}, setting="--port") as other:
        (folder / "operations.json").write_text(json.dumps({"url": other.url}))
        (folder / "operations.json").chmod(0o600)
        assert picture_of(folder)["server"] == "not running"
        assert not asked
        with taking_turns(folder / "operations.json"):  # as a server of another version would
            assert picture_of(folder)["server"] == "not answering"
        assert asked == ["status"]


def test_an_address_elsewhere_is_not_asked(folder: Path) -> None:
    (folder / "operations.json").write_text('{"url": "http://example.org:80/token/"}')
    (folder / "operations.json").chmod(0o600)
    with refused(ConfigurationError, "not_local", at=str(folder / "operations.json"), values=["example.org"]):
        picture_of(folder)


def test_status_without_a_server_says_what_the_record_says(call: Call, folder: Path) -> None:
    record(folder, [("run", RUN), ("client", TURN), ("client_failed", LOST), ("round", ROUND)])
    done = call("status", folder)
    assert done.status == 0
    first, second, third, *_ = done.out.splitlines()
    assert first.startswith("run: unfinished, 1 of 3")
    assert all(value in second for value in ("loss 0.500", "f1 0.250", "2.0 s"))
    assert "no server" in third
    (lost,) = [line for line in done.out.splitlines() if "it is silent" in line]
    assert "south" in lost and "round 1" in lost
    (told,) = call("status", folder, "--json").out.splitlines()
    north, south = json.loads(told)["sites"]
    assert (north["bytes_up"], north["there"], south["lost"]) == (80, None, 1)


def test_status_answers_without_what_only_a_run_needs(folder: Path) -> None:
    """Who looks every few seconds does not pay for torch each time."""
    record(folder, [("run", RUN)])
    told = """
import sys
from fedstrata.cli.main import main
sys.argv[1:] = ["status", "--once", sys.argv[1]]
try:
    main()
finally:
    assert not {"torch", "transformers"} & set(sys.modules)
"""
    command = [sys.executable, "-c", told, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("run: unfinished, 0 of 3")


def test_status_follows_a_server_until_the_run_has_ended(
    call: Call, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the run ends while the command waits to look again."""
    served.standing("run", RUN)
    served.standing("client", TURN)
    monkeypatch.setattr("fedstrata.cli.status.time.sleep", lambda seconds: served.standing("final", {}))
    lines = [json.loads(line) for line in call("status", served.folder, "--json").out.splitlines()]
    assert [line["state"] for line in lines] == ["under way", "finished"]
    assert len(call("status", served.folder, "--json", "--once").out.splitlines()) == 1


def test_status_without_a_name_takes_the_run_at_work_last(call: Call, folder: Path, tmp_path: Path) -> None:
    assert "RUN: " in (told := call("status").err) and "runs/  [missing]" in told
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").touch()
        (tmp_path / "runs" / name / "record.jsonl").touch()
    os.utime(tmp_path / "runs" / "first" / "record.jsonl", (4e9, 4e9))
    assert call("status").out.startswith("first: unfinished")
    assert str(tmp_path / "runs") in (told := call("status", tmp_path / "runs").err) and "[not_found]" in told


def test_prometheus_can_read_the_metrics(served: Served) -> None:
    def samples() -> dict[tuple[str, ...], float]:
        heard = ask(f"http://{served.operations.place}/metrics")
        assert (heard.status, heard.headers["Content-Type"].partition(";")[0]) == (200, "text/plain")
        return {
            (sample.name.removeprefix("fedstrata_"), *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(heard.text)
            for sample in family.samples
        }

    served.standing("run", RUN)
    served.standing("client", TURN)
    found = samples()
    assert (found["sites_expected",], found["sites_joined",]) == (2, 0)
    assert ("loss",) not in found, "there is none yet"
    served.standing("round", ROUND)
    with GrpcMembership(served.address, "north", AGREED, timing=TIMING):
        served.hub.wait_for(["north"], 30)
        found = samples()
    assert [found["site_joined", site] for site in ("north", "south")] == [1, 0]
    assert (found["sites_joined",], found["rounds_committed",], found["score", "f1"]) == (1, 1, 0.25)
    assert (found["bytes_total", "north", "up"], found["turns_total", "delivered", "north"]) == (80, 1)
    seen = "site_last_seen_timestamp_seconds"
    assert (seen, "north") in found and (seen, "south") not in found
    open_metrics = ask(f"http://{served.operations.place}/metrics", Accept="application/openmetrics-text")
    assert open_metrics.text.endswith("# EOF\n")


@pytest.mark.claim("security_review#loopback")
def test_an_address_beyond_this_machine_is_refused_before_anything_is_prepared(call: Call) -> None:
    done = call("serve", "--insecure", "--clients", "north", "--operations", "0.0.0.0:9464")
    assert done.status == 2
    assert "--operations: 0.0.0.0 " in done.err and "[not_local]" in done.err


def test_what_is_missing_for_metrics_is_said_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstrata.operations.metrics.find_spec", lambda name: None)
    with refused(ConfigurationError, "not_installed", at="--operations", values=["'fedstrata[operations]'"]):
        require_metrics("--operations")

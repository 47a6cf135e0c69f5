"""`fedstrata serve` and `join` as real processes that are looked after while they run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from processes import Started, fedstrata, output_of
from support import TINY

from fedstrata.cli.lines import ServerLine
from fedstrata.operations.serving import picture_of

SITES = ("site-1", "site-2")
GUESTS = ("--insecure", "--clients", ",".join(SITES), "--listen", "127.0.0.1:0")


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """Starts a verb that logs JSON."""
    return fedstrata(*arguments, "--log-json")


def join(site: str, address: str, home: Path, *more: str) -> subprocess.Popen[str]:
    """Starts a site that has the notes of the demo."""
    own = [item for item in TINY if item.startswith("data.")]
    return start("join", *own, "--insecure", "--client", site, "--server", address, "--home", home, *more)


def lines(stream: IO[str] | None) -> Iterator[dict[str, Any]]:
    assert stream is not None
    yield from map(json.loads, stream)


def test_who_takes_part_is_in_one_order_however_it_is_named(tmp_path: Path) -> None:
    """Sums and draws go by it: an order of its own would give other numbers than a simulation."""
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{site} token-of-{site}\n" for site in ("south", "east", "north")))
    tokens.chmod(0o600)
    assert ServerLine(insecure=True, tokens=tokens).guests().names == ("east", "north", "south")
    assert ServerLine(insecure=True, clients="south,north").guests().names == ("north", "south")


def address_of(log: Iterator[dict[str, Any]]) -> str:
    """Waits until a server listens."""
    return next(line["message"] for line in log if line["message"].startswith("waiting on ")).split()[2]


@pytest.mark.slow
def test_a_served_run_is_told_of_from_its_beginning_to_its_end(tmp_path: Path, started: Started) -> None:
    folder = tmp_path / "run"
    server = start("serve", *TINY, *GUESTS, "--out", folder)
    started.append(server)
    log = lines(server.stdout)
    address = address_of(log)
    status = fedstrata("status", folder, "--once", "--json")
    started.append(status)
    told = json.loads(output_of(status))
    assert (told["server"], told["state"]) == ("running", "waiting for sites")
    assert [site["doing"] for site in told["sites"]] == ["awaited", "awaited"]
    joins = [join(site, address, tmp_path / site) for site in SITES]
    started += joins
    first = next(line for line in log if line["event"] == "round")
    assert (first["round"], first["run"]) == (1, "demo")
    told = picture_of(folder)
    assert told["committed"] >= 1
    assert all(site["bytes_up"] > 0 for site in told["sites"])
    *_, last = log
    assert last["message"] == f"run directory: {folder}"
    for site, process in zip(SITES, joins, strict=True):
        found = list(lines(process.stdout))
        assert all(line["client"] == site for line in found)
        assert [line["round"] for line in found if line["event"] == "turn"] == [1, 2]
        assert found[-1]["event"] == "ended"
    assert [process.wait() for process in (server, *joins)] == [0, 0, 0]
    assert not (folder / "operations.json").exists()
    told = picture_of(folder)
    assert (told["server"], told["state"], told["committed"]) == ("not running", "finished", 2)


@pytest.mark.slow
def test_a_site_joins_one_run_and_another_once_a_person_accepts_it(tmp_path: Path, started: Started) -> None:
    for number, accepted in enumerate(((), ("--new-run",))):
        out = tmp_path / f"run {number}"
        server = start("serve", *TINY, "federation.rounds=1", *GUESTS, "--out", out)
        started.append(server)
        address = address_of(lines(server.stdout))
        if accepted:  # the other site is not there yet, so that no round has begun
            refused = join(SITES[0], address, tmp_path / SITES[0])
            started.append(refused)
            events = [json.loads(line) for line in refused.communicate(timeout=300)[0].splitlines()]
            assert (refused.returncode, events[-1]["event"]) == (2, "failed")
        joins = [join(site, address, tmp_path / site, *accepted) for site in SITES]
        started += joins
        for process in (*joins, server):
            output_of(process)
    assert len(list((tmp_path / SITES[0]).glob("run-*"))) == 2

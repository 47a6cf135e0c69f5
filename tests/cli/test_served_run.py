"""`fedstrata serve` and `join` as real processes that are looked after while they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from support import TINY

from fedstrata.cli.lines import ServerLine
from fedstrata.operations.serving import picture_of

PROGRAM = [sys.executable, "-m", "fedstrata"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SITES = ("site-1", "site-2")


def start(*arguments: str) -> subprocess.Popen[str]:
    """Starts a verb that logs JSON."""
    command = [*PROGRAM, *arguments, "--log-json"]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


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


@pytest.mark.slow
def test_a_served_run_is_told_of_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    folder, joins = tmp_path / "run", list[subprocess.Popen[str]]()
    guests = ["--insecure", "--clients", ",".join(SITES), "--listen", "127.0.0.1:0", "--out", str(folder)]
    server = start("serve", *TINY, *guests)
    try:
        log = lines(server.stdout)
        waiting = next(line for line in log if line["message"].startswith("waiting on "))
        address = waiting["message"].split()[2]
        status = subprocess.run(
            [*PROGRAM, "status", str(folder), "--once", "--json"], capture_output=True, text=True, check=True
        )
        told = json.loads(status.stdout)
        assert (told["server"], told["state"]) == ("running", "waiting for sites")
        assert [site["doing"] for site in told["sites"]] == ["awaited", "awaited"]
        for site in SITES:
            own = ["--insecure", "--client", site, "--server", address, "--home", str(tmp_path / site)]
            joins.append(start("join", *[item for item in TINY if item.startswith("data.")], *own))
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
            assert process.wait() == 0
        assert server.wait() == 0
    finally:
        for process in (server, *joins):
            process.kill()
            process.communicate()
    assert not (folder / "operations.json").exists()
    told = picture_of(folder)
    assert (told["server"], told["state"], told["committed"]) == ("not running", "finished", 2)


@pytest.mark.slow
def test_a_site_joins_one_run_and_another_once_a_person_accepts_it(tmp_path: Path) -> None:
    own = [item for item in TINY if item.startswith("data.")]

    def join(site: str, address: str, *more: str) -> subprocess.Popen[str]:
        line = ["--insecure", "--client", site, "--server", address, "--home", str(tmp_path / site)]
        return start("join", *own, *line, *more)

    for number, accepted in enumerate(((), ("--new-run",))):
        guests = ["--insecure", "--clients", ",".join(SITES), "--listen", "127.0.0.1:0"]
        out = ["--out", str(tmp_path / f"run {number}")]
        started = [start("serve", *TINY, "federation.rounds=1", *guests, *out)]
        try:
            waiting = next(line for line in lines(started[0].stdout) if "waiting on " in line["message"])
            address = waiting["message"].split()[2]
            if accepted:  # the other site is not there yet, so that no round has begun
                started.append(join(SITES[0], address))
                refused = started.pop()
                events = [json.loads(line) for line in refused.communicate(timeout=300)[0].splitlines()]
                assert (refused.returncode, events[-1]["event"]) == (2, "failed")
            started += [join(site, address, *accepted) for site in SITES]
            for process in reversed(started):
                _, complained = process.communicate(timeout=300)
                assert process.returncode == 0, complained
        finally:
            for process in started:
                process.kill()
                process.communicate()
    assert len(list((tmp_path / SITES[0]).glob("run-*"))) == 2

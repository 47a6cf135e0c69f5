"""The live page of a run, over HTTP and in a real browser."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, browsing
from local_requests import ask
from support import RunTiny, refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.operations.live_page import LivePage
from fedstrata.operations.local_server import LocalServer
from fedstrata.record.report import report_page

Events = Callable[..., list[dict[str, Any]]]
WriteRun = Callable[..., Path]


def append(folder: Path, *events: Mapping[str, Any]) -> None:
    with (folder / "record.jsonl").open("a") as record:
        record.writelines(json.dumps(event) + "\n" for event in events)


def report_of(server: LocalServer, known: str = "") -> tuple[int, str, str, str]:
    heard = ask(f"{server.url}report", **{"If-None-Match": known})
    return heard.status, heard.text, heard.headers.get("ETag", ""), heard.headers.get("Run-State", "")


def test_the_report_grows_with_the_record(events: Events, write_run: WriteRun) -> None:
    every = events(rounds=2)
    folder = write_run([])
    with LocalServer("127.0.0.1:0", LivePage(folder).routes(), setting="--port") as server:
        status, text, begun, state = report_of(server)
        assert (status, state) == (200, "unfinished")
        assert "before the first round" in text
        assert report_of(server, begun)[:2] == (304, "")
        with (folder / "record.jsonl").open("a") as record:
            record.write(json.dumps(every[0])[:50])
            record.flush()
            assert report_of(server, begun)[0] == 304, "a line that is being written"
            record.write(json.dumps(every[0])[50:] + "\n")
        assert "after 0 of 3 rounds" in report_of(server, begun)[1]
        append(folder, every[1])
        status, text, first, state = report_of(server, begun)
        assert text == report_page([folder]), "the very report"
        append(folder, {"event": "client", "round": 2, "client": "a"})
        assert report_of(server, first)[0] == 304, "of which it says nothing"
        failed = {"event": "failed", "time": every[0]["time"], "error": "KeyboardInterrupt", "message": None}
        append(folder, failed)
        assert report_of(server, first)[3] == "interrupted"
        append(folder, *every[2:])
        assert report_of(server, first)[3] == "finished"


def test_a_record_that_cannot_be_read_is_no_end(events: Events, write_run: WriteRun) -> None:
    folder = write_run(events(rounds=1, final=False))
    with LocalServer("127.0.0.1:0", LivePage(folder).routes(), setting="--port") as server:
        (folder / "config.yaml").unlink()
        append(folder, events(rounds=2)[2])
        assert report_of(server)[0] == 503
        (folder / "config.yaml").write_text("seed: 0\n")
        assert "after 2 of 3 rounds" in report_of(server)[1]


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with refused(ConfigurationError, "not_found", values=[tmp_path, "config.yaml"]):
        LivePage(tmp_path)


@pytest.mark.slow
def test_the_command_shows_a_run_until_ctrl_c(run_tiny: RunTiny) -> None:
    folder = run_tiny("federation.rounds=1", report=True).folder
    command = [sys.executable, "-m", "fedstrata", "watch", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        told = watching.stdout.readline()
        assert told.startswith(f"watching {folder} at http://127.0.0.1:")
        address = told.split(" at ")[1].split()[0]
        assert ask(f"{address}report").text == (folder / "report.html").read_text()
        os.kill(watching.pid, signal.SIGINT)
        assert watching.communicate(timeout=60) == ("", "")
    assert watching.returncode == 130


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_rounds_appear_in_a_browser_that_stays_where_it_is(
    tmp_path: Path, events: Events, write_run: WriteRun
) -> None:
    every = events(rounds=3)
    folder = write_run(every[:2])
    with browsing(tmp_path) as tab:
        with LocalServer("127.0.0.1:0", LivePage(folder).routes(), setting="--port") as server:
            tab.open(server.url)
            tab.wait_for("document.body.innerText.includes('after 1 of 3 rounds')")
            assert tab.run("document.getElementById('live').textContent").startswith("Live: ")
            tab.run("window.mark = 1; document.querySelectorAll('details').forEach(each => each.open = true)")
            tab.run("scrollTo(0, 700)")
            append(folder, every[2])
            tab.wait_for("document.body.innerText.includes('after 2 of 3 rounds')")
            assert tab.run("[window.mark, scrollY]") == [1, 700], "the same page, in the same place"
            assert tab.run("[...document.querySelectorAll('details')].every(each => each.open)")
            assert tab.run("getComputedStyle(document.body).margin") == "0px", "with its style"
            tab.picture(Path(os.environ.get("FEDSTRATA_PICTURES", tmp_path)) / "watch.png")
            append(folder, *every[3:])
            tab.wait_for("document.getElementById('live').dataset.state === 'finished'")
            assert tab.said == [], "nothing was held back, and nothing failed"
        tab.wait_for("document.getElementById('live').dataset.state === 'gone'")
        assert "after 3 rounds" in tab.run("document.body.innerText"), "what it told last stays"
        tab.picture(Path(os.environ.get("FEDSTRATA_PICTURES", tmp_path)) / "gone.png")

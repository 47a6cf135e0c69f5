"""What a kill costs a run on NVFlare's federation: of a site's job a turn, of the server's nothing."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from nvflare_federation import SERVER, NVFlareFederation, ended
from support import Finished, RunTiny, assert_same_tensors

from fedstrata.record.log import committed_rounds, read_events

pytestmark = [pytest.mark.engines, pytest.mark.slow]

MANY_ROUNDS = (
    "method={name: layer_skipping, top: 1, head: local}",
    "federation.rounds=80",
    "federation.evaluate_every=80",
    "federation.score_everywhere=false",
    "threads=1",
)
BRIEF = ("--reconnect", "40", "--keepalive", "3")


def wait_for_rounds(process: subprocess.Popen[str], folder: Path, more: int = 3) -> None:
    """Waits until a run that goes on has committed so many rounds more."""
    record = folder / "run" / "record.jsonl"
    due = len(committed_rounds(read_events(record))) + more
    while len(committed_rounds(read_events(record))) < due:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def assert_ended(process: subprocess.Popen[str], folder: Path, *, jobs: int) -> Finished:
    """Waits for the end of a run that has been submitted so often; returns what it left."""
    told, _ = process.communicate()
    assert process.returncode == 0, told
    assert told.count("submitted as job") == jobs
    return ended(folder)


def test_a_server_that_is_killed_costs_nothing(
    nvflare: NVFlareFederation, run_once: RunTiny, tmp_path: Path
) -> None:
    """First its job, which is started again; then NVFlare itself, which calls the lost job running."""
    local = run_once(*MANY_ROUNDS)
    process = nvflare.begin(tmp_path, *MANY_ROUNDS, options=BRIEF)
    wait_for_rounds(process, tmp_path)
    nvflare.kill_job(SERVER)
    wait_for_rounds(process, tmp_path)
    nvflare.kill(SERVER)
    nvflare.start(SERVER)
    run = assert_ended(process, tmp_path, jobs=2)
    assert len(run.of("resumed")) == 2
    assert_same_tensors(local.state.tensors, run.state.tensors)
    assert local.summary["metrics"] == run.summary["metrics"]
    assert not run.of("client_failed")


def test_a_supervisor_that_is_killed_and_started_again_costs_nothing(
    nvflare: NVFlareFederation, run_once: RunTiny, tmp_path: Path
) -> None:
    """Its job goes on meanwhile."""
    local = run_once(*MANY_ROUNDS)
    options = (*BRIEF, "--resume-if-begun")
    first = nvflare.begin(tmp_path, *MANY_ROUNDS, options=options)
    wait_for_rounds(first, tmp_path)
    first.kill()
    first.communicate()
    run = assert_ended(nvflare.begin(tmp_path, *MANY_ROUNDS, options=options), tmp_path, jobs=0)
    assert_same_tensors(local.state.tensors, run.state.tensors)
    assert not run.of("client_failed")


def test_a_site_whose_job_is_killed_is_back_after_a_round(nvflare: NVFlareFederation, tmp_path: Path) -> None:
    process = nvflare.begin(tmp_path, *MANY_ROUNDS, "federation.min_clients=1", options=BRIEF)
    wait_for_rounds(process, tmp_path)
    nvflare.kill_job("site-2")
    run = assert_ended(process, tmp_path, jobs=1)
    assert run.summary["failures"]["clients"] == {"site-2": 1}
    assert "site-2" in run.of("round")[-1]["exchanges"]

"""What workers on a Ray cluster do besides what all engines do: who can reach them, and what they need."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from private_client import PRIVATE
from support import TINY, RunTiny, assert_same_tensors, executed, refused

from fedstrata.client.folder_copy import Changes
from fedstrata.client.store import client_folder
from fedstrata.core.errors import ConfigurationError, TrainingError
from fedstrata.core.settings.source import read_source
from fedstrata.engine.run_folder import open_run
from fedstrata.engine.workers.jobs import Job
from fedstrata.engine.workers.process import Place, begin

pytestmark = pytest.mark.engines

LISTENING = """
import psutil
from fedstrata.engine.ray_cluster import join, leave
from ipaddress import ip_address

join()
import ray
ray.get(ray.remote(lambda: None).remote())
listening = set()
for child in psutil.Process().children(recursive=True):
    try:
        found = child.net_connections()
    except psutil.Error:
        continue
    listening |= {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}
addresses = [ip_address(each.removeprefix("::ffff:")) for each in listening]
assert addresses and all(address.is_loopback for address in addresses), listening
leave()
assert not [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
"""


def test_a_cluster_that_nobody_has_named_is_on_loopback_and_ends_with_the_run() -> None:
    """In a process of its own: the cluster of the other tests is that of this one."""
    done = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_job_that_fails_leaves_nothing_of_a_client_at_the_actor(tmp_path: Path, ray_nodes: object) -> None:
    """Else its next one there would begin with what no run directory has."""
    import ray

    from fedstrata.engine.workers.ray_actor import RayActor
    from fedstrata.engine.workers.ray_workers import RayWorker

    class Actor(RayActor):
        """Computes without a model; what it computes knows where the client's folder is."""

        def compute(
            self, compute: Any, arguments: tuple[Any, ...], client: str | None, sent: Changes
        ) -> tuple[Any, Changes]:
            begin(Place(cast("Any", None), torch.device("cpu"), []))
            return super().compute(compute, (client_folder(self._own, str(client)),), client, sent)

    def listed(folder: Path) -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    def fails(folder: Path) -> None:
        (folder / "half").touch()
        (folder / "state").write_bytes(b"half")
        raise TrainingError("it fails")

    def content(folder: Path) -> bytes:
        return (folder / "state").read_bytes()

    worker = RayWorker(ray.remote(num_cpus=1)(Actor).remote(), Future(), tmp_path, lambda job: None)
    worker.started.set_result(None)

    def come_of(compute: Callable[[Path], Any]) -> Any:
        job = Job(compute, (), "north")
        future = worker.submit(job)
        wait([future])
        return worker.take(job, future)[0]

    client_folder(tmp_path, "north").mkdir(parents=True)
    (client_folder(tmp_path, "north") / "state").write_bytes(b"whole")
    assert come_of(listed) == ["state"]
    with pytest.raises(TrainingError, match="it fails"):
        come_of(fails)
    assert (come_of(listed), come_of(content)) == (["state"], b"whole")
    worker.kill()


def test_folders_of_actors_are_removed_once_nobody_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two runs that begin at the same time neither takes the other's, which is not held yet."""
    pytest.importorskip("ray")
    from fedstrata.engine.workers import ray_actor

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "fedstrata-worker-killed"
    left.mkdir()
    (left / ".lock").touch()
    lock = fcntl.flock

    def locked(file: Any, how: int) -> None:
        """Another actor begins just before this one has its lock."""
        monkeypatch.setattr(fcntl, "flock", lock)
        ray_actor._remove_what_killed_actors_left()
        lock(file, how)

    ray_actor._remove_what_killed_actors_left()
    assert not left.exists()
    mask = os.umask(0o077)
    try:
        monkeypatch.setattr(fcntl, "flock", locked)
        actor = ray_actor.RayActor()
    finally:
        os.umask(mask)
    assert actor._own.is_dir()
    ray_actor._remove_what_killed_actors_left()
    assert actor._own.is_dir()


@pytest.mark.slow
def test_a_private_turn_whose_worker_is_killed_is_spent_twice_and_gives_the_same(
    run_tiny: RunTiny, run_once: RunTiny, tmp_path: Path, ray_nodes: object
) -> None:
    """What the lost worker has taken down is lost with it: nobody else knows whether it had begun."""
    method = f"method={{name: 'troubled:Troubled', client: site-2, trouble: is killed, marks: {tmp_path}}}"
    killed = run_tiny(method, *PRIVATE, "threads=1", "workers=ray")
    never = run_once("method={name: fedavg}", *PRIVATE, "threads=1")
    assert_same_tensors(never.state.tensors, killed.state.tensors)
    turns = {client: own["turns"] for client, own in killed.of("round")[-1]["privacy"]["clients"].items()}
    assert turns == {"site-1": 2, "site-2": 3, "site-3": 2}


@pytest.mark.parametrize("what", ["model", pytest.param("documents", marks=pytest.mark.slow)])
def test_a_machine_without_the_model_or_with_other_documents_is_named(
    tmp_path: Path, ray_nodes: object, what: str
) -> None:
    """However many clients a round can do without."""
    model, corpus = tmp_path / "first" / "model", tmp_path / "corpus.conll"
    corpus.write_text("".join(f"Rest O\npain B-problem\n{number} O\n\n" for number in range(24)))
    own = ("data.format=conll", f"data.path={corpus}", "partition={by: iid, clients: 3}")
    tiny = [setting for setting in TINY if not setting.startswith("data.")]
    executed(tmp_path / "first", [*tiny, *own, "federation.rounds=1"])
    asked = (f"model.name={model}", "model.init=pretrained", "model.config={}", "model.tokenizer=null")
    source = read_source(None, [*tiny, *own, *asked, "federation.min_clients=1", "workers=ray"])
    opened = open_run(source, tmp_path / "run", lambda event, facts: None, resume=False)
    if what == "model":
        model.rename(tmp_path / "elsewhere")
    else:
        corpus.write_text(corpus.read_text().replace("Rest", "Test"))
    code, names = ("wrong_form", [str(model)]) if what == "model" else ("changed", [])
    with refused(ConfigurationError, code, at="workers", values=[socket.gethostname(), *names]):
        opened.execute()

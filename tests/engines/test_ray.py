"""What workers on a Ray cluster do besides what all engines do: who can reach them, and what they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from private_client import PRIVATE
from support import TINY, RunTiny, assert_same_tensors, executed

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.engine.run_folder import open_run

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


@pytest.mark.slow
def test_a_private_turn_whose_worker_is_killed_is_spent_twice_and_gives_the_same(
    run_tiny: RunTiny, run_once: RunTiny, tmp_path: Path, ray_nodes: object
) -> None:
    """What the lost worker has taken down is lost with it: nobody else knows whether it had begun."""
    method = f"method={{name: troubled, client: site-2, trouble: is killed, marks: {tmp_path}}}"
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
    told = str(model) if what == "model" else "the documents are not those the run began with"
    with pytest.raises(ConfigurationError, match="ray cannot have a worker on the machine") as refused:
        opened.execute()
    assert told in str(refused.value)

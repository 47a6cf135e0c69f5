"""Where the workers of tests are that need more than this machine's processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from support import REPOSITORY

NODES = 2
SMALL = {"num_cpus": 1, "object_store_memory": 2**27}


@dataclass
class RayNodes:
    """Nodes of a Ray cluster, all on loopback: two with room for one worker each, and one with none."""

    cluster: Any

    def restore(self) -> None:
        """Puts new nodes in place of those that have ended."""
        nodes = self.cluster.worker_nodes
        for node in [each for each in nodes if each.all_processes["raylet"][0].process.poll() is not None]:
            self.cluster.remove_node(node)
        while len(self.cluster.worker_nodes) < NODES:
            self.cluster.add_node(**SMALL)


@pytest.fixture(scope="session")
def _ray_nodes() -> Iterator[RayNodes]:
    """One cluster for all tests: it takes seconds to start."""
    with pytest.MonkeyPatch.context() as patched:
        own = [str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH", "")]  # where actors find `troubled`
        patched.setenv("PYTHONPATH", os.pathsep.join(filter(None, own)))
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        ray: Any = pytest.importorskip("ray")
        from ray.cluster_utils import Cluster

        cluster = Cluster(True, head_node_args={**SMALL, "num_cpus": 0, "include_dashboard": False})
        nodes = RayNodes(cluster)
        nodes.restore()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield nodes
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def ray_nodes(_ray_nodes: RayNodes) -> Iterator[RayNodes]:
    """Both nodes, whatever a test before has done to them."""
    _ray_nodes.restore()
    return _ray_nodes

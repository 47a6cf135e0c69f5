"""The Ray cluster that a run's workers are on: one that the user names, or one of this machine alone."""

import os
from importlib.util import find_spec
from typing import Any, Final

from fedstrata.core.errors import Problem, refused
from fedstrata.core.settings.run import RunSettings
from fedstrata.metrics.cost import cores

RAY: Final = "ray"
"""What `workers` is for workers on a cluster."""
ADDRESS = "RAY_ADDRESS"
"""The environment variable that names a cluster to Ray, as `ray status` and others have it."""
_NEW = "local"
"""The address by which Ray is told to start a cluster of this machine."""
_LOOPBACK = "127.0.0.1"
_SEVERAL_MACHINES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Whether Ray looks for this machine's address on the network; if not, it listens on loopback alone."""

_joined = False


def ray_problems(settings: RunSettings) -> list[Problem]:
    """Returns what keeps a run that asks for it from having its workers on a Ray cluster."""
    if settings.workers != RAY:
        return []
    problems = []
    if find_spec(RAY) is None:
        message = "ray is not installed; install it with: pip install 'fedstrata[ray]'"
        problems.append(Problem("workers", message, code="not_installed"))
    if settings.privacy.bounded_by is not None:
        message = "lies on this machine, and with workers=ray turns begin on others: use workers=auto"
        problems.append(Problem("privacy.budget", message, code="conflict"))
    return problems


def join() -> None:
    """Joins the cluster that the environment names, or starts one that nobody outside this machine can reach.

    A program that has called `ray.init` already has chosen its cluster.

    Raises:
        ConfigurationError: There is no such cluster, or Ray would listen to other machines.
    """
    global _joined  # noqa: PLW0603 - Ray is one for the whole process, too
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")  # else it looks for a quarter of an hour
    address = os.environ.get(ADDRESS) or _NEW
    alone = address == _NEW
    if alone:
        os.environ.setdefault(_SEVERAL_MACHINES, "0")  # is read when Ray is imported
    import ray  # noqa: PLC0415 - optional

    if ray.is_initialized():
        return
    own: dict[str, Any] = {"num_cpus": cores(), "include_dashboard": False} if alone else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", **own)
    except (ConnectionError, ValueError) as error:
        what = "start Ray on this machine" if alone else f"join the Ray cluster at {address} ({ADDRESS})"
        message = f"cannot {what}: {type(error).__name__}"
        raise refused("workers", message, "failed") from None
    _joined = True
    if alone and (found := ray.util.get_node_ip_address()) != _LOOPBACK:
        leave()
        message = (
            f"Ray would listen on {found}, since this program has imported it before: start Ray yourself "
            f"(ray.init), or set {_SEVERAL_MACHINES}=0 before it is imported"
        )
        raise refused("workers", message, "exposed")


def leave() -> None:
    """Leaves the cluster that `join` has joined; one that it has started ends with that."""
    global _joined  # noqa: PLW0603 - as above
    if _joined:
        import ray  # noqa: PLC0415 - optional

        ray.shutdown()
        _joined = False


def places(threads: int, *, gpu: bool) -> int:
    """Returns how many workers the cluster has room for, at least one; joins it.

    Args:
        threads: How many threads each has.
        gpu: Whether each needs a GPU of its own.

    Raises:
        ConfigurationError: As `join` does.
    """
    join()
    import ray  # noqa: PLC0415 - optional

    found = ray.cluster_resources()
    room = int(found.get("CPU", 0)) // threads
    return max(1, min(room, int(found.get("GPU", 0))) if gpu else room)

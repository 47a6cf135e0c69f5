"""How many clients compute at once: what `workers` may be, and what `auto` comes to."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from private_client import PRIVATE
from support import TINY, problems_of, refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import read_source
from fedstrata.engine import processors, ray_cluster
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.processors import idle_workers, workers_of
from fedstrata.engine.workers.forked_workers import ForkedWorkers

NONE: Any = None
Auto = Callable[..., int]


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return prepare(read_source(None, [*TINY, "federation.rounds=1000000"]))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def see(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return see


@pytest.fixture
def auto(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> Auto:
    """Returns what `auto` comes to on a machine of so many cores, and so much memory that processes share."""

    def ask(cores: int, shared: int | None = None, free: int = 2**40, device: str = "auto") -> int:
        monkeypatch.setattr(processors, "cores", lambda: cores)
        monkeypatch.setattr(processors, "free_shared_memory", lambda: shared)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
        settings = experiment.settings.model_copy(
            update={"workers": "auto", "threads": None, "device": device}
        )
        return workers_of(settings, experiment.method, experiment.model, experiment.clients)

    return ask


def test_a_client_of_a_simulation_has_one_thread_whatever_the_workers(experiment: Experiment) -> None:
    assert experiment.settings.threads == torch.get_num_threads() == 1
    assert read_source(None, []).values.get("threads") is None
    assert RunSettings().workers == "auto"


@pytest.mark.parametrize(
    ("cores", "changed", "named"),
    [
        (2, {"workers": 1}, "workers: auto"),
        (8, {"workers": "auto"}, "threads: 2"),  # three clients are in a round
        (3, {"workers": "auto"}, None),
        (8, {"workers": 1, "threads": 8}, None),
    ],
)
def test_idle_cores_are_told_with_the_setting_that_uses_them(
    experiment: Experiment,
    monkeypatch: pytest.MonkeyPatch,
    gpus: Callable[[int], None],
    cores: int,
    changed: dict[str, Any],
    named: str | None,
) -> None:
    gpus(0)
    monkeypatch.setattr(processors, "cores", lambda: cores)
    settings = experiment.settings.model_copy(update=changed)
    known = experiment.method, experiment.model, experiment.clients
    workers = workers_of(settings, *known)
    told = replace(experiment, settings=settings, workers=workers).idle_cores
    assert bool(re.search(rf"\b{workers} of .*\b{cores} cores\b", told)) == (named is not None)
    assert named is None or named in told
    short = settings.model_copy(update={"federation": settings.federation.model_copy(update={"rounds": 1})})
    assert replace(experiment, settings=short, workers=1).idle_cores == ""


def test_auto_goes_by_cores_clients_gpus_and_memory(
    gpus: Callable[[int], None], auto: Auto, experiment: Experiment
) -> None:
    """In shared memory there is room for the plan of each, and for two updates that are not yet taken."""
    for count, device, workers in ((2, "cuda", 2), (8, "auto", 3), (4, "cuda:1", 1)):
        gpus(count)
        assert auto(1, device=device) == workers
    gpus(0)
    assert [auto(cores) for cores in (1, 2, 8)] == [1, 2, 3]
    assert auto(8, free=2**20) == 1
    trained = experiment.model.bytes_of(experiment.method.trainable(experiment.model.layout))
    assert [auto(8, shared=room) for room in (0, 3 * trained, 6 * trained, 9 * trained)] == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("count", "device", "told"),
    [
        (0, "auto", None),
        (2, "cpu", None),
        (4, "auto", None),
        (2, "auto", ("at most 2", "GPUs", "not 4")),
        (4, "cuda:1", ("1 or auto", "cuda:1", "not 4")),
    ],
)
def test_more_workers_than_gpus_are_refused(
    experiment: Experiment, gpus: Callable[[int], None], count: int, device: str, told: tuple[str, ...] | None
) -> None:
    gpus(count)
    settings = experiment.settings.model_copy(update={"workers": 4, "device": device})
    problems = idle_workers(settings, experiment.method)
    assert [(each.path, each.code) for each in problems] == [("workers", "out_of_range")] * (told is not None)
    assert all(value in each.message for each in problems for value in told or ())


def test_a_new_process_has_the_gpu_that_no_other_is_on(gpus: Callable[[int], None]) -> None:
    """That of one which has ended, too."""
    gpus(3)
    experiment = SimpleNamespace(model=SimpleNamespace(device=torch.device("cuda")))
    source = ForkedWorkers(experiment, NONE, NONE)  # type: ignore[arg-type]
    for expected in (0, 1, 2):
        assert source._device() == torch.device("cuda", expected)
        source._alive.append(SimpleNamespace(device=source._device()))  # type: ignore[arg-type]
    source._alive.pop(1)
    assert source._device() == torch.device("cuda", 1)


def test_ray_without_its_extra_and_a_budget_of_this_machine_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    budget = f"privacy.budget={{path: {tmp_path / 'budget.db'}, epsilon: 4.0, delta: 0.01}}"
    with pytest.raises(ConfigurationError) as refused:
        prepare(read_source(None, [*TINY, *PRIVATE, "privacy.noise=secure", budget, "workers=ray"]))
    found = problems_of(refused.value)
    assert {("workers", "not_installed"), ("privacy.budget", "conflict")} <= set(found)
    assert "'fedstrata[ray]'" in str(refused.value)


@pytest.mark.parametrize("said", [None, "", "local"])
def test_without_the_address_of_a_cluster_ray_is_this_machine_alone(
    monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    """However the environment says so: what Ray is told, and what is looked at, does not depend on it."""
    told: list[dict[str, Any]] = []
    stands_for_ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **named: told.append(named),
        shutdown=lambda: told.append({"ended": True}),
        util=SimpleNamespace(get_node_ip_address=lambda: "10.0.0.5"),
    )
    monkeypatch.setitem(sys.modules, "ray", stands_for_ray)
    for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")  # so that it is again as it was, whatever is done to it here
        monkeypatch.delenv(name)
    if said is not None:
        monkeypatch.setenv("RAY_ADDRESS", said)
    with refused(ConfigurationError, "exposed", at="workers", values=["10.0.0.5"]):
        ray_cluster.join()
    begun, ended = told
    assert (begun["address"], begun["include_dashboard"], ended) == ("local", False, {"ended": True})
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"

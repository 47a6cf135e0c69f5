"""How many clients compute at the same time on this machine, and with how many threads each."""

from collections.abc import Mapping, Sequence

import psutil
import torch

from fedstrata.core.documents import Document
from fedstrata.core.errors import Problem
from fedstrata.core.method import Method
from fedstrata.core.metric import METRICS
from fedstrata.core.settings.run import RunSettings
from fedstrata.data.split import Split
from fedstrata.engine.ray_cluster import RAY, places
from fedstrata.engine.sampling import sample_size
from fedstrata.methods import METHODS
from fedstrata.metrics.cost import cores
from fedstrata.models.given import MODELS
from fedstrata.models.state import Model
from fedstrata.tasks import TASKS
from fedstrata.wire.frame import free_shared_memory

SHORT = 1e12
"""Operations of a run from which several processes pay: they take seconds to start."""
_LIBRARIES = 300 * 2**20
"""Bytes that a process has of its own besides its model."""
_OF_TRAINED = 5
"""Copies of what trains: the weights, as they were, gradients, and two states of the optimiser."""
_FRAMES = 3
"""Frames of what trains that are in shared memory for each process: its plan, and two updates to be taken."""


def idle_workers(settings: RunSettings, method: Method) -> list[Problem]:
    """Returns the problem that more workers are asked for than can compute at once, if so."""
    most, why = _most(settings, method)
    asked = settings.workers
    if asked not in ("auto", 1) and (only := only_here(settings)):
        return [
            Problem("workers", f"must be 1 or auto, not {asked}: {each.message}", code=each.code)
            for each in only
        ]
    if asked == "auto" or most is None or (asked != RAY and asked <= most):
        return []
    allowed = "1" if most == 1 else f"at most {most}"
    return [Problem("workers", f"must be {allowed} or auto with {why}, not {asked}", code="out_of_range")]


def _most(settings: RunSettings, method: Method) -> tuple[int | None, str]:
    """Returns how many clients can compute at once, and what they compute with; none for any number."""
    if method.pooled:
        return 1, f"{method.name}, which trains in one place"
    if method.divides("") is not None:
        return 1, f"{method.name}, whose clients wait for the server in every step"
    if settings.device == "cpu" or not torch.cuda.is_available():
        return None, "cpu"
    if ":" in settings.device:
        return 1, f"device {settings.device}, as each has a GPU of its own"
    if settings.workers == RAY:
        return None, "the GPUs of the cluster"
    return torch.cuda.device_count(), "the GPUs that torch sees here, of which each has one of its own"


def only_here(settings: RunSettings) -> list[Problem]:
    """Returns a problem for all that is plugged in and that no other process can import."""
    named = {
        "method.name": METHODS.why_only_here(settings.method["name"]),
        "task.name": TASKS.why_only_here(settings.task["name"]),
        "model.name": MODELS.why_only_here(settings.model.name),
    }
    metrics = [METRICS.why_only_here(each["name"]) for each in settings.task.get("extra_metrics", ())]
    named |= {f"task.extra_metrics.{number}": why for number, why in enumerate(metrics)}
    return [Problem(path, why, code="not_importable") for path, why in named.items() if why]


def workers_of(settings: RunSettings, method: Method, model: Model, clients: Mapping[str, Split]) -> int:
    """Returns how many clients compute at once.

    `auto` takes as many as there are cores (GPUs, if clients are on one), clients in a round, and room for in
    memory and in that which processes share; and one where the whole run is shorter than it takes to start
    processes. `ray` takes as many as the cluster, which it joins, has CPUs or GPUs for, and a round clients.

    Args:
        settings: The run's settings.
        method: The method.
        model: The loaded model.
        clients: The documents of each client by split.
    """
    if isinstance(settings.workers, int):
        return settings.workers
    most, _ = _most(settings, method)
    training = [own.train for own in clients.values() if own.train]
    sampled = sample_size(len(training), settings.federation.sample)
    if settings.workers == RAY:
        return min(sampled, places(settings.threads or 1, gpu=model.device.type == "cuda"))
    if most == 1 or only_here(settings) or _is_short(settings, model, training):
        return 1
    trained = model.bytes_of(method.trainable(model.layout))
    frames = _FRAMES * trained
    own = _OF_TRAINED * trained + frames + model.bytes_of(model.whole) + _LIBRARIES
    room = int(psutil.virtual_memory().available / own)
    if (free := free_shared_memory()) is not None:
        room = min(room, int(free / max(1, frames)))
    return max(1, min(most or cores() // (settings.threads or 1), sampled, room))


def _is_short(settings: RunSettings, model: Model, training: Sequence[Sequence[Document]]) -> bool:
    """Whether a run is shorter than it takes to start processes."""
    texts = sum(len(text) for own in training for document in own for text in document.texts)
    tokens = texts / 4 * settings.training.epochs * settings.federation.rounds * settings.federation.sample
    return 6 * model.parameter_count * tokens < SHORT


def idle_cores(
    settings: RunSettings, method: Method, model: Model, clients: Mapping[str, Split], workers: int
) -> str:
    """Says that cores of this machine stay idle in a run, and which setting changes it; empty if none do.

    Nothing is said of short runs and of runs on GPUs.

    Args:
        settings: The run's settings.
        method: The method.
        model: The loaded model.
        clients: The documents of each client by split.
        workers: How many clients compute at once.
    """
    used, there = workers * (settings.threads or 1), cores()
    training = [own.train for own in clients.values() if own.train]
    if used >= there or model.device.type != "cpu" or settings.workers == RAY:
        return ""
    if _is_short(settings, model, training):
        return ""
    auto = settings.model_copy(update={"workers": "auto"})
    more = workers_of(auto, method, model, clients) > workers
    way = "workers: auto" if more else f"threads: {there // workers} (which changes the last bits of sums)"
    return f"{used} of this machine's {there} cores compute; set {way} to use more"

"""How many clients compute at the same time on this machine, and with how many threads each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import psutil
import torch

from fedstrata.core.errors import Problem
from fedstrata.engine.sampling import sample_size
from fedstrata.metrics.cost import cores

if TYPE_CHECKING:
    from fedstrata.core.method import Method
    from fedstrata.core.settings.run import RunSettings
    from fedstrata.data.split import Split
    from fedstrata.models.state import Model

SHORT = 1e12
"""Operations of a run from which several processes pay: they take seconds to start."""
_LIBRARIES = 300 * 2**20
"""Bytes that a process has of its own besides its model."""
_OF_TRAINED = 5
"""Copies of what trains: the weights, as they were, gradients, and two states of the optimiser."""


def idle_workers(settings: RunSettings, method: Method) -> list[Problem]:
    """Returns the problem that several workers are asked for where clients cannot compute at once, if so."""
    if settings.workers in {1, "auto"} or (why := _alone(method)) is None:
        return []
    return [Problem("workers", f"must be 1 or auto with {method.name}, {why}, not {settings.workers}")]


def _alone(method: Method) -> str | None:
    """Says why a method's clients do not compute at the same time; none if they can."""
    if method.pooled:
        return "which trains in one place"
    return "whose clients wait for the server in every step" if method.divides("") is not None else None


def workers_of(settings: RunSettings, method: Method, model: Model, clients: Mapping[str, Split]) -> int:
    """Returns how many clients compute at once.

    `auto` takes as many as there are cores (GPUs, if clients are on one), clients in a round, and room for in
    memory; and one where the whole run is shorter than it takes to start processes.

    Args:
        settings: The run's settings.
        method: The method.
        model: The loaded model.
        clients: The documents of each client by split.
    """
    if settings.workers != "auto":
        return settings.workers
    if _alone(method) is not None:
        return 1
    training = [own.train for own in clients.values() if own.train]
    sampled = sample_size(len(training), settings.federation.sample)
    texts = sum(len(text) for own in training for document in own for text in document.texts)
    tokens = texts / 4 * settings.training.epochs * settings.federation.rounds * settings.federation.sample
    if 6 * model.parameter_count * tokens < SHORT:
        return 1
    if model.device.type != "cpu":
        return min(torch.cuda.device_count(), sampled)
    trained = model.bytes_of(method.trainable(model.layout)) * _OF_TRAINED
    own = trained + model.bytes_of(model.whole) + _LIBRARIES
    room = int(psutil.virtual_memory().available / own)
    return max(1, min(cores() // (settings.threads or 1), sampled, room))


def threads_of(settings: RunSettings, workers: int) -> int | None:
    """Returns the threads of each client: those that are set, or one where several compute at once."""
    return settings.threads or (None if workers == 1 else 1)

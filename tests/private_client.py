"""A tiny client that trains under differential privacy, and the gradient that a step leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from support import TINY

from fedstrata.client.site import Examples, Site
from fedstrata.core.client import Client
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Message
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.sites import sites_of
from fedstrata.privacy.clipping import UnitGradients
from fedstrata.privacy.randomness import Randomness, SeededRandomness

PRIVATE = (
    "task={name: ner, types: [problem, test, treatment, drug]}",
    "privacy={mechanism: local, unit: document, units: {site-1: 8, site-2: 8, site-3: 8}, delta: 0.01, "
    "sigma: 1.0, expected_batch: 2, steps: 3, noise: seeded}",
)
"""Of a run of `support.TINY`: private, and the same every time."""
JOINT = (
    PRIVATE[0],
    "privacy={mechanism: joint, secure_aggregation: true, unit: document, units: {site-1: 8, site-2: 8, "
    "site-3: 8}, delta: 0.01, sigma: 1.0, expected_batch: 2, noise: seeded}",
)
"""The same with joint noise."""


class NoStore:
    """Keeps nothing."""

    def read(self) -> Message:
        return Message()


@dataclass
class PrivateClient:
    experiment: Experiment
    client: Client
    site: Site
    units: list[list[Any]]

    @property
    def names(self) -> tuple[str, ...]:
        return self.experiment.method.trainable(self.experiment.model.layout)

    def gradients(
        self, clip: float, sigma: float = 0.0, randomness: Randomness | None = None
    ) -> UnitGradients:
        """Returns what makes gradients, with another clip and noise than the experiment's."""
        privacy = self.experiment.privacy
        settings = privacy.settings.model_copy(update={"clip": clip})
        own = type(privacy)(settings, sigma, privacy.rates, privacy.turns)
        return UnitGradients(
            own, self.site.declared, randomness or SeededRandomness(Seed(1)), lambda: self.units
        )

    def parameters(self) -> list[torch.nn.Parameter]:
        """Returns what trains, and sets the model up for it; nothing of it is drawn."""
        model = self.experiment.model
        model.train_only(self.names)
        model.module.train(False)
        return model.parameters(self.names)

    def sum_over(self, units: Sequence[Sequence[Any]], clip: float, **more: Any) -> list[torch.Tensor]:
        """Returns the sum of clipped gradients of some units, without noise."""
        parameters, own = self.parameters(), self.gradients(clip)
        own.gradients(self.client, units, parameters, **more)
        return [parameter.grad.double() * own.expected_batch for parameter in parameters]  # type: ignore[union-attr]


def private_client(*overrides: str) -> PrivateClient:
    experiment = prepare(read_source(None, [*TINY, *PRIVATE, *overrides]))
    site = sites_of(experiment)[1][0]
    examples = Examples(site)
    client = Client(
        site.id,
        experiment.model,
        experiment.task,
        examples,
        experiment.settings.training,
        NoStore(),
        lambda facts: None,
    )
    return PrivateClient(experiment, client, site, examples.units)


def norm_of(tensors: Sequence[torch.Tensor]) -> float:
    return float(torch.cat([tensor.double().flatten() for tensor in tensors]).norm())

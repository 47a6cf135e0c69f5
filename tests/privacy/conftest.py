"""Sources of randomness, and how often a check calls a sound one bad."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scipy import stats

from fedstrata.core.seeding import Seed
from fedstrata.privacy.randomness import Randomness, SecureRandomness, SeededRandomness

ALARM = 1e-8
"""By each check: all together below 1e-6, since nobody can repeat what the secure one drew."""
LIMIT = float(stats.norm.isf(ALARM / 2))

SOURCES: dict[str, Callable[[], Randomness]] = {
    "seeded": lambda: SeededRandomness(Seed(0).child("noise")),
    "secure": SecureRandomness,
}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> Randomness:
    return SOURCES[request.param]()

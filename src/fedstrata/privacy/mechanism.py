"""Differential privacy as a run has it: what is configured, and the noise that follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedstrata.core.settings.privacy import PrivacySettings
from fedstrata.privacy.accounting import Mechanism, epsilon_of, sigma_for

if TYPE_CHECKING:
    from fedstrata.privacy.joint import JointNoise  # for masks alone

ADJACENCY = "zero-out"
"""Neighbours differ in one unit, whose data are nothing in one of them; the number of units is public."""

EVERYBODY = ""
"""In place of a client's name, what holds of all of them."""


@dataclass(frozen=True, slots=True)
class Privacy:
    """The mechanism of a run.

    Attributes:
        settings: What is configured.
        sigma: The noise, in units of `settings.clip`; of joint noise in units of what a rounded gradient can
            be long, and what t - c sites bring together.
        rates: With what chance a step sees a unit, by client; with `central` a round a client, `EVERYBODY`.
        turns: How many turns of a client the noise allows for; with `central` how many rounds.
        joint: How clients round and share the noise among as many as a round asks; none unless it is joint.
    """

    settings: PrivacySettings = field(default_factory=PrivacySettings)
    sigma: float = 0.0
    rates: Mapping[str, float] | None = None
    turns: int = 0
    joint: JointNoise | None = None

    @property
    def mechanism(self) -> str:
        """Its name."""
        return self.settings.mechanism

    @property
    def steps(self) -> int:
        """How often noise is added in a turn, or in a round."""
        return self.settings.steps or 1

    def noise_of(self, client: str) -> dict[str, float]:
        """Returns the noise of a client's steps, in units of `clip`, and the chance of a unit in one."""
        assert self.rates is not None  # noqa: S101 - a mechanism has them
        return {"sigma": self.sigma, "rate": self.rates[client], "steps": self.steps}

    def epsilon(self, client: str, turns: int) -> float | None:
        """Returns what so many turns of a client have spent, at `settings.delta`.

        Returns:
            0 for none, and none at all where nothing bounds it: without noise, and with noise that its seed
            repeats.
        """
        seeded = self.settings.noise == "seeded" and turns
        return None if seeded else self.nominal_epsilon(client, turns)

    def nominal_epsilon(self, client: str, turns: int) -> float | None:
        """Returns what turns of the same noise would have spent, were it secure; else as `epsilon`."""
        assert self.rates is not None and self.settings.delta is not None  # noqa: S101
        rate = self.rates[EVERYBODY if self.mechanism == "central" else client]
        if self.joint is not None:
            epsilon = self.joint.epsilon([rate], self.steps * turns, self.settings.delta)
        else:
            spent = Mechanism(self.sigma, rate, self.steps * turns)
            epsilon = epsilon_of([spent], self.settings.delta) if turns else 0.0
        return epsilon if math.isfinite(epsilon) else None

    def spent(self, turns: Mapping[str, int]) -> dict[str, dict[str, float | None]]:
        """Returns the turns of each client and what they have spent, as a record has them."""
        return {
            client: {"turns": count, "epsilon": self.epsilon(client, count)}
            for client, count in turns.items()
        }


NO_PRIVACY = Privacy()


def solved(settings: PrivacySettings, rates: Mapping[str, float], turns: int) -> Privacy:
    """Returns a mechanism with its noise: so much that no client spends more than `settings.epsilon`.

    Args:
        settings: What is configured; of noise that is not joint, see `solved_jointly`.
        rates: As in `Privacy`.
        turns: As in `Privacy`, spare ones included.
    """
    if settings.mechanism == "none":
        return NO_PRIVACY
    sigma = settings.sigma
    if sigma is None:
        assert settings.epsilon is not None and settings.delta is not None  # noqa: S101 - checked together
        steps = turns * (settings.steps or 1)
        sigma = sigma_for(settings.epsilon, settings.delta, max(rates.values()), steps)
    return Privacy(settings, sigma, rates, turns)


def solved_jointly(
    settings: PrivacySettings, rates: Mapping[str, float], turns: int, *, sites: int, numbers: int
) -> Privacy:
    """Returns joint noise, so much that no client spends more than `settings.epsilon`.

    Args:
        settings: What is configured.
        rates: As in `Privacy`.
        turns: As in `Privacy`, spare ones included.
        sites: How many take part in a round.
        numbers: How many train.

    Raises:
        ConfigurationError: There are too many colluders for so many sites, or the ring has no room.
    """
    from fedstrata.privacy.joint import (  # noqa: PLC0415 - for masks alone
        Sharing,
        configured,
        usual_colluders,
    )
    from fedstrata.privacy.joint import solved as solved_noise  # noqa: PLC0415

    colluders = usual_colluders(sites) if settings.colluders is None else settings.colluders
    sharing = Sharing(sites, colluders)
    most = max((settings.units or {}).values())
    if settings.sigma is not None:
        noise = configured(settings.sigma, sharing, settings.clip, numbers, most)
    else:
        assert settings.epsilon is not None and settings.delta is not None  # noqa: S101 - checked together
        budget = settings.epsilon, settings.delta, max(rates.values()), turns
        noise = solved_noise(*budget, sharing, settings.clip, numbers, most)
    return Privacy(settings, noise.sigma, rates, turns, noise)

"""How many blocks to skip: a bandit over mean dropout rates (DropPEFT, section 3.3).

The paper's Algorithm 1 did not survive in its text, so the rules are ours: rates that were never tried come
first; then, but for a share of the choices that shrinks with time, the rate of the best mean reward. What is
remembered of a reward is how far it lies above the mean of its round: gains shrink as the model learns, and
the rate that was not tried for longest would look best. It is forgotten after some rounds, since what pays
changes, and the worst rates are given up once all were tried twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Annotated

import numpy as np
from pydantic import Field

from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Count, Part, Settings
from fedstrata.core.types import JSON
from fedstrata.policies.dropout import CAP

EVERYBODY = ""
"""Under which the bandit that all devices share is kept; no client has this name."""

Rate = Annotated[float, Field(ge=0.0, le=CAP)]


class BanditSettings(Settings):
    """How mean dropout rates are chosen."""

    rates: Annotated[list[Rate], Field(min_length=1)] = Field(
        default_factory=lambda: [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
        description="The mean rates to choose from.",
    )
    explore: Annotated[list[Annotated[float, Field(ge=0.0, le=1.0)]], Field(min_length=2, max_length=2)] = (
        Field(
            default_factory=lambda: [0.2, 0.05],
            description="Share of the choices that are random, at first and from round `decay` on.",
        )
    )
    decay: Count = Field(
        default=50, description="Rounds over which that share falls; a device's own bandit counts its turns."
    )
    memory: Count = Field(default=10, description="Rounds, or turns, after which a reward is forgotten.")
    drop: Part = Field(
        default=0.25,
        description="Share of the rates, rounded down, that is given up whenever all had two rewards more.",
    )

    def _misfits(self) -> Iterator[str]:
        if len(set(self.rates)) < len(self.rates):
            yield f"rates must differ from each other, not {self.rates}"


@dataclass(frozen=True, slots=True)
class Reward:
    """What a rate brought in a round: the gain in accuracy a second, above the round's mean."""

    round: int
    rate: float
    value: float


@dataclass(frozen=True, slots=True)
class Bandit:
    """What is known of the rates; a value, that every reward makes a new one of.

    Attributes:
        rates: Those not given up.
        rewards: The rewards that are not forgotten, oldest first.
        choices: How often a rate was chosen.
        tried: Of each rate that ever had a reward, how many it had since rates were last given up, forgotten
            or not, and their sum.
    """

    rates: tuple[float, ...]
    rewards: tuple[Reward, ...] = ()
    choices: int = 0
    tried: dict[float, tuple[int, float]] = field(default_factory=dict)

    def choose(
        self, settings: BanditSettings, number: int, count: int, rng: np.random.Generator
    ) -> tuple[Bandit, list[float]]:
        """Chooses rates for the devices of a round.

        Args:
            settings: The rules.
            number: The round, or of a device's own bandit its turn, counted from 1.
            count: How many devices there are.
            rng: The generator of this draw.

        Returns:
            The bandit that knows of the choices, and a rate for each device.
        """
        means = self.means(settings, number)
        untried = [rate for rate in self.rates if rate not in self.tried]
        rng.shuffle(untried)
        first, last = settings.explore
        share = first + (last - first) * min(1.0, (number - 1) / settings.decay)
        chosen: list[float] = []
        for index in range(count):
            random = rng.random() < share
            if index < len(untried):
                chosen.append(untried[index])
            elif random or not means:
                chosen.append(self.rates[int(rng.integers(len(self.rates)))])
            else:
                chosen.append(max(means, key=lambda rate: (means[rate], -rate)))
        return replace(self, choices=self.choices + count), chosen

    def rewarded(self, settings: BanditSettings, number: int, given: Sequence[tuple[float, float]]) -> Bandit:
        """Returns the bandit that has learnt of a round.

        Args:
            settings: The rules.
            number: As for `choose`.
            given: Each device's rate and reward.
        """
        kept = [reward for reward in self.rewards if number - reward.round < settings.memory]
        new = [Reward(number, rate, value) for rate, value in given if rate in self.rates]
        tried = dict(self.tried)
        for reward in new:
            count, total = tried.get(reward.rate, (0, 0.0))
            tried[reward.rate] = count + 1, total + reward.value
        return replace(self, rewards=(*kept, *new), tried=tried)._without_the_worst(settings)

    def _without_the_worst(self, settings: BanditSettings) -> Bandit:
        """Gives up the worst rates once each has two rewards since that was last done."""
        given_up = int(settings.drop * len(self.rates))
        if not given_up or any(self.tried.get(rate, (0, 0.0))[0] < 2 for rate in self.rates):
            return self
        means = {rate: total / count for rate, (count, total) in self.tried.items()}
        worst = set(sorted(self.rates, key=lambda rate: (means[rate], -rate))[:given_up])
        left = tuple(rate for rate in self.rates if rate not in worst)
        return replace(
            self,
            rates=left,
            rewards=tuple(reward for reward in self.rewards if reward.rate not in worst),
            tried=dict.fromkeys(left, (0, 0.0)),
        )

    def means(self, settings: BanditSettings, number: int) -> dict[float, float]:
        """Returns the mean of the rewards of each rate that are not forgotten by a round."""
        values: dict[float, list[float]] = defaultdict(list)
        for reward in self.rewards:
            if number - reward.round <= settings.memory and reward.rate in self.rates:
                values[reward.rate].append(reward.value)
        return {rate: fmean(own) for rate, own in values.items()}

    def to_json(self) -> dict[str, JSON]:
        """Returns the same as JSON."""
        return {
            "rates": list(self.rates),
            "rewards": [[reward.round, reward.rate, reward.value] for reward in self.rewards],
            "choices": self.choices,
            "tried": [[rate, count, total] for rate, (count, total) in self.tried.items()],
        }

    @classmethod
    def from_json(cls, values: JSON, settings: BanditSettings) -> Bandit:
        """Returns what `to_json` gave; a bandit that knows nothing yet if that is none."""
        if not isinstance(values, dict):
            return cls(tuple(settings.rates))
        known: dict = values  # type: ignore[type-arg]
        return cls(
            tuple(known["rates"]),
            tuple(Reward(*reward) for reward in known["rewards"]),
            known["choices"],
            {rate: (count, total) for rate, count, total in known["tried"]},
        )


@dataclass(frozen=True, slots=True)
class Bandits:
    """The bandits of a federation: one that all devices share, or one for each of them.

    Attributes:
        settings: The rules.
        each: Whether every device has its own, which counts that device's turns and not rounds.
        known: Those that have made a choice, by whose they are.
    """

    settings: BanditSettings
    each: bool
    known: Mapping[str, Bandit] = field(default_factory=dict)

    def choose(self, clients: Sequence[str], number: int, rng: Seed) -> tuple[Bandits, dict[str, float]]:
        """Chooses the mean rate of each device of a round.

        Args:
            clients: The devices.
            number: The round, counted from 1.
            rng: Seed of the draws.

        Returns:
            The bandits that know of the choices, and each device's rate.
        """
        known, rates = dict(self.known), dict[str, float]()
        groups: dict[str, list[str]] = {}
        for client in clients:
            groups.setdefault(self._owner(client), []).append(client)
        for owner, members in groups.items():
            own = known.get(owner) or Bandit.from_json(None, self.settings)
            draws = rng.child("rates", owner).numpy()
            turn = own.choices + 1 if self.each else number
            known[owner], chosen = own.choose(self.settings, turn, len(members), draws)
            rates |= dict(zip(members, chosen, strict=True))
        return replace(self, known=known), rates

    def rewarded(self, given: Mapping[str, tuple[float, float]], number: int) -> Bandits:
        """Returns the bandits that have learnt of a round.

        Args:
            given: The rate and the reward of each device that has one.
            number: The round, counted from 1.
        """
        usual = fmean(reward for _, reward in given.values()) if len(given) > 1 else 0.0
        groups: dict[str, list[tuple[float, float]]] = {}
        for client, (rate, reward) in given.items():
            groups.setdefault(self._owner(client), []).append((rate, reward - usual))
        learnt = {
            owner: (own := self.known[owner]).rewarded(
                self.settings, own.choices if self.each else number, rewards
            )
            for owner, rewards in groups.items()
        }
        return replace(self, known={**self.known, **learnt})

    def to_json(self) -> dict[str, JSON]:
        """Returns what is known as JSON."""
        return {owner: bandit.to_json() for owner, bandit in self.known.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, JSON], settings: BanditSettings, *, each: bool) -> Bandits:
        """Returns what `to_json` gave."""
        return cls(settings, each, {owner: Bandit.from_json(own, settings) for owner, own in values.items()})

    def _owner(self, client: str) -> str:
        return client if self.each else EVERYBODY

"""How many blocks to skip: a bandit over mean dropout rates (DropPEFT, section 3.3).

The paper's Algorithm 1 did not survive in its text, so the rule is ours: Thompson sampling over what each
rate adds to the gain of its round.

**What is known.** A reward is taken for the sum of what its rate adds, what its round adds, and noise: gains
shrink as the model learns, and a round of easy documents is no merit of a rate. Both are fitted together by
least squares, a round as if one more device had gained nothing out of the ordinary in it. To take off the
mean of a round instead would not do: once most devices have the best rate that mean is its own reward.
Rewards are counted in units of what has been usual of late, since what one rate adds shrinks with all.

**What is chosen.** Each device takes the rate that is best in a draw of its own from what the rates may add,
given how far rewards lie from the fit; so rates are chosen by how likely they are the best. The draws are of
half the deviation: a run is short, and trying for longer costs more than it brings. Rates that had no two
rewards yet come first, and a small share of the choices is random, so that a change is noticed.

`benchmarks/droppeft/bandit_rules.py` holds it against two other rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from statistics import fmean
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedstrata.core.errors import SettingError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Count, Part, Settings
from fedstrata.core.types import JSON
from fedstrata.policies.dropout import CAP

EVERYBODY = ""
"""Under which the bandit that all devices share is kept; no client has this name."""
TRIES = 2
"""Rewards that a rate has before another one is preferred to it."""
USUAL_DEVICE = 1.0
"""So many devices that gained nothing out of the ordinary are in a round as far as its own part is fitted."""
DRAWN = 0.5
"""The deviation of draws, as a share of that of what the rates may add."""
_OF_LATE = 0.3
"""The weight of a round in what rewards are usual."""
_LEAST = 1e-12

Rate = Annotated[float, Field(ge=0.0, le=CAP)]


class BanditSettings(Settings):
    """How mean dropout rates are chosen."""

    rates: Annotated[list[Rate], Field(min_length=1)] = Field(
        default_factory=lambda: [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
        description="Mean rates to choose from.",
    )
    explore: Part = Field(default=0.05, description="Fraction of random choices.")
    memory: Count = Field(
        default=50,
        description="Rounds (with bandits per device: the device's own) after which a reward is dropped.",
    )

    def _misfits(self) -> Iterator[SettingError]:
        if len(set(self.rates)) < len(self.rates):
            yield SettingError(f"rates must differ from each other, not {self.rates}", "duplicate")


@dataclass(frozen=True, slots=True)
class Rewards:
    """The rewards of one round, in units of what is usual.

    Attributes:
        round: Its number; of a device's own bandit that of the turn.
        counts: How many devices had each rate.
        sums: The sum of their rewards.
        squares: The sum of the squares of all.
    """

    round: int
    counts: tuple[int, ...]
    sums: tuple[float, ...]
    squares: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What rates add to a reward, as far as is known.

    Attributes:
        means: Of each rate that has a reward which is not forgotten, (rates,).
        spread: The lower Cholesky factor of the covariance of what they may add, (rates, rates).
        known: Which rates these are, by their places among all.
    """

    means: NDArray[np.float64]
    spread: NDArray[np.float64]
    known: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Bandit:
    """What is known of the rates; a value, that every reward makes a new one of.

    Attributes:
        rates: What can be chosen.
        history: The rewards that are not forgotten, by round, oldest first.
        choices: How often a rate was chosen.
        tried: How many rewards each rate ever had.
        usual: The size that rewards have had of late; none before the first.
    """

    rates: tuple[float, ...]
    history: tuple[Rewards, ...] = ()
    choices: int = 0
    tried: tuple[int, ...] = ()
    usual: float | None = None

    def choose(
        self,
        settings: BanditSettings,
        number: int,
        count: int,
        rng: np.random.Generator,
        *,
        alone: bool = False,
    ) -> tuple[Bandit, list[float]]:
        """Chooses rates for the devices of a round.

        Args:
            settings: The rules.
            number: The round, or of a device's own bandit its turn, counted from 1.
            count: How many devices there are.
            rng: The generator of this draw.
            alone: Whether it is a device's own, as for `fit`.

        Returns:
            The bandit that knows of the choices, and a rate for each device.
        """
        untried = [place for place, rewards in enumerate(self.tried) if rewards < TRIES]
        rng.shuffle(untried)
        untried.sort(key=self.tried.__getitem__)
        random = rng.random(count) < settings.explore
        anywhere = rng.integers(len(self.rates), size=count)
        draws = rng.standard_normal((count, len(self.rates)))
        fit = self.fit(settings, number, alone=alone)
        if fit is None:
            best = anywhere
        else:
            drawn = fit.means + DRAWN * draws[:, fit.known] @ fit.spread.T
            best = fit.known[drawn.argmax(axis=1)]
        places = [*untried[:count], *np.where(random, anywhere, best)[len(untried[:count]) :].tolist()]
        return replace(self, choices=self.choices + count), [self.rates[place] for place in places]

    def rewarded(self, settings: BanditSettings, number: int, given: Sequence[tuple[float, float]]) -> Bandit:
        """Returns the bandit that has learnt of a round.

        Args:
            settings: The rules.
            number: As for `choose`.
            given: Each device's rate and reward, in units of what is usual.
        """
        kept = tuple(own for own in self.history if number - own.round < settings.memory)
        places = {rate: place for place, rate in enumerate(self.rates)}
        rows = [(places[rate], value) for rate, value in given if rate in places]
        if not rows:
            return replace(self, history=kept)
        chosen, values = (np.array(each) for each in zip(*rows, strict=True))
        counts = np.bincount(chosen, minlength=len(self.rates)).tolist()
        sums = np.bincount(chosen, values, len(self.rates)).tolist()
        new = Rewards(number, tuple(counts), tuple(sums), float(values @ values))
        tried = tuple(map(add, self.tried, counts))
        return replace(self, history=(*kept, new), tried=tried)

    def in_usual_units(
        self, given: Mapping[str, tuple[float, float]]
    ) -> tuple[Bandit, dict[str, tuple[float, float]]]:
        """Returns a bandit that knows of the size of these rewards, and them in units of what is usual."""
        if not given:
            return self, {}
        size = fmean(abs(reward) for _, reward in given.values())
        usual = size if self.usual is None else (1.0 - _OF_LATE) * self.usual + _OF_LATE * size
        unit = max(usual, _LEAST)
        return replace(self, usual=usual), {name: (rate, own / unit) for name, (rate, own) in given.items()}

    def fit(self, settings: BanditSettings, number: int, *, alone: bool = False) -> Fit | None:
        """Returns what each rate adds to a reward; none where no reward is remembered.

        Args:
            settings: The rules.
            number: The round that it is asked for.
            alone: Whether what rounds add has been taken off the rewards, as it is of a device's own bandit.
        """
        own = [each for each in self.history if number - each.round <= settings.memory]
        if not own:
            return None
        counts, sums = (np.array([getattr(each, name) for each in own], float) for name in ("counts", "sums"))
        devices = counts.sum(axis=1)
        of_round = np.zeros_like(devices) if alone else 1.0 / (devices + USUAL_DEVICE)
        known = np.flatnonzero(counts.sum(axis=0))
        counts, totals, sums = counts[:, known], sums.sum(axis=1), sums[:, known]
        matrix = np.diag(counts.sum(axis=0)) - (counts * of_round[:, None]).T @ counts
        right = sums.sum(axis=0) - (counts * of_round[:, None]).T @ totals
        inverse = np.linalg.inv(matrix)
        means = inverse @ right
        left = sum(each.squares for each in own) - float(of_round @ totals**2) - float(means @ right)
        freedom = float(devices.sum() - (of_round * devices).sum()) - len(known)
        variance = max(left, 0.0) / max(freedom, 1.0)
        spread = np.linalg.cholesky(inverse * variance + _LEAST * np.eye(len(known))).astype(np.float64)
        return Fit(means, spread, known)

    def added_by(self, settings: BanditSettings, number: int) -> float:
        """Returns what a round has added to each of its rewards; 0 if it had none."""
        fit = self.fit(settings, number)
        last = self.history[-1] if self.history else None
        if fit is None or last is None or last.round != number:
            return 0.0
        counts = np.array(last.counts, float)
        expected = float(counts[fit.known] @ fit.means)
        return (sum(last.sums) - expected) / (float(counts.sum()) + USUAL_DEVICE)

    def to_json(self) -> dict[str, JSON]:
        """Returns the same as JSON."""
        return {
            "rates": list(self.rates),
            "history": [[own.round, list(own.counts), list(own.sums), own.squares] for own in self.history],
            "choices": self.choices,
            "tried": list(self.tried),
            "usual": self.usual,
        }

    @classmethod
    def from_json(cls, values: JSON, settings: BanditSettings) -> Bandit:
        """Returns what `to_json` gave; a bandit that knows nothing yet if that is none."""
        if not isinstance(values, dict):
            return cls(tuple(settings.rates), tried=(0,) * len(settings.rates))
        known: dict[str, Any] = values
        history = (
            Rewards(number, tuple(counts), tuple(sums), squares)
            for number, counts, sums, squares in known["history"]
        )
        return cls(
            tuple(known["rates"]), tuple(history), known["choices"], tuple(known["tried"]), known["usual"]
        )


@dataclass(frozen=True, slots=True)
class Bandits:
    """The bandits of a federation: one that all devices share and, if each has its own, theirs.

    Attributes:
        settings: The rules.
        each: Whether every device has its own, which counts that device's turns and not rounds. What a round
            adds to rewards is then learnt from all devices.
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
            own = self._of(owner)
            draws = rng.child("rates", owner).numpy()
            turn = own.choices + 1 if self.each else number
            known[owner], chosen = own.choose(self.settings, turn, len(members), draws, alone=self.each)
            rates |= dict(zip(members, chosen, strict=True))
        return replace(self, known=known), rates

    def rewarded(self, given: Mapping[str, tuple[float, float]], number: int) -> Bandits:
        """Returns the bandits that have learnt of a round.

        Args:
            given: The rate and the reward of each device that has one.
            number: The round, counted from 1.
        """
        shared, rewards = self._of(EVERYBODY).in_usual_units(given)
        shared = shared.rewarded(self.settings, number, list(rewards.values()))
        learnt = {EVERYBODY: shared}
        if self.each:
            added = shared.added_by(self.settings, number)
            for client, (rate, reward) in rewards.items():
                own = self.known[client]
                learnt[client] = own.rewarded(self.settings, own.choices, [(rate, reward - added)])
        return replace(self, known={**self.known, **learnt})

    def to_json(self) -> dict[str, JSON]:
        """Returns what is known as JSON."""
        return {owner: bandit.to_json() for owner, bandit in self.known.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, JSON], settings: BanditSettings, *, each: bool) -> Bandits:
        """Returns what `to_json` gave."""
        return cls(settings, each, {owner: Bandit.from_json(own, settings) for owner, own in values.items()})

    def _of(self, owner: str) -> Bandit:
        return self.known.get(owner) or Bandit.from_json(None, self.settings)

    def _owner(self, client: str) -> str:
        return client if self.each else EVERYBODY

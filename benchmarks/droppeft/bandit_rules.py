"""DropPEFT's bandit against two other rules, where what each rate pays is known.

Ten devices choose among ten rates; a rate pays 1 less its distance to the best one, .6, and noise of a
deviation of so much, both times what all gain in that round. Gains stay as they are, or fall to a tenth in
twenty rounds and so on. The other two rules take the best mean reward of the last ten rounds, but for a share
of random choices that falls from .2 to .05 in fifty rounds, and give up the worst quarter of the rates
whenever all have two rewards more; one of them takes the round's mean off rewards, the other does not.

    python benchmarks/droppeft/bandit_rules.py --jobs 2

The last line is JSON: `worse`, the cells in which the bandit has the best rate less often than the better of
the two by more than two standard errors of the difference, of `cells`.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import get_context
from statistics import fmean, stdev

import numpy as np

from fedstrata.core.seeding import Seed
from fedstrata.policies.bandit import Bandits, BanditSettings

RATES = BanditSettings().rates
BEST = 0.6
DEVICES = [f"device-{number}" for number in range(10)]
NOISES, LENGTHS = (0.0, 0.3, 1.0), (20, 60, 100)
LATE, TENTH = 20, 20
"""Choices count from behind this round, or in the second half of a shorter run; and rounds to a tenth."""


@dataclass
class MeanReward:
    """The best mean reward of late, with the round's mean taken off or not."""

    centred: bool
    rates: list[float] = field(default_factory=lambda: list(RATES))
    rewards: list[tuple[int, float, float]] = field(default_factory=list)
    ever: set[float] = field(default_factory=set)
    since: dict[float, list[float]] = field(default_factory=lambda: defaultdict(list))

    def choose(self, number: int, rng: np.random.Generator) -> list[float]:
        """Returns a rate for each device."""
        share = 0.2 - 0.15 * min(1.0, (number - 1) / 50)
        untried = [rate for rate in self.rates if rate not in self.ever]
        rng.shuffle(untried)
        values: dict[float, list[float]] = defaultdict(list)
        for _, rate, value in self.rewards:
            if rate in self.rates:
                values[rate].append(value)
        best = max(values, key=lambda rate: (fmean(values[rate]), -rate)) if values else None
        drawn = [
            self.rates[int(rng.integers(len(self.rates)))] if best is None or rng.random() < share else best
            for _ in DEVICES
        ]
        return [*untried, *drawn][: len(DEVICES)]

    def learn(self, number: int, given: Sequence[tuple[float, float]]) -> None:
        """Remembers rewards, and gives up the worst rates."""
        usual = fmean(value for _, value in given) if self.centred else 0.0
        self.rewards = [own for own in self.rewards if number - own[0] < 10]
        for rate, value in given:
            self.rewards.append((number, rate, value - usual))
            self.ever.add(rate)
            self.since[rate].append(value - usual)
        given_up = len(self.rates) // 4
        if given_up and all(len(self.since[rate]) >= 2 for rate in self.rates):
            worst = sorted(self.rates, key=lambda rate: (fmean(self.since[rate]), -rate))[:given_up]
            self.rates = [rate for rate in self.rates if rate not in worst]
            self.since = defaultdict(list)


class Thompson:
    """The bandit as the method has it."""

    def __init__(self, seed: int) -> None:
        self.bandits, self.seed = Bandits(BanditSettings(), each=False), Seed(seed)

    def choose(self, number: int, rng: np.random.Generator) -> list[float]:
        """Returns a rate for each device."""
        self.bandits, rates = self.bandits.choose(DEVICES, number, self.seed.child(number))
        return [rates[device] for device in DEVICES]

    def learn(self, number: int, given: Sequence[tuple[float, float]]) -> None:
        """Remembers rewards."""
        self.bandits = self.bandits.rewarded(dict(zip(DEVICES, given, strict=True)), number)


RULES: dict[str, Callable[[int], MeanReward | Thompson]] = {
    "the bandit": Thompson,
    "above the round's mean": lambda seed: MeanReward(centred=True),
    "mean reward": lambda seed: MeanReward(centred=False),
}


def share_of_the_best(rule: str, rounds: int, noise: float, falling: bool, seed: int) -> float:
    """Returns how often the best rate was chosen late in a run."""
    own, rng, late = RULES[rule](seed), np.random.default_rng(seed), list[bool]()
    for number in range(1, rounds + 1):
        chosen = own.choose(number, rng)
        gain = 0.1 ** (number / TENTH) if falling else 1.0
        drawn = noise * rng.standard_normal(len(chosen))
        given = [
            (rate, gain * (1.0 - abs(rate - BEST) + float(extra)))
            for rate, extra in zip(chosen, drawn, strict=True)
        ]
        own.learn(number, given)
        if number > min(LATE, rounds // 2):
            late += [rate == BEST for rate in chosen]
    return fmean(late)


def shares(cell: tuple[bool, float, int], seeds: int) -> dict[str, list[float]]:
    """Returns the share of the best rate by rule, for every seed, in runs of one kind."""
    falling, noise, rounds = cell
    return {
        rule: [share_of_the_best(rule, rounds, noise, falling, seed) for seed in range(seeds)]
        for rule in RULES
    }


def behind(found: dict[str, list[float]]) -> float:
    """Returns by how many standard errors of the difference the bandit is behind the better of the others."""
    own, *others = found.values()
    best = max(others, key=fmean)
    differences = [one - other for one, other in zip(best, own, strict=True)]
    error = stdev(differences) / math.sqrt(len(differences))
    return fmean(differences) / max(error, 1e-9)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="DropPEFT's bandit against two other rules.")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    cells, worse = list(product((False, True), NOISES, LENGTHS)), 0
    print(f"| gains | noise | rounds | {' | '.join(RULES)} |")
    print("|---|---:|---:|---:|---:|---:|")
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        for (falling, noise, rounds), found in zip(
            cells, pool.map(shares, cells, [asked.seeds] * len(cells)), strict=True
        ):
            told = [f"{fmean(own):.2f} ± {stdev(own) / len(own) ** 0.5:.2f}" for own in found.values()]
            worse += behind(found) > 2.0
            print(
                f"| {'fall' if falling else 'stay'} | {noise:g} | {rounds} | {' | '.join(told)} |", flush=True
            )
    print(json.dumps({"cells": len(cells), "worse": worse}))


if __name__ == "__main__":
    main()

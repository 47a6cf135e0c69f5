"""The bandit tries everything, prefers what pays, forgets and gives up."""

from __future__ import annotations

import json
from collections import Counter

import bandit_rules
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedstrata.core.seeding import Seed
from fedstrata.policies.bandit import Bandit, Bandits, BanditSettings

SETTINGS = BanditSettings()


def fresh(settings: BanditSettings = SETTINGS) -> Bandit:
    return Bandit.from_json(None, settings)


def test_every_rate_is_tried_before_any_is_tried_again() -> None:
    rng = np.random.default_rng(0)
    bandit, first = fresh().choose(SETTINGS, 1, 4, rng)
    bandit = bandit.rewarded(SETTINGS, 1, [(rate, 1.0) for rate in first])
    bandit, then = bandit.choose(SETTINGS, 2, 6, rng)
    assert sorted(first + then) == SETTINGS.rates


def test_no_rate_is_preferred_before_each_has_two_rewards() -> None:
    rng, bandit, chosen = np.random.default_rng(0), fresh(), Counter[float]()
    for number in (1, 2):
        bandit, rates = bandit.choose(SETTINGS, number, 10, rng)
        chosen.update(rates)
        bandit = bandit.rewarded(SETTINGS, number, [(rate, rate) for rate in rates])
    assert set(chosen.values()) == {2}


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("falling", [False, True])
def test_the_rate_that_pays_most_is_chosen_most_of_the_time(each: bool, falling: bool) -> None:
    """Whether gains stay or shrink to a tenth in twenty rounds; a device's own has one in each."""
    bandits, seed, late = Bandits(SETTINGS, each), Seed(3), Counter[float]()
    clients = [f"device-{number}" for number in range(10)]
    for number in range(1, 61):
        bandits, rates = bandits.choose(clients, number, seed.child(number))
        usual = 0.1 ** (number / 20) if falling else 1.0
        gains = {client: usual * (1.0 - abs(rate - 0.6)) for client, rate in rates.items()}
        bandits = bandits.rewarded({client: (rates[client], gains[client]) for client in clients}, number)
        if number > 25:
            late.update(rates.values())
    assert late.most_common(1)[0][0] == 0.6
    assert late[0.6] > (0.5 if each else 0.85) * late.total()


def test_it_is_not_behind_rules_that_go_by_mean_rewards() -> None:
    """As `benchmarks/droppeft/bandit_rules.py`, which has all cells and 50 seeds."""
    for cell in ((False, 0.3, 20), (True, 0.3, 60), (True, 1.0, 20)):
        assert bandit_rules.behind(bandit_rules.shares(cell, 8)) < 2.0


def test_a_round_s_own_part_does_not_hide_the_best_rate() -> None:
    """All but one device have the best rate, so that the mean of the round is nearly its reward."""
    bandit, rates = fresh(), SETTINGS.rates
    for number in range(1, 31):
        chosen = [*rates, *rates] if number == 1 else [0.6] * 9 + [rates[number % 10]]
        of_round = 0.2 * number
        given = [(rate, of_round + 1.0 - abs(rate - 0.6)) for rate in chosen]
        bandit = bandit.rewarded(SETTINGS, number, given)
    fit = bandit.fit(SETTINGS, 31)
    assert rates[int(fit.known[fit.means.argmax()])] == 0.6


def test_the_fit_is_that_of_least_squares() -> None:
    """Held against one matrix with a column for each rate and each round, and a row more for each round."""
    rng, bandit = np.random.default_rng(5), fresh()
    rows, values = [], []
    for number in range(1, 8):
        chosen = rng.choice(SETTINGS.rates, 6).tolist()
        given = [(rate, float(rng.normal() + rate + number)) for rate in chosen]
        bandit = bandit.rewarded(SETTINGS, number, given)
        for rate, value in given:
            rows.append(
                [float(rate == own) for own in SETTINGS.rates] + [float(number == own) for own in range(1, 8)]
            )
            values.append(value)
        rows.append([0.0] * 10 + [float(number == own) for own in range(1, 8)])
        values.append(0.0)
    fit = bandit.fit(SETTINGS, 8)
    solved = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0]
    assert fit.means == pytest.approx(solved[fit.known], abs=1e-8)
    assert bandit.added_by(SETTINGS, 7) == pytest.approx(solved[16], abs=1e-8)


def test_a_device_that_trains_alone_in_its_round_is_judged_by_half_of_what_it_gained() -> None:
    bandits, rates = Bandits(SETTINGS, each=False).choose(["a"], 1, Seed(0))
    bandits = bandits.rewarded({"a": (rates["a"], 0.25)}, 1)
    fit = bandits.known[""].fit(SETTINGS, 2)
    assert fit is not None and len(fit.known) == 1
    assert bandits.known[""].usual == 0.25


def test_a_share_of_the_choices_is_random() -> None:
    """Of ten rates one random choice in ten is the best one, too."""
    rng, bandit = np.random.default_rng(4), fresh()
    for number in (1, 2, 3):
        bandit = bandit.rewarded(SETTINGS, number, [(rate, float(rate == 0.3)) for rate in SETTINGS.rates])
    _, chosen = bandit.choose(SETTINGS, 4, 20_000, rng)
    others = sum(rate != 0.3 for rate in chosen) / len(chosen)
    assert others == pytest.approx(0.9 * 0.05, abs=0.01)


def test_what_pays_is_followed_when_it_changes() -> None:
    settings = BanditSettings(memory=20)
    rng, bandit = np.random.default_rng(2), fresh(settings)
    late = Counter[float]()
    for number in range(1, 101):
        bandit, rates = bandit.choose(settings, number, 10, rng)
        best = 0.8 if number <= 30 else 0.1
        bandit = bandit.rewarded(settings, number, [(rate, 1.0 - abs(rate - best)) for rate in rates])
        if number > 70:
            late.update(rates)
    assert late.most_common(1)[0][0] == pytest.approx(0.1, abs=0.11)


def test_a_reward_is_forgotten() -> None:
    bandit = fresh().rewarded(SETTINGS, 1, [(0.3, 5.0)])
    assert bandit.fit(SETTINGS, 51) is not None
    assert bandit.fit(SETTINGS, 52) is None
    assert bandit.rewarded(SETTINGS, 52, []).history == ()


@given(
    st.lists(st.lists(st.tuples(st.sampled_from(SETTINGS.rates), st.floats(-1, 1)), max_size=8), max_size=12),
    st.integers(0, 2**32),
)
def test_a_bandit_survives_a_checkpoint(rounds: list[list[tuple[float, float]]], seed: int) -> None:
    bandit = fresh()
    for number, given_rewards in enumerate(rounds, start=1):
        bandit = bandit.rewarded(SETTINGS, number, given_rewards)
    again = Bandit.from_json(json.loads(json.dumps(bandit.to_json())), SETTINGS)
    assert again == bandit
    number = len(rounds) + 1
    one = bandit.choose(SETTINGS, number, 5, np.random.default_rng(seed))
    assert one == again.choose(SETTINGS, number, 5, np.random.default_rng(seed))
    assert set(one[1]) <= set(bandit.rates)


@pytest.mark.parametrize("wrong", [{"rates": []}, {"rates": [0.5, 0.5]}, {"rates": [0.99]}, {"explore": 1.2}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        BanditSettings.model_validate(wrong)

"""The bandit tries everything, prefers what pays, forgets and gives up."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedstrata.policies.bandit import Bandit, BanditSettings

SETTINGS = BanditSettings()


def fresh(settings: BanditSettings = SETTINGS) -> Bandit:
    return Bandit.from_json(None, settings)


def test_every_rate_is_tried_before_any_is_tried_again() -> None:
    rng = np.random.default_rng(0)
    bandit, first = fresh().choose(SETTINGS, 1, 4, rng)
    bandit = bandit.rewarded(SETTINGS, 1, [(rate, 1.0) for rate in first])
    bandit, then = bandit.choose(SETTINGS, 2, 6, rng)
    assert sorted(first + then) == SETTINGS.rates


def test_the_rate_that_pays_most_is_chosen_most_of_the_time() -> None:
    rng, chosen = np.random.default_rng(1), Counter[float]()
    bandit = fresh()
    for number in range(1, 41):
        bandit, rates = bandit.choose(SETTINGS, number, 10, rng)
        chosen.update(rates)
        bandit = bandit.rewarded(SETTINGS, number, [(rate, 1.0 - abs(rate - 0.6)) for rate in rates])
    assert chosen.most_common(1)[0][0] == 0.6
    assert chosen[0.6] > 0.7 * chosen.total()
    assert 0.6 in bandit.rates and len(bandit.rates) < len(SETTINGS.rates)  # bad ones were given up


def test_what_pays_is_followed_when_it_changes() -> None:
    settings = BanditSettings(drop=0.0)
    rng, bandit = np.random.default_rng(2), fresh(settings)
    late = Counter[float]()
    for number in range(1, 81):
        bandit, rates = bandit.choose(settings, number, 10, rng)
        best = 0.8 if number <= 30 else 0.1
        bandit = bandit.rewarded(settings, number, [(rate, 1.0 - abs(rate - best)) for rate in rates])
        if number > 50:
            late.update(rates)
    assert late.most_common(1)[0][0] == pytest.approx(0.1)


def test_a_reward_is_forgotten() -> None:
    bandit = fresh().rewarded(SETTINGS, 1, [(0.3, 5.0)])
    assert bandit.means(SETTINGS, 11) == {0.3: 5.0}
    assert bandit.means(SETTINGS, 12) == {}
    assert bandit.rewarded(SETTINGS, 12, []).rewards == ()


def test_the_worst_quarter_goes_after_two_rewards_each() -> None:
    settings = BanditSettings(rates=[0.0, 0.2, 0.4, 0.6])
    once = [(rate, rate) for rate in settings.rates]
    bandit = fresh(settings).rewarded(settings, 1, once)
    assert bandit.rates == (0.0, 0.2, 0.4, 0.6)
    bandit = bandit.rewarded(settings, 2, once)
    assert bandit.rates == (0.2, 0.4, 0.6)
    assert bandit.rewarded(settings, 3, once).rates == (0.2, 0.4, 0.6)  # two more are needed of each


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


@pytest.mark.parametrize(
    "wrong", [{"rates": []}, {"rates": [0.5, 0.5]}, {"rates": [0.99]}, {"explore": [0.2]}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        BanditSettings.model_validate(wrong)

"""The bandit tries everything, prefers what pays, forgets and gives up."""

from __future__ import annotations

import json
from collections import Counter

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


@pytest.mark.parametrize("each", [False, True])
def test_a_rate_is_judged_by_the_others_of_its_round(each: bool) -> None:
    """Gains shrink to a tenth in twenty rounds, and a device's own bandit forgets after ten turns."""
    bandits, seed, late = Bandits(SETTINGS, each), Seed(3), Counter[float]()
    clients = [f"device-{number}" for number in range(10)]
    for number in range(1, 61):
        bandits, rates = bandits.choose(clients, number, seed.child(number))
        gains = {client: 0.1 ** (number / 20) * (1.0 - abs(rate - 0.6)) for client, rate in rates.items()}
        bandits = bandits.rewarded({client: (rates[client], gains[client]) for client in clients}, number)
        if number > 20:
            late.update(rates.values())
    assert late.most_common(1)[0][0] == 0.6
    assert late[0.6] > 0.7 * late.total()


def test_a_device_that_trains_alone_in_its_round_is_judged_by_what_it_gained() -> None:
    bandits, rates = Bandits(SETTINGS, each=False).choose(["a"], 1, Seed(0))
    bandits = bandits.rewarded({"a": (rates["a"], 0.25)}, 1)
    assert bandits.known[""].means(SETTINGS, 2) == {rates["a"]: 0.25}


def test_the_share_of_random_choices_falls_by_rounds_to_its_last_value() -> None:
    """However many devices there are. Of ten rates one random choice in ten is the best one, too."""
    rng, bandit = np.random.default_rng(4), fresh()
    bandit = bandit.rewarded(SETTINGS, 1, [(rate, 1.0 if rate == 0.3 else 0.0) for rate in SETTINGS.rates])
    for number, share in ((1, 0.2), (26, 0.125), (51, 0.05), (400, 0.05)):
        known = bandit.rewarded(SETTINGS, number, [(0.3, 1.0)])
        _, chosen = known.choose(SETTINGS, number, 20_000, rng)
        others = sum(rate != 0.3 for rate in chosen) / len(chosen)
        assert others == pytest.approx(0.9 * share, abs=0.01)


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

"""How well scores tell apart: against scikit-learn, and whether intervals hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from sklearn.metrics import roc_auc_score, roc_curve

from fedstrata.privacy.attacks.rates import CONFIDENCE, FALSE_POSITIVES, rates_of


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=4, max_size=60))
def test_rates_are_those_of_scikit_learn(drawn: list[tuple[int, bool]]) -> None:
    scores, included = np.array([float(each) for each, _ in drawn]), np.array([each for _, each in drawn])
    found = rates_of(scores, included)
    if min(included.sum(), (~included).sum()) < 2:
        assert found is None
        return
    assert found.auc.value == pytest.approx(roc_auc_score(included, scores))
    false, true, _ = roc_curve(included, scores, drop_intermediate=False)
    for share in FALSE_POSITIVES:
        assert found.found[share].value == pytest.approx(true[false <= share].max())
    for each in (found.auc, *found.found.values()):
        assert 0.0 <= each.low <= each.value <= each.high <= 1.0


@pytest.mark.parametrize("runs", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_intervals_hold_the_true_area_as_often_as_they_say(runs: int) -> None:
    generator, signal = np.random.default_rng(3), 1.0
    held = 0
    for _ in range(runs):
        included = generator.random(80) < 0.5
        found = rates_of(generator.normal(size=80) + signal * included, included)
        held += found.auc.low <= ndtr(signal / np.sqrt(2.0)) <= found.auc.high
    assert CONFIDENCE - 0.04 < held / runs < CONFIDENCE + 0.03


def test_few_are_found_where_nobody_may_be_wrongly_accused() -> None:
    included = np.arange(200) % 2 == 0
    scores = np.where(included, 1.0, 0.0)
    scores[[1, 3]] = 9.0  # of a hundred who were out, of which one is allowed
    found = rates_of(scores, included)
    assert (found.found[0.01].value, found.found[0.1].value) == (0.0, 1.0)
    assert found.found[0.1].low == pytest.approx(0.025 ** (1 / 100))

"""Counts of some documents and of others add up to those of all: scores do not depend on who has which."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.documents import Span
from fedstrata.metrics import labels, lm, spans, text
from fedstrata.metrics.counts import added
from fedstrata.metrics.lm import TextLikelihood

Scored = tuple[Callable[..., Mapping[str, float]], Callable[..., Mapping[str, float]], list[Any]]

TYPES = ("drug", "test")
LABELS = ("a", "b", "c", "d", "e", "f")


def mentions(draw: st.DrawFn) -> Scored:
    place = st.tuples(st.integers(0, 6), st.integers(1, 4), st.sampled_from(TYPES))
    side = st.lists(place.map(lambda at: Span(at[0], at[0] + at[1], at[2])), max_size=4)
    rows = draw(st.lists(st.tuples(side, side), min_size=2, max_size=6))

    def tally(own: Sequence[Any]) -> Mapping[str, float]:
        return spans.tally_of(spans.match_spans(*zip(*own, strict=True)), TYPES)

    return tally, lambda counts: spans.scores_from(counts, TYPES), rows


def classes(draw: st.DrawFn) -> Scored:
    decisions = st.lists(st.booleans(), min_size=6, max_size=6)
    shares = st.lists(st.floats(0, 1), min_size=6, max_size=6)
    rows = draw(st.lists(st.tuples(decisions, decisions, shares), min_size=2, max_size=6))

    def tally(own: Sequence[Any]) -> Mapping[str, float]:
        gold, given_, probabilities = (np.array(column) for column in zip(*own, strict=True))
        return labels.tally_of(gold, given_, probabilities, LABELS)

    return tally, lambda counts: labels.scores_from(counts, {}, LABELS, one_each=False), rows


def texts(draw: st.DrawFn) -> Scored:
    words = st.lists(st.sampled_from(["no", "chest", "pain", "today"]), max_size=6).map(" ".join)
    rows = draw(st.lists(st.tuples(words, words), min_size=2, max_size=4))

    def tally(own: Sequence[Any]) -> Mapping[str, float]:
        written, right = zip(*own, strict=True)
        return text.overlap_tally(written, right) | text.answer_tally(written, [[each] for each in right])

    return tally, lambda counts: {**text.overlap_from(counts), **text.answers_from(counts)}, rows


def likelihoods(draw: st.DrawFn) -> Scored:
    one = st.builds(TextLikelihood, st.floats(0, 100), st.integers(1, 20), st.integers(0, 50))
    return lm.tally_of, lm.scores_from, draw(st.lists(one, min_size=2, max_size=6))


@pytest.mark.parametrize("kind", [mentions, classes, texts, likelihoods])
@given(data=st.data())
def test_they_add_up(kind: Callable[[Any], Scored], data: st.DataObject) -> None:
    tally, scores, rows = kind(data.draw)
    cut = data.draw(st.integers(1, len(rows) - 1))
    whole, parts = scores(tally(rows)), scores(added([tally(rows[:cut]), tally(rows[cut:])]))
    assert whole == pytest.approx(parts, rel=1e-12, abs=1e-15)
    assert all(map(math.isfinite, whole.values()))

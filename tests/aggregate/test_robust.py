"""Each rule against a naive reference, and what it promises against its hostile clients."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import trim_mean
from support import refused

from fedstrata.aggregate.changes import Changes
from fedstrata.aggregate.robust import FACTS, cosines, krum_scores, robust_change
from fedstrata.aggregate.rules import (
    CosineRule,
    KrumRule,
    MedianRule,
    MultiKrumRule,
    NormClippingRule,
    RobustRule,
    TrimmedMeanRule,
)
from fedstrata.core.errors import TrainingError
from fedstrata.core.types import ClientInfo, Plan, Update

SHAPES = {"a": (2, 3), "b": (), "empty": (0, 4), "c": (5,)}
SIZE = 12
ANY_RULE = [
    MedianRule(),
    TrimmedMeanRule(hostile=0.2),
    KrumRule(hostile=0.2),
    MultiKrumRule(hostile=0.2),
    NormClippingRule(),
    CosineRule(),
]
MEMORY = 1e9


def tensors_of(row: np.ndarray) -> dict[str, torch.Tensor]:
    """Divides a row of numbers among tensors of several shapes."""
    flat, result, start = torch.from_numpy(row.astype(np.float32)), {}, 0
    for name, shape in SHAPES.items():
        count = int(np.prod(shape))
        result[name] = flat[start : start + count].reshape(shape)
        start += count
    return result


def merged(
    rows: np.ndarray,
    rule: RobustRule,
    *,
    weights: Sequence[float] | None = None,
    past: Mapping | None = None,
    clients: int | None = None,
    names: Sequence[str] | None = None,
    memory: float = MEMORY,
) -> tuple[np.ndarray, dict]:
    """Merges changes, (clients, SIZE), of clients 00, 01, ...; what was sent is not zero."""
    base = tensors_of(np.zeros(SIZE))
    arrived = [
        (
            ClientInfo(names[index] if names else f"{index:02d}", 1),
            Update(tensors_of(row), weight=weights[index] if weights else 1.0),
        )
        for index, row in enumerate(rows)
    ]
    cohort = SimpleNamespace(clients=range(clients or len(rows)), each=lambda handler, plan_of: arrived)
    bounded = rule.model_copy(update={"memory_gigabytes": memory / 1e9})
    result, facts, _ = robust_change(base, Plan(base), cohort, bounded, {FACTS: past or {}})
    assert [tensor.dtype for tensor in result.values()] == [torch.float32] * len(SHAPES)
    return torch.cat([result[name] for name in SHAPES]).numpy(), facts


def random_rows(seed: int, clients: int, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal((clients, SIZE))).astype(np.float32)


@st.composite
def attacked(draw: st.DrawFn, needed: int = 2, least: int = 0) -> tuple[np.ndarray, np.ndarray, float]:
    """Honest changes, at most f others that are anything finite, and a share that makes f of it."""
    f = draw(st.integers(0, 3))
    n = draw(st.integers(max(needed * f + least, 3), 14))
    ordinary = st.floats(-100, 100, width=32)
    honest = draw(arrays(np.float32, (n - f, SIZE), elements=ordinary))
    anything = ordinary | st.sampled_from([1e30, -1e30, 3e38, -3e38, 1e-40])
    return honest, draw(arrays(np.float32, (f, SIZE), elements=anything)), (f - 0.5) / n if f else 0.0


@given(attacked(needed=2, least=1))
def test_median_and_trimmed_mean_lie_within_the_range_of_the_honest(
    case: tuple[np.ndarray, np.ndarray, float],
) -> None:
    honest, hostile, share = case
    rows = np.concatenate([hostile, honest])
    for rule in (MedianRule(), TrimmedMeanRule(hostile=share)):
        result, _ = merged(rows, rule)
        assert (result >= honest.min(axis=0)).all()
        assert (result <= honest.max(axis=0)).all()


@given(attacked(needed=2, least=3))
def test_krum_is_one_of_the_changes_and_near_an_honest_one(
    case: tuple[np.ndarray, np.ndarray, float],
) -> None:
    """An honest change scores at most (n - f - 2) D^2, D the honest diameter, and so does the chosen one; at
    least n - 2f - 1 of its n - f - 2 neighbours are honest, the nearest of them no farther than their mean.
    """
    honest, hostile, share = case
    rows = np.concatenate([honest, hostile])
    n, f = len(rows), len(hostile)
    result, facts = merged(rows, KrumRule(hostile=share))
    assert np.array_equal(result, rows[int(facts["chosen"][0])])
    diameter = max(np.linalg.norm((one - other).astype(np.float64)) for one in honest for other in honest)
    nearest = min(np.linalg.norm((result - one).astype(np.float64)) for one in honest)
    assert nearest <= np.sqrt((n - f - 2) / (n - 2 * f - 1)) * diameter * (1 + 1e-5) + 1e-4


def naive_krum(rows: np.ndarray, f: int) -> np.ndarray:
    scores = []
    for i, own in enumerate(rows):
        distances = sorted(
            float(((own.astype(np.float64) - other) ** 2).sum()) for j, other in enumerate(rows) if j != i
        )
        scores.append(sum(distances[: len(rows) - f - 2]))
    return np.array(scores)


@given(st.integers(0, 10_000), st.integers(3, 12))
def test_every_rule_is_what_a_naive_reference_says(seed: int, clients: int) -> None:
    rows, weights = random_rows(seed, clients), (np.arange(clients) % 3 + 1.0).tolist()
    exact, n_k = rows.astype(np.float64), np.array(weights)

    def same(rule: RobustRule, expected: np.ndarray, past: Mapping | None = None) -> dict:
        result, facts = merged(rows, rule, weights=weights, past=past)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
        return facts

    same(MedianRule(), np.median(exact, axis=0))
    f = (clients - 1) // 2
    same(TrimmedMeanRule(hostile=(f - 0.5) / clients), trim_mean(exact, (f + 0.01) / clients, axis=0))
    f = (clients - 3) // 2
    share = (f - 0.5) / clients if f else 0.0
    scores = naive_krum(rows, f)
    same(KrumRule(hostile=share), exact[scores.argmin()])
    best = np.argsort(scores, kind="stable")
    for keep in (None, 1, 2):
        kept = best[: keep or clients - f]
        expected = (n_k[kept, None] * exact[kept]).sum(axis=0) / n_k[kept].sum()
        facts = same(MultiKrumRule(hostile=share, keep=keep), expected)
        assert facts["left_out"] == [f"{i:02d}" for i in range(clients) if i not in kept]
    units = exact / np.linalg.norm(exact, axis=1, keepdims=True)
    with_sum = units @ units.sum(axis=0) / np.linalg.norm(units.sum(axis=0))
    kept = with_sum >= 0.1
    expected = (n_k[kept, None] * exact[kept]).sum(axis=0) / n_k[kept].sum()
    same(CosineRule(threshold=0.1), expected)
    norms = np.linalg.norm(exact, axis=1)
    for past in ({}, {"medians": [0.5, 4.0, 1.0]}):
        limit = 1.1 * np.median(past.get("medians", norms))
        expected = np.average(exact * np.minimum(1, limit / norms)[:, None], axis=0, weights=n_k)
        facts = same(NormClippingRule(multiple=1.1), expected, past)
        assert facts["limit"] == pytest.approx(limit)
        assert facts["clipped"].keys() == {f"{i:02d}" for i in range(clients) if norms[i] > limit}


@given(st.integers(0, 10_000), st.sampled_from([1, 3, 4, 9]))
def test_with_no_hostile_client_the_trimmed_mean_is_the_mean(seed: int, clients: int) -> None:
    rows = random_rows(seed, clients)
    result, _ = merged(rows, TrimmedMeanRule(hostile=0.0))
    np.testing.assert_array_equal(result, rows.astype(np.float64).mean(axis=0).astype(np.float32))


@given(
    st.integers(0, 10_000),
    st.lists(st.sampled_from([1.0, 1e3, 1e6]), min_size=5, max_size=8),
    st.floats(1.0, 5.0),
)
def test_no_change_is_longer_than_the_limit_nor_is_their_mean(
    seed: int, scales: list[float], multiple: float
) -> None:
    rows = random_rows(seed, len(scales)) * np.array(scales)[:, None]
    weights = (np.arange(len(scales)) + 1.0).tolist()
    past: dict = {"medians": [1.0, 2.0]}
    result, facts = merged(rows, NormClippingRule(multiple=multiple), weights=weights, past=past)
    assert facts["limit"] == pytest.approx(1.5 * multiple)
    assert np.linalg.norm(result.astype(np.float64)) <= facts["limit"] * (1 + 1e-6)
    for name, factor in facts["clipped"].items():
        assert factor * np.linalg.norm(rows[int(name)]) == pytest.approx(facts["limit"], rel=1e-6)


def test_the_limit_follows_the_clipped_norms_of_the_last_rounds() -> None:
    """An attack by most of a round raises the limit at most by `multiple`, a silent round by nothing."""
    rule, facts = NormClippingRule(multiple=2.0, rounds=2), {}
    unit = np.eye(SIZE, dtype=np.float32)[:3]
    limits = []
    for scale in (1.0, 1.0, 1e9, 1e9, 0.0, 1.0):
        _, facts = merged(scale * unit, rule, past=facts)
        limits.append(facts["limit"])
        assert len(facts["medians"]) <= 2
    assert limits == pytest.approx([2.0, 2.0, 2.0, 3.0, 5.0, 5.0])


def test_opposite_changes_are_left_out_and_one_of_nothing_stays() -> None:
    direction = random_rows(0, 1)
    rows = np.concatenate([direction, 2 * direction, 0 * direction, -1e6 * direction])
    result, facts = merged(rows, CosineRule(), weights=[1.0, 1.0, 2.0, 9.0])
    assert facts["left_out"] == ["03"]
    np.testing.assert_allclose(result, direction[0] * 3 / 4, rtol=1e-6)
    assert not merged(np.concatenate([direction, -direction] * 2), CosineRule(threshold=0.5))[0].any()


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(
            rule, id=rule.rule, marks=() if rule.rule in {"multi_krum", "cosine"} else pytest.mark.slow
        )
        for rule in ANY_RULE
    ],
)
@given(order=st.permutations(range(7)), seed=st.integers(0, 999), tie=st.booleans())
def test_the_order_of_the_clients_decides_nothing(
    rule: RobustRule, order: list[int], seed: int, tie: bool
) -> None:
    rows = random_rows(seed, 7)
    if tie:  # equal updates, and equal distances
        rows = np.sign(rows[[0, 0, 2, 3, 3, 5, 6]])
    names, weights = [f"site-{index}" for index in range(7)], [1.0, 5, 2, 7, 1, 3, 2]
    one, facts = merged(rows, rule, names=names, weights=weights)
    other, same = merged(
        rows[order], rule, names=[names[i] for i in order], weights=[weights[i] for i in order]
    )
    np.testing.assert_array_equal(one, other)
    assert facts == same


@pytest.mark.parametrize("rule", ANY_RULE, ids=lambda rule: rule.rule)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_never_averaged(rule: RobustRule, bad: float) -> None:
    """It is left out and was one of the f: what remains is judged with one hostile client less."""
    rows = random_rows(1, 10)
    rows[4, 3] = bad
    result, facts = merged(rows, rule)
    assert facts["not_finite"] == ["04"]
    assert facts["updates"] == 10
    others = np.delete(rows, 4, axis=0)
    names = [f"{index:02d}" for index in range(10) if index != 4]
    less = rule.model_copy(update={"hostile": 0.1} if hasattr(rule, "hostile") else {})
    expected, _ = merged(others, less, names=names)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("rule", "least"),
    [
        (MedianRule(), 3),
        (NormClippingRule(), 3),
        (CosineRule(), 3),
        (TrimmedMeanRule(hostile=0.2), 5),
        (KrumRule(hostile=0.2), 7),
        (MultiKrumRule(hostile=0.2), 7),
    ],
    ids=lambda value: getattr(value, "rule", value),
)
def test_too_few_updates_are_refused(rule: RobustRule, least: int) -> None:
    """Of a round of ten clients, which may have two hostile ones whoever is lost."""
    assert rule.needed(10) == least
    merged(random_rows(0, least), rule, clients=10)
    values = [f"{least - 1} of", "10 updates", rule.rule, f"to {least}"]
    with refused(TrainingError, "clients_lost", values=values):
        merged(random_rows(0, least - 1), rule, clients=10)


def test_more_updates_that_are_not_finite_than_a_rule_reckons_with() -> None:
    rows = random_rows(0, 7)
    rows[:5] = np.nan
    with refused(TrainingError, "not_finite", values=["5 of 7 updates", "krum", "f = 1"]):
        merged(rows, KrumRule(hostile=0.1))
    result, _ = merged(rows, MedianRule())
    np.testing.assert_allclose(result, rows[5:].mean(axis=0), rtol=1e-6)


def test_scores_and_cosines_do_not_suffer_from_one_huge_change() -> None:
    rows = random_rows(3, 6)
    rows[0] = 1e38
    exact = rows.astype(np.float64)
    products = exact @ exact.T
    assert np.isfinite(krum_scores(products, 1)).all()
    assert krum_scores(products, 1).argmin() != 0
    assert (np.abs(cosines(products)) <= 1 + 1e-9).all()


@pytest.mark.parametrize("rule", ANY_RULE, ids=lambda rule: rule.rule)
def test_updates_on_disk_give_the_bits_of_updates_in_memory(
    rule: RobustRule, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    """With pieces and slices smaller than the tensors, none, one or all updates in memory."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("fedstrata.aggregate.changes.PIECE", 4)
    monkeypatch.setattr("fedstrata.aggregate.changes.SLICE", 24)
    rows = random_rows(2, 9)
    rows[3, 0] = np.nan
    weights = (np.arange(9) + 1.0).tolist()
    results = [merged(rows, rule, weights=weights, memory=memory) for memory in (1e9, 4 * SIZE, 1)]
    for result, facts in results[1:]:
        np.testing.assert_array_equal(result, results[0][0])
        assert facts == results[0][1]
    assert not list(tmp_path.iterdir())


def test_a_file_is_written_only_for_what_does_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows = random_rows(0, 5)
    for memory, files in ((5 * 4 * SIZE, 0), (5 * 4 * SIZE - 1, 1), (0.5, 5)):
        with Changes(tensors_of(np.zeros(SIZE)), memory) as changes:
            for index, row in enumerate(rows):
                changes.add(str(index), Update(tensors_of(row)))
            assert len(list(tmp_path.rglob("*.safetensors"))) == files
        assert not list(tmp_path.iterdir())


def test_a_change_is_taken_before_the_live_tensors_move_on() -> None:
    base = {"w": torch.ones(3, dtype=torch.bfloat16)}
    live = torch.tensor([1.0, 2.0, 4.0], dtype=torch.bfloat16)
    for memory in (1e9, 1):
        with Changes(base, memory) as changes:
            for index, scale in enumerate((1, 2, 3)):
                changes.add(str(index), Update({"w": live * scale}))
            rows = [rows for _, _, rows in changes.slices()]
        assert torch.cat(rows).tolist() == [[s * v - 1 for v in (1, 2, 4)] for s in (1, 2, 3)]


@pytest.mark.parametrize(
    ("tensors", "code", "values"),
    [
        ({"a": torch.zeros(2), "b": torch.zeros(1)}, "not_agreed", ["client x", "tensor b"]),
        ({}, "not_agreed", ["client x", "tensor a"]),
        ({"a": torch.zeros(3)}, "wrong_shape", ["client x", "tensor a", "(3,)", "(2,)"]),
    ],
)
def test_updates_of_other_tensors_are_refused(
    tensors: dict[str, torch.Tensor], code: str, values: list[str]
) -> None:
    with Changes({"a": torch.zeros(2)}, 1e9) as changes, refused(TrainingError, code, values=values):
        changes.add("x", Update(tensors))


def test_ties_go_to_the_name_that_comes_first() -> None:
    corners = np.array(list(itertools.product([0, 1], repeat=2)), dtype=np.float32)
    rows = np.pad(corners, ((0, 0), (0, SIZE - 2)))
    assert merged(rows, KrumRule(hostile=0.0), names=["d", "b", "c", "a"])[1]["chosen"] == ["a"]

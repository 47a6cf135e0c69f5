"""What one unit does to a step: at most the clip, whatever it is; and the same by every way to compute it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from private_client import PrivateClient, norm_of, private_client
from support import fewer_examples

from fedstrata.core.seeding import Seed
from fedstrata.core.types import Plan
from fedstrata.models.prefix import skippable_blocks
from fedstrata.policies.dropout import LayerDropout
from fedstrata.privacy.randomness import Randomness, SecureRandomness, SeededRandomness
from fedstrata.privacy.row_gradients import rows_together
from fedstrata.train.local import fit

MODELS = {
    "llama": "model.config.tie_word_embeddings=false",
    "gpt2": "model.config={model_type: gpt2, n_embd: 32, n_layer: 3, n_head: 4}",
    "bert": "model.config={model_type: bert, hidden_size: 32, num_hidden_layers: 3, num_attention_heads: 4, "
    "intermediate_size: 64}",
}
TIED = ("task={name: lm, max_length: 48}", "data.types=null")


@cache
def kept(*overrides: str) -> PrivateClient:
    return private_client(*overrides)


@fewer_examples(15)
@given(
    task=st.sampled_from([("task.max_length=64",), TIED]),
    clip=st.sampled_from([1e-3, 1.0, 1e4]),
    dropped=st.integers(0, 1),
    rows=st.lists(st.integers(1, 5), min_size=2, max_size=2),
    skipped=st.sets(st.integers(0, 2), max_size=2),
    broken=st.booleans(),
)
def test_one_unit_moves_the_sum_by_at_most_the_clip(
    task: tuple[str, ...], clip: float, dropped: int, rows: list[int], skipped: set[int], broken: bool
) -> None:
    """Section 6.1 of the design: any number of windows, skipped blocks, tied weights, a NaN."""
    own = kept("method={name: fedavg}", *task)
    units = [unit[:count] for unit, count in zip(own.units, rows, strict=False)]
    model = own.experiment.model
    before = model.snapshot(model.layout.head or model.layout.final_norm)
    name, tensor = next(iter(before.items()))
    if broken:  # no unit has a finite gradient now
        model.load({name: torch.full_like(tensor, math.nan)})

    def call() -> Any:
        return own.client.task.loss(model.module, own.client.task.collate(units[0]))

    with skippable_blocks(model.module, model.layout, call) as skip:
        skip(skipped)
        whole = own.sum_over(units, clip)
        without = own.sum_over([unit for index, unit in enumerate(units) if index != dropped], clip)
    model.load(before)
    moved = norm_of([one - other for one, other in zip(whole, without, strict=True)])
    assert moved <= clip * (1 + 1e-5)
    assert broken == (norm_of(whole) == 0.0)


def test_a_unit_is_the_gradient_of_its_mean_loss() -> None:
    """Without a clip the sum is that of plain backward passes."""
    own = kept("method={name: fedavg}")
    parameters, task = own.parameters(), own.client.task
    expected = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in parameters]
    for unit in own.units:
        loss, terms = task.loss(own.experiment.model.module, task.collate(unit))
        for total, gradient in zip(expected, torch.autograd.grad(loss / terms, parameters), strict=True):
            total.add_(gradient)
    for one, other in zip(own.sum_over(own.units, 1e9), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_a_long_gradient_is_as_long_as_the_clip_and_a_short_one_is_what_it_was() -> None:
    own = kept("method={name: fedavg}")
    length = norm_of(own.sum_over(own.units[:1], 1e9))
    assert norm_of(own.sum_over(own.units[:1], length / 3)) == pytest.approx(length / 3, rel=1e-5)
    assert norm_of(own.sum_over(own.units[:1], length * 3)) == pytest.approx(length, rel=1e-6)


def test_the_order_of_windows_and_of_units_does_not_matter() -> None:
    own = kept("method={name: fedavg}")
    there = own.sum_over(own.units, 0.5)
    back = own.sum_over([unit[::-1] for unit in own.units[::-1]], 0.5)
    for one, other in zip(there, back, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


METHODS = ("{name: layer_skipping, top: 2}", "{name: fedlora}", "{name: fedavg}")
HOOKED = {("llama", METHODS[0]), *((model, METHODS[2]) for model in MODELS)}
"""Where the hooks are right, and hence taken."""


@pytest.mark.parametrize(
    ("model", "method", "clip"),
    [
        pytest.param(model, method, clip, marks=pytest.mark.slow if clip > 1 and method != METHODS[0] else ())
        for model, method, clip in product(MODELS, METHODS, (1e-2, 1e9))
    ],
)
def test_rows_at_once_are_the_rows_one_by_one(
    model: str, method: str, clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hooks of Opacus give what the loop gives, or the loop takes their place."""
    own = kept(f"method={method}", MODELS[model])
    task, passes = type(own.client.task), list[int]()
    loss = task.loss

    def counted(task: Any, module: Any, batch: Any) -> Any:
        passes.append(len(batch["input_ids"]))
        return loss(task, module, batch)

    rows = [[example] for unit in own.units for example in unit][:7]
    monkeypatch.setattr(task, "loss", counted)
    at_once = own.sum_over(rows, clip)
    assert passes == [7] or (model, method) not in HOOKED
    monkeypatch.setattr("fedstrata.privacy.clipping.rows_together", lambda *_: 1)
    one_by_one = own.sum_over(rows, clip)
    difference = norm_of([one - other for one, other in zip(at_once, one_by_one, strict=True)])
    assert difference <= 1e-5 * norm_of(one_by_one)


def test_embeddings_have_rows_below_the_blocks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a block one may be called with what is no row, such as distances between tokens."""
    own = kept("method={name: fedavg}", MODELS["llama"])
    model, parameters = own.experiment.model, own.parameters()
    assert rows_together(model, parameters) > 1
    monkeypatch.setattr(model, "layout", replace(model.layout, embedding=()))
    assert rows_together(model, parameters) == 1


def test_a_row_that_is_not_finite_counts_as_zero_at_once_too() -> None:
    own = kept("method={name: layer_skipping, top: 1}", MODELS["llama"])
    rows = [[example] for unit in own.units for example in unit][:4]
    model = own.experiment.model
    embedding = model.layout.embedding[0]
    before = model.snapshot([embedding])
    alone = set(rows[0][0].input_ids.tolist()).difference(*(row[0].input_ids.tolist() for row in rows[1:]))
    changed = before[embedding].clone()
    changed[sorted(alone)] = math.nan
    model.load({embedding: changed})
    with_it, without = own.sum_over(rows, 1.0), own.sum_over(rows[1:], 1.0)
    model.load(before)
    assert norm_of(without) > 0
    assert norm_of([one - other for one, other in zip(with_it, without, strict=True)]) < 1e-6


@pytest.mark.parametrize("seeded", [True, False])
def test_the_noise_of_a_step_is_sigma_times_the_clip_over_the_expected_batch(seeded: bool) -> None:
    """A step that sees nobody is nothing but noise, of which half a percent too little is found."""
    own = kept("method={name: fedavg}")
    parameters = own.parameters()
    randomness = SeededRandomness(Seed(3)) if seeded else SecureRandomness()
    gradients = own.gradients(clip=0.25, sigma=3.0, randomness=randomness)
    count = sum(parameter.numel() for parameter in parameters)
    squares, repeats = 0.0, math.ceil(2_000_000 / count)
    for _ in range(repeats):
        gradients.gradients(own.client, [], parameters)
        squares += norm_of([parameter.grad for parameter in parameters]) ** 2  # type: ignore[misc]
    deviation = math.sqrt(squares / (repeats * count))
    expected = 3.0 * 0.25 / gradients.expected_batch
    assert deviation == pytest.approx(expected, rel=4e-3)  # eight deviations of the estimate


def test_no_two_steps_have_the_same_noise() -> None:
    own = kept("method={name: fedavg}")
    parameters, gradients = own.parameters(), own.gradients(clip=1.0, sigma=1.0)
    seen = []
    for _ in range(2):
        gradients.gradients(own.client, [], parameters)
        seen.append(torch.cat([parameter.grad.flatten() for parameter in parameters]).clone())  # type: ignore[union-attr]
    assert abs(float(torch.corrcoef(torch.stack(seen))[0, 1])) < 5 / math.sqrt(len(seen[0]))


@pytest.mark.parametrize(
    "method",
    [
        "{name: layer_skipping, top: 1}",
        "{name: ffa_lora}",
        "{name: droppeft, rates: 0.3}",
        *(pytest.param(own, marks=pytest.mark.slow) for own in ("{name: fedavg}", "{name: fedlora}")),
    ],
)
def test_everything_that_trains_moves(method: str) -> None:
    """The optimiser holds the model's own tensors; see Opacus, issue 820."""
    own = private_client(f"method={method}")
    model, names = own.experiment.model, own.names
    before = model.snapshot(names)
    own.client.privacy = own.gradients(clip=1.0, sigma=1.0)
    fit(own.client, names, Seed(0))
    still = [name for name, now in model.tensors(names).items() if torch.equal(now, before[name])]
    assert not still


def test_all_units_of_a_step_do_without_the_same_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn by pass, those of one unit would depend on who else is there, and so would the sum."""
    own = private_client()
    monkeypatch.setattr("fedstrata.privacy.clipping.rows_together", lambda *_: 2)
    rows = [[example] for unit in own.units for example in unit][:7]
    for units in ([], rows[:1], rows, own.units):
        drawn: list[int] = []

        def leave_out() -> None:
            drawn.append(1)  # noqa: B023 - of this sum alone

        own.sum_over(units, 1.0, leave_out=leave_out)
        assert len(drawn) == 1


def test_stored_states_change_nothing(tmp_path: Any) -> None:
    """The prefix cache gives the frozen blocks' output; the clipped sum is the same."""
    from fedstrata.client.caches import ClientCaches

    def trained(cache: str) -> dict[str, torch.Tensor]:
        own = private_client("method={name: layer_skipping, top: 1}", f"training.cache={cache}")
        own.client.cache = ClientCaches(tmp_path, own.experiment.settings, lambda *_: None).of(own.client.id)
        own.client.privacy = own.gradients(clip=0.1, sigma=0.5, randomness=SeededRandomness(Seed(9)))
        fit(own.client, own.names, Seed(0))
        return {name: tensor.clone() for name, tensor in own.experiment.model.tensors(own.names).items()}

    with_cache, without = trained("on"), trained("off")
    for name, tensor in without.items():
        torch.testing.assert_close(with_cache[name], tensor, rtol=1e-5, atol=1e-6)


SECRETS = pytest.mark.parametrize(("secure", "same"), [(False, True), (True, False)])


def randomness_of(secure: bool) -> Randomness:
    return SecureRandomness() if secure else SeededRandomness(Seed(4))


@pytest.mark.slow
@SECRETS
def test_the_server_does_not_know_what_is_dropped(secure: bool, same: bool) -> None:
    """It knows the run's seed; of masks that it knew, one unit's would be the next one's without it."""
    bert = MODELS["bert"].replace("}", ", hidden_dropout_prob: 0.5}")
    # Every row is a unit of its own and in every step, so that nothing but what is dropped is drawn.
    rows = ("privacy.unit=window", "privacy.units={site-1: 99, site-2: 99, site-3: 99}")
    sgd = ("privacy.expected_batch=99", "training.optimizer=sgd")
    own = private_client("method={name: fedavg}", bert, *rows, *sgd)
    model = own.experiment.model
    trained = []
    for _ in range(2):
        own.client.privacy = own.gradients(clip=1e9, randomness=randomness_of(secure))
        model.restore()
        fit(own.client, own.names, Seed(0))
        trained.append(model.snapshot(own.names))
    one, other = trained
    assert same == all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@SECRETS
def test_the_server_does_not_know_which_blocks_are_left_out(
    secure: bool, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DrawnError(Exception):
        pass

    def drawn(*arguments: Any) -> LayerDropout:
        raise DrawnError(LayerDropout(*arguments).draw())

    own = private_client("method={name: droppeft, rates: 0.5}", "model.config.num_hidden_layers=40")
    monkeypatch.setattr("fedstrata.methods.droppeft.LayerDropout", drawn)
    left_out = []
    for _ in range(2):
        own.client.privacy = own.gradients(clip=1.0, randomness=randomness_of(secure))
        with pytest.raises(DrawnError) as caught:
            own.experiment.method.train(Plan({}, {"rate": 0.5, "alone": [0] * 40}), own.client, Seed(0))
        left_out += caught.value.args
    assert same == (left_out[0] == left_out[1])

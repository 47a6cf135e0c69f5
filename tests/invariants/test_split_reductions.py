"""What a model that is divided between clients and server reduces to, in whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import TINY, Finished, RunTiny, silent
from torch import Tensor

from fedstrata.core.cut import Cut
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Plan
from fedstrata.engine.prepare import prepare
from fedstrata.engine.run_folder import open_run
from fedstrata.engine.sites import sites_of

LORA = "adapter={kind: lora, rank: 4}"
PLAIN = (
    "training.optimizer=sgd",
    "training.learning_rate=0.1",
    "training.clip_norm=null",
    "federation.floors=false",
)
"""Without clipping by segment and without Adam, which makes a step of any rounding error."""
MODES = (
    pytest.param("mode: sequential", marks=pytest.mark.slow),
    pytest.param("mode: sequential, turns: step", marks=pytest.mark.slow),
    "mode: client_batch",
    pytest.param("mode: hierarchical", marks=pytest.mark.slow),
    "mode: hierarchical, average_every: 2",
)


def assert_close(one: Finished, other: Finished) -> None:
    assert one.state.tensors.keys() == other.state.tensors.keys()
    for name, tensor in one.state.tensors.items():
        torch.testing.assert_close(tensor, other.state.tensors[name], rtol=1e-4, atol=1e-5)
    for name, value in one.summary["metrics"]["global"].items():
        assert other.summary["metrics"]["global"][name] == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_one_client_trains_as_if_it_had_the_whole_model(
    run_tiny: RunTiny, run_once: RunTiny, mode: str
) -> None:
    site = ("data.synthetic.sites=1", "data.synthetic.notes=6", *PLAIN)
    whole = run_once("method={name: fedavg}", *site)
    divided = run_tiny(f"method={{name: fl_llama, {mode}}}", *site, out="divided")
    assert_close(whole, divided)


@pytest.mark.parametrize(
    ("settings", "adapter"),
    [
        ("front: 0", "adapter=null"),
        *(
            pytest.param(settings, "adapter=null", marks=pytest.mark.slow)
            for settings in ("in_flight: 1", "in_flight: 2", "in_flight: 9", "back: 0")
        ),
        *(
            pytest.param(settings, LORA, marks=pytest.mark.slow)
            for settings in ("in_flight: 1", "in_flight: 2", "in_flight: 9", "front: 0", "back: 0")
        ),
    ],
)
def test_batches_in_flight_cuts_and_adapters_change_nothing(
    run_tiny: RunTiny, run_once: RunTiny, settings: str, adapter: str
) -> None:
    notes = ("data.synthetic.sites=1", "data.synthetic.notes=12", "federation.rounds=1")
    site = (*notes, "training.accumulation=3", *PLAIN, adapter)
    whole = run_once("method={name: fedavg}", *site)
    divided = run_tiny(f"method={{name: fl_llama, {settings}}}", *site, out="divided")
    assert_close(whole, divided)


def test_terms_with_weights_are_divided_by_the_sum_of_these(run_tiny: RunTiny, run_once: RunTiny) -> None:
    """Of pairs that stand for more like them the weights are no whole numbers."""
    pairs = (
        "data={types: null, relations: [dosage], modifiers: clinical, synthetic: {sites: 1, notes: 12}}",
        "task={name: relations, max_length: 48, negatives: 0.3}",
        "training.batch_size=8",
        "federation.rounds=1",
    )
    whole = run_once("method={name: fedavg}", *pairs, *PLAIN)
    divided = run_tiny("method={name: fl_llama}", *pairs, *PLAIN, out="divided")
    assert_close(whole, divided)


@pytest.mark.parametrize("mode", MODES[1:4])
def test_each_segment_is_clipped_by_its_own_norm(run_once: RunTiny, mode: str) -> None:
    """After one step of SGD, with gradients that are all too long, each has moved as far as it may."""
    once = (
        f"method={{name: fl_llama, {mode}}}", "data.synthetic.sites=1", "federation.rounds=1",
        "training.batch_size=1000", "training.optimizer=sgd", "training.learning_rate=10.0",
        "training.clip_norm=0.001", "training.weight_decay=0.0",
    )  # fmt: skip
    model = prepare(read_source(None, [*TINY, *once])).model
    before, after = model.snapshot(model.layout.all), run_once(*once).state.tensors
    own = Cut(1, 1).segments(model.layout)
    for names in (own.front, own.middle, own.back):
        moved = torch.cat([(after[name] - before[name]).flatten() for name in names]).norm()
        assert moved.item() == pytest.approx(0.01, rel=0.01)


def test_ends_that_are_handed_on_train_one_model_from_client_to_client(run_once: RunTiny) -> None:
    """Gupta and Raskar's split learning: a step each is plain training on each client's texts in turn."""
    once = (
        *PLAIN, "training.batch_size=1000", "training.schedule=constant", "training.weight_decay=0.0",
        "model.config.classifier_dropout=0.0",
    )  # fmt: skip
    divided = run_once("method={name: fl_llama, average_ends: hand_on}", *once)
    experiment = prepare(read_source(None, [*TINY, *once]))
    model = experiment.model
    model.train_only(model.layout.all)
    module = model.module.train()
    for _ in range(2):
        for site in sites_of(experiment)[1]:
            loss, terms = site.task.loss(module, site.task.collate(site.encode()))
            module.zero_grad()
            (loss / terms).backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(0.1 * parameter.grad)
    for name, tensor in model.tensors(model.layout.all).items():
        torch.testing.assert_close(divided.state.tensors[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mean", ["terms", pytest.param("clients", marks=pytest.mark.slow)])
def test_a_joint_step_is_that_of_a_mean(run_tiny: RunTiny, tmp_path: Path, mean: str) -> None:
    """One step each: B ends where the mean of the clients' models of plain training is."""
    once = (*PLAIN, "training.batch_size=1000", "federation.rounds=1")
    divided = run_tiny(f"method={{name: fl_llama, mode: client_batch, mean: {mean}}}", *once, out="divided")
    run = open_run(
        read_source(None, [*TINY, *once, "method.name=fedavg"]), tmp_path / "apart", silent, resume=False
    )
    method, model = run.experiment.method, run.experiment.model
    cohort, plan = run._cohort(1, run.engine.clients()), Plan(method.start(model).tensors)
    middle = model.layout.blocks[1]
    sums: dict[str, Tensor] = dict.fromkeys(middle, torch.zeros(()))
    total = 0.0
    for (_, update), site in zip(
        cohort.each("train", lambda _: plan), sites_of(run.experiment)[1], strict=True
    ):
        labels = site.task.collate(site.encode())["labels"]
        weight = float((labels != -100).sum()) if mean == "terms" else 1.0
        sums = {name: sums[name] + weight * update.tensors[name] for name in middle}
        total += weight
    for name in middle:
        torch.testing.assert_close(divided.state.tensors[name], sums[name] / total, rtol=1e-4, atol=1e-6)


def test_clients_may_be_divided_at_different_places(run_tiny: RunTiny, run_once: RunTiny) -> None:
    """A block that one client holds, and the server for the others, is the mean of both."""
    cuts = "cuts: {site-2: {front: 0, back: 1}, site-3: {front: 1, back: 0}}, front: 0, back: 0"
    once = (*PLAIN, "federation.rounds=1")
    whole = run_once("method={name: fedavg}", *once)
    divided = run_tiny(f"method={{name: fl_llama, mode: hierarchical, {cuts}}}", *once, out="divided")
    assert_close(whole, divided)


@pytest.mark.slow
def test_ends_that_are_never_averaged_stay_at_the_clients(run_tiny: RunTiny) -> None:
    run = run_tiny("method={name: fl_llama, average_ends: never}", out="divided")
    assert run.summary["metrics"]["mean_client"]["f1"] is not None
    ends = {name: tensor for name, tensor in run.state.tensors.items() if "layers.1." not in name}
    other = run_tiny("method={name: fl_llama, average_ends: never}", "federation.rounds=1", out="other")
    for name, tensor in ends.items():
        assert torch.equal(tensor, other.state.tensors[name]), "the server must not learn of the ends"
    assert not (run.folder / "model").exists()


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 2])
def test_ends_averaged_within_a_round_are_those_of_shorter_rounds(run_once: RunTiny, every: int) -> None:
    """With one batch an epoch, and a head without dropout."""
    lm = ("task={name: lm, max_length: 32}", "data.types=null")
    steps = (*PLAIN, *lm, "training.batch_size=1000", "data.synthetic.notes=12")
    mode = "method={name: fl_llama, mode: client_batch, average_ends: "
    long = (f"training.epochs={2 * every}", "federation.rounds=1")
    within = run_once(f"{mode}{every}}}", *steps, *long)
    apart = run_once(f"{mode}round}}", *steps, f"training.epochs={every}")
    assert apart.summary["rounds"] == 2
    assert_close(within, apart)
    once = run_once(f"{mode}round}}", *steps, *long)
    names = [name for name in once.state.tensors if "layers.0." in name]
    assert not all(
        torch.allclose(within.state.tensors[name], once.state.tensors[name], atol=1e-5) for name in names
    )

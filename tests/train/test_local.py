"""The one training loop against plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import prepared, refused
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import get_scheduler

from fedstrata.client.site import Site
from fedstrata.core.client import Client
from fedstrata.core.errors import ConfigurationError, TrainingError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.core.types import Message
from fedstrata.engine.prepare import Experiment
from fedstrata.train.evaluate import predict
from fedstrata.train.local import all_finite, fit, schedule_of


class Store:
    """Keeps nothing; these tests train once."""

    def read(self) -> Message:
        return Message()

    def write(self, message: Message) -> None:
        raise AssertionError("fit writes no store")


def make_client(*overrides: str) -> tuple[Experiment, Client, list[dict[str, float]]]:
    experiment = prepared("data.synthetic.notes=6", *overrides)
    name, documents = next(iter(experiment.clients.items()))
    site = Site(name, documents, experiment.task, experiment.model.tokenizer)
    progress: list[dict[str, float]] = []
    training = experiment.settings.training
    client = Client(
        name,
        experiment.model,
        experiment.task,
        site.encode(),
        training,
        Store(),
        lambda facts: progress.append(dict(facts)),
    )
    return experiment, client, progress


def test_one_sgd_step_is_that_of_plain_pytorch() -> None:
    experiment, client, progress = make_client(
        "training.optimizer=sgd", "training.learning_rate=0.1", "training.batch_size=1000",
        "training.weight_decay=0.0", "training.clip_norm=null", "model.config.classifier_dropout=0.0",
    )  # fmt: skip
    names = experiment.model.layout.all
    before = experiment.model.snapshot(names)
    batch = client.task.collate(client.examples)
    module = experiment.model.module
    module.eval()
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    logits = module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100
    )
    loss.backward()
    expected = {name: before[name] - 0.1 * parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad()
    found = fit(client, names, Seed(0))
    assert len(progress) == 1
    assert found == pytest.approx(loss.item(), rel=1e-5)
    for name, tensor in experiment.model.tensors(names).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-6)


def reference_steps(client: Client, names: tuple[str, ...], settings) -> dict[str, torch.Tensor]:
    """What `fit` does, written out: every batch in the same order, one gradient a group, clipping by hand."""
    module = client.model.module
    weights = {name: parameter for name, parameter in module.named_parameters() if name in set(names)}
    order = Seed(0).child("order").torch()
    loader = DataLoader(
        client.examples, settings.batch_size, shuffle=True, generator=order, collate_fn=client.task.collate
    )
    total = settings.epochs * -(-len(loader) // settings.accumulation)
    warmup, step = round(settings.warmup * total), 0
    moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in weights.items()}
    for _ in range(settings.epochs):
        batches = list(loader)
        for start in range(0, len(batches), settings.accumulation):
            group = batches[start : start + settings.accumulation]
            terms = sum(int((batch["labels"] != -100).sum()) for batch in group)
            for parameter in weights.values():
                parameter.grad = None
            for batch in group:
                (client.task.loss(module, batch)[0] / terms).backward()
            norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in weights.values()))
            scale = min(1.0, settings.clip_norm / (norm + 1e-6))
            decay = step / max(1, warmup) if step < warmup else (total - step) / max(1, total - warmup)
            rate, step = settings.learning_rate * decay, step + 1
            with torch.no_grad():
                for name, parameter in weights.items():
                    gradient = parameter.grad * scale
                    first, second = moments[name]
                    if settings.optimizer == "sgd":
                        if parameter.ndim >= 2:
                            gradient = gradient + settings.weight_decay * parameter
                        first.mul_(settings.momentum).add_(gradient)
                        parameter.sub_(rate * first)
                        continue
                    if parameter.ndim >= 2:
                        parameter.mul_(1 - rate * settings.weight_decay)
                    first.mul_(0.9).add_(0.1 * gradient)
                    second.mul_(0.999).add_(0.001 * gradient.square())
                    denominator = (second / (1 - 0.999**step)).sqrt() + 1e-8
                    parameter.sub_(rate * (first / (1 - 0.9**step)) / denominator)
    return {name: parameter.detach().clone() for name, parameter in weights.items()}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_many_steps_are_those_of_the_textbook(optimizer: str) -> None:
    """Warm-up, linear decay, clipping, decay of matrices only, momentum, and a last group that is short."""
    extra = ["training.momentum=0.9", "training.learning_rate=0.05"] if optimizer == "sgd" else []
    overrides = [
        f"training.optimizer={optimizer}", *extra, "training.batch_size=5", "training.accumulation=2",
        "training.epochs=2", "training.schedule=linear", "training.warmup=0.3", "training.clip_norm=0.3",
        "training.weight_decay=0.2", "model.config.classifier_dropout=0.0", "data.synthetic.notes=12",
    ]  # fmt: skip
    experiment, client, progress = make_client(*overrides)
    names = experiment.model.layout.all
    assert -(-len(client.examples) // 5) % 2 == 1, "the last group of an epoch must be short"
    found = fit(client, names, Seed(0))
    trained = experiment.model.snapshot(names)
    experiment.model.restore()
    expected = reference_steps(client, names, experiment.settings.training)
    steps = 2 * -(-len(client.examples) // 10)
    assert [item["step"] for item in progress] == list(range(1, steps + 1))
    assert progress[-1]["loss"] == pytest.approx(found)
    for name, tensor in trained.items():
        torch.testing.assert_close(tensor, expected[name], rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize(("warmup", "moves"), [(0.0, True), (0.9, False)])
def test_warmup_holds_with_a_constant_rate_too(warmup: float, moves: bool) -> None:
    """The first step of a warm-up has rate 0."""
    experiment, client, _ = make_client(
        "training.batch_size=1000", "training.epochs=2", f"training.warmup={warmup}"
    )
    before = experiment.model.snapshot(experiment.model.layout.head)
    reports = []
    client.report = lambda facts: reports.append(
        any(not torch.equal(t, before[n]) for n, t in experiment.model.tensors(before).items())
    )
    fit(client, experiment.model.layout.head, Seed(0))
    assert reports[0] is moves


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        (("training.learning_rate=1e45", "training.batch_size=1000"), ["weights", "1 of 1"]),
        (("training.learning_rate=1e30", "training.epochs=3"), ["learning_rate is 1e+30"]),
    ],
    ids=["after the only step", "before the last"],
)
def test_training_that_diverges_names_the_client(settings: tuple[str, ...], values: list[str]) -> None:
    _, client, _ = make_client("training.optimizer=sgd", "training.clip_norm=null", *settings)
    with refused(TrainingError, "diverged", values=["site-1", *values]):
        fit(client, client.model.layout.all, Seed(0))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_found_wherever_it_is(number: float) -> None:
    tensors = [torch.ones(3, 5), torch.ones(2, dtype=torch.bfloat16), torch.full((4,), 3e38)]
    assert all_finite(tensors)
    tensors[1][1] = number
    assert not all_finite(tensors)
    assert not all_finite([torch.tensor([number, -number])])


def test_a_gradient_that_is_not_finite_is_refused_without_clipping_too() -> None:
    """The loss of the only step is finite; the weights after it are not."""
    _, client, _ = make_client("training.clip_norm=null", "training.batch_size=1000")
    head = client.model.layout.head

    def spoil() -> None:
        client.model.parameters(head)[0].grad.view(-1)[0] = math.inf

    with refused(TrainingError, "diverged", values=["site-1", "weights", "1 of 1"]):
        fit(client, head, Seed(0), penalty=spoil)


def test_only_the_named_parameters_move() -> None:
    experiment, client, _ = make_client()
    layout = experiment.model.layout
    before = experiment.model.snapshot(layout.all)
    fit(client, [*layout.blocks[-1], *layout.head], Seed(0))
    after = experiment.model.tensors(layout.all)
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved == {*layout.blocks[-1], *layout.head}


@pytest.mark.parametrize(
    ("optimizer", "decoupled"), [("sgd", False), ("sgd", True), ("adamw", True)], ids=str
)
def test_the_proximal_term_pulls_back(optimizer: str, decoupled: bool) -> None:
    """In the first step the term is zero; in the second it pulls back by lr * mu * (w_1 - w_0).

    So it does with Adam, if it is decoupled; else what it adds to a gradient is divided by its size.
    """
    common = (f"training.optimizer={optimizer}", "training.learning_rate=0.1", "training.batch_size=1000",
              "training.weight_decay=0.0", "training.clip_norm=null")  # fmt: skip
    ends = {}
    for mu, epochs in ((0.0, 1), (0.0, 2), (3.0, 2)):
        experiment, client, _ = make_client(*common, f"training.epochs={epochs}")
        names = experiment.model.layout.head
        start = experiment.model.snapshot(names)
        fit(client, names, Seed(0), proximal=mu, decoupled=decoupled)
        ends[mu, epochs] = experiment.model.snapshot(names)
    for name in names:
        pulled = ends[0.0, 2][name] - 0.1 * 3.0 * (ends[0.0, 1][name] - start[name])
        torch.testing.assert_close(ends[3.0, 2][name], pulled, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clip", ["null", "0.01"])
def test_a_decoupled_pull_is_neither_divided_by_adam_nor_clipped(clip: str) -> None:
    common = ("training.learning_rate=0.01", "training.batch_size=1000", "training.weight_decay=0.0",
              "training.epochs=6", f"training.clip_norm={clip}")  # fmt: skip
    away = {}
    for mu, decoupled in ((0.0, False), (0.5, False), (0.5, True)):
        experiment, client, _ = make_client(*common)
        names = experiment.model.layout.head
        start = experiment.model.snapshot(names)
        fit(client, names, Seed(0), proximal=mu, decoupled=decoupled)
        after = experiment.model.tensors(names)
        away[mu, decoupled] = sum(float((after[name] - start[name]).square().sum()) for name in names) ** 0.5
    held = 1.0 - away[0.5, True] / away[0.0, False]
    assert 0.0 < held < 0.02  # six steps of which each goes .5 % of the way back
    if clip == "null":
        assert away[0.5, False] < away[0.0, False]


@given(
    st.sampled_from(["constant", "linear", "cosine"]), st.integers(1, 40), st.floats(0, 1, exclude_max=True)
)
def test_the_schedules_are_those_of_transformers(name: str, steps: int, warmup: float) -> None:
    def rates(schedule_of: Callable[[torch.optim.Optimizer], LRScheduler]) -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        schedule, rates = schedule_of(optimizer), []
        for _ in range(steps):
            rates.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
        return rates

    settings = TrainingSettings(schedule=name, warmup=warmup)
    theirs = "constant_with_warmup" if name == "constant" else name
    counts = {"num_warmup_steps": round(warmup * steps), "num_training_steps": steps}
    assert rates(lambda own: schedule_of(own, settings, steps)) == rates(
        lambda own: get_scheduler(theirs, own, **counts)
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_dropout_is_on_in_what_trains_and_off_in_what_is_frozen_unless_asked_for(frozen: bool) -> None:
    config = (
        "model.config={model_type: bert, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 3, "
        "num_attention_heads: 4, hidden_dropout_prob: 0.5}"
    )
    asked = ("training.frozen_dropout=on", "training.cache=off") if frozen else ()
    _, client, _ = make_client(config, *asked)
    modes: dict[str, bool] = {}
    module = client.model.module

    def note(name: str):
        return lambda layer, inputs, output: modes.__setitem__(name, layer.training)

    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.register_forward_hook(note(name))
    layout = client.model.layout
    fit(client, [*layout.blocks[-1], *layout.head], Seed(0))
    on = {name for name, mode in modes.items() if mode}
    assert on
    assert frozen or all(".layer.2." in name or name == "dropout" for name in on)
    assert not frozen or on == modes.keys()
    assert any(".layer.0." in name for name in modes)
    assert any("embeddings" in name for name in modes)


@pytest.mark.parametrize(
    ("settings", "path", "code", "names"),
    [
        ([], "training", "conflict", ["cache"]),
        (["training.cache=off", "method={name: fedavg}"], "training.frozen_dropout", "no_effect", ["fedavg"]),
        (["training.cache=off"], "training.frozen_dropout", "not_supported", ["mini"]),
    ],
)
def test_dropout_in_what_is_frozen_is_refused_where_it_cannot_be(
    settings: list[str], path: str, code: str, names: list[str]
) -> None:
    with refused(ConfigurationError, code, at=path, values=names):
        prepared("training.frozen_dropout=on", *settings)


def test_training_does_not_disturb_the_global_random_state() -> None:
    _, client, _ = make_client()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    fit(client, client.model.layout.head, Seed(0))
    assert torch.equal(torch.rand(3), expected)


def test_bfloat16_arithmetic_keeps_float32_weights() -> None:
    _, client, _ = make_client("training.precision=bfloat16")
    found = fit(client, client.model.layout.all, Seed(0))
    assert found > 0
    assert {parameter.dtype for parameter in client.model.module.parameters()} == {torch.float32}


def test_predictions_do_not_depend_on_the_batch_size(tmp_path: Path) -> None:
    experiment, client, _ = make_client()
    training = experiment.settings.training
    settings = (training.model_copy(update={"eval_batch_size": size}) for size in (64, 1))
    many, one = (predict(client.model, client.task, client.examples, own) for own in settings)
    assert all((a == b).mean() > 0.99 for a, b in zip(many, one, strict=True))
    assert [len(answer) for answer in many] == [len(example) for example in client.examples]

"""The one training loop against plain PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import TINY

from fedstrata.core.errors import TrainingError
from fedstrata.core.seeding import Seed
from fedstrata.core.sources import read_source
from fedstrata.core.types import Message
from fedstrata.engine.setup import Experiment, prepare
from fedstrata.engine.simulate import SimulatedClient, Site
from fedstrata.train.evaluate import predict
from fedstrata.train.local import fit


class Store:
    """Keeps nothing; these tests train once."""

    def read(self) -> Message:
        return Message()

    def write(self, message: Message) -> None:
        raise AssertionError("fit writes no store")


def make_client(*overrides: str) -> tuple[Experiment, SimulatedClient, list[dict[str, float]]]:
    experiment = prepare(read_source(None, [*TINY, *overrides]))
    name, documents = next(iter(experiment.clients.items()))
    site = Site(name, documents, experiment.task, experiment.model.tokenizer)
    progress: list[dict[str, float]] = []
    training = experiment.settings.training
    client = SimulatedClient(
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
    experiment, client, _ = make_client(
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
    result = fit(client, names, Seed(0))
    assert result.steps == 1
    assert result.loss == pytest.approx(loss.item(), rel=1e-5)
    for name, tensor in experiment.model.tensors(names).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-6)


def test_only_the_named_parameters_move() -> None:
    experiment, client, _ = make_client()
    layout = experiment.model.layout
    before = experiment.model.snapshot(layout.all)
    fit(client, [*layout.blocks[-1], *layout.head], Seed(0))
    moved = {
        name for name, t in experiment.model.tensors(layout.all).items() if not torch.equal(t, before[name])
    }
    assert moved == {*layout.blocks[-1], *layout.head}


def test_the_proximal_term_adds_its_gradient() -> None:
    """In the first SGD step the term is zero; in the second it pulls back by lr * mu * (w_1 - w_0)."""
    common = ("training.optimizer=sgd", "training.learning_rate=0.1", "training.batch_size=1000",
              "training.weight_decay=0.0", "training.clip_norm=null")  # fmt: skip
    ends = {}
    for mu, epochs in ((0.0, 1), (0.0, 2), (3.0, 2)):
        experiment, client, _ = make_client(*common, f"training.epochs={epochs}")
        names = experiment.model.layout.head
        start = experiment.model.snapshot(names)
        fit(client, names, Seed(0), proximal=mu)
        ends[mu, epochs] = experiment.model.snapshot(names)
    for name in names:
        pulled = ends[0.0, 2][name] - 0.1 * 3.0 * (ends[0.0, 1][name] - start[name])
        torch.testing.assert_close(ends[3.0, 2][name], pulled, rtol=1e-4, atol=1e-6)


def test_progress_is_reported_for_every_step() -> None:
    _, client, progress = make_client("training.batch_size=2", "training.epochs=2")
    result = fit(client, client.model.layout.head, Seed(0))
    assert [item["step"] for item in progress] == list(range(1, result.steps + 1))
    assert result.steps == 2 * -(-len(client.examples) // 2)
    assert progress[-1]["loss"] == pytest.approx(result.loss)


def test_the_learning_rate_follows_its_schedule() -> None:
    """With linear decay the last of two steps has half the rate: the head moves less than without."""
    moves = {}
    for schedule in ("constant", "linear"):
        experiment, client, _ = make_client(
            f"training.schedule={schedule}", "training.batch_size=1000", "training.epochs=2",
            "training.optimizer=sgd", "training.learning_rate=1e-3", "training.clip_norm=null",
        )  # fmt: skip
        before = experiment.model.snapshot(experiment.model.layout.head)
        fit(client, experiment.model.layout.head, Seed(0))
        after = experiment.model.tensors(experiment.model.layout.head)
        moves[schedule] = sum(float((after[name] - before[name]).norm()) for name in before)
    assert moves["linear"] / moves["constant"] == pytest.approx(0.75, abs=0.02)


def test_dropout_is_on_in_what_trains_and_off_in_what_is_frozen() -> None:
    config = (
        "model.config={model_type: bert, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 3, "
        "num_attention_heads: 4, hidden_dropout_prob: 0.5}"
    )
    _, client, _ = make_client(config)
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
    assert all(".layer.2." in name or name == "dropout" for name in on)
    assert any(".layer.0." in name for name in modes)
    assert any("embeddings" in name for name in modes)


def test_training_does_not_disturb_the_global_random_state() -> None:
    _, client, _ = make_client()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    fit(client, client.model.layout.head, Seed(0))
    assert torch.equal(torch.rand(3), expected)


def test_bfloat16_arithmetic_keeps_float32_weights() -> None:
    _, client, _ = make_client("training.precision=bfloat16")
    result = fit(client, client.model.layout.all, Seed(0))
    assert result.loss > 0
    assert {parameter.dtype for parameter in client.model.module.parameters()} == {torch.float32}


def test_a_loss_that_is_not_a_number_names_the_client_and_the_rate() -> None:
    _, client, _ = make_client(
        "training.optimizer=sgd",
        "training.learning_rate=1e30",
        "training.clip_norm=null",
        "training.epochs=3",
    )
    with pytest.raises(TrainingError, match=r"site-1.*(nan|inf|no longer finite).*learning_rate is 1e\+30"):
        fit(client, client.model.layout.all, Seed(0))


def test_predictions_do_not_depend_on_the_batch_size(tmp_path: Path) -> None:
    experiment, client, _ = make_client()
    training = experiment.settings.training
    many, one = (
        predict(
            client.model, client.task, client.examples, training.model_copy(update={"eval_batch_size": size})
        )
        for size in (64, 1)
    )
    assert all((a == b).mean() > 0.99 for a, b in zip(many, one, strict=True))
    assert [len(answer) for answer in many] == [len(example) for example in client.examples]

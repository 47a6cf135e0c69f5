"""What the cards of methods on adapters say they reduce to, and what adapters do to the other methods."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import TINY, RunTiny, assert_same_tensors
from transformers import AutoModelForTokenClassification

from fedstrata.adapters.rank import is_first_factor
from fedstrata.aggregate.mean import StreamingMean
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Plan, Update
from fedstrata.engine.cohort import RoundCohort
from fedstrata.engine.run_folder import open_run

LORA = "adapter={kind: lora, rank: 4}"
ONCE = ("federation.rounds=1", "federation.floors=false")
BOTTLENECK = "adapter={kind: bottleneck, width: 16}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "adapter"), [("fedlora", LORA), pytest.param("fedadapter", BOTTLENECK, marks=pytest.mark.slow)]
)
def test_droppeft_that_skips_nothing_and_shares_all_is_federated_peft(
    run_tiny: RunTiny, run_once: RunTiny, base: str, adapter: str
) -> None:
    plain = run_once(f"method={{name: {base}}}", adapter)
    dropped = run_tiny("method={name: droppeft, rates: 0.0, shared_blocks: 1.0}", adapter, out="dropped")
    assert_same_tensors(plain.state.tensors, dropped.state.tensors)
    assert plain.summary["metrics"] == dropped.summary["metrics"]


def test_hetlora_with_equal_ranks_is_fedlora(run_tiny: RunTiny, run_once: RunTiny) -> None:
    plain = run_once("method={name: fedlora}", LORA, *ONCE)
    equal = run_tiny("method={name: hetlora, ranks: [4], weighting: examples}", LORA, *ONCE, out="equal")
    assert_same_tensors(plain.state.tensors, equal.state.tensors)
    assert plain.summary["metrics"] == equal.summary["metrics"]


@pytest.mark.slow
def test_fedpeptao_that_shares_all_without_momentum_is_fedavg_over_prefixes(
    run_tiny: RunTiny, run_once: RunTiny
) -> None:
    prefix = ("adapter={kind: prefix, tokens: 3}", "training.optimizer=sgd", "training.learning_rate=0.1")
    plain = run_once("method={name: fedavg}", *prefix)
    settings = "shared_blocks: 1.0, momentum: 0.0"
    shared = run_tiny(f"method={{name: fedpeptao, {settings}}}", *prefix, out="shared")
    for name, tensor in plain.state.tensors.items():
        torch.testing.assert_close(tensor, shared.state.tensors[name], rtol=1e-4, atol=1e-6)


def test_fedlora_is_fedavg_with_an_adapter(run_once: RunTiny) -> None:
    lora, fedavg = (run_once(f"method={{name: {name}}}", LORA, *ONCE) for name in ("fedlora", "fedavg"))
    assert_same_tensors(lora.state.tensors, fedavg.state.tensors)
    assert lora.summary["communication"] == fedavg.summary["communication"]


def test_fedmedlora_is_fedlora(run_tiny: RunTiny, run_once: RunTiny) -> None:
    plain = run_once("method={name: fedlora}", LORA, *ONCE)
    named = run_tiny("method={name: fedmedlora}", LORA, *ONCE, out="named")
    assert_same_tensors(plain.state.tensors, named.state.tensors)
    assert plain.summary["communication"] == named.summary["communication"]


@pytest.mark.slow
def test_fedmedlora_plus_with_equal_losses_is_fedmedlora(
    run_tiny: RunTiny, run_once: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ("data.split.server=2", "data.synthetic={sites: 3, notes: 12, imbalance: 1.0}")
    plain = run_once("method={name: fedmedlora}", LORA, *server)
    monkeypatch.setattr(RoundCohort, "server_loss", lambda self, tensors, over: 2.5)
    equal = run_tiny("method={name: fedmedlora_plus}", LORA, *server, out="equal")
    assert_same_tensors(plain.state.tensors, equal.state.tensors)
    assert plain.summary["metrics"] == equal.summary["metrics"]
    assert plain.summary["communication"] == equal.summary["communication"]


@pytest.mark.slow
def test_the_mean_of_ffa_lora_is_that_of_the_products(run_tiny: RunTiny, tmp_path: Path) -> None:
    source = read_source(None, [*TINY, "method={name: ffa_lora}", LORA, "federation.rounds=1"])
    run = open_run(source, tmp_path / "apart", lambda event, facts: None, resume=False)
    method, model = run.experiment.method, run.experiment.model
    cohort, state = run._cohort(1, run.engine.clients()), method.start(model)
    first = {name: model.snapshot([name])[name] for name in model.layout.all if is_first_factor(name)}
    products: dict[str, torch.Tensor] = {}
    examples = sum(client.examples for client in cohort.clients)
    for client, update in cohort.each("train", lambda _: Plan(state.tensors)):
        for name in first:
            second = update.tensors[name.replace(".lora_A.", ".lora_B.")].double()
            product = second @ model.tensors([name])[name].double()  # A as this client has it
            products[name] = products.get(name, 0) + product * client.examples / examples
    merged = run_tiny("method={name: ffa_lora}", LORA, "federation.rounds=1").state.tensors
    for name, expected in products.items():
        product = merged[name.replace(".lora_A.", ".lora_B.")].double() @ first[name].double()
        torch.testing.assert_close(product, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("clients", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_flora_adds_exactly_the_weighted_sum_of_the_products(tmp_path: Path, clients: int) -> None:
    """With one client that is its own LoRA, and the head is everybody's weighted mean."""
    division = f"partition={{by: quantity, clients: {clients}, alpha: 2.0}}"
    source = read_source(None, [*TINY, "method={name: flora}", LORA, division])
    run = open_run(source, tmp_path / "run", lambda event, facts: None, resume=False)
    method, model = run.experiment.method, run.experiment.model
    base = {name: tensor.double() for name, tensor in model.snapshot(model.layout.frozen).items()}
    cohort, state = run._cohort(1, run.engine.clients()), method.start(model)
    kept: dict[str, dict[str, torch.Tensor]] = {}
    each = cohort.each

    def watched(handler, plan_of):
        for client, update in each(handler, plan_of):
            kept[client.id] = {name: tensor.double() for name, tensor in update.tensors.items()}
            yield client, update

    cohort.each = watched
    state = method.round(state, cohort, run.experiment.seed)
    counts = {client.id: client.examples for client in cohort.clients}
    share = {client: count / sum(counts.values()) for client, count in counts.items()}
    assert len(kept) == clients
    scale = 2.0  # alpha / rank
    layers = [name for name in base if name.endswith(".base_layer.weight") and name in state.tensors]
    assert len(layers) == 3 * 7
    for name in layers:
        path = name.removesuffix(".base_layer.weight")
        expected = base[name]
        for client, own in kept.items():
            product = own[f"{path}.lora_B.default.weight"] @ own[f"{path}.lora_A.default.weight"]
            expected = expected + scale * share[client] * product
            assert product.any()
        torch.testing.assert_close(state.tensors[name].double(), expected, rtol=1e-6, atol=1e-7)
    head = [name for name in state.tensors if "modules_to_save" in name]
    for name in head:
        mean = sum(share[client] * own[name] for client, own in kept.items())
        torch.testing.assert_close(state.tensors[name].double(), mean, rtol=1e-5, atol=1e-7)
    assert head


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedsa_lora", pytest.param("fedmedlora_plus", marks=pytest.mark.slow)])
def test_with_one_client_it_is_plain_lora(run_tiny: RunTiny, run_once: RunTiny, method: str) -> None:
    one = ("partition={by: iid, clients: 1}", "data.split.server=2", "federation.rounds=1")
    plain = run_once("method={name: fedlora}", LORA, *one)
    other = run_tiny(f"method={{name: {method}}}", LORA, *one, out="other")
    shared = {name: plain.state.tensors[name] for name in other.state.tensors}
    for name, tensor in shared.items():  # a weighted sum over its weight
        torch.testing.assert_close(tensor, other.state.tensors[name], rtol=1e-6, atol=0)
    assert plain.summary["metrics"]["clients"] == other.summary["metrics"]["clients"]


@pytest.mark.slow
def test_the_frozen_blocks_under_an_adapter_are_cached_exactly(run_once: RunTiny) -> None:
    method = ("method={name: layer_skipping, top: 1}", LORA, "training.epochs=2", "federation.rounds=1")
    cached = run_once(*method, "training.cache=on")
    run = run_once(*method, "training.cache=off")
    assert cached.of("cache")
    for name, tensor in cached.state.tensors.items():  # stored states come from batches of other shapes
        torch.testing.assert_close(tensor, run.state.tensors[name], rtol=1e-3, atol=1e-5)


def test_a_mean_over_those_who_send_is_the_mean_when_all_do() -> None:
    generator = torch.Generator().manual_seed(3)
    updates = [
        Update({name: torch.randn(4, generator=generator) for name in "ab"}, weight=float(weight))
        for weight in (1, 2, 3)
    ]
    masked, plain = StreamingMean(), StreamingMean()
    for update in updates:
        masked.add(update)
        plain.add(update)
    masked.add(Update({"a": torch.ones(4)}, weight=2.0))
    one, other = masked.finish(), plain.finish()
    assert torch.equal(one.tensors["b"], other.tensors["b"])
    assert one.counts == {"a": 4, "b": 3} and other.counts == {"a": 3, "b": 3}
    expected = sum(update.weight * update.tensors["a"] for update in updates) + 2.0 * torch.ones(4)
    torch.testing.assert_close(one.tensors["a"], expected / 8.0)


@pytest.mark.parametrize(
    "adapter",
    [
        LORA,
        pytest.param(BOTTLENECK, marks=pytest.mark.slow),
        pytest.param("adapter={kind: prefix, tokens: 3}", marks=pytest.mark.slow),
    ],
)
def test_only_the_adapter_and_the_head_travel(run_once: RunTiny, adapter: str) -> None:
    run = run_once("method={name: fedavg}", adapter, *ONCE)
    assert all(
        any(part in name for part in ("lora_", "bottleneck_", "prompt_encoder", "modules_to_save"))
        for name in run.state.tensors
    )
    numbers = sum(tensor.numel() for tensor in run.state.tensors.values())
    assert run.summary["trainable_parameters"] == numbers
    sent = run.summary["communication"]["bytes_up_per_client_round"]
    assert 4 * numbers <= sent <= 4 * numbers + 20_000  # and the names
    # The whole is the model without its adapter.
    config = run.folder / "model"
    assert not (config / "model.safetensors").exists()
    assert (config / "adapter_model.safetensors").is_file()


def test_what_was_learnt_is_the_model_that_is_saved(run_once: RunTiny, tmp_path: Path) -> None:
    from peft import PeftModel

    from fedstrata.results.result import open_result

    run = run_once("method={name: fedlora}", LORA, *ONCE)
    opened = open_result(run.folder)
    values = opened.model.snapshot(opened.model.layout.all)
    assert_same_tensors(values, run.state.tensors)
    base = opened.model.module.get_base_model()  # type: ignore[operator]
    assert isinstance(base, torch.nn.Module)
    plain = AutoModelForTokenClassification.from_config(base.config)
    loaded = PeftModel.from_pretrained(plain, run.folder / "model")
    learnt = {
        name: value for name, value in loaded.named_parameters() if ".default." in name and "lora" in name
    }
    for name, value in learnt.items():
        assert torch.equal(value, run.state.tensors[name])

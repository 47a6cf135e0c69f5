"""The simulated clock: by hand, by seed, and after a run was broken off."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import TINY, TINY_SETTINGS, Finished, RunTiny, assert_same_tensors

from fedstrata.core.seeding import Seed
from fedstrata.core.settings.devices import SHAPES, Device, DeviceSettings
from fedstrata.core.settings.model import ModelSettings
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Work
from fedstrata.engine.devices import Fleet, RoundClock, assign
from fedstrata.engine.prepare import prepare
from fedstrata.engine.run_folder import open_run, resumable
from fedstrata.metrics.flops import FlopCounter
from fedstrata.models.blocks import find_layout
from fedstrata.models.load import skeleton

PHONES = (
    "devices={profiles: phone, custom: {phone: {teraflops: 0.002, watts: 5}}, utilisation: 0.5, bandwidth: 8}"
)
"""A billion operations and a million bytes a second."""


FEW = (
    "devices={}",
    "federation.rounds=1",
    "federation.floors=false",
    "training.batch_size=4",
    "data.synthetic.notes=6",
)
ONCE = (*FEW, "data.synthetic.notes=24")
BRIEF = ("data.synthetic.notes=6", "federation.floors=false")
LORA = "adapter={kind: lora, rank: 2}"
WIDE, NARROW = (f"adapter={{kind: bottleneck, width: {width}}}" for width in (32, 8))


class StoppedError(Exception):
    """Stands for whatever ends a process."""


@given(
    shares=st.lists(st.floats(0.01, 10.0), min_size=1, max_size=5),
    count=st.integers(1, 60),
    seed=st.integers(),
)
def test_clients_get_devices_by_their_shares(shares: list[float], count: int, seed: int) -> None:
    named = {f"profile {index}": share for index, share in enumerate(shares)}
    clients = [f"client {index}" for index in range(count)]
    given = assign(named, clients, Seed(seed))
    assert sorted(given) == sorted(clients)
    counts = Counter(given.values())
    for name, share in named.items():
        assert abs(counts[name] - count * share / sum(shares)) < 1.0 + 1e-6
    assert assign(dict(reversed(named.items())), clients, Seed(seed)) == given


def test_draws_are_those_of_client_and_round_and_nothing_else() -> None:
    clients = [f"client {index}" for index in range(50)]
    one, other = (assign({"tx2": 1.0, "nx": 1.0}, clients, Seed(seed)) for seed in (0, 1))
    assert one != other
    fleet, again = (Fleet(DeviceSettings(), clients, Seed(3)) for _ in range(2))
    drawn = {(client, number): fleet.device(client, number) for client in clients for number in (1, 2)}
    for client, number in reversed(drawn):
        assert again.device(client, number) == drawn[client, number]
    assert {device.profile for device in drawn.values()} == {"tx2", "nx", "agx"}
    bandwidths = [device.megabits_per_second for device in drawn.values()]
    assert len(set(bandwidths)) == 100
    assert 1.0 <= min(bandwidths) < 20.0
    assert 80.0 < max(bandwidths) <= 100.0
    assert all(fleet.device(client, 1).profile == fleet.device(client, 2).profile for client in clients)
    assert any(fleet.device(client, 1).mode != fleet.device(client, 2).mode for client in clients)


def test_a_round_takes_as_long_as_its_slowest_client() -> None:
    clock = RoundClock()
    slow = Device("a", "default", 1e-12, watts=2.0, utilisation=1.0, megabits_per_second=8e-6)
    fast = Device("b", "default", 1e-11, watts=3.0, utilisation=1.0, megabits_per_second=8e-6)
    facts = clock.count("one", slow, Work(flops=4.0), 2)
    assert (facts["compute_seconds"], facts["transfer_seconds"], facts["joules"]) == pytest.approx((4, 2, 8))
    clock.count("other", fast, Work(flops=4.0), 2)
    clock.count("other", fast, Work(flops=10.0), 5)  # another handler of the same round
    assert clock.seconds == pytest.approx({"one": 6.0, "other": 0.4 + 2 + 1 + 5})
    lost = {(): 8.4, ("other",): 6.0, ("one", "other"): 0.0}
    for clients, seconds in lost.items():
        assert clock.facts(clients)["simulated_seconds"] == pytest.approx(seconds)
    assert clock.joules == pytest.approx(8.0 + 3.0 * 1.4)


def by_round(run: Finished) -> dict[int, dict[str, list[dict[str, Any]]]]:
    turns: dict[int, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for event in run.of("client"):
        turns[event["round"]][event["client"]].append(event)
    return turns


def test_the_clock_of_a_run_by_hand(run_once: RunTiny) -> None:
    """FedAvg with one batch an epoch, on phones of a billion operations and a million bytes a second."""
    overrides = ("method={name: fedavg}", "training.batch_size=1000", "training.epochs=2", PHONES, *BRIEF)
    run = run_once(*overrides)
    experiment = prepare(read_source(None, [*TINY, *overrides]))
    model, task = experiment.model, experiment.task
    counter = FlopCounter(model.module, model.layout, model.layout.all)
    seconds, joules = [], 0.0
    for event in run.of("round"):
        turns = []
        for client, exchange in event["exchanges"].items():
            examples = task.encode(experiment.clients[client].train, model.tokenizer)
            rows, tokens = task.collate(examples)["input_ids"].shape
            compute = 2 * counter.batch(rows, tokens) / 1e9
            turns.append(compute + (exchange["bytes_up"] + exchange["bytes_down"]) / 1e6)
            joules += 5.0 * compute
        seconds.append(max(turns))
        assert event["simulated_seconds"] == pytest.approx(seconds[-1])
    assert run.summary["time"]["simulated_seconds"] == pytest.approx(sum(seconds))
    assert run.summary["energy_joules"] == pytest.approx(joules)
    assert {event["device"] for event in run.of("client")} == {"phone"}


def test_emulation_changes_no_number_of_the_run_and_its_absence_is_null(run_once: RunTiny) -> None:
    plain, emulated = run_once(), run_once("devices={}")
    assert_same_tensors(plain.state.tensors, emulated.state.tensors)
    assert plain.summary["metrics"] == emulated.summary["metrics"]
    absent = (plain.summary["time"]["simulated_seconds"], plain.summary["memory"]["device_mean_bytes"])
    assert {*absent, plain.summary["energy_joules"]} == {None}
    assert "flops" not in plain.of("client")[0]
    (start,) = emulated.of("run")
    assert sorted(start["devices"].values()) == ["agx", "nx", "tx2"]


def test_pooled_training_has_no_device(run_once: RunTiny) -> None:
    run = run_once("method={name: centralized}", *FEW)
    assert run.summary["time"]["simulated_seconds"] is None
    assert run.of("run")[0]["devices"] is None


def flops_of(run: Finished) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for event in run.of("client"):
        counts[event["client"]] += event["flops"]
    return dict(counts)


def slow(*runs: tuple[str, ...]) -> list[Any]:
    return [pytest.param(each, marks=pytest.mark.slow) for each in runs]


def shape(blocks: int) -> str:
    own = TINY_SETTINGS["model.config"]
    return json.dumps({**own, "num_hidden_layers": blocks})


@pytest.mark.parametrize(
    "overrides",
    [
        ("method={name: layer_skipping, top: 1}", "training.epochs=2"),
        *slow(
            ("method={name: hetlora, ranks: [1]}", "adapter={kind: lora, rank: 8}"),
            ("method={name: fedavg}", "training.checkpointing=true"),
            ("method={name: droppeft, rates: 0.5}", LORA),
            ("method={name: ffa_lora}", LORA),
        ),
    ],
)
def test_a_model_that_is_counted_as_itself_costs_the_same(
    run_tiny: RunTiny, run_once: RunTiny, overrides: tuple[str, ...]
) -> None:
    own = run_once(*overrides, *FEW)
    counted = run_tiny(*overrides, *FEW, f"devices.as_model={shape(3)}", out="counted")
    assert flops_of(counted) == flops_of(own)


@pytest.mark.parametrize(
    "overrides",
    [
        ("method={name: fedlora}", LORA),
        *slow(("method={name: fedavg}",), ("method={name: layer_skipping, top: 2}", "training.cache=off")),
    ],
)
def test_a_larger_model_costs_what_a_run_of_it_would(run_once: RunTiny, overrides: tuple[str, ...]) -> None:
    """While the run's own trains; of twice the blocks two stand for each."""
    larger = [value.replace("top: 2", "top: 4") for value in overrides]
    own = run_once(*larger, *FEW, "model.config.num_hidden_layers=6")
    counted = run_once(*overrides, *FEW, f"devices.as_model={shape(6)}")
    assert flops_of(counted) == flops_of(own)
    assert counted.summary["model"]["parameters"] < own.summary["model"]["parameters"]


@pytest.mark.slow  # a larger one, and each by itself, are fast
def test_devices_count_a_model_that_is_named(run_tiny: RunTiny, run_once: RunTiny) -> None:
    """The products of the linear layers of Llama's 16 blocks, forward and once back, and little else."""
    method = ("method={name: fedlora}", LORA)
    own = run_once(*method, *FEW)
    named = run_tiny(*method, *FEW, "devices.as_model=llama-3.2-1b", out="named")
    assert_same_tensors(own.state.tensors, named.state.tensors)
    experiment = prepare(read_source(None, [*TINY, *method, *FEW]))
    for client, flops in flops_of(named).items():
        examples = experiment.task.encode(experiment.clients[client].train, experiment.model.tokenizer)
        tokens = experiment.settings.training.epochs * sum(len(each.input_ids) for each in examples)
        weights = 16 * (2048 * (2 * 2048 + 2 * 512) + 3 * 2048 * 8192)
        assert 1.0 < flops / (4.0 * weights * tokens) < 2.0  # with padding


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("roberta-base", 124.6),
        *(
            pytest.param(name, millions, marks=pytest.mark.slow)
            for name, millions in (
                ("deberta-v3-large", 435.1), ("bert-large", 335.1), ("roberta-large", 355.4),
                ("llama-3.2-1b", 1235.8), ("llama-2-7b", 6607.4), ("llama-3-8b", 7504.9),
            )
        ),
    ],
)  # fmt: skip
def test_every_model_that_is_named_can_be_counted(name: str, millions: float) -> None:
    """Each has as many numbers as are published, without a language model's head of its own."""
    settings = ModelSettings(init="random", tokenizer="mini", config=dict(SHAPES[name]))
    module = skeleton(settings, kind="sequence-classification", labels=["a", "b"])
    layout = find_layout(module)
    assert sum(layout.sizes.values()) / 1e6 == pytest.approx(millions, abs=0.1)
    linear = sum(layout.sizes[own] for block in layout.blocks for own in block)
    # Forward, and twice as much back; attention's own products are little of it.
    counted = FlopCounter(module, layout, layout.all).batch(1, 128) / (6.0 * 128 * linear)
    assert 0.9 < counted < (2.0 if "deberta" in name else 1.2)


@pytest.mark.slow
def test_a_device_of_a_lower_rank_computes_at_that_rank(run_tiny: RunTiny, run_once: RunTiny) -> None:
    cut = run_once("method={name: hetlora, ranks: [1]}", "adapter={kind: lora, rank: 8}", *FEW)
    own = run_tiny("method={name: fedlora}", "adapter={kind: lora, rank: 1}", *FEW, out="own")
    stacked = run_tiny("method={name: flora, ranks: [1]}", "adapter={kind: lora, rank: 8}", *FEW, out="flora")
    assert flops_of(cut) == flops_of(own) == flops_of(stacked)


@pytest.mark.slow
def test_a_device_with_narrow_adapters_in_few_blocks_computes_no_others(run_once: RunTiny) -> None:
    grown, narrow, deep = (
        flops_of(run_once(f"method={{name: fedadaopt, depth: {depth}}}", adapter, *ONCE))
        for depth, adapter in ((0, WIDE), (0, NARROW), (3, NARROW))
    )
    assert grown == narrow
    assert all(narrow[client] < 0.6 * deep[client] for client in deep)


@pytest.mark.slow
def test_blocks_that_sit_out_cost_nothing_and_keep_no_activations_and_validation_costs(
    run_once: RunTiny,
) -> None:
    every, few, last = (
        run_once(f"method={{name: droppeft, rates: {rates}}}", LORA, *ONCE)
        for rates in ("0.0", "0.9", "{rates: [0.0]}")
    )
    weights = 4 * every.summary["model"]["parameters"]
    for client, memory in memory_of(every).items():
        assert memory_of(few)[client] - weights < 0.7 * (memory - weights)
    everything, half, judged = map(flops_of, (every, few, last))
    assert all(half[client] < 0.7 * everything[client] for client in everything)
    # The bandit's one rate is 0 too; its devices score their documents before and after.
    scored = {client: judged[client] - everything[client] for client in judged}
    assert all(0.1 * everything[client] < scored[client] < everything[client] for client in everything)


def memory_of(run: Finished) -> dict[str, float]:
    return {event["client"]: event["mean_memory_bytes"] for event in run.of("client")}


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [
        ("training.optimizer=adamw", 4),
        pytest.param("training={optimizer: sgd, momentum: 0.9}", 3, marks=pytest.mark.slow),
        pytest.param("training={optimizer: sgd, momentum: 0.0}", 2, marks=pytest.mark.slow),
    ],
)
def test_the_memory_of_training_is_weights_gradients_states_and_activations(
    run_once: RunTiny, optimizer: str, copies: int
) -> None:
    """Of full fine-tuning every number has a gradient and the optimiser's; the rest are activations."""
    common = ("method={name: fedavg}", optimizer, *FEW, "training.epochs=1")
    run, shorter = (run_once(*common, f"training.batch_size={size}") for size in (1000, 1))
    weights = 4 * run.summary["model"]["parameters"]
    for client, memory in memory_of(run).items():
        activations = memory - copies * weights
        assert 0 < memory_of(shorter)[client] - copies * weights < 0.5 * activations
    peaks = [event["peak_memory_bytes"] for event in run.of("client")]
    assert peaks == list(memory_of(run).values())  # there was one batch
    assert run.summary["memory"]["device_mean_bytes"] == pytest.approx(sum(peaks) / len(peaks))
    assert run.summary["memory"]["device_peak_bytes"] == max(peaks)
    assert shorter.summary["memory"]["device_mean_bytes"] < shorter.summary["memory"]["device_peak_bytes"]


def test_the_mean_memory_of_a_run_is_that_over_its_batches(run_once: RunTiny) -> None:
    run = run_once("devices={}", "training.batch_size=8", "partition={by: quantity, clients: 3, alpha: 1.0}")
    batches = [event["device_memory"]["batches"] for event in run.of("round")]
    means = [event["device_memory"]["mean_bytes"] for event in run.of("round")]
    expected = sum(count * mean for count, mean in zip(batches, means, strict=True)) / sum(batches)
    assert run.summary["memory"]["device_mean_bytes"] == pytest.approx(expected)


def test_a_device_of_a_lower_rank_holds_less(run_once: RunTiny) -> None:
    cut, whole = (
        run_once(f"method={{name: hetlora, ranks: [{rank}]}}", "adapter={kind: lora, rank: 8}", *FEW)
        for rank in ("1", "8")
    )
    adapters = whole.summary["trainable_parameters"] - sum(
        tensor.numel() for name, tensor in whole.state.tensors.items() if "lora" not in name
    )
    for client, memory in memory_of(whole).items():  # weights, gradients and two of AdamW's
        assert memory - memory_of(cut)[client] == pytest.approx(4 * 4 * adapters * 7 / 8, rel=1e-6)


@pytest.mark.parametrize(
    "method",
    ["{name: fedtlu, portion: 0.34, selection: sketched}", "{name: layer_skipping, top: auto}"],
    ids=["sketched uploads", "gradients looked at first"],
)
def test_all_that_a_client_does_in_a_round_adds_up(run_once: RunTiny, method: str) -> None:
    run = run_once(f"method={method}", "devices={}", *BRIEF)
    for event in run.of("round"):
        turns = by_round(run)[event["round"]]
        taken = {
            client: sum(turn["compute_seconds"] + turn["transfer_seconds"] for turn in own)
            for client, own in turns.items()
        }
        assert event["simulated_seconds"] == pytest.approx(max(taken.values()))
        assert event["joules"] == pytest.approx(sum(turn["joules"] for own in turns.values() for turn in own))
    first = by_round(run)[1]
    assert all(len(turns) == 2 for turns in first.values())
    assert all(sum(turn["flops"] for turn in turns) > 0 for turns in first.values())


def test_lost_clients_are_not_waited_for(run_once: RunTiny) -> None:
    lossy = "federation={dropout: 0.5, rounds: 4, evaluate_every: 4, floors: false}"
    run = run_once("devices={}", lossy, "data.synthetic.notes=6")
    assert any(event["failed"] for event in run.of("round"))
    for event in run.of("round"):
        turns = by_round(run)[event["round"]]
        assert not turns.keys() & set(event["failed"])
        taken = [turn["compute_seconds"] + turn["transfer_seconds"] for own in turns.values() for turn in own]
        assert event["simulated_seconds"] == pytest.approx(max(taken, default=0.0))


def clock_of(run: Finished) -> list[tuple[float, float, dict[str, float]]]:
    return [
        (event["simulated_seconds"], event["joules"], event["device_memory"]) for event in run.of("round")
    ]


@pytest.mark.slow
def test_the_clock_of_a_resumed_run_is_that_of_the_uninterrupted_one(
    run_tiny: RunTiny, tmp_path: Path
) -> None:
    """Stopped before a round is committed, and after two; states that are stored by then are not used."""
    overrides = ["devices={}", "federation.rounds=3", "federation.sample=0.67"]
    whole = run_tiny(*overrides, out="whole")
    source = read_source(None, [*TINY, *overrides])
    for after in (0, 2):

        def listen(event: str, facts: Any, after: int = after) -> None:
            if event == "client" and facts["round"] == after + 1:
                raise StoppedError

        with pytest.raises(StoppedError):
            open_run(source, tmp_path / "broken", listen, resume=after > 0).execute(resume=after > 0)
        source = resumable(tmp_path / "broken", None, [])
    resumed = run_tiny(out="broken", resume=True)
    assert clock_of(resumed) == clock_of(whole)
    assert resumed.summary["energy_joules"] == whole.summary["energy_joules"]


@pytest.mark.slow
def test_stored_states_are_paid_for_once(run_once: RunTiny) -> None:
    runs = (
        run_once("devices={}", "federation.rounds=3", f"training.cache={cache}") for cache in ("on", "off")
    )
    cached, plain = ([by_round(run)[number] for number in (1, 2, 3)] for run in runs)
    for client in cached[0]:
        first, second, third = (own[client][0]["flops"] for own in cached)
        assert second < first
        assert second == pytest.approx(third, rel=0.05)  # another order pads differently
        assert second < min(own[client][0]["flops"] for own in plain)

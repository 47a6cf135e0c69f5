"""FedTLU on real tiny runs: what is merged, what travels, and what a client that was away is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from support import TINY, Finished, RunTiny, prepared, refused
from tiny_models import Tiny

from fedstrata.client.store import ClientStore
from fedstrata.core.cohort import Mean
from fedstrata.core.errors import ConfigurationError, TrainingError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Plan
from fedstrata.engine.prepare import prepare
from fedstrata.methods.fedtlu import FedTLU
from fedstrata.models.state import Model
from fedstrata.policies.scores import ABOVE_NOISE

FEW = "data.synthetic.notes=6"
SGD = ("training.optimizer=sgd", "training.learning_rate=0.1")
SKETCHED = "method={name: fedtlu, portion: 0.34, selection: sketched, width: 100000}"


def assert_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-4, atol=1e-6)


@cache
def tiny() -> Model:
    return prepared().model


@cache
def start() -> dict[str, torch.Tensor]:
    return tiny().snapshot(tiny().layout.all)


def changed(run: Finished) -> set[str]:
    before = start()
    return {name for name, tensor in run.state.tensors.items() if not torch.equal(tensor, before[name])}


def blocks_of(run: Finished) -> list[list[str]]:
    return [[name for name in run.state.tensors if f".layers.{block}." in name] for block in range(3)]


def test_blocks_that_are_not_merged_stay_as_they_were(run_once: RunTiny) -> None:
    run = run_once("method={name: fedtlu, portion: 0.34}", "federation.rounds=1", FEW)
    (state,) = run.states
    blocks = blocks_of(run)
    (kept,) = state["merged_blocks"]
    assert kept == max(range(3), key=lambda index: state["block_scores"][index])
    for index, block in enumerate(blocks):
        total = sum(state["tensor_scores"][name] for name in block)
        assert state["block_scores"][index] == pytest.approx(total)
        assert (set(block) <= changed(run)) == (index == kept)
        assert set(block).isdisjoint(changed(run)) == (index != kept)
    outside = set(run.state.tensors).difference(*blocks)
    assert outside <= changed(run)
    assert not any(key.startswith("_") for key in state)
    assert len(state["noise_scores"]) == 3 and all(mean > 1.0 for mean, _ in state["noise_scores"])


@pytest.mark.slow
def test_random_blocks_are_drawn_anew_each_round(run_once: RunTiny) -> None:
    settings = "method={name: fedtlu, update: random, portion: 0.34}"
    run = run_once(settings, "federation.rounds=6", "federation.evaluate_every=6")
    drawn = [tuple(state["merged_blocks"]) for state in run.states]
    assert {len(blocks) for blocks in drawn} == {1}
    assert len(set(drawn)) > 1
    assert "block_scores" not in run.states[0]


class Noise:
    """A cohort whose mean change is pure noise, but for the blocks with a signal."""

    def __init__(self, seed: int, signal: str = "") -> None:
        self.rng, self.signal, self.told = torch.Generator().manual_seed(seed), signal, list[str]()

    def mean(self, handler: str, plan_of: Callable[[Any], Plan]) -> Mean:
        """Returns the change of everything."""
        change = {
            name: torch.randn(tensor.shape, generator=self.rng) + bool(self.signal and self.signal in name)
            for name, tensor in plan_of(None).tensors.items()
        }
        return Mean(change, {}, {"loss": 1.0}, {})

    def warn(self, message: str) -> None:
        """Keeps what is told."""
        self.told.append(message)


def test_where_blocks_cannot_be_told_apart_it_is_said_once() -> None:
    method, model = FedTLU(portion=0.34), tiny()
    state, noise = method.start(model), Noise(1)
    for number in range(3):
        state = method.round(state, noise, Seed(number))  # type: ignore[arg-type]
        assert state.values["above_noise"] <= ABOVE_NOISE
    (line,) = noise.told
    assert "pure noise" in line
    signal = Noise(1, ".layers.1.")
    state = method.round(method.start(model), signal, Seed(0))  # type: ignore[arg-type]
    assert state.values["above_noise"] > ABOVE_NOISE
    assert state.values["merged_blocks"] == [1] and not signal.told


class Rounded(Noise):
    """A cohort whose mean change is one spacing of a few numbers of one block's norms, and else nothing."""

    def mean(self, handler: str, plan_of: Callable[[Any], Plan]) -> Mean:
        """Returns the change of everything."""
        change = {name: torch.zeros_like(tensor) for name, tensor in plan_of(None).tensors.items()}
        for name, tensor in change.items():
            if ".layers.2." in name and "norm" in name:
                tensor[:7] = torch.finfo(torch.float32).eps
        return Mean(change, {}, {"loss": 1.0}, {})


def test_rounding_is_no_signal_and_the_record_says_how_many_numbers_moved() -> None:
    method, model = FedTLU(portion=0.34), tiny()
    cohort = Rounded(1)
    state = method.round(method.start(model), cohort, Seed(0))  # type: ignore[arg-type]
    assert state.values["above_noise"] <= ABOVE_NOISE
    assert cohort.told
    moved = {name for name, count in state.values["moved_numbers"].items() if count == 7}
    assert moved == {name for name in state.tensors if ".layers.2." in name and "norm" in name}
    assert {*state.values["moved_numbers"].values()} == {0, 7}
    assert {*state.values["rounding"]} == state.values["tensor_scores"].keys()


@pytest.mark.parametrize("scored", ["matrices", "small"])
def test_a_score_of_matrices_or_of_the_rest_alone(scored: str) -> None:
    method, model = FedTLU(portion=0.34, scored=scored), tiny()
    state = method.round(method.start(model), Noise(1), Seed(0))  # type: ignore[arg-type]
    dimensions = {state.tensors[name].dim() for name in state.values["tensor_scores"]}
    assert dimensions == ({2} if scored == "matrices" else {1})


def test_the_worst_blocks_are_those_of_lowest_score() -> None:
    kept = {}
    for update in ("targeted", "worst"):
        method = FedTLU(portion=0.34, update=update)
        state = method.round(method.start(tiny()), Noise(1, ".layers.1."), Seed(0))  # type: ignore[arg-type]
        (kept[update],) = state.values["merged_blocks"]
        scores = state.values["block_scores"]
    assert kept == {"targeted": scores.index(max(scores)), "worst": scores.index(min(scores))}


def test_a_score_of_nothing_is_refused() -> None:
    """An adapter is of matrices alone."""
    model = prepared("adapter={kind: lora, rank: 2}").model
    with refused(ConfigurationError, "no_effect", at="method.scored"):
        FedTLU(scored="small").start(model)


def test_last_changes_what_follows_the_blocks(run_once: RunTiny) -> None:
    run = run_once("method={name: fedtlu, update: last}", "federation.rounds=1", FEW)
    assert changed(run) == {"model.norm.weight", "score.weight", "score.bias"}
    assert run.states == [{"merged_blocks": []}]


@pytest.mark.parametrize(
    ("family", "last"),
    [
        ("gpt2", {"transformer.ln_f.weight", "transformer.ln_f.bias", "transformer.wte.weight"}),
        (
            "roberta",
            {
                *("roberta.embeddings.word_embeddings.weight", "lm_head.dense.weight", "lm_head.dense.bias"),
                *("lm_head.layer_norm.weight", "lm_head.layer_norm.bias", "lm_head.bias"),
            },
        ),
        ("llama", {"model.norm.weight", "lm_head.weight"}),
    ],
)
def test_last_is_the_head_of_a_language_model_tied_or_not(
    tiny_model: Tiny, family: str, last: set[str]
) -> None:
    state = FedTLU(update="last").start(tiny_model(family, "causal-lm"))
    assert set(state.values["_last"]) == last


def test_the_portion_steps_down(run_once: RunTiny) -> None:
    schedule = "{portions: [1.0, 0.67, 0.34], patience: 1, threshold: 0.9}"
    run = run_once(
        f"method={{name: fedtlu, portion: {schedule}}}", "federation={rounds: 4, evaluate_every: 4}", FEW
    )
    assert [state["portion"] for state in run.states] == [1.0, 1.0, 0.67, 0.34]
    assert [len(state["merged_blocks"]) for state in run.states] == [3, 3, 2, 1]


def test_sketched_only_what_is_merged_goes_up_and_only_what_changed_comes_down(run_once: RunTiny) -> None:
    small = SKETCHED.replace("100000", "8")
    common = ("federation={rounds: 3, evaluate_every: 3}", FEW)
    exact = run_once("method={name: fedtlu, portion: 0.34}", *common)
    run = run_once(small, *common)
    blocks = blocks_of(run)
    size = sum(4 * run.state.tensors[name].numel() for name in blocks[0])
    first, second, _ = run.of("round")
    merged = set()
    for event in run.of("round"):
        (kept,) = event["state"]["merged_blocks"]
        merged.add(f"block {kept}")
        sent = {group for group in event["groups_up"] if group.startswith("block")}
        assert sent == {f"block {kept}"}
        assert event["groups_up"][f"block {kept}"] == len(event["exchanges"]) * size
    for event, whole in zip(run.of("round"), exact.of("round"), strict=True):
        for client, sent in event["exchanges"].items():
            saved = whole["exchanges"][client]["bytes_up"] - sent["bytes_up"]
            assert saved > 1.9 * size - 4096  # two of three blocks, but for sketches and headers
    model = sum(4 * tensor.numel() for tensor in run.state.tensors.values())
    for client, sent in first["exchanges"].items():
        assert sent["bytes_down"] < 4096  # nothing has changed since everybody had the model
        assert second["exchanges"][client]["bytes_down"] < model - 1.9 * size + 4096


def test_a_client_that_drops_out_is_not_taken_to_know_what_it_was_sent(run_once: RunTiny) -> None:
    common = ("federation={rounds: 3, dropout: 0.4, min_clients: 1, evaluate_every: 3}", FEW, "seed=1")
    exact = run_once("method={name: fedtlu, portion: 0.34}", *common)
    sketched = run_once(SKETCHED, *common)
    assert any(event["failed"] for event in sketched.of("round"))
    assert_close(exact.state.tensors, sketched.state.tensors)


@pytest.mark.slow
def test_a_client_that_fails_between_the_exchanges_is_brought_up_to_date_later(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(handler: str) -> Any:
        real, turns = getattr(FedTLU, handler), []

        def handle(self: FedTLU, plan: Any, client: Any, rng: Any) -> Any:
            turns.append(client.id)
            if client.id == "site-2" and turns.count("site-2") == 2:
                raise TrainingError("the disk is full")
            return real(self, plan, client, rng)

        return handle

    common = (*SGD, "federation.rounds=4", "federation.min_clients=1", "federation.evaluate_every=4")
    with monkeypatch.context() as patch:
        patch.setattr(FedTLU, "upload", failing("upload"))
        run = run_tiny(SKETCHED, *common, out="sketched")
    assert [event["failed"] for event in run.of("round")] == [[], ["site-2"], [], []]
    one, other = (
        ClientStore(run.folder / "clients" / site, 4).read().tensors for site in ("site-1", "site-2")
    )
    held = [name for name in one if not name.startswith("change/")]
    assert held
    assert all(torch.equal(one[name], other[name]) for name in held)


def test_last_is_refused_where_nothing_would_ever_be_merged() -> None:
    """A LoRA on a language model trains nothing that follows the blocks."""
    plain = [item for item in TINY if not item.startswith(("task.stride", "data.types"))]
    lora = ["adapter={kind: lora, rank: 2}", "task.name=lm"]
    with refused(ConfigurationError, "no_effect", at="method.update", values=["'last'"]):
        prepare(read_source(None, [*plain, *lora, "method={name: fedtlu, update: last}"]))

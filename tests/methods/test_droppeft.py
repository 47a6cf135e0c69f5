"""DropPEFT on real tiny runs: which blocks travel, are merged and stay, and what the bandit is told."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import TINY, Finished, RunTiny, assert_same_tensors, opened, prepared
from torch import Tensor

from fedstrata.client.store import ClientStore
from fedstrata.client.turn import Workplace
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import ClientInfo, Plan, Update
from fedstrata.engine.prepare import prepare
from fedstrata.methods import droppeft
from fedstrata.methods.droppeft import SENT
from fedstrata.policies.dropout import LayerDropout
from fedstrata.train import local

LORA = "adapter={kind: lora, rank: 2}"
SMALL = "training.batch_size=2"
FEW = "data.synthetic.notes=6"
VALIDATED = ("data.synthetic.notes=9", "data.split={train: 0.4, validation: 0.3, test: 0.3}")
PERSONAL = "method={name: droppeft, rates: 0.4, shared_blocks: 2}"
ONE = (PERSONAL, LORA, "federation.rounds=1", SMALL, FEW)
SHARED = "method={{name: droppeft, rates: {rate}, shared_blocks: 1}}"


def block_names(run: Finished, block: int) -> list[str]:
    return [name for name in run.state.tensors if f".layers.{block}." in name]


def store(run: Finished, client: str) -> ClientStore:
    return ClientStore(run.folder / "clients" / client, run.summary["rounds"])


def test_a_device_sends_its_least_important_blocks_and_keeps_the_others(run_once: RunTiny) -> None:
    run = run_once(*ONE)
    sent: dict[str, list[int]] = {}
    for client in run.state.values["_personal"]:
        message = store(run, client).read()
        importance = message.values["importance"]
        assert None not in importance  # enough batches for all to run
        order = sorted(range(3), key=lambda block: (importance[block], block))
        own = {name for name in message.tensors if not name.startswith(SENT)}
        assert own == set(block_names(run, order[2]))
        sent[client] = order[:2]
    (state,) = run.states
    assert state["shared_by"] == [sum(block in own for own in sent.values()) for block in range(3)]
    for client, kept in run.state.values["_personal"].items():
        assert kept == sorted({0, 1, 2}.difference(sent[client]))
        lone = [int(block in sent[client] and state["shared_by"][block] == 1) for block in range(3)]
        assert run.state.values["_alone"][client] == lone


def test_a_device_that_alone_sent_a_block_keeps_its_own_value(few_ran: list[Turn]) -> None:
    """The server's, which no mean has changed, must not take its place at the next turn."""
    kept = 0
    for number in range(1, 4):
        turns = [turn for turn in few_ran if turn.round == number]
        senders = [block for turn in turns for block in turn.update.values["shared"]]
        for turn in turns:
            later = next(
                each for each in few_ran if (each.round, each.client.id) == (number + 1, turn.client.id)
            )
            alone = [block for block in turn.update.values["shared"] if senders.count(block) == 1]
            assert later.plan.values["alone"] == [int(block in alone) for block in range(3)]
            for name, value in turn.update.tensors.items():
                if any(f".layers.{block}." in name for block in alone):
                    assert torch.equal(later.began[name], value)
                    kept += 1
    assert kept, "some block was sent by one device alone"


@dataclass(frozen=True)
class Turn:
    """What went to a device and came back, its tensors copied, and the importance that it then knew.

    `began` is the model with which it began to train.
    """

    round: int
    client: ClientInfo
    plan: Plan
    update: Update
    importance: list[float | None]
    began: dict[str, Tensor]


def turns_of(folder: Path, *overrides: str) -> list[Turn]:
    """Runs rounds and returns each device's turns, in order."""
    run = opened(folder, *overrides)
    method, state, turns = run.experiment.method, run.experiment.method.start(run.experiment.model), []
    began: dict[str, dict[str, Tensor]] = {}

    def fit(client: Any, *args: Any, **settings: Any) -> float:
        model = client.model
        began[client.id] = {name: value.clone() for name, value in model.tensors(model.layout.all).items()}
        return local.fit(client, *args, **settings)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(droppeft, "fit", fit)
        for number in range(1, run.experiment.settings.federation.rounds + 1):
            cohort = run._cohort(number, run.engine.clients())
            each = cohort.each

            def watched(handler: str, plan_of: Any, each: Any = each, number: int = number) -> Any:
                for client, update in each(handler, plan_of):
                    tensors = {name: tensor.clone() for name, tensor in update.tensors.items()}
                    kept = ClientStore(folder / "clients" / client.id, number).read().values
                    copied, known = replace(update, tensors=tensors), kept.get("importance", [])
                    turns.append(Turn(number, client, plan_of(client), copied, known, began[client.id]))
                    yield client, update

            cohort.each = watched  # type: ignore[method-assign]
            state = method.round(state, cohort, run.experiment.seed.child("round", number, "method"))
    return turns


@pytest.fixture(scope="module")
def few_ran(tmp_path_factory: pytest.TempPathFactory) -> list[Turn]:
    """The turns of a run in which some blocks never ran."""
    few = ("training.batch_size=8", "federation.rounds=4", FEW)
    method = "method={name: droppeft, rates: 0.8, shared_blocks: 2}"
    return turns_of(tmp_path_factory.mktemp("few") / "run", method, LORA, *few)


def blocks_in(tensors: Mapping[str, Any]) -> set[int]:
    return {int(name.split(".layers.")[1].split(".")[0]) for name in tensors if ".layers." in name}


def test_blocks_that_did_not_run_are_not_sent_back(few_ran: list[Turn]) -> None:
    """They hold what the server has: sent, they would only draw the mean back to it."""
    assert any(None in turn.importance for turn in few_ran)
    assert any(len(blocks_in(turn.update.tensors)) < 2 for turn in few_ran)
    for turn in few_ran:
        assert blocks_in(turn.update.tensors) == set(turn.update.values["shared"])
        for name in turn.update.tensors.keys() & turn.plan.tensors.keys():
            if "lora_B" in name:
                assert not torch.equal(turn.update.tensors[name], turn.plan.tensors[name])
        never = {block for block, value in enumerate(turn.importance) if value is None}
        assert never <= blocks_in(turn.plan.tensors)  # it has nothing of its own there, now or later
        assert not never & {*turn.update.values["shared"], *turn.update.values["personal"]}


def test_a_block_that_fewer_than_two_devices_send_stays_as_it_was(run_once: RunTiny) -> None:
    run = run_once(SHARED.format(rate=0.0), *ONE[1:])
    model = prepared("method={name: droppeft}", LORA).model
    before = model.snapshot(model.layout.all)
    (state,) = run.states
    for block, count in enumerate(state["shared_by"]):
        same = all(torch.equal(before[name], run.state.tensors[name]) for name in block_names(run, block))
        assert same == (count < 2)
    heads = [name for name in run.state.tensors if "score" in name]
    assert not any(torch.equal(before[name], run.state.tensors[name]) for name in heads)


@pytest.mark.slow
def test_a_device_downloads_everything_once_and_then_all_but_its_personal_blocks(run_once: RunTiny) -> None:
    seldom = "federation={rounds: 3, evaluate_every: 3}"
    run = run_once(PERSONAL, LORA, seldom, SMALL)
    numbers = [sum(run.state.tensors[name].numel() for name in block_names(run, block)) for block in range(3)]
    assert len(set(numbers)) == 1
    assert all(len(own) == 1 for own in run.state.values["_personal"].values())
    one_block = 4 * numbers[0]
    downs = [[client["bytes_down"] for client in event["exchanges"].values()] for event in run.of("round")]
    for first, later in zip(downs[0], downs[1], strict=True):
        assert one_block < first - later < 2 * one_block  # the names take room too
    assert downs[1] == downs[2]


@pytest.mark.slow
def test_a_device_s_model_is_the_global_one_under_its_personal_blocks(run_tiny: RunTiny) -> None:
    """The personal blocks of the last round are in the saved models, whatever the server has of them."""
    from fedstrata.results.result import open_result

    run = run_tiny(PERSONAL, LORA, "federation.evaluate_every=2")
    for client in run.state.values["_personal"]:
        own = store(run, client).read().tensors
        model = open_result(run.folder, client=client).model
        for name, value in model.snapshot(model.layout.all).items():
            expected = own[name] if name in own else run.state.tensors[name]
            assert torch.equal(value, expected)
            if name in own:
                assert not torch.equal(value, run.state.tensors[name])


def test_a_block_that_does_not_run_keeps_the_importance_that_it_had(few_ran: list[Turn]) -> None:
    kept = 0
    for client in {turn.client.id for turn in few_ran}:
        own = [turn.importance for turn in few_ran if turn.client.id == client]
        for earlier, later in itertools.pairwise(own):
            for before, after in zip(earlier, later, strict=True):
                assert before is None or after is not None
                kept += before is not None and before == after
    assert kept


@pytest.mark.parametrize("weighting", ["examples", pytest.param("uniform", marks=pytest.mark.slow)])
def test_devices_count_by_their_examples_or_all_the_same(tmp_path: Path, weighting: str) -> None:
    unequal = ("partition={by: quantity, clients: 3, alpha: 1.0}", "federation.rounds=1")
    method = f"method={{name: droppeft, rates: 0.0, weighting: {weighting}}}"
    turns = turns_of(tmp_path / "run", method, LORA, *unequal)
    assert len({turn.client.examples for turn in turns}) > 1
    for turn in turns:
        assert turn.update.weight == (turn.client.examples if weighting == "examples" else 1.0)


@pytest.mark.parametrize(
    ("distribution", "always"), [("incremental", 0), pytest.param("decremental", 2, marks=pytest.mark.slow)]
)
def test_the_block_at_one_end_always_runs_at_a_mean_rate_of_two_fifths(
    tmp_path: Path, distribution: str, always: int
) -> None:
    method = f"method={{name: droppeft, rates: 0.4, distribution: {distribution}, shared_blocks: 2}}"
    turns = turns_of(tmp_path / "run", method, LORA, "training.batch_size=8", "federation.rounds=2", FEW)
    ran = [[value is not None for value in turn.importance] for turn in turns]
    assert all(own[always] for own in ran)
    assert not all(own[2 - always] for own in ran)


PHONE = (
    "devices={profiles: phone, custom: {phone: {teraflops: 0.001, watts: 5}}, utilisation: 1.0, bandwidth: "
)


@pytest.mark.parametrize("bandwidth", [None, pytest.param(1e6, marks=pytest.mark.slow), 0.01])
def test_a_reward_is_the_gain_in_accuracy_for_each_second(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch, bandwidth: float | None
) -> None:
    scores = itertools.cycle([0.25, 0.75])
    monkeypatch.setattr(Workplace, "_validate", lambda self, site, work: next(scores))
    devices = [] if bandwidth is None else [f"{PHONE}{bandwidth:f}}}"]
    run = run_tiny(
        "method={name: droppeft, rates: {rates: [0.0]}}", LORA, *VALIDATED, "federation.rounds=1", *devices
    )
    (state,) = run.states
    assert len(state["rewards"]) == 3
    for event in run.of("client"):
        seconds = 0.5 / state["rewards"][event["client"]]
        if bandwidth is None:
            assert seconds == 1.0  # all blocks ran
        else:  # a frame has names too, which the reward leaves out
            assert event["compute_seconds"] < seconds <= event["compute_seconds"] + event["transfer_seconds"]
            assert seconds > event["compute_seconds"] + 0.5 * event["transfer_seconds"]


def test_the_bandit_learns_from_what_devices_gain(run_once: RunTiny) -> None:
    run = run_once("method={name: droppeft}", LORA, *VALIDATED, "federation={rounds: 3, evaluate_every: 3}")
    rates = [rate for state in run.states for rate in state["rates"].values()]
    assert len(set(rates)) == len(rates) == 9  # every rate once before any again
    bandit = run.state.values["_bandits"][""]
    assert [number for number, *_ in bandit["history"]] == [1, 2, 3]
    for state, (_, counts, sums, _) in zip(run.states, bandit["history"], strict=True):
        given = {state["rates"][client]: reward for client, reward in state["rewards"].items()}
        learnt = {bandit["rates"][place]: sums[place] for place, count in enumerate(counts) if count}
        assert learnt.keys() == given.keys()
        most = max(given, key=lambda rate: abs(given[rate]))
        for rate, reward in given.items():  # in units of what is usual
            assert learnt[rate] * given[most] == pytest.approx(learnt[most] * reward)


def test_a_bandit_of_each_device_knows_its_own_rewards(run_once: RunTiny) -> None:
    run = run_once(
        "method={name: droppeft, bandit_of: device}", LORA, *VALIDATED, "federation.evaluate_every=2"
    )
    bandits = run.state.values["_bandits"]
    everybody = bandits.pop("")  # by which it is known what a round adds to all rewards
    assert sum(everybody["tried"]) == 6
    assert sorted(bandits) == sorted(run.state.values["_personal"])
    assert all(len(bandit["history"]) == 2 for bandit in bandits.values())


def test_skipping_blocks_changes_what_is_learnt(run_once: RunTiny) -> None:
    none, some = (run_once(SHARED.format(rate=rate), *ONE[1:]).state.tensors for rate in (0.0, 0.6))
    head = "base_model.model.score.modules_to_save.default.weight"
    assert not torch.equal(none[head], some[head])


@pytest.mark.slow
def test_every_device_and_every_round_draws_its_own_blocks(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same ones when the run is repeated."""
    turns: list[list[tuple[int, ...]]] = []

    class Watched(LayerDropout):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            turns.append([])

        def draw(self) -> tuple[int, ...]:
            turns[-1].append(super().draw())
            return turns[-1][-1]

    monkeypatch.setattr("fedstrata.methods.droppeft.LayerDropout", Watched)
    method = "method={name: droppeft, rates: 0.5, distribution: uniform}"
    for out in ("first", "again"):
        run_tiny(method, LORA, "training.batch_size=1", FEW, out=out)
    half = len(turns) // 2
    assert turns[:half] == turns[half:]
    assert len({tuple(draws) for draws in turns[:half]}) == half >= 4


BERT = (
    "model.config={model_type: bert, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 3, "
    "num_attention_heads: 4, hidden_dropout_prob: 0.1, attention_probs_dropout_prob: 0.1}",
    LORA,
    "federation.evaluate_every=2",
)


@pytest.mark.slow
def test_a_client_s_result_does_not_depend_on_who_ran_before_it(run_once: RunTiny) -> None:
    """With dropout, whatever mode the model was left in: after scoring, after another client."""
    plain = run_once("method={name: fedlora}", *BERT)
    dropped = run_once("method={name: droppeft, rates: 0.0, shared_blocks: 1.0}", *BERT)
    learnt = dropped.state.tensors
    assert_same_tensors(plain.state.tensors, {name: learnt[name] for name in plain.state.tensors})


def test_a_corrupt_device_distorts_what_it_sends_and_not_what_it_keeps(run_once: RunTiny) -> None:
    corrupt = "federation.corrupt={share: 0.9, kind: scale, strength: 50.0}"
    honest, scaled = run_once(*ONE), run_once(*ONE, corrupt)
    for client in honest.state.values["_personal"]:
        one, other = (
            {name: tensor for name, tensor in store(run, client).read().tensors.items() if SENT not in name}
            for run in (honest, scaled)
        )
        assert_same_tensors(one, other)
    learnt = honest.state.tensors
    assert any(not torch.equal(learnt[name], scaled.state.tensors[name]) for name in learnt)


def test_checkpointing_asks_for_no_gradient_below_the_adapters(run_once: RunTiny) -> None:
    from fedstrata.models.blocks import block_modules
    from fedstrata.tasks.windows import run_model

    source = read_source(None, [*TINY, "method={name: fedlora}", LORA, "training.checkpointing=true"])
    model = prepare(source).model
    model.train_only(model.layout.blocks[2])
    model.module.train()
    asked: list[bool] = []
    first = block_modules(model.module, model.layout)[0]
    first.register_forward_pre_hook(lambda module, inputs: asked.append(inputs[0].requires_grad))
    ids = torch.arange(4, 13).view(1, 9)
    run_model(model.module, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}).sum().backward()
    assert asked and not any(asked)


@pytest.mark.slow
def test_checkpointing_changes_nothing(run_once: RunTiny) -> None:
    method = ("method={name: droppeft, rates: 0.5, shared_blocks: 1.0}", LORA, "federation.rounds=1")
    plain = run_once(*method)
    again = run_once(*method, "training.checkpointing=true")
    for name, tensor in plain.state.tensors.items():
        torch.testing.assert_close(tensor, again.state.tensors[name], rtol=1e-5, atol=1e-7)

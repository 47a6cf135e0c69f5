"""FLoRA on real tiny runs: what clients hold, what they are sent, and the model that is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from support import RunTiny, opened, prepared, refused
from transformers import AutoModelForTokenClassification

from fedstrata.adapters.rank import is_lora
from fedstrata.adapters.stack import adapted_layers
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.types import State, Tensors
from fedstrata.methods.flora import FLoRA
from fedstrata.results.export import export
from fedstrata.results.result import open_result
from fedstrata.train.evaluate import answer

FLORA = ("method={name: flora}", "adapter={kind: lora, rank: 2}")


@dataclass
class Turn:
    """One client's turn."""

    client: str
    before: State
    sent: set[str]
    weights: Tensors


@dataclass
class Watched:
    """Every state of a run, the first included, and every turn."""

    states: list[State] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Looks at the weights that clients train with."""
    seen = Watched()
    run_round, train = FLoRA.round, FLoRA.train

    def watch_round(self, state, cohort, rng):
        if not seen.states:
            seen.states.append(state)
        seen.states.append(run_round(self, state, cohort, rng))
        return seen.states[-1]

    def watch_train(self, plan, client, rng):
        update = train(self, plan, client, rng)
        names = [layer.weight for layer in adapted_layers(client.model.module)]
        weights = client.model.snapshot(names)
        before = seen.states[-1] if seen.states else State()
        seen.turns.append(Turn(client.id, before, set(plan.tensors), weights))
        return update

    monkeypatch.setattr(FLoRA, "round", watch_round)
    monkeypatch.setattr(FLoRA, "train", watch_train)
    return seen


def weights_of(state: State) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in state.tensors.items() if name.endswith(".base_layer.weight")}


LOSSY = ("federation={rounds: 6, sample: 0.67, dropout: 0.3, evaluate_every: 6}", "seed=2")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param("null", marks=pytest.mark.slow), "[1, 2]"])
def test_a_client_trains_on_the_global_weights_whatever_it_missed(
    run_once: RunTiny, watched: Watched, ranks: str
) -> None:
    run = run_once(f"method={{name: flora, ranks: {ranks}}}", FLORA[1], *LOSSY)
    assert run.summary["failures"]["clients"]
    turns = [turn for turn in watched.turns if turn.before.tensors]
    assert len(turns) > 4
    for turn in turns:
        expected = weights_of(turn.before)
        assert turn.weights.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in turn.weights.items())


@pytest.mark.slow
def test_stacks_are_sent_to_who_lacks_them_and_weights_to_who_lacks_too_many(
    run_once: RunTiny, watched: Watched
) -> None:
    seldom = "federation={rounds: 9, sample: 0.34, evaluate_every: 9}"
    run_once("method={name: flora}", "adapter={kind: lora, rank: 4}", seldom, "seed=0")
    kinds = set()
    held: dict[str, int] = {}
    for turn in watched.turns:
        merged = turn.before.values.get("_merged", 0)
        lacks = merged - held.get(turn.client, 0)
        stacks = {name.split("/")[0] for name in turn.sent if name.startswith("round ")}
        if weights := {name for name in turn.sent if name.endswith(".base_layer.weight")}:
            assert not stacks
            assert weights == set(weights_of(turn.before))
            kinds.add("weights")
        else:
            assert stacks == {f"round {number}" for number in range(merged - lacks + 1, merged + 1)}
            kinds.add(f"{min(lacks, 2)} stacks")
        head = {name for name in turn.sent if "modules_to_save" in name}
        of_rounds = {name for name in turn.sent if name.startswith("round ")}
        assert turn.sent == head | weights | of_rounds
        held[turn.client] = merged
    assert kinds == {"0 stacks", "1 stacks", "2 stacks", "weights"}


@pytest.mark.slow
def test_the_server_keeps_no_more_stacks_than_the_weights_are_large(
    run_once: RunTiny, watched: Watched
) -> None:
    run_once(*FLORA, "federation.rounds=5", "federation.evaluate_every=5", "data.synthetic.notes=6")
    sizes = []
    for state in watched.states:
        stacks = [tensor.numel() for name, tensor in state.tensors.items() if name.startswith("round ")]
        assert sum(stacks) <= sum(tensor.numel() for tensor in weights_of(state).values())
        sizes.append(sum(stacks))
    assert sizes[0] == 0 < sizes[1] < sizes[2] < sizes[3] == sizes[-1]


def test_what_comes_down_is_what_all_clients_sent_up(run_once: RunTiny) -> None:
    run = run_once(*FLORA, "federation.evaluate_every=2", "data.synthetic.notes=6")
    model = prepared(*FLORA).model
    adapter = model.bytes_of([name for name in model.layout.all if is_lora(name)])
    stack = {name: tensor for name, tensor in run.state.tensors.items() if name.startswith("round 1/")}
    assert sum(tensor.nbytes for tensor in stack.values()) == 3 * adapter
    first, second = (
        [facts["bytes_down"] for facts in run.of("client") if facts["round"] == number] for number in (1, 2)
    )
    for before, after in zip(first, second, strict=True):
        assert 3 * adapter < after - before < 3 * adapter + 150 * len(stack)  # and names and shapes


def test_clients_of_several_ranks_send_adapters_of_several_sizes(run_once: RunTiny, watched: Watched) -> None:
    few = ("seed=2", "federation.rounds=1", "data.synthetic.notes=6")
    run = run_once("method={name: flora, ranks: [1, 3]}", "adapter={kind: lora, rank: 4}", *few)
    state = run.of("round")[0]["state"]
    ranks = state["ranks"]
    assert set(ranks.values()) == {1, 3}
    assert state["stacked_rank"] == sum(ranks.values())
    up = {facts["client"]: facts["bytes_up"] for facts in run.of("client")}
    low, high = ([up[client] for client, own in ranks.items() if own == rank] for rank in (1, 3))
    assert max(low) < min(high)
    for name, tensor in run.state.tensors.items():
        if name.startswith("round 1/"):
            assert sum(ranks.values()) in tensor.shape


@pytest.mark.slow
def test_the_model_that_is_left_is_a_plain_one_and_scores_as_the_run_says(
    run_tiny: RunTiny, tmp_path: Path
) -> None:
    run = run_tiny(*FLORA, "federation.rounds=1", "training.epochs=3", "training.learning_rate=0.02")
    assert not (run.folder / "model" / "adapter_config.json").exists()
    result = open_result(run.folder)
    assert not result.model.layout.frozen
    saved = result.model.module.state_dict()
    for name, tensor in weights_of(run.state).items():
        plain = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        assert torch.equal(saved[plain], tensor)
    clients = prepared().clients.values()
    documents = [document for own in clients for document in own.test]
    answers = answer(result.model, result.task, documents, result.settings.training)
    scores = result.task.score(documents, answers)
    assert scores == pytest.approx(run.summary["metrics"]["global"])
    export(result, tmp_path / "out", licence=None, language=None, with_names=False)
    handed = AutoModelForTokenClassification.from_pretrained(tmp_path / "out")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in handed.state_dict().items())
    with refused(ConfigurationError, "not_found", at="--adapter", values=["flora"]):
        export(result, tmp_path / "apart", licence=None, language=None, with_names=False, keep_adapter=True)


def test_what_was_merged_is_gone_when_the_shared_model_is_put_back(tmp_path: Path) -> None:

    few = (*FLORA, "federation.rounds=1", "data.synthetic.notes=6")
    run = opened(tmp_path / "run", *few)
    run.execute()
    model, fresh = run.experiment.model, prepared(*few).model
    everything = (*fresh.layout.all, *fresh.layout.frozen)
    assert model.is_changed(model.layout.frozen)
    model.train_only(())
    model.restore()
    assert model.fingerprint(everything) == fresh.fingerprint(everything)

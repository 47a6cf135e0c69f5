"""The server's own documents: a loss that is the task's, of a model that is then as it was."""

from __future__ import annotations

import pytest
import torch
from support import TINY, RunTiny, refused, silent

from fedstrata.core.errors import TrainingError
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Plan
from fedstrata.engine.cohort import RoundCohort
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.run_folder import open_run
from fedstrata.train.evaluate import mean_loss

LORA = (
    "method={name: fedmedlora_plus}",
    "adapter={kind: lora, rank: 2}",
    "data.split.server=5",
    "data.synthetic.notes=18",
    "federation.floors=false",
)


@pytest.fixture
def cohort(tmp_path) -> RoundCohort:
    run = open_run(read_source(None, [*TINY, *LORA]), tmp_path / "run", silent, resume=False)
    return run._cohort(1, run.engine.clients())


def naive_loss(experiment: Experiment, tensors: dict[str, torch.Tensor]) -> float:
    """Document by document, on a model of its own."""
    model, task = experiment.model, experiment.task
    model.load(tensors)
    model.module.train(False)
    total = terms = 0.0
    with torch.no_grad():
        for document in experiment.server:
            for example in task.encode([document], model.tokenizer):
                loss, count = task.loss(model.module, task.collate([example]))
                total, terms = total + float(loss), terms + float(count)
    return total / terms


def test_a_mean_over_records_counts_each_example_once_and_there_is_none_of_nothing() -> None:
    experiment = prepare(read_source(None, [*TINY, *LORA]))
    model, task, training = experiment.model, experiment.task, experiment.settings.training
    examples = task.encode(experiment.server, model.tokenizer)
    with torch.no_grad():
        losses = [float(task.loss(model.module, task.collate([example]))[0]) for example in examples]
    found = mean_loss(model, task, examples, training, "records")
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    with refused(TrainingError, "not_enough_data", values=["0 examples"]):
        mean_loss(model, task, [], training)


def test_a_loss_is_that_of_the_shared_model_and_leaves_it_and_the_updates_as_they_were(
    cohort: RoundCohort,
) -> None:
    model = cohort.model
    state = cohort.method.start(model)
    other = {name: tensor + 1 for name, tensor in state.tensors.items()}
    apart = prepare(read_source(None, [*TINY, *LORA]))
    everything = (*model.layout.all, *model.layout.frozen)
    for _, update in cohort.each("train", lambda _: Plan(state.tensors)):
        before = model.snapshot(everything)
        sent = {name: tensor.clone() for name, tensor in update.tensors.items()}
        found = cohort.server_loss(update.tensors)
        assert found == pytest.approx(naive_loss(apart, sent), rel=1e-4)
        assert cohort.server_loss(update.tensors) == found != cohort.server_loss(other)
        assert cohort.server_loss(dict(list(other.items())[:1])) > 0  # the others at their base values
        assert all(torch.equal(each, before[name]) for name, each in model.tensors(everything).items())
        assert all(torch.equal(each, sent[name]) for name, each in update.tensors.items())
    model.restore()
    fresh = prepare(read_source(None, [*TINY, *LORA])).model
    assert model.fingerprint(model.layout.all) == fresh.fingerprint(fresh.layout.all)


@pytest.mark.slow
def test_trying_models_does_not_change_how_clients_train(run_tiny: RunTiny, monkeypatch) -> None:
    once = (*LORA, "federation.rounds=1", "adapter.dropout=0.1")
    one = run_tiny(*once, out="one")
    monkeypatch.setattr(RoundCohort, "server_loss", lambda self, tensors, over: 1.0)
    other = run_tiny(*once, out="other")
    losses = [[event["loss"] for event in run.of("client")] for run in (one, other)]
    assert losses[0] == losses[1]


def test_the_time_it_takes_is_scoring_and_no_training(run_once: RunTiny) -> None:
    run = run_once(*LORA, "federation.rounds=1", "federation.evaluate_every=9")
    (event,) = run.of("round")
    assert event["evaluate_seconds"] > 0
    assert event["train_seconds"] + event["evaluate_seconds"] <= event["seconds"]


def test_a_model_without_a_finite_loss_is_lost_to_the_round(run_once: RunTiny) -> None:
    hostile = "federation.corrupt={share: 0.3, kind: scale, strength: 1.0e30}"
    run = run_once(*LORA, hostile, "federation.min_clients=2", "federation.rounds=1")
    (lost,) = run.of("client_failed")  # with too few left, the round ends (test_failures)
    assert lost["client"] in run.summary["corrupt"]["clients"]
    assert "loss of nan" in lost["message"]
    assert len(run.summary["state"]["influence"]) == 2
    assert all(torch.isfinite(tensor).all() for tensor in run.state.tensors.values())

"""FedAvg in pfl: `SimulatedBackend`, in one process a rank of `torch.distributed.run`.

python -m torch.distributed.run --standalone --nproc_per_node PROCESSES pfl_fedavg.py
"""

from __future__ import annotations

import itertools
import os
import types
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchDataDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from workload import (
    BATCH_SIZE,
    LEARNING_RATE,
    ROUNDS,
    SCORED_BATCH_SIZE,
    collate,
    examples_of,
    loss_of,
    mark,
    new_model,
    new_optimizer,
    schedule,
    score,
    sizes,
)

RANK, PROCESSES = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def loss(self: nn.Module, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """What pfl asks a module for in a step."""
    self.train()
    return loss_of(self, tokens, mask, labels)


def metrics(self: nn.Module, tokens: Tensor, mask: Tensor, labels: Tensor) -> dict[str, Weighted]:
    """What pfl asks a module for where it evaluates, which it never does here."""
    with torch.no_grad():
        total = float(loss_of(self.eval(), tokens, mask, labels)) * len(labels)
    return {"loss": Weighted(total, len(labels))}


class Mark(TrainingProcessCallback):
    """Marks the end of every round."""

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """Says that training goes on."""
        if RANK == 0:
            mark("round")
        return False, Metrics()


def data_of(client: int) -> PyTorchDataDataset:
    """Returns a client's data."""
    return PyTorchDataDataset(examples_of(client), user_id=str(client), shuffle=True, collate_fn=collate)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(RANK)
    module: Any = new_model()
    module.loss, module.metrics = types.MethodType(loss, module), types.MethodType(metrics, module)
    model = PyTorchModel(
        module,
        local_optimizer_create=new_optimizer,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    order = itertools.cycle(itertools.chain.from_iterable(schedule()))
    clients = FederatedDataset(data_of, lambda: next(order), user_id_to_weight=dict(enumerate(sizes())))
    backend = SimulatedBackend(training_data=clients, val_data=clients, postprocessors=[WeightByDatapoints()])
    if RANK == 0:
        mark("ready")
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=10**6,
            train_cohort_size=len(schedule()[0]),
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=LEARNING_RATE, local_num_epochs=1, local_batch_size=BATCH_SIZE
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=SCORED_BATCH_SIZE),
        callbacks=[Mark()],
    )
    if RANK == 0:
        score(module, PROCESSES)


if __name__ == "__main__":
    main()

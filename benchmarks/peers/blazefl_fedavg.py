"""FedAvg in BlazeFL: its own server, and its pool of processes or of threads.

python blazefl_fedavg.py processes|threads PARALLEL FOLDER
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from blazefl.contrib.fedavg import (
    FedAvgBaseServerHandler,
    FedAvgProcessPoolClientTrainer,
    FedAvgProcessPoolUplinkPackage,
    FedAvgThreadPoolClientTrainer,
    FedAvgUplinkPackage,
)
from blazefl.core import IPCMode, deserialize_model, serialize_model
from torch import Tensor, nn
from torch.utils.data import DataLoader
from workload import (
    BATCH_SIZE,
    LEARNING_RATE,
    ROUNDS,
    collate,
    examples_of,
    mark,
    new_model,
    schedule,
    score,
    sizes,
    train,
)


class Data:
    """The clients' data, as BlazeFL asks for them."""

    def set_dataset(self, **_: Any) -> None:
        """Keeps nothing: a client's data do not change."""

    def get_dataloader(
        self, type_: Any, cid: int, batch_size: int, generator: torch.Generator | None = None
    ) -> DataLoader[Any]:
        """Returns what a client's local training goes through."""
        examples: Any = examples_of(cid)  # a list is what it takes
        return DataLoader(
            examples, batch_size=batch_size, shuffle=True, collate_fn=collate, generator=generator
        )


class Models:
    """Gives out copies of the model."""

    def __init__(self) -> None:
        self.model = new_model()

    def select_model(self, name: str) -> nn.Module:
        """Returns a copy."""
        return copy.deepcopy(self.model)


def fitted(model: nn.Module, parameters: Tensor, loader: DataLoader[Any]) -> tuple[Tensor, int]:
    """Trains a client's model; returns its parameters, and the number of its examples."""
    torch.set_num_threads(1)
    deserialize_model(model, parameters)
    _, count = train(model, iter(loader))
    return serialize_model(model), count


class Threads(FedAvgThreadPoolClientTrainer):
    """Clients in threads."""

    def train(self, *, model: Any, model_parameters: Any, train_loader: Any, cid: int, **_: Any) -> Any:
        """Trains a client in a thread of the pool."""
        return FedAvgUplinkPackage(cid, *fitted(model, model_parameters, train_loader))


def in_process(*, model: Any, model_parameters: Any, train_loader: Any, cid: int, **_: Any) -> Any:
    """Trains a client in a process of the pool."""
    return FedAvgProcessPoolUplinkPackage(cid, *fitted(model, model_parameters, train_loader))


FedAvgProcessPoolClientTrainer.train = staticmethod(in_process)  # its workers call it by its class


class Server(FedAvgBaseServerHandler):
    """Trains the clients that all systems train."""

    def sample_clients(self) -> list[int]:
        """Returns the clients of the round."""
        return schedule()[self.round]


def main() -> None:
    kind, parallel, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    models, data, clients = Models(), Data(), len(sizes())
    share = len(schedule()[0]) / clients
    server = Server(models, "bert", data, ROUNDS, clients, share, "cpu", BATCH_SIZE, 0)
    arguments = {
        "model_selector": models,
        "model_name": "bert",
        "dataset": data,
        "device": "cpu",
        "num_clients": clients,
        "epochs": 1,
        "batch_size": BATCH_SIZE,
        "lr": LEARNING_RATE,
        "seed": 0,
        "num_parallels": parallel,
    }
    trainer = (
        Threads(**arguments)
        if kind == "threads"
        else FedAvgProcessPoolClientTrainer(
            **arguments,
            share_dir=folder / "shared",
            state_dir=folder / "states",
            ipc_mode=IPCMode.SHARED_MEMORY,
        )
    )
    mark("ready")
    while not server.if_stop():
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for package in trainer.uplink_package():
            server.load(package)
        mark("round")
    score(server.model, parallel)


if __name__ == "__main__":
    main()

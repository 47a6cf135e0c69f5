"""FedAvg in Flower: its simulation engine on Ray, with one core an actor.

python flower_fedavg.py PROCESSES
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import MessageType
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.simulation import run_simulation
from torch import nn
from workload import ROUNDS, batches_of, examples_of, mark, new_model, schedule, score, sizes, train

client_app, server_app = ClientApp(), ServerApp()


@cache
def model_here() -> nn.Module:
    """Returns the model of this process, which is loaded once."""
    torch.set_num_threads(1)
    return new_model()


@client_app.train()
def fit(message: Message, context: Context) -> Message:
    """A client's round."""
    model, config = model_here(), message.content["config"]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    seed = 1000 * config["server-round"] + config["client"]
    torch.manual_seed(seed)
    loss, count = train(model, batches_of(examples_of(config["client"]), seed))
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"loss": loss, "num-examples": count}),
        }
    )
    return Message(content=content, reply_to=message)


class Scheduled(FedAvg):
    """Flower's FedAvg, over the clients that all systems train."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Grid) -> Iterable[Message]:
        """Returns the orders of a round."""
        clients = schedule()[server_round - 1]
        nodes, _ = sample_nodes(grid, len(sizes()), len(clients))
        return [
            Message(
                content=RecordDict(
                    {
                        "arrays": arrays,
                        "config": ConfigRecord({"server-round": server_round, "client": client}),
                    }
                ),
                message_type=MessageType.TRAIN,
                dst_node_id=node,
            )
            for node, client in zip(nodes, clients, strict=True)
        ]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Averages what came back."""
        result = super().aggregate_train(server_round, replies)
        mark("round")
        return result


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """The server's half."""
    model = new_model()
    mark("ready")
    strategy = Scheduled(
        fraction_train=len(schedule()[0]) / len(sizes()),
        fraction_evaluate=0.0,
        min_available_nodes=len(sizes()),
    )
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=ROUNDS)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    score(model, int(sys.argv[1]))


def main() -> None:
    # By the name under which Ray's actors import it; what is the script's own would travel in each message.
    from flower_fedavg import client_app, server_app  # noqa: PLC0415

    resources = {
        "init_args": {"num_cpus": int(sys.argv[1])},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server_app, client_app, num_supernodes=len(sizes()), backend_config=resources)


if __name__ == "__main__":
    main()

"""Looking at a model's gradients without a step: what decides how deep to train."""

from itertools import islice

import torch
from torch import Tensor

from fedstrata.core.client import Client
from fedstrata.core.cohort import Cohort
from fedstrata.core.errors import TrainingError
from fedstrata.core.model import Layout
from fedstrata.core.seeding import Seed
from fedstrata.core.types import Plan, Update
from fedstrata.train.batches import training_batches
from fedstrata.train.local import accumulate, block_gradient_norms, update_of
from fedstrata.train.work import counting

NORMS = "block_gradient_norms"
"""The name of a probe's tensor in an update, and of its mean in a state."""


def asked_norms(cohort: Cohort) -> list[float]:
    """Returns the weighted mean of what clients report by `send_norms`, lowest block first."""
    norms: list[float] = cohort.mean("probe", lambda _: Plan()).tensors[NORMS].tolist()
    return norms


def norms_of(layout: Layout) -> dict[str, Tensor]:
    """Returns what a client reports of a model by `send_norms`, without values."""
    return {NORMS: torch.empty(len(layout.blocks), device="meta")}


def send_norms(client: Client, batches: int, rng: Seed) -> Update:
    """Returns the update by which a client reports the L2 norm of every block's gradient.

    It is averaged over batches: (blocks,) float32, lowest first. The gradient is that of each batch's mean
    loss, in evaluation mode, so that dropout adds no noise. Nothing changes but which parameters train.

    Args:
        client: The client.
        batches: How many batches at most; fewer where the client has fewer.
        rng: Seed of the order of the examples.

    Raises:
        TrainingError: A norm is not finite.
    """
    model = client.model
    blocks = [model.parameters(names) for names in model.layout.blocks]
    names = [name for own in model.layout.blocks for name in own]
    model.train_only(names)
    model.module.train(False)
    everything = [parameter for block in blocks for parameter in block]
    norms, tally = [], counting(client, names, steps=False)
    for batch in islice(training_batches(client, rng), batches):
        accumulate(client, [batch], everything, tally=tally)
        norms.append(torch.tensor([norm or 0.0 for norm in block_gradient_norms(blocks)]))
        for parameter in everything:
            parameter.grad = None
    mean = torch.stack(norms).mean(dim=0).cpu()
    if not bool(torch.isfinite(mean).all()):
        message = f"client {client.id}: the gradient of the model it began with is not finite"
        raise TrainingError(message, code="diverged")
    return update_of(client, {NORMS: mean})

"""What an update changes a model by: what all attacks on updates look at."""

from torch import Tensor

from fedstrata.core.types import Tensors
from fedstrata.models.state import Model


def change_of(model: Model, update: Tensors, *, changes: bool) -> dict[str, Tensor]:
    """Returns what parameters of a model are changed by, float32; what else an update holds is left out.

    Args:
        model: The model, with the values of the plan.
        update: What was sent.
        changes: Whether that are changes already (`Method.sends_changes`).
    """
    known = model.tensors(model.layout.all)
    return {
        name: tensor.float() if changes else tensor.float() - known[name].float().to(tensor.device)
        for name, tensor in update.items()
        if name in known and tensor.is_floating_point() and tensor.shape == known[name].shape
    }

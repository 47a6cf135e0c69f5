"""What an update changes a model by: what all attacks on updates look at."""

from torch import Tensor

from fedstrata.adapters.rank import pad
from fedstrata.core.types import Tensors
from fedstrata.models.state import Model


def load_plan(model: Model, plan: Tensors) -> None:
    """Loads what came with a plan, as a client does; adapters that were cut to its rank are padded."""
    known = model.tensors(model.layout.all)
    model.load(pad({name: tensor for name, tensor in plan.items() if name in known}, known))


def change_of(model: Model, update: Tensors, *, changes: bool) -> dict[str, Tensor]:
    """Returns what parameters of a model are changed by, float32; what else an update holds is left out.

    Args:
        model: The model, with the values of the plan.
        update: What was sent, of adapters as many ranks as the client has.
        changes: Whether that are changes already (`Method.sends_changes`).
    """
    known = model.tensors(model.layout.all)
    sent = {
        name: own
        for name, own in update.items()
        if name in known and own.is_floating_point() and _fits(own, known[name])
    }
    return {
        name: tensor.float() if changes else tensor.float() - known[name].float().to(tensor.device)
        for name, tensor in pad(sent, known).items()
    }


def _fits(own: Tensor, whole: Tensor) -> bool:
    """Whether a tensor is a parameter, or as much of it as an adapter of a smaller rank has."""
    return own.ndim == whole.ndim and all(
        one <= all_of_it for one, all_of_it in zip(own.shape, whole.shape, strict=True)
    )

"""Low-rank adapters stacked, and added to the weights that they adapt.

A weighted sum of products is one product, whose rank is the sum of theirs (Wang et al. 2024, "FLoRA", section
3): sum_k p_k B_k A_k = [p_1 B_1, ..., p_K B_K] [A_1; ...; A_K], exactly, whatever the single ranks. The mean
of the B_k times that of the A_k is something else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedstrata.adapters.rank import is_first_factor


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """A linear layer with a LoRA.

    Attributes:
        weight: Name of its own weight, (out, in), or (in, out) if it is transposed.
        first: Name of A, (rank, in).
        second: Name of B, (out, rank).
        scale: What B A is multiplied with, alpha / rank.
        transposed: Whether the layer multiplies by its weight as it is, like GPT-2's.
    """

    weight: str
    first: str
    second: str
    scale: float
    transposed: bool


def adapted_layers(module: nn.Module) -> list[AdaptedLayer]:
    """Returns the layers of PEFT's wrapper that have a LoRA, in model order."""
    return [
        AdaptedLayer(
            f"{path}.base_layer.weight",
            f"{path}.lora_A.default.weight",
            f"{path}.lora_B.default.weight",
            float(layer.scaling["default"]),
            bool(getattr(layer, "fan_in_fan_out", False)),
        )
        for path, layer in module.named_modules()
        if "default" in getattr(layer, "lora_A", {})
    ]


def stacked(adapters: Sequence[tuple[float, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Returns one adapter whose products are the weighted sums of others' products.

    Args:
        adapters: The weight p_k of each, and its A and B by name; at least one. Ranks may differ.

    Returns:
        Every A_k under the one before, and p_k B_k to the right of the one before, float32 on the CPU.
    """
    result = {}
    for name in adapters[0][1]:
        first = is_first_factor(name)
        parts = [own[name].float().cpu() * (1.0 if first else weight) for weight, own in adapters]
        result[name] = torch.cat(parts, dim=0 if first else 1)
    return result


def with_product(weight: Tensor, adapter: Mapping[str, Tensor], layer: AdaptedLayer) -> Tensor:
    """Returns a layer's weight with scale B A added, computed in float32, in its own dtype and place.

    Args:
        weight: As `AdaptedLayer.weight` says.
        adapter: A and B of the layer, of any rank, by name.
        layer: Which layer it is.
    """
    first, second = (adapter[name].to(weight.device).float() for name in (layer.first, layer.second))
    product = second @ first
    total = (product.T if layer.transposed else product).mul(layer.scale).add(weight.float())
    return total.to(weight.dtype)


def fresh(tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """Returns adapters that change nothing yet: A drawn as PEFT draws it, B zero.

    Args:
        tensors: A and B by name, for their shapes and dtypes.
        generator: On the CPU; what it draws depends on the order of the names.
    """
    result = {}
    for name, tensor in tensors.items():
        result[name] = torch.zeros(tensor.shape, dtype=tensor.dtype)
        if is_first_factor(name):
            nn.init.kaiming_uniform_(result[name], a=5**0.5, generator=generator)
    return result

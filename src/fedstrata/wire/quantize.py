"""Hidden states and gradients in 8 bits: one scale a token.

A token's numbers are divided by a 127th of its largest and rounded, so that each is off by at most a 254th of
the token's largest. With a hidden size of 4096 that is 4100 bytes a token instead of 16384 in float32 or 8192
in bfloat16. One scale for all tokens would not do: some tokens' hidden states are hundreds of times larger
than others' (Dettmers et al. 2022, "LLM.int8()").
"""

import torch
from torch import Tensor

LARGEST = 127


def quantize(states: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds to 8 bits.

    Args:
        states: (..., hidden), of any floating point.

    Returns:
        The rounded numbers, (..., hidden) int8, and each token's scale, (..., 1) float32. A token with a
        number that is not finite keeps none: its scale is NaN, so that it does not pass for a small one.
    """
    whole = states.detach().float()
    scales = whole.abs().amax(dim=-1, keepdim=True) / LARGEST
    scales = torch.where(scales.isfinite(), scales, torch.nan)
    rounded = torch.where(scales > 0, whole / scales, 0.0).round()
    return rounded.to(torch.int8), scales


def dequantize(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns what `quantize` was given, rounded, in this dtype."""
    return (values.float() * scales).to(dtype)


def relative_error(states: Tensor, values: Tensor, scales: Tensor) -> float:
    """Returns the norm of what rounding changed over the norm of the states; 0 where there is nothing."""
    whole = states.detach().float()
    norm = float(whole.norm())
    return float((dequantize(values, scales, torch.float32) - whole).norm()) / norm if norm else 0.0

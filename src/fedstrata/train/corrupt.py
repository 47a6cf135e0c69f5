"""What a corrupt client does to its change, right after its training (`federation.corrupt`).

Whatever a method sends later - tensors, or a sketch of them - is then corrupt in the same way.

- `sign_flip`: the change times -strength.
- `scale`: the change times strength.
- `gaussian`: in place of each tensor's change independent normal noise whose standard deviation is strength
  times the root mean square of that change. The root mean square is the standard deviation about zero: it
  exists for a tensor of one number too, and noise of strength 1 is as long as the change it stands for, so
  that no rule can tell it by its norm.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedstrata.core.seeding import Seed
from fedstrata.core.settings.federation import CorruptSettings


@torch.no_grad()
def distort(
    after: Mapping[str, Tensor], before: Mapping[str, Tensor], corrupt: CorruptSettings, rng: Seed
) -> None:
    """Changes trained tensors in place.

    Args:
        after: The live tensors by name, as training left them.
        before: The same as they were when training began.
        corrupt: What is done to their difference.
        rng: Seed of the noise.
    """
    strength = corrupt.strength_used or 1.0
    for name, tensor in after.items():
        change = tensor - before[name]
        if corrupt.kind == "gaussian":
            size = change.float().square().mean().sqrt()
            noise = torch.randn(change.shape, generator=rng.child(name).torch())
            change = (noise.to(change.device) * size * strength).to(change.dtype)
        else:
            change *= -strength if corrupt.kind == "sign_flip" else strength
        tensor.copy_(before[name] + change)

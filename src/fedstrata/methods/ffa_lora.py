"""FFA-LoRA: the first factor of each low-rank adapter is frozen at its random values, the second is averaged.

Source: Sun et al. 2024, "Improving LoRA in Privacy-preserving Federated Learning", section 4.
Travels: B of every adapted layer and the task head, both ways: about half of what FedLoRA sends. A never: the
    seed of the run gives it to everybody.
Server half: FedLoRA's; the weighted mean of B times A is exactly the mean of all B A.
Client half: local training of B and the head.
Reduces to: LoRA with a frozen A when there is one client.
Deviations: A is drawn as PEFT draws it (uniform, Kaiming), and the head trains. The differential privacy that
    the paper is about is none of this card.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from fedstrata.adapters.rank import is_first_factor
from fedstrata.core.model import Layout
from fedstrata.methods.averaging import Averaging
from fedstrata.methods.medlora import USUAL_ADAPTER


class FFALoRA(Averaging):
    """The method; see the module's docstring. The adapter has settings of its own, `adapter`."""

    name: Literal["ffa_lora"] = "ffa_lora"
    travels: ClassVar[str] = "B of the low-rank adapters and the head, both ways; A is frozen"
    adapters: ClassVar[tuple[str, ...]] = ("lora",)
    usual_adapter: ClassVar[Mapping[str, float]] = USUAL_ADAPTER

    def trainable(self, layout: Layout) -> tuple[str, ...]:
        """B, which is zero at first, and the head."""
        return tuple(name for name in layout.all if not is_first_factor(name))

"""FedSA-LoRA: of each low-rank adapter the first factor is shared, the second stays with its client.

Source: Guo et al. 2025, "Selective Aggregation for Low-Rank Adaptation in Federated Learning", section 3; a
    baseline of Fed-MedLoRA, Table 4.
Travels: A of every adapted layer, both ways: about half of what FedLoRA sends.
Server half: the weighted mean of A; n_k counts training examples (for NER: windows). `aggregation` names
    another rule.
Client half: local training of A, B and the head; B and the head persist in the client's store. Each client
    has a model of its own and is scored with it; global scores are the means over these models.
Reduces to: plain LoRA when there is one client.
Deviations: none; as everywhere here the mean is weighted.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from fedstrata.adapters.rank import is_first_factor
from fedstrata.core.model import Layout
from fedstrata.methods.averaging import Averaging
from fedstrata.methods.medlora import USUAL_ADAPTER


class FedSALoRA(Averaging):
    """The method; see the module's docstring. The adapter has settings of its own, `adapter`."""

    name: Literal["fedsa_lora"] = "fedsa_lora"
    travels: ClassVar[str] = "A of the low-rank adapters, both ways; B and the head stay"
    adapters: ClassVar[tuple[str, ...]] = ("lora",)
    usual_adapter: ClassVar[Mapping[str, float]] = USUAL_ADAPTER
    personal: ClassVar[bool] = True  # every client has a B and a head of its own

    def private(self, layout: Layout) -> tuple[str, ...]:
        """B and the head."""
        return tuple(name for name in layout.all if not is_first_factor(name))

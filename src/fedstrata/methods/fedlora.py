"""FedLoRA: FedAvg over low-rank adapters; the model itself is frozen and stays where it is.

Source: Zhang et al. 2023, "FedPETuning", section 3; the "FedLoRA" rows of DropPEFT; the adapters are those of
    Hu et al. 2022, "LoRA", equation 3.
Travels: A and B of every adapted layer and the task head, both ways. With rank 8 in all linear layers of
    LLaMA-3.2-1B that is 0.5 % of the model.
Server half: the weighted means of A and of B, each by itself; n_k counts training examples (for NER:
    windows). `aggregation` names another rule.
Client half: local training of the adapter and the head.
Reduces to: plain LoRA when there is one client.
Deviations: none. The product of two means is not the mean of the products; `flora` and `ffa_lora` are about
    that.
"""

from typing import ClassVar, Literal

from fedstrata.methods.averaging import Averaging


class FedLoRA(Averaging):
    """The method; see the module's docstring. The adapter has settings of its own, `adapter`."""

    name: Literal["fedlora"] = "fedlora"
    travels: ClassVar[str] = "the low-rank adapters and the head, both ways"
    adapters: ClassVar[tuple[str, ...]] = ("lora",)

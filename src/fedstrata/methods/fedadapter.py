"""FedAdapter: FedAvg over bottleneck adapters; the model itself is frozen and stays where it is.

Source: Zhang et al. 2023, "FedPETuning", section 3; the "FedAdapter" rows of DropPEFT; the adapters are those
    of Houlsby et al. 2019, figure 2.
Travels: the two matrices and biases of every adapter, two adapters a block, and the task head, both ways.
Server half: weighted mean; n_k counts training examples (for NER: windows). `aggregation` names another rule.
Client half: local training of the adapters and the head.
Reduces to: plain adapter tuning when there is one client.
Deviations: Houlsby's adapters stand behind the dropout of a sublayer and also train its norm; here they stand
    before the dropout and the norm is frozen, as in the federated literature (OpenDelta).
"""

from typing import ClassVar, Literal

from fedstrata.methods.averaging import Averaging


class FedAdapter(Averaging):
    """The method; see the module's docstring. The adapter has settings of its own, `adapter`."""

    name: Literal["fedadapter"] = "fedadapter"
    travels: ClassVar[str] = "the bottleneck adapters and the head, both ways"
    adapters: ClassVar[tuple[str, ...]] = ("bottleneck",)

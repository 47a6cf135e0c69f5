"""FedAvg: every client trains the whole model, the server takes the weighted mean.

Source: McMahan et al. 2017, Algorithm 1; the baseline of every paper here.
Travels: the whole model, both ways.
Server half: weighted mean; n_k counts training examples (for NER: windows). `aggregation` names another rule.
Client half: local training of every parameter.
Reduces to: plain training when there is one client.
Deviations: the local optimiser is a setting (AdamW by default) rather than SGD; its state starts anew each
    round.
"""

from typing import Literal

from fedstrata.methods.averaging import Averaging


class FedAvg(Averaging):
    """The method; see the module's docstring."""

    name: Literal["fedavg"] = "fedavg"

"""Centralised training: all data in one place; what federation is measured against.

Source: the "Centralized" row of Layer-Skipping FL, Table II.
Travels: every note, once; no model.
Server half: none; the mean of one model is that model.
Client half: one client holds the pooled training data and trains the whole model.
Reduces to: FedAvg with one client.
Deviations: a "round" is `training.epochs` epochs over the pooled data, so that a run sees as many examples as
    the federated one of the same configuration with every client taking part; like every client's, its
    optimiser starts anew each round.
"""

from typing import ClassVar, Literal

from fedstrata.methods.averaging import LocalTraining


class Centralized(LocalTraining):
    """FedAvg with a single client that holds everything."""

    name: Literal["centralized"] = "centralized"
    travels: ClassVar[str] = "every note, to one place; no model"
    pooled: ClassVar[bool] = True

    def not_private(self, mechanism: str) -> str:
        """There are no clients that could be told apart."""
        return "all data is one client's" if mechanism == "central" else ""

    def not_summed(self) -> str:
        """There is nothing to sum."""
        return "all data is in one place; use fedavg"

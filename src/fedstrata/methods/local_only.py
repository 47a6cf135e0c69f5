"""Local-only: every client trains alone; the floor that federation must beat.

Source: the "Local-only" row of Layer-Skipping FL, Table II.
Travels: no tensors; an update carries the client's loss only.
Server half: none; there is nothing to average.
Client half: local training of the whole model, which persists in the client's store.
Reduces to: plain training on one client's data.
Deviations: none. "Global" scores of a run are the mean, over clients, of each client's model on everybody's
    test data.
"""

from typing import ClassVar, Literal

from fedstrata.core.model import Layout
from fedstrata.methods.averaging import LocalTraining


class LocalOnly(LocalTraining):
    """The method; see the module's docstring."""

    name: Literal["local_only"] = "local_only"
    travels: ClassVar[str] = "nothing but a loss"
    personal: ClassVar[bool] = True  # every client has a model of its own

    def not_private(self, mechanism: str) -> str:
        """Nothing that could be noised comes to the server."""
        return "nothing of its clients is merged" if mechanism == "central" else ""

    def not_summed(self) -> str:
        """Nothing comes to the server but a loss."""
        return "nothing of its clients is merged; leave privacy.secure_aggregation out"

    def private(self, layout: Layout) -> tuple[str, ...]:
        """All that trains."""
        return self.trainable(layout)

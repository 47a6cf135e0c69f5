"""FedPer: the body is shared, each client keeps a head of its own.

Source: Arivazhagan et al. 2019, "Federated Learning with Personalization Layers", Algorithms 1 and 2; the
    "FedPer" row of Layer-Skipping FL, Table I.
Travels: everything but the head (and the personal blocks, if any), both ways.
Server half: FedAvg's, over the body.
Client half: local training of the whole model; the personal part persists in the client's store.
Reduces to: Layer-Skipping FL with every block and a local head, at `personal_blocks: 0`.
Deviations: the paper trains with SGD and counts its personalisation layers K_P from the classifier down, so
    its K_P is `personal_blocks` + 1 here.
"""

from typing import ClassVar, Literal

from pydantic import Field

from fedstrata.core.model import Layout
from fedstrata.methods.averaging import Averaging
from fedstrata.policies.share import personal_top


class FedPer(Averaging):
    """The method; see the module's docstring."""

    name: Literal["fedper"] = "fedper"
    personal_blocks: int = Field(
        default=0, ge=0, description="Number of top blocks that stay local to each client, with the head."
    )
    travels: ClassVar[str] = "everything but the head and the personal blocks, both ways"
    personal: ClassVar[bool] = True  # every client has a head of its own

    def private(self, layout: Layout) -> tuple[str, ...]:
        """The head and the blocks that are personal."""
        return personal_top(layout, self.personal_blocks, setting="method.personal_blocks")

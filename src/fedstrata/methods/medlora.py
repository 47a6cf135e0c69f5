"""What the methods of Fed-MedLoRA share: their adapter, which others take too, and the printed formulas."""

import logging
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedstrata.adapters.rank import is_lora
from fedstrata.core.model import Model
from fedstrata.core.types import State
from fedstrata.methods.averaging import LocalTraining

logger = logging.getLogger(__name__)

USUAL_ADAPTER: Mapping[str, float] = {"rank": 16, "alpha": 64, "dropout": 0.05}
"""The paper's adapter where none is named: of its methods, FedSA-LoRA, FFA-LoRA and FLoRA."""


class MedLoRA(LocalTraining):
    """Base of both methods of the paper."""

    literal: bool = Field(
        default=False,
        description="Use the formulas as printed, which divide the mean adapters by the number of sites "
        "of a round a second time.",
    )
    travels: ClassVar[str] = "the low-rank adapters and the head, both ways"
    adapters: ClassVar[tuple[str, ...]] = ("lora",)
    usual_adapter: ClassVar[Mapping[str, float]] = USUAL_ADAPTER

    def start(self, model: Model) -> State:
        """The adapter, which changes nothing yet, and the head."""
        if self.literal:
            what = "each round divides A and B by its number of sites, and their product by the square of it"
            logger.warning("%s: with method.literal %s", self.name, what)
        return super().start(model)

    def as_printed(self, tensors: Mapping[str, Tensor], sites: int) -> Mapping[str, Tensor]:
        """Returns merged tensors; `literal` with A and B of every LoRA divided by m, the sites of a round."""
        if not self.literal:
            return tensors
        return {name: tensor / sites if is_lora(name) else tensor for name, tensor in tensors.items()}

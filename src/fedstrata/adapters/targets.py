"""Which layers of a model's blocks an adapter is added to."""

import re
from collections.abc import Sequence
from typing import Literal

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from transformers.pytorch_utils import Conv1D

from fedstrata.core.errors import ConfigurationError, Problem, refused
from fedstrata.core.model import Layout
from fedstrata.models.blocks import FAMILIES, block_modules, family_of, transformers_model

NONE = "dummy-target-modules"
"""What PEFT takes for no layer at all (its `DUMMY_TARGET_MODULES`, which takes seconds to import)."""


def inside_blocks(layout: Layout, blocks: Sequence[int]) -> str:
    """Returns a regular expression for all that lies in some blocks, as PEFT takes it."""
    return rf"{re.escape(layout.blocks_path)}\.(?:{'|'.join(map(str, blocks))})\..*"


def linear_layers(
    module: nn.Module, layout: Layout, targets: Literal["all-linear"] | Sequence[str] | None
) -> str:
    """Returns a regular expression for linear layers inside the blocks, as PEFT takes it.

    Args:
        module: The model.
        layout: Its layout.
        targets: The ends of their names, or all; if none those of the family that bottleneck adapters follow.

    Raises:
        ConfigurationError: No layer has such a name, there is none at all, or the family is not known and
            they must be named.
    """
    there = _linear_names(module, layout)
    if targets is None:
        found = _sublayer_ends(module, there)
    elif targets == "all-linear":
        found = there
    else:
        found = _named(there, targets)
    if not found:
        message = "the blocks of this model have no linear layers of their own"
        raise refused("adapter.kind", message, "not_supported")
    inside = "|".join(re.escape(name) for name in found)
    return rf"{re.escape(layout.blocks_path)}\.\d+\.(?:{inside})"


def _sublayer_ends(module: nn.Module, there: Sequence[str]) -> list[str]:
    """Returns the layers that end the parts of a block in the model's family."""
    inner = transformers_model(module)
    usual = [name for name in family_of(inner).sublayer_ends if name in there]
    if not usual:
        message = (
            f"must name the layers that adapters follow, since {inner.config.model_type!r} is none of the "
            f"families known ({', '.join(FAMILIES)}); its blocks have: {', '.join(there)}"
        )
        raise refused("adapter.targets", message, "missing")
    return usual


def _linear_names(module: nn.Module, layout: Layout) -> list[str]:
    """Returns the paths of the linear layers within a block, of all blocks."""
    parts = (part for block in block_modules(module, layout) for part in block.named_modules())
    return list(dict.fromkeys(name for name, part in parts if _is_called(part)))


def _is_called(part: nn.Module) -> bool:
    """Whether something is a linear layer that is called; of that in torch's attention the weight is read."""
    return isinstance(part, nn.Linear | Conv1D) and not isinstance(part, NonDynamicallyQuantizableLinear)


def _named(there: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Returns the layers whose names end in one of these."""
    found = {
        target: [name for name in there if name == target or name.endswith(f".{target}")]
        for target in targets
    }
    problems = [
        Problem(
            "adapter.targets",
            f"{target!r} is the name of no linear layer of this model's blocks, which have: "
            f"{', '.join(there) or 'none'}",
            code="unknown_name",
        )
        for target, names in found.items()
        if not names
    ]
    if problems:
        raise ConfigurationError(problems)
    return list(dict.fromkeys(name for names in found.values() for name in names))

"""Under which name a transformers model takes keys and values: `cache`, and `past_key_values` before 5.24."""

import inspect

from torch import nn

NAMES = ("cache", "past_key_values")
"""The names of the argument, and of the field of a model's output, the newest first."""


def cache_name(model: nn.Module) -> str:
    """Returns the name of the argument that takes keys and values; empty where a model keeps none.

    Since 5.24 the recurrent state of models such as Mamba has the same name. It cannot be divided by rows or
    tokens, so that of a model that has one nothing is kept.

    Args:
        model: A transformers model, or its base model, without a wrapper.
    """
    taken = inspect.signature(model.forward).parameters
    found = next((name for name in NAMES if name in taken), "")
    return "" if found == "cache" and getattr(model, "_is_stateful", False) else found

"""Frozen weights in 4 bits (QLoRA), through bitsandbytes."""

import logging
from typing import Any

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel

from fedstrata.core.errors import refused
from fedstrata.core.settings.model import ModelSettings

# Whoever imports it, PEFT for one, would else be told of faster kernels that lie on the hub.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

QUANTISED_TOGETHER = 64
"""Numbers of a quantised weight that share a scale."""

HEADS = ("lm_head", "embed_out", "score", "classifier", "pre_classifier")
"""The layers that are never quantised, as transformers' families call them: a new head has no weights that
could be, and it trains. transformers' own choice overlooks one that has a bias.
"""


def quantization(settings: ModelSettings) -> dict[str, Any]:
    """Returns what transformers is told of 4-bit weights: NF4 with quantised constants, as QLoRA has them.

    Source: Dettmers et al. 2023, "QLoRA", sections 3.1 and 3.2; computing in bfloat16.

    Raises:
        ConfigurationError: bitsandbytes is not installed, or does not work here.
    """
    if settings.quantization is None:
        return {}
    try:
        import bitsandbytes  # noqa: F401, PLC0415 - an extra
    except (ImportError, OSError, RuntimeError) as error:
        missing = isinstance(error, ModuleNotFoundError)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        what = "is not installed" if missing else f"does not work here: {reason}"
        message = f"needs bitsandbytes, which {what}; pip install 'fedstrata[quantized]', or leave it null"
        raise refused(
            "model.quantization", message, "not_installed" if missing else "not_importable"
        ) from error
    return {
        "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=settings.quantization,
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
            llm_int8_skip_modules=list(HEADS),
        )
    }


def check_quantized(module: PreTrainedModel, settings: ModelSettings) -> None:
    """Refuses layers that bitsandbytes gets wrong, and keeps it from changing the weights of the others.

    Its blocks of 64 numbers must not go over the end of a row: on the processor it then reads other numbers
    than it wrote (0.50.2), without a word.

    Args:
        module: The model.
        settings: Which one it is.

    Raises:
        ConfigurationError: There is such a layer.
    """
    for name, layer in module.named_modules():
        if not hasattr(layer, "support_avx512bf16_for_cpu"):
            continue
        layer.support_avx512bf16_for_cpu = False  # it would pack weights anew when they are first used
        if layer.in_features % QUANTISED_TOGETHER:
            message = (
                f"{settings.quantization!r} needs layers whose input is a multiple of {QUANTISED_TOGETHER} "
                f"wide; {name} of {settings.name!r} has {layer.in_features}"
            )
            raise refused("model.quantization", message, "not_supported")

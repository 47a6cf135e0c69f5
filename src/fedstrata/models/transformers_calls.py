"""Calls of transformers: without its messages, and with its errors as one line about a setting."""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from fedstrata.core.errors import refused

_TRANSFORMERS_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    ImportError,
    RuntimeError,
    StrictDataclassError,
    SafetensorError,
)


@contextmanager
def explained(setting: str, what: str, code: str) -> Iterator[None]:
    """Turns what transformers raises about its input into one line about a setting."""
    try:
        yield
    except _TRANSFORMERS_ERRORS as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        detail = (lines[-1] if isinstance(error, StrictDataclassError) else lines[0]) if lines else ""
        reason = detail if len(detail) <= 300 else f"{detail[:300]}..."
        raise refused(setting, f"{what}: {reason or type(error).__name__}", code) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers' progress bars and warnings; what matters in them is on the `Model` or raised."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()

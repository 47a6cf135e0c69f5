"""Which errors are a client's own, what may be said of them, and what a failure leaves.

Only what can go wrong at one site and not at the next counts as a client's failure: training that diverges,
a damaged frame or store (any `FedstrataError` but a wrong configuration, spent privacy, a method that would
send what was not released, and what a site's policy does not allow), the disk and the network (`OSError`),
and memory. Every other exception is a bug until shown otherwise: it would hit every client, and a run that
took it for an absence would go on without saying what is wrong. It stops the run, whatever
`federation.min_clients` is.
"""

import errno
import gc
import traceback

import torch

from fedstrata.core.errors import (
    BudgetSpentError,
    ConfigurationError,
    FedstrataError,
    NotReleasedError,
    PolicyRefusedError,
)

_OUT_OF_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""How torch words a lack of memory where it raises a plain RuntimeError."""


def is_client_failure(error: Exception) -> bool:
    """Whether a round may go on without the client that raised this.

    Example:
        >>> is_client_failure(OSError(28, "No space left on device")), is_client_failure(KeyError("x"))
        (True, False)
    """
    if isinstance(error, FedstrataError):
        stops = ConfigurationError | BudgetSpentError | NotReleasedError | PolicyRefusedError
        return not isinstance(error, stops)
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY):
        return True
    return isinstance(error, OSError | MemoryError | torch.OutOfMemoryError)


def message_of(error: BaseException) -> str | None:
    """Returns what may be recorded of an error's text: our own; any other may quote a note."""
    return str(error) if isinstance(error, FedstrataError) else None


def kind_of(error: BaseException) -> str:
    """Returns the class of an error and its errno: all that a site sends of it.

    A text may name a path, and a path may name a patient.

    Example:
        >>> kind_of(FileNotFoundError(2, "No such file or directory", "/notes/jane_doe.txt"))
        'FileNotFoundError ENOENT'
    """
    number = error.errno if isinstance(error, OSError) else None  # whatever it was raised with
    known = errno.errorcode.get(number) if isinstance(number, int) else None
    return " ".join(filter(None, (type(error).__name__, known)))


def describe(error: Exception) -> str:
    """Returns an error's kind and what may be shown of its text on the machine where it was raised."""
    told = message_of(error)
    if isinstance(error, OSError):  # the operating system's words, and a path
        told = ": ".join(str(part) for part in (error.strerror, error.filename) if part)
    name = type(error).__name__
    return f"{name}: {told}" if told else name


def release_memory(error: BaseException) -> None:
    """Frees what the frames of a failed training still hold: activations, anchors, the optimiser's state.

    A traceback keeps every local variable alive, and the next client needs the memory.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
    gc.collect()  # optimisers and their schedules refer to each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

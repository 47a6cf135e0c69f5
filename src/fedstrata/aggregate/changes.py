"""The changes of one round, all at once and in bounded memory.

A robust rule compares the clients' changes, `update - plan`, with each other, while updates arrive one at a
time and each is valid until the next. Changes are kept in memory as long as they fit, and the others each in
a file (safetensors) of a temporary folder, of which only slices are read. What is read is the same to the
last bit, wherever it lay.
"""

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import safe_open
from torch import Tensor

from fedstrata.core.errors import TrainingError
from fedstrata.core.files import write_atomically
from fedstrata.core.types import Tensors, Update
from fedstrata.wire import frame

PIECE = 2**20
"""Numbers of a change that are computed at a time: 4 MiB."""
SLICE = 2**21
"""Numbers, of all clients together, that are read at a time: 8 MiB, and twice that in float64."""

Reader: TypeAlias = Callable[[str, int, int], Tensor]
"""Returns the numbers of a flattened tensor from one position up to another, (numbers,) float32."""


def require_weight(update: Update) -> None:
    """Checks that an update can be weighed.

    Raises:
        TrainingError: Its weight is not positive and finite.
    """
    if not (math.isfinite(update.weight) and update.weight > 0):
        raise TrainingError(
            f"an update's weight must be positive and finite, not {update.weight}", code="out_of_range"
        )


class Changes(ExitStack):
    """What the clients of a round changed, float32 and flattened.

    A client whose change is not finite is noted and not kept. The folder, if one was needed, is gone when the
    `with` block ends.

    Args:
        base: What was sent to every client.
        memory: Bytes that may be kept in memory.

    Attributes:
        base: As given.
        weights: n_k of each client that is kept, by its name.
        not_finite: The clients that are not kept.
    """

    def __init__(self, base: Tensors, memory: float) -> None:
        super().__init__()
        self.base = base
        self.weights: dict[str, float] = {}
        self.not_finite: list[str] = []
        self._memory = memory
        self._bytes = 4 * sum(tensor.numel() for tensor in base.values())
        self._readers: dict[str, Reader] = {}
        self.callback(self._readers.clear)
        self._folder: Path | None = None

    @property
    def clients(self) -> list[str]:
        """The clients that are kept, sorted, so that the order in which they came decides nothing."""
        return sorted(self._readers)

    def add(self, client: str, update: Update) -> None:
        """Takes one client's change; the update's tensors may alias live parameters and are not kept.

        Raises:
            TrainingError: It does not hold the tensors that were sent, or not in their shapes; or its weight
                is not positive and finite.
        """
        require_weight(update)
        self._require_same_tensors(client, update)
        if not all(bool(torch.isfinite(piece).all()) for *_, piece in self._pieces(update)):
            self.not_finite.append(client)
            return
        fits = (len(self._readers) + 1) * self._bytes <= self._memory
        self._readers[client] = self._keep(update) if fits else self._spool(update)
        self.weights[client] = update.weight

    def slices(self) -> Iterator[tuple[str, slice, Tensor]]:
        """Yields all changes in slices: the tensor's name, which of its numbers, and (clients, numbers)."""
        readers = [self._readers[client] for client in self.clients]
        step = max(1, SLICE // max(1, len(readers)))
        for name, tensor in self.base.items():
            for start in range(0, tensor.numel(), step):
                stop = min(start + step, tensor.numel())
                yield name, slice(start, stop), torch.stack([read(name, start, stop) for read in readers])

    def _pieces(self, update: Update) -> Iterator[tuple[str, int, Tensor]]:
        """Yields the change in the order of the tensors that were sent: name, position, and the numbers."""
        for name, before in self.base.items():
            old, new = before.reshape(-1), update.tensors[name].reshape(-1)
            for start in range(0, len(old), PIECE):
                part = slice(start, start + PIECE)
                yield name, start, new[part].to(old.device, torch.float32) - old[part].float()

    def _keep(self, update: Update) -> Reader:
        flat = {name: torch.empty(tensor.numel()) for name, tensor in self.base.items()}
        for name, start, piece in self._pieces(update):
            flat[name][start : start + len(piece)] = piece
        return lambda name, start, stop: flat[name][start:stop]

    def _spool(self, update: Update) -> Reader:
        if self._folder is None:
            name = tempfile.TemporaryDirectory(prefix="fedstrata-updates-", ignore_cleanup_errors=True)
            self._folder = Path(self.enter_context(name))
        path = self._folder / f"{len(self._readers)}.safetensors"
        shapes = {name: (torch.float32, (tensor.numel(),)) for name, tensor in self.base.items()}

        def content() -> Iterator[bytes | memoryview]:
            yield frame.head(shapes, {})
            for _, _, piece in self._pieces(update):
                yield piece.numpy().tobytes()

        write_atomically(path, content(), durable=False)
        file = self.enter_context(safe_open(path, "pt"))
        return lambda name, start, stop: file.get_slice(name)[start:stop]

    def _require_same_tensors(self, client: str, update: Update) -> None:
        if update.tensors.keys() != self.base.keys():
            odd = sorted(update.tensors.keys() ^ self.base.keys())[0]
            message = "single updates can be compared only if all hold the tensors that were sent"
            raise TrainingError(
                f"client {client}: tensor {odd} was sent to it or by it and not both; {message}",
                code="not_agreed",
            )
        for name, tensor in update.tensors.items():
            if tensor.shape != self.base[name].shape:
                shapes = f"{tuple(tensor.shape)}, was sent as {tuple(self.base[name].shape)}"
                raise TrainingError(
                    f"client {client}: tensor {name} came back with shape {shapes}", code="wrong_shape"
                )


def add(previous: Tensors, change: Tensors) -> dict[str, Tensor]:
    """Returns `previous` with changes added, each tensor in the shape and dtype it had before.

    Args:
        previous: Values by name.
        change: float32 changes of some of them; may be flattened.
    """
    changed = {
        name: (previous[name].float() + by.view(previous[name].shape)).to(previous[name].dtype)
        for name, by in change.items()
    }
    return {**previous, **changed}

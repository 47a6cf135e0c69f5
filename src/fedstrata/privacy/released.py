"""What private training has released, by hash, and whether what a client sends is made of that alone.

A handler of a method may return any tensors. Under differential privacy at clients, only those may leave that
came out of the noised steps of `fedstrata.train.local.fit`, or that `Method.sends` makes of these. What a
handler does to the model before it trains is not seen here: it is part of what the training begins with.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedstrata.core.errors import NothingReleasedError, NotReleasedError
from fedstrata.core.method import Method
from fedstrata.core.model import Layout
from fedstrata.core.types import Plan, Tensors, Update
from fedstrata.wire import frame


def digest(tensor: Tensor) -> str:
    """Returns the hash of a tensor's dtype, shape and values."""
    facts = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    found = hashlib.sha256(facts)
    found.update(frame.bytes_of(tensor.detach().cpu().contiguous()))
    return found.hexdigest()


@dataclass
class Released:
    """What the private trainings of one turn have released.

    Attributes:
        changes: Whether the changes of what trains count, and not its values (`Method.sends_changes`).
        hashes: The hash of each tensor that was released, by name.
    """

    changes: bool = False
    hashes: dict[str, str] = field(default_factory=dict)
    _before: Tensors = field(default_factory=dict)
    _tensors: dict[str, Tensor] = field(default_factory=dict)

    def begin(self, tensors: Tensors) -> None:
        """Keeps what a training begins with, if its changes count."""
        if self.changes:
            self._before = {name: tensor.float().cpu().clone() for name, tensor in tensors.items()}

    def finish(self, tensors: Tensors) -> None:
        """Takes over what a training has come to, whose steps were all noised."""
        own = dict(tensors)
        if self.changes:
            own = {name: tensor.float().cpu() - self._before[name] for name, tensor in tensors.items()}
        self._before = {}
        self._tensors |= own
        self.hashes |= {name: digest(tensor) for name, tensor in own.items()}

    def require(
        self, method: Method, handler: str, plan: Plan, update: Update, layout: Layout, earlier: set[str]
    ) -> dict[str, str]:
        """Checks that an update holds nothing but what was released, or what follows from it.

        Args:
            method: The method whose handler returned the update.
            handler: Its handler.
            plan: What the client was sent.
            update: What it would send.
            layout: Of its model.
            earlier: The hashes of what was released in this round, and not sent yet.

        Returns:
            The hash of each tensor that was released and is not in the update, by name.

        Raises:
            NothingReleasedError: It holds tensors, and nothing was released.
            NotReleasedError: It holds others than those.
        """
        sent = {name: digest(tensor) for name, tensor in update.tensors.items()}
        if sent and not (self.hashes or earlier):
            message = f"{handler!r} returns {len(sent)} tensors, and no private training has released any"
            raise NothingReleasedError(f"method {method.name}: {message}; nothing was sent")
        left = {
            name: own for name, own in sent.items() if own != self.hashes.get(name) and own not in earlier
        }
        if left and self.hashes:
            due = method.sends(handler, plan, update.values, self._unchanged(), layout)
            left = {name: own for name, own in left.items() if name not in due or _other(due[name], own)}
        if left:
            message = f"{handler!r} returns {len(left)} tensors, {min(left)} for one, that private training"
            raise NotReleasedError(f"method {method.name}: {message} has not released; nothing was sent")
        return {name: own for name, own in self.hashes.items() if sent.get(name) != own}

    def _unchanged(self) -> Mapping[str, Tensor]:
        """Returns what was released, as far as it still is what it was: the model may be used again."""
        return {name: own for name, own in self._tensors.items() if digest(own) == self.hashes[name]}


def _other(tensor: Tensor, hashed: str) -> bool:
    """Whether a tensor that may be sent is another one than that of this hash."""
    return tensor.is_meta or digest(tensor) != hashed

"""Counts the bytes of every frame, by client and direction."""

from collections import Counter
from dataclasses import dataclass, field

from fedstrata.wire.frame import Frame


@dataclass(slots=True)
class Meter:
    """Totals of what travelled in a round.

    Attributes:
        up: Bytes from each client to the server.
        down: Bytes from the server to each client.
        tensors_up: Bytes of each tensor that clients sent, by name; headers are not in it.
        said_up: Those of the bytes up that clients said while they trained, and not as an update.
        said_down: Those of the bytes down that were said to them meanwhile.
    """

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    tensors_up: Counter[str] = field(default_factory=Counter)
    said_up: int = 0
    said_down: int = 0

    def count_down(self, client: str, frame: Frame) -> int:
        """Counts a plan and returns its bytes."""
        self.down[client] += frame.nbytes
        return frame.nbytes

    def count_up(self, client: str, frame: Frame) -> int:
        """Counts an update and returns its bytes."""
        self.up[client] += frame.nbytes
        self.tensors_up.update(frame.tensor_bytes())
        return frame.nbytes

    def count_said(self, client: str, frame: Frame, *, up: bool) -> None:
        """Counts a message of a conversation."""
        if up:
            self.said_up += frame.nbytes
            self.up[client] += frame.nbytes
            self.tensors_up.update(frame.tensor_bytes())
        else:
            self.said_down += frame.nbytes
            self.down[client] += frame.nbytes

    def exchanges(self) -> dict[str, dict[str, int]]:
        """Returns `bytes_up` and `bytes_down` of every client that took part."""
        return {
            client: {"bytes_up": self.up[client], "bytes_down": self.down[client]} for client in self.down
        }

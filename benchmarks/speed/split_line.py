"""A line between the sides of a divided model, over gRPC on loopback, for measuring what travels.

Hub, membership, services and messages are those of `fedstrata split`. What is here besides is a server that
does nothing but answer, and a line that counts what passes and can send whole attention masks, as systems do
that do not know `fedstrata.split.rows`. Run as a program this file is such a server, for generation: it
writes the address it listens on and ends with its client.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedstrata.core.cut import Cut
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings
from fedstrata.core.types import Message
from fedstrata.models.load import load
from fedstrata.split.divide import middle_of
from fedstrata.split.inference import Answering
from fedstrata.split.kvcache import Sessions
from fedstrata.split.messages import Form
from fedstrata.split.middle import Middle
from fedstrata.train.processor import use_processor
from fedstrata.transport.agreement import Agreement, Conversation
from fedstrata.transport.grpc.hub import GrpcHub
from fedstrata.transport.header import Header, Kind
from fedstrata.wire import frame

if TYPE_CHECKING:
    from fedstrata.core.client import Line
    from fedstrata.core.cohort import Service
    from fedstrata.models.state import Model

CLIENT, LOOPBACK, MASK = "client", "127.0.0.1:0", "mask"
_PATIENCE = 600.0
_SESSIONS = 2**32
"""Bytes for keys and values: more than any size that is measured needs."""


class Unchecked(Agreement):
    """An agreement under which masks may travel too."""

    @property
    def largest(self) -> int:
        """Bytes of the largest message: states of float32 and a mask."""
        states = self.conversation
        assert states is not None  # noqa: S101 - these are what it is for
        return states.rows * states.length * (states.hidden + states.length) * 4 + self.largest_header

    def check(self, kind: Kind, content: frame.Frame) -> None:
        """Lets everything pass."""


class MeasuredLine:
    """A line that counts the bytes of frames; implements `core.client.Line`.

    Args:
        line: The line.
        masks: Whether hidden states that go up have their whole attention mask with them.

    Attributes:
        up: Bytes that were sent.
        down: Bytes that were received.
        last: What was sent last.
    """

    def __init__(self, line: Line, *, masks: bool = False) -> None:
        self._line, self._masks = line, masks
        self.up = self.down = 0
        self.last = Message()

    def send(self, message: Message) -> None:
        """Sends a message, with a mask in place of nothing."""
        if self._masks and "rows" in message.values:
            message = with_mask(message)
        self.last = message
        self.up += frame.size(message)
        self._line.send(message)

    def receive(self) -> Message:
        """Waits for the next message."""
        message = self._line.receive()
        self.down += frame.size(message)
        return message


def with_mask(message: Message) -> Message:
    """Returns hidden states with a mask of (rows, columns, columns) in their form, as a model takes it.

    What stands in it makes no difference to what it costs.
    """
    states = message.tensors["states"]
    rows, columns, _ = states.shape
    mask = torch.zeros(rows, columns, columns, dtype=states.dtype)
    return Message({**message.tensors, MASK: mask}, message.values)


def random_decoder(blocks: int, hidden: int, positions: int) -> Model:
    """Returns a LLaMA-like decoder with random weights, always the same ones."""
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": blocks,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": positions,
        "tie_word_embeddings": True,
    }
    settings = ModelSettings(init="random", tokenizer="mini", config=config)
    return load(settings, kind="causal-lm", seed=Seed(0))


def agreement_for(hidden: int, *, rows: int, length: int, form: Form = "float32") -> Unchecked:
    """Returns what both sides take as agreed."""
    return Unchecked(
        settings={},
        run="measured",
        blocks=0,  # neither how many blocks the model has nor where it is divided matters to the line
        numbers=0,
        trained={},
        conversation=Conversation(Cut(0, 0), form=form, hidden=hidden, rows=rows, length=length),
    )


@contextmanager
def listening(agreement: Agreement) -> Iterator[tuple[GrpcHub, str]]:
    """Gives a hub for one client, and the address it listens on."""
    hub = GrpcHub(lambda client, greeting: agreement, largest=agreement.largest, clients=[CLIENT])
    try:
        yield hub, hub.listen(LOOPBACK)
    finally:
        hub.stop(1.0)


def answer(hub: GrpcHub, service: Service) -> None:
    """Answers until the client has left; masks are received and passed over."""
    while (arrival := hub.receive(_PATIENCE)) is not None:
        if arrival.header is None or arrival.frame is None:
            return
        message = frame.decode(arrival.frame, Message)
        tensors = {name: tensor for name, tensor in message.tensors.items() if name != MASK}
        for client, said in service.hear(arrival.client, Message(tensors, message.values)):
            hub.send(client, Header(Kind.SAID, turn=arrival.header.turn), frame.encode(said))


def add_size(parser: argparse.ArgumentParser) -> None:
    """Adds the options that both sides have."""
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--front", type=int, default=1, help="blocks of the client below the server's")
    parser.add_argument("--back", type=int, default=1, help="blocks of the client above the server's")
    parser.add_argument("--threads", type=int, default=1, help="of each side")


@contextmanager
def answering_process(options: argparse.Namespace, positions: int) -> Iterator[str]:
    """Runs a server for generation in a process of its own; gives its address."""
    size = ("blocks", "hidden", "front", "back", "threads")
    arguments = [part for name in size for part in (f"--{name}", str(getattr(options, name)))]
    command = [sys.executable, str(Path(__file__)), *arguments, "--positions", str(positions)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip() if process.stdout else ""
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_size(parser)
    parser.add_argument("--positions", type=int, required=True)
    options = parser.parse_args()
    use_processor(options.threads)
    cut = Cut(options.front, options.back)
    middle = Middle(middle_of(random_decoder(options.blocks, options.hidden, options.positions), cut), cut)
    agreement = agreement_for(options.hidden, rows=1, length=options.positions)
    with listening(agreement) as (hub, address):
        print(address, flush=True)
        answer(hub, Answering(Sessions(middle, _SESSIONS), "float32", lambda _: cut))


if __name__ == "__main__":
    main()

"""What does a training step of a divided model send?

    python benchmarks/speed/split_wire.py

Takes training steps of a LLaMA-like decoder with random weights through gRPC on loopback, client and server
as two threads, on batches of which every row but the first is padded, in every form on the wire.

- `step_bytes`: bytes of all messages of a step, both ways, as they are handed to gRPC: frames, their headers
  and acknowledgements; the largest of the steps. Float32.
- `four_tensors_bytes`: 4 x rows x columns x hidden size x 4, what they hold.
- `beside_bytes`: what is left of them.
- `tcp_bytes`: all that passed between the two sockets in a step, HTTP/2's own frames with it; the median.
- `mask_bytes_over_length_bytes`: what an attention mask of rows x columns x columns adds to the hidden states
  that go up, over what the lengths of the rows add.
- `masked_step_over_step`: bytes of a step with such masks over those of one with lengths.

Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from split_line import CLIENT, MeasuredLine, agreement_for, answer, listening, random_decoder, with_mask

from fedstrata.client.store import ClientStore
from fedstrata.core.client import Client
from fedstrata.core.cut import Cut
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.types import Message
from fedstrata.split.client_step import Exchange
from fedstrata.split.divide import ends_of, middle_of
from fedstrata.split.ends import Ends
from fedstrata.split.messages import Form
from fedstrata.split.middle import Middle
from fedstrata.split.modes import Sequential
from fedstrata.split.protocol import Course
from fedstrata.split.replica import Replica
from fedstrata.tasks.lm import LanguageModelling
from fedstrata.train.processor import use_processor
from fedstrata.transport.grpc.membership import GrpcMembership
from fedstrata.transport.membership import TurnLine
from fedstrata.wire import frame

FORMS: tuple[Form, ...] = ("float32", "bfloat16", "int8")
ITEM = {"float32": 4, "bfloat16": 2, "int8": 1}


class Counter:
    """Passes bytes on between a client and a server, and counts them."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.passed = [0, 0]
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                server = socket.create_connection(self._target)
                for way, (one, other) in enumerate(((client, server), (server, client))):
                    Thread(target=self._pass, args=(one, other, way), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, way: int) -> None:
        with suppress(OSError):
            while data := one.recv(2**20):
                self.passed[way] += len(data)
                other.sendall(data)

    def close(self) -> None:
        """Accepts no more connections."""
        self._listening.close()


class Steps:
    """One client's training steps through a server, and what they sent."""

    def __init__(self, options: argparse.Namespace, form: Form, *, masks: bool, folder: Path) -> None:
        self._options, self._form, self._masks, self._folder = options, form, masks, folder
        settings = {"training": {"batch_size": options.rows}}
        self._training = RunSettings.model_validate(settings).training
        cut = Cut(options.front, options.back)
        model = random_decoder(options.blocks, options.hidden, options.columns)
        own = model.layout.all
        self._client, server = ends_of(model, cut, own), middle_of(model, cut, own)
        replica = Replica(Middle(server, cut), self._training, options.steps, Seed(0))
        self._service = Sequential(
            replica, {CLIENT: Course(form, cut, steps=options.steps, batches=1)}, by_step=False
        )
        self._cut = cut
        self.first = Message()

    def run(self) -> Iterator[tuple[int, int]]:
        """Yields the bytes of each step's messages, and all that passed between the sockets."""
        options = self._options
        size = {"rows": options.rows, "length": options.columns}
        agreement = agreement_for(options.hidden, form=self._form, **size)
        with (
            listening(agreement) as (hub, address),
            counting(address) as counter,
            GrpcMembership(counter.address, CLIENT, agreement) as membership,
        ):
            Thread(target=answer, args=(hub, self._service), daemon=True).start()
            line = MeasuredLine(TurnLine(membership, 0), masks=self._masks)
            exchange = Exchange(Ends(self._client, self._cut), line, self._form)
            client = self._simulated(line)
            self._client.train_only(self._client.layout.all)
            parameters = self._client.parameters(self._client.layout.all)
            for batch in self._batches():
                before = membership.bytes_sent + hub.bytes_sent(CLIENT), sum(counter.passed)
                exchange.gradients(client, [batch], parameters)
                self._client.module.zero_grad(set_to_none=True)
                after = membership.bytes_sent + hub.bytes_sent(CLIENT), sum(counter.passed)
                yield after[0] - before[0], after[1] - before[1]

    def _simulated(self, line: Any) -> Client:
        task = LanguageModelling(max_length=self._options.columns)
        store = ClientStore(self._folder, 1)
        return Client(CLIENT, self._client, task, [], self._training, store, lambda progress: None, line=line)

    def _batches(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yields random batches; the first row is whole, others have padding on the right."""
        options, generator = self._options, Seed(1).numpy()
        vocabulary = self._client.module.get_input_embeddings().num_embeddings  # type: ignore[operator]
        for _ in range(options.steps):
            shape = (options.rows, options.columns)
            ids = torch.from_numpy(generator.integers(vocabulary, size=shape))
            lengths = generator.integers(options.columns // 2, options.columns, size=options.rows)
            lengths[0] = options.columns
            mask = (torch.arange(options.columns) < torch.from_numpy(lengths)[:, None]).long()
            yield {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@contextmanager
def counting(address: str) -> Iterator[Counter]:
    """Gives a counter in front of an address."""
    counter = Counter(address)
    try:
        yield counter
    finally:
        counter.close()


def ratio_of_masks(options: argparse.Namespace) -> float:
    """Returns what a mask adds to a message over what lengths add."""
    states = torch.zeros(options.rows, options.columns, options.hidden)
    padding = [0, *([options.columns // 3] * (options.rows - 1))]
    rows: Any = {"length": options.columns, "padding": padding, "side": "right"}
    plain = Message({"states": states}, {"kind": "states"})
    with_rows = Message(plain.tensors, {"kind": "states", "rows": rows})
    masked, lengths = (frame.size(each) - frame.size(plain) for each in (with_mask(plain), with_rows))
    return masked / lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--front", type=int, default=1)
    parser.add_argument("--back", type=int, default=1)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--columns", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    use_processor(options.threads)
    tokens = 4 * options.rows * options.columns
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, form, masks in [*((form, form, False) for form in FORMS), ("masks", FORMS[0], True)]:
            steps = list(Steps(options, form, masks=masks, folder=Path(folder)).run())
            scales = 4 * tokens if form == "int8" else 0
            found[name] = {
                "step": max(own for own, _ in steps),
                "tensors": tokens * options.hidden * ITEM[form] + scales,
                "tcp": round(statistics.median(passed for _, passed in steps)),
            }
            print(name, found[name], flush=True)
    exact = found["float32"]
    result = {
        "step_bytes": exact["step"],
        "four_tensors_bytes": exact["tensors"],
        "beside_bytes": exact["step"] - exact["tensors"],
        "tcp_bytes": exact["tcp"],
        "mask_bytes_over_length_bytes": round(ratio_of_masks(options), 1),
        "masked_step_over_step": round(found["masks"]["step"] / exact["step"], 4),
        "beside_bytes_of_forms": {form: found[form]["step"] - found[form]["tensors"] for form in FORMS},
        "rows": options.rows,
        "columns": options.columns,
        "hidden": options.hidden,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

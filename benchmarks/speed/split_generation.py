"""How fast does a divided model generate, with key-value caches on both sides and without?

    python benchmarks/speed/split_generation.py

A LLaMA-like decoder with random weights, its ends in this process, its middle in another one, over gRPC on
loopback. At every length of the context the client generates greedily, one row, in turn in three ways,
several times: with caches (`cached`), where one token's hidden state travels each way; without (`uncached`),
where the hidden states of the whole context do and both sides compute them again; and without, with the whole
attention mask of columns x columns sent along (`masked`), as systems do that do not send lengths. Times are
medians over the repeats. FL-LLaMA, figures 9 and 10.

- `cached_over_uncached`: tokens a second with caches over those without, at the longest context, of the whole
  generation: the prefill, which both need, is in it.
- `cached_over_uncached_after_prefill`: the same for the tokens after the first.
- `bytes_per_token`: both ways, with caches, of the tokens after the first, at the longest context; by context
  in `bytes_per_token_by_context`.
- `unmasked_over_masked`: tokens a second without masks over those with them, both without caches.
- `by_context`: everything, for each length.

Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from split_line import CLIENT, MeasuredLine, add_size, agreement_for, answering_process, random_decoder
from transformers.generation.streamers import BaseStreamer

from fedstrata.core.cut import Cut
from fedstrata.core.seeding import Seed
from fedstrata.models.blocks import transformers_model
from fedstrata.split.divide import ends_of
from fedstrata.split.ends import Ends
from fedstrata.split.inference import RemoteMiddle
from fedstrata.train.processor import use_processor
from fedstrata.transport.grpc.membership import GrpcMembership
from fedstrata.transport.membership import Membership, TurnLine

WAYS = ("cached", "uncached", "masked")


class Clock(BaseStreamer):  # type: ignore[misc]
    """Notes when each token has come, and what had travelled by then."""

    def __init__(self, line: MeasuredLine) -> None:
        self._line = line
        self.seconds: list[float] = []
        self.sent: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        """Hears of the prompt, and then of every token."""
        self.seconds.append(time.perf_counter())
        self.sent.append(self._line.up + self._line.down)

    def end(self) -> None:
        """Hears that it was the last."""


@dataclass
class Timed:
    """What the generations of one way took at one context.

    Attributes:
        whole: Seconds of each, for all tokens.
        later: Seconds of each for a token after the first.
        bytes_per_token: Bytes of a token after the first, both ways.
    """

    whole: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)
    bytes_per_token: float = 0.0

    def add(self, clock: Clock) -> None:
        """Adds a generation."""
        after = len(clock.seconds) - 2
        self.whole.append(clock.seconds[-1] - clock.seconds[0])
        self.later.append((clock.seconds[-1] - clock.seconds[1]) / after)
        self.bytes_per_token = (clock.sent[-1] - clock.sent[1]) / after


class Client:
    """The client's side."""

    def __init__(self, options: argparse.Namespace, membership: Membership) -> None:
        self._cut, self._options = Cut(options.front, options.back), options
        whole = random_decoder(options.blocks, options.hidden, positions_of(options))
        self._model = ends_of(whole, self._cut)
        self._ends, self._membership = Ends(self._model, self._cut), membership

    def generate(self, way: str, context: int) -> Clock:
        """Continues a random text."""
        line = MeasuredLine(TurnLine(self._membership, 0), masks=way == "masked")
        remote, clock = RemoteMiddle(line, "float32", self._cut), Clock(line)
        inner: Any = transformers_model(self._model.module)
        ids = torch.from_numpy(Seed(context).numpy().integers(4, inner.config.vocab_size, size=(1, context)))
        count = self._options.tokens
        with self._ends.connected(remote), torch.inference_mode():
            inner.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                use_cache=way == "cached",
                streamer=clock,
            )
        return clock


@contextmanager
def joined(options: argparse.Namespace) -> Iterator[Client]:
    """Gives a client with a server in another process."""
    agreement = agreement_for(options.hidden, rows=1, length=positions_of(options))
    with (
        answering_process(options, positions_of(options)) as address,
        GrpcMembership(address, CLIENT, agreement) as membership,
    ):
        yield Client(options, membership)


def positions_of(options: argparse.Namespace) -> int:
    """Returns the longest text that there will be."""
    return int(max(options.contexts) + options.tokens)


def measure(options: argparse.Namespace) -> dict[int, dict[str, Timed]]:
    """Times all ways at all contexts in turn."""
    found: dict[int, dict[str, Timed]] = {each: {way: Timed() for way in WAYS} for each in options.contexts}
    with joined(options) as client:
        for way in WAYS:
            client.generate(way, min(options.contexts))  # threads, allocator, connection
        for _ in range(options.repeats):
            for context, ways in found.items():
                for way, timed in ways.items():
                    timed.add(client.generate(way, context))
    return found


def figures(ways: dict[str, Timed], tokens: int) -> dict[str, float]:
    """Returns the figures of one context."""
    whole, later = (
        {way: statistics.median(getattr(timed, name)) for way, timed in ways.items()}
        for name in ("whole", "later")
    )
    return {
        **{f"{way}_tokens_per_second": round(tokens / whole[way], 3) for way in ways},
        **{f"{way}_milliseconds_per_later_token": round(1000 * later[way], 2) for way in ways},
        **{f"{way}_bytes_per_token": round(timed.bytes_per_token, 1) for way, timed in ways.items()},
        "cached_over_uncached": round(whole["uncached"] / whole["cached"], 3),
        "cached_over_uncached_after_prefill": round(later["uncached"] / later["cached"], 3),
        "unmasked_over_masked": round(whole["masked"] / whole["uncached"], 3),
    }


def show(by_context: dict[int, dict[str, float]]) -> None:
    """Prints the series of figures 9 and 10."""

    def row(cells: Sequence[object]) -> None:
        print("| " + " | ".join(map(str, cells)) + " |")

    row(["context", *(f"{way}, tokens/s" for way in WAYS), *(f"{way}, bytes a token" for way in WAYS)])
    row(["---:"] * (1 + 2 * len(WAYS)))
    for context, found in by_context.items():
        speeds = [found[f"{way}_tokens_per_second"] for way in WAYS]
        row([context, *speeds, *(round(found[f"{way}_bytes_per_token"]) for way in WAYS)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_size(parser)
    parser.add_argument("--contexts", type=int, nargs="+", default=[250, 500, 1000, 2000])
    parser.add_argument("--tokens", type=int, default=16, help="new tokens of a generation, at least 2")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    use_processor(options.threads)
    by_context = {context: figures(ways, options.tokens) for context, ways in measure(options).items()}
    show(by_context)
    longest = max(by_context)
    names = ("cached_over_uncached", "cached_over_uncached_after_prefill", "unmasked_over_masked")
    result = {
        **{name: by_context[longest][name] for name in names},
        "bytes_per_token": by_context[longest]["cached_bytes_per_token"],
        "context": longest,
        "bytes_per_token_by_context": {
            str(context): found["cached_bytes_per_token"] for context, found in by_context.items()
        },
        "tokens": options.tokens,
        "threads": options.threads,
        "by_context": {str(context): found for context, found in by_context.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

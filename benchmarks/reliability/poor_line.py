"""What does a poor line between sites and server cost?

    python benchmarks/reliability/poor_line.py

Runs `kill.yaml` with a wider model by a server and three sites over TLS, first on loopback, then with each
site behind a proxy (`proxy.py`) that holds bytes back, passes few at a time and cuts connections at random,
in the middle of messages.

- `equal`: whether both runs have the same losses and scores, to the last bit;
- `bytes_equal`: whether as many bytes of frames travelled in every round, for every site;
- `cuts`: connections that were cut; `restarts`: processes that ended for it;
- `round_seconds`, `plain_round_seconds`: medians of all rounds but the first; `overhead_seconds` is the
  difference, `line_seconds` what the bytes of a round and two delays take on an idle line;
- `tcp_over_frames`: bytes that passed the proxies over those of frames.

Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from members import SITES, made, outcome, round_seconds, rounds_of, said, served, undisturbed
from proxy import Proxy

WIDER = ("model.config.hidden_size=128", "model.config.intermediate_size=256")
_LONGEST = 1200.0
"""Seconds after which a run counts as one that does not complete."""


def lives(chance: random.Random, mean: float) -> Iterator[int]:
    """Draws the bytes after which connections are cut."""
    return (int(chance.expovariate(1 / mean)) for _ in count())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--delay", type=float, default=0.04, help="seconds, each way")
    parser.add_argument("--megabits", type=float, default=20.0, help="a second, of each site and each way")
    parser.add_argument("--megabytes", type=float, default=3.0, help="of a connection's life, on average")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    settings = said(*WIDER, f"federation.rounds={options.rounds}")
    chance, proxies = random.Random(options.seed), list[Proxy]()  # noqa: S311 - no secrets

    def proxy(address: str) -> str:
        drawn = lives(chance, options.megabytes * 1e6)
        proxies.append(Proxy(address, lives=drawn, delay=options.delay, megabits=options.megabits))
        return proxies[-1].address

    with tempfile.TemporaryDirectory(prefix="line-") as place:
        plain, poor = made(Path(place, "plain")), made(Path(place, "poor"))
        undisturbed(served(plain, settings, SITES), _LONGEST)
        members = served(poor, settings, SITES, proxy)
        undisturbed(members, _LONGEST)
        equal = outcome(plain / "run") == outcome(poor / "run")
        exchanges = [[event["exchanges"] for event in rounds_of(each / "run")] for each in (plain, poor)]
        seconds, expected = round_seconds(poor / "run"), round_seconds(plain / "run")
    sent = [own["bytes_up"] + own["bytes_down"] for event in exchanges[1] for own in event.values()]
    line = max(sent) * 8 / (options.megabits * 1e6) + 2 * options.delay
    result = {
        "equal": equal,
        "bytes_equal": exchanges[0] == exchanges[1],
        "cuts": sum(each.cuts for each in proxies),
        "restarts": sum(member.starts - 1 for member in members),
        "megabytes_a_round": round(max(sent) / 1e6, 3),
        "round_seconds": round(seconds, 3),
        "plain_round_seconds": round(expected, 3),
        "overhead_seconds": round(seconds - expected, 3),
        "line_seconds": round(line, 3),
        "tcp_over_frames": round(sum(each.passed for each in proxies) / sum(sent), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

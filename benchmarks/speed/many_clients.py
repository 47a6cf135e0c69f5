"""What do many registered clients cost?

    python benchmarks/speed/many_clients.py --data ../shared/data/ud_english_ewt

Deals one corpus to few and to many clients, of whom as many take part in a round, and trains a small GPT-2
from scratch with FedTLU; each run is a process of its own. Last line: one JSON object.

- `overhead_fraction`: share of the rounds that is neither training nor scoring, with the few.
- `rss_ratio`: peak memory with the many over that with the few, of two rounds and a scoring: the median of
  several runs each, since the peak of equal runs differs by a tenth with how the allocator happens to reuse.
- `rss_megabytes`: all these peaks, in the order of `clients`.
- `seconds_per_round`: with the few.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MEMORY_ROUNDS = 2


def run(clients: int, rounds: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs one federation; returns its summary and the seconds of its rounds by kind."""
    out = folder / f"clients-{clients}"
    overrides = [
        f"data={{format: {options.format}, path: {options.data}}}",
        f"partition={{by: tokens, clients: {clients}}}",
        "model={init: random, tokenizer: {train: words, vocabulary: 5000}, "
        "config: {model_type: gpt2, n_embd: 64, n_layer: 6, n_head: 4, n_positions: 128}}",
        "task={name: lm, max_length: 128}",
        "training={batch_size: 4, learning_rate: 2e-3}",
        f"federation={{rounds: {rounds}, sample: {options.sampled / clients}, evaluate_every: {rounds}}}",
        f"method={{name: {options.method}}}",
        *options.override,
    ]
    command = [sys.executable, "-m", "fedstrata", "run", *overrides, "--out", str(out)]
    subprocess.run(command, check=True)
    events = [json.loads(line) for line in (out / "record.jsonl").read_text(encoding="utf-8").splitlines()]
    done = [event for event in events if event["event"] == "round"]
    seconds = {key: sum(event[key] for event in done) for key in ("seconds", "engine_overhead_seconds")}
    return {**json.loads((out / "summary.json").read_text(encoding="utf-8")), "round_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("override", nargs="*", help="further settings as `key.path=value`")
    parser.add_argument("--data", default="../shared/data/ud_english_ewt")
    parser.add_argument("--format", default="conllu")
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--sampled", type=int, default=10, help="clients of a round")
    parser.add_argument("--rounds", type=int, default=150, help="of the run that is timed, with the few")
    parser.add_argument("--repeats", type=int, default=5, help="runs whose memory is measured, of each")
    parser.add_argument("--method", default="fedtlu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        few = run(options.few, options.rounds, options, Path(folder) / "timed")
        peaks = [
            [
                run(clients, MEMORY_ROUNDS, options, Path(folder) / str(number))["memory"]["peak_rss_bytes"]
                for number in range(options.repeats)
            ]
            for clients in (options.few, options.many)
        ]
    seconds = few["round_seconds"]
    result = {
        "overhead_fraction": round(seconds["engine_overhead_seconds"] / seconds["seconds"], 4),
        "rss_ratio": round(statistics.median(peaks[1]) / statistics.median(peaks[0]), 4),
        "rss_megabytes": [[round(peak / 1e6) for peak in sorted(own)] for own in peaks],
        "seconds_per_round": round(seconds["seconds"] / options.rounds, 3),
        "rounds": options.rounds,
        "clients": [options.few, options.many],
        "perplexity": round(few["metrics"]["global"]["perplexity"], 2),
        "method": options.method,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""Does FedTLU pick the same blocks from sketches, and how many bytes does that save?

    python benchmarks/speed/sketched_selection.py --data ../shared/data/ud_english_ewt

Trains a GPT-2 from scratch on text (UD English EWT by default, dealt to clients by a budget of words) twice
with the same seeds: with exact selection, where in every round the blocks are also picked from sketches of
the same changes, and with sketched selection from beginning to end. Last line: one JSON object.

- `agreement`: of the blocks that exact scores pick, the share that sketches pick too; mean over all rounds.
- `uplink_fraction_of_blocks`: what clients send of the blocks, sketches and sums included, over their size.
- `perplexity_ratio`: test perplexity of the sketched run over that of the exact one.
- `downlink_fraction`: what is sent to clients over the whole model each time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from fedstrata.core.cohort import Cohort
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import ClientInfo, Plan, State
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import prepare
from fedstrata.engine.run import Run
from fedstrata.methods.fedtlu import FedTLU
from fedstrata.policies.scores import block_scores, estimated_sums, score, sketch_all
from fedstrata.policies.select import best_blocks, equal_blocks, scored_tensors
from fedstrata.policies.share import blocks_in
from fedstrata.record.log import read_events


class Overheard:
    """A cohort whose last mean can be looked at."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self.clients = cohort.clients
        self.heard: Any = None

    def mean(self, handler: str, plan_of: Callable[[ClientInfo], Plan]) -> Any:
        """Passes on the cohort's own mean."""
        self.heard = self._cohort.mean(handler, plan_of)
        return self.heard

    def warn(self, message: str) -> None:
        """Passes on a warning."""
        self._cohort.warn(message)


class Watched(FedTLU):
    """FedTLU with exact selection that also picks from sketches, and notes how many picks are the same."""

    _numbers: int = PrivateAttr(1024)
    _agreements: list[float] = PrivateAttr(default_factory=list)

    def not_private(self, mechanism: str) -> str:
        """It is FedTLU."""
        return super().not_private(mechanism)

    def not_summed(self) -> str:
        """It is FedTLU."""
        return super().not_summed()

    def round(self, state: State, cohort: Cohort, rng: Seed) -> State:
        """Runs FedTLU's round, and picks again."""
        overheard = Overheard(cohort)
        after = super().round(state, overheard, rng)  # type: ignore[arg-type]
        blocks = blocks_in(state)
        names = scored_tensors(blocks, state.tensors)
        changes = {name: overheard.heard.tensors[name] for name in names}
        sketches = sketch_all(changes, self._numbers, rng.child("signs").integer())
        sizes = {name: change.numel() for name, change in changes.items()}
        sums = estimated_sums(sizes, self._numbers, *sketches)
        scores = block_scores({name: score(sizes[name], *own) for name, own in sums.items()}, blocks)
        groups = equal_blocks(blocks, state.tensors)
        facts: Any = after.values
        picked, exact = best_blocks(scores, groups, facts["portion"]), facts["merged_blocks"]
        self._agreements.append(len(set(picked) & set(exact)) / len(exact))
        return after


def configuration(options: argparse.Namespace) -> list[str]:
    shape = f"n_layer: {options.blocks}, n_embd: {options.hidden}, n_head: 4, n_positions: {options.tokens}"
    return [
        f"data={{format: {options.format}, path: {options.data}}}",
        f"partition={{by: tokens, clients: {options.clients}}}",
        f"model={{init: random, config: {{model_type: gpt2, {shape}}}, "
        f"tokenizer: {{train: words, vocabulary: {options.vocabulary}}}}}",
        f"task={{name: lm, max_length: {options.tokens}}}",
        "training={batch_size: 4, learning_rate: 1e-3, precision: bfloat16}",
        f"federation={{rounds: {options.rounds}, sample: {options.sample}}}",
        f"federation.evaluate_every={options.rounds}",
        f"seed={options.seed}",
        *([f"threads={options.threads}"] if options.threads else []),
        *options.override,
    ]


def run(
    overrides: list[str], folder: Path, watch: Callable[[FedTLU], FedTLU] | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Runs one configuration; returns its summary and the record's rounds."""
    experiment = prepare(read_source(None, overrides))
    if watch is not None:
        experiment = replace(experiment, method=watch(experiment.method))  # type: ignore[arg-type]
    folder.mkdir()
    Path(folder, "config.yaml").touch()

    def tell(event: str, facts: Any) -> None:
        if event == "round":
            merged = facts["state"]["merged_blocks"]
            print(
                f"{folder.name}: round {facts['round']}, loss {facts['loss']:.3f}, merged {merged}",
                flush=True,
            )

    summary_ = Run(experiment, folder, tell, LocalEngine).execute()
    events = read_events(folder / "record.jsonl")
    return summary_, [event for event in events if event["event"] in ("run", "round")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("override", nargs="*", help="further settings as `key.path=value`")
    parser.add_argument("--data", default="../shared/data/ud_english_ewt")
    parser.add_argument("--format", default="conllu")
    for name, default in {
        "blocks": 12, "hidden": 128, "tokens": 64, "vocabulary": 8000, "clients": 20, "rounds": 20,
        "width": 1024, "seed": 0,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sample", type=float, default=0.5)
    parser.add_argument("--portion", type=float, default=0.25)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    method = f"name: fedtlu, portion: {options.portion}"
    common = configuration(options)
    agreements: list[float] = []

    def watched(method: FedTLU) -> FedTLU:
        watcher = Watched(**dict(method))
        watcher._numbers, watcher._agreements = options.width, agreements
        return watcher

    with tempfile.TemporaryDirectory() as folder:
        exact, _ = run([*common, f"method={{{method}}}"], Path(folder, "exact"), watched)
        sketching = f"method={{{method}, selection: sketched, width: {options.width}}}"
        sketched, events = run([*common, sketching], Path(folder, "sketched"))
    groups = events[0]["groups"]
    size = sum(count for group, count in groups.items() if group.startswith("block"))
    turns = sum(len(event["exchanges"]) for event in events[1:])
    sent = sum(
        count
        for event in events[1:]
        for group, count in event["groups_up"].items()
        if group.startswith("block") or group == "other"
    )
    perplexity = [result["metrics"]["global"]["perplexity"] for result in (exact, sketched)]
    figures = {
        "agreement": round(sum(agreements) / len(agreements), 4),
        "uplink_fraction_of_blocks": round(sent / (turns * size), 4),
        "perplexity_ratio": round(perplexity[1] / perplexity[0], 4),
        "downlink_fraction": round(
            sketched["communication"]["bytes_down"] / exact["communication"]["bytes_down"], 4
        ),
        "uplink_fraction": round(
            sketched["communication"]["bytes_up"] / exact["communication"]["bytes_up"], 4
        ),
        "perplexity": [round(value, 3) for value in perplexity],
        "rounds": options.rounds,
        "least_agreement": min(agreements),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

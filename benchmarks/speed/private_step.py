"""What does a step under differential privacy cost over a plain one?

    python benchmarks/speed/private_step.py

Times steps of one client on the same 32 windows of 128 tokens of the synthetic corpus, with the model that is
in the package (`mini`, pretrained; float32 on the CPU), to name entities: a plain step, which is
`train.local.accumulate` on one batch of all windows, and a private one, which is `UnitGradients.gradients`
with secure noise, both with the optimiser (AdamW) after it. Stored states are not used. The kinds of step are
timed in turn; ratios are of two steps of the same turn, the median over the turns.

- `patient_loop_over_plain`: 8 patients of 4 windows, one patient after the other, all of the model trains;
  `loop_over_plain` has LoRA and the top blocks as well.
- `hooks_over_plain_lora`, `hooks_over_plain_top`, `hooks_over_plain_full`: 32 units of one window each, the
  gradients of several at once; LoRA of rank 8, the top 2 of 8 blocks, and all of the model.
  `loop_of_ones_over_plain` is the same without hooks.
- `peak_memory_ratio`: peak resident memory of a process that takes private steps of 8 patients, all of the
  model, over that of one that takes plain steps. A plain step has the activations of 32 windows, a private
  one those of 4: `peak_memory_ratio_of_pieces` is over plain steps that accumulate batches of 4, and
  `time_ratio_of_pieces` compares these in time.
- `noise_share`: the share of the private steps of `patient_loop_over_plain` that drawing noise takes.

Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fedstrata.client.site import Examples
from fedstrata.client.store import ClientStore
from fedstrata.core.client import Client
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import prepare
from fedstrata.engine.sites import sites_of
from fedstrata.metrics.cost import peak_rss_bytes
from fedstrata.privacy.clipping import UnitGradients
from fedstrata.privacy.randomness import SecureRandomness
from fedstrata.train.local import accumulate, optimizer_of, train_mode
from fedstrata.train.processor import use_processor

METHODS = {
    "full": ["method={name: fedavg}"],
    "lora": ["method={name: fedlora}", "adapter={kind: lora, rank: 8}"],
    "top": ["method={name: layer_skipping, top: 2}"],
}
STEPS_OF_A_PEAK = 3
PEAKS = ("plain", "pieces", "loop")


class Bench:
    """One client with a method's parameters, its patients, and the steps that are timed."""

    def __init__(self, method: str, options: argparse.Namespace, folder: Path) -> None:
        count = 4 * options.units
        experiment = prepare(read_source(None, [*self._data(options, count), *METHODS[method]]))
        self.client, site = client_of(experiment, folder)
        whole = [unit[: options.windows] for unit in Examples(site).units if len(unit) >= options.windows]
        self.patients = whole[: options.units]
        if len(self.patients) < options.units:
            raise SystemExit(f"{len(whole)} patients have {options.windows} windows; ask for more notes")
        self.windows = [window for patient in self.patients for window in patient]
        model = experiment.model
        names = experiment.method.trainable(model.layout)
        model.train_only(names)
        train_mode(model)
        self.parameters = model.parameters(names)
        self.optimizer = optimizer_of(self.parameters, experiment.settings.training)
        self.private = UnitGradients(experiment.privacy, site.declared, SecureRandomness(), lambda: [])

    @staticmethod
    def _data(options: argparse.Namespace, patients: int) -> list[str]:
        notes = 3 * patients
        privacy = (
            f"{{mechanism: local, unit: patient, units: {{site-1: {notes}}}, delta: 1e-5, sigma: 1.0, "
            f"expected_batch: {options.units}, steps: 1, windows: {options.windows}}}"
        )
        return [
            f"model.name={options.model}",
            "data.synthetic.sites=1",
            f"data.synthetic.notes={notes}",
            "data.synthetic.notes_per_patient=4",
            "data.split.by=patient",
            "data.types=[problem, test, treatment, drug]",
            "task={name: ner, types: [problem, test, treatment, drug]}",
            f"task.max_length={options.tokens}",
            f"task.stride={min(16, options.tokens // 4)}",
            f"privacy={privacy}",
        ]

    def plain(self) -> None:
        """A step on one batch of all windows."""
        accumulate(self.client, [self.client.task.collate(self.windows)], self.parameters)
        self._step()

    def pieces(self) -> None:
        """The same step on the windows of one patient after the other."""
        batches = [self.client.task.collate(patient) for patient in self.patients]
        accumulate(self.client, batches, self.parameters)
        self._step()

    def loop(self) -> None:
        """A step of the patients, one after the other."""
        self.private.gradients(self.client, self.patients, self.parameters)
        self._step()

    def hooks(self) -> None:
        """A step of units of one window each."""
        self.private.gradients(self.client, [[window] for window in self.windows], self.parameters)
        self._step()

    def loop_of_ones(self) -> None:
        """The same one after the other."""
        with patch("fedstrata.privacy.clipping.rows_together", lambda *_: 1):
            self.hooks()

    def noise(self) -> None:
        """The noise of a step alone."""
        self.private.gradients(self.client, [], self.parameters)
        self.optimizer.zero_grad(set_to_none=True)

    def _step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def client_of(experiment: Any, folder: Path) -> tuple[Client, Any]:
    """Returns the only client of an experiment, and its site."""
    (site,), training = sites_of(experiment)[1], experiment.settings.training
    store = ClientStore(folder, 1)
    client = Client(
        site.id, experiment.model, site.task, Examples(site), training, store, lambda progress: None
    )
    return client, site


def timed(steps: Sequence[Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Returns the seconds of steps, by their name, taken in turn; the first turn warms up."""
    seconds: dict[str, list[float]] = {step.__name__: [] for step in steps}
    for repeat in range(1 + repeats):
        for step in steps:
            started = time.perf_counter()
            step()
            if repeat:
                seconds[step.__name__].append(time.perf_counter() - started)
    return seconds


def ratio(slow: Sequence[float], fast: Sequence[float]) -> dict[str, Any]:
    """Returns how many times as long, and the range over the repeats."""
    each = [one / other for one, other in zip(slow, fast, strict=True)]
    return {
        "median": round(statistics.median(each), 3),
        "range": [round(min(each), 3), round(max(each), 3)],
    }


def print_peak(kind: str, options: argparse.Namespace) -> None:
    """Takes some steps and prints the peak memory of this process."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench("full", options, Path(folder))
        for _ in range(STEPS_OF_A_PEAK):
            getattr(bench, kind)()
    print(peak_rss_bytes())


def peak_of(kind: str) -> int:
    """Returns that of another process."""
    command = [sys.executable, *sys.argv, "--peak", kind]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.splitlines()[-1])


def memory(repeats: int) -> dict[str, Any]:
    """Returns the figures of memory, medians over several processes of each kind."""
    peaks = [{kind: peak_of(kind) for kind in PEAKS} for _ in range(repeats)]
    found: dict[str, Any] = {}
    for name, other in (("peak_memory_ratio", "plain"), ("peak_memory_ratio_of_pieces", "pieces")):
        own = ratio([peak["loop"] for peak in peaks], [peak[other] for peak in peaks])
        found |= {name: own["median"], f"{name}_range": own["range"]}
    middle = {kind: statistics.median(peak[kind] for peak in peaks) for kind in PEAKS}
    return found | {"peak_megabytes": {kind: round(own / 1e6) for kind, own in middle.items()}}


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--units", type=int, default=8, help="patients of a step")
    parser.add_argument("--windows", type=int, default=4, help="of each patient")
    parser.add_argument("--tokens", type=int, default=128, help="of a window at most")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--memory-repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peak", choices=PEAKS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    use_processor(options.threads)
    if options.peak:
        print_peak(options.peak, options)
        return
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            bench = Bench(method, options, Path(folder))
            kinds = [bench.plain, bench.loop, bench.hooks, bench.loop_of_ones]
            kinds += [bench.pieces, bench.noise] if method == "full" else []
            own = seconds[method] = timed(kinds, options.repeats)
            trained = sum(parameter.numel() for parameter in bench.parameters)
            shown = {kind: f"{1000 * statistics.median(each):.1f} ms" for kind, each in own.items()}
            print(method, f"{trained} parameters", shown, flush=True)
    loop = {method: ratio(own["loop"], own["plain"]) for method, own in seconds.items()}
    hooks = {method: ratio(own["hooks"], own["plain"]) for method, own in seconds.items()}
    ones = {method: ratio(own["loop_of_ones"], own["plain"]) for method, own in seconds.items()}
    result: dict[str, Any] = {"patient_loop_over_plain": loop["full"]["median"]}
    result |= {f"hooks_over_plain_{method}": own["median"] for method, own in hooks.items()}
    result |= memory(options.memory_repeats)
    result |= {
        "loop_over_plain": {method: own["median"] for method, own in loop.items()},
        "loop_of_ones_over_plain": {method: own["median"] for method, own in ones.items()},
        "time_ratio_of_pieces": ratio(seconds["full"]["loop"], seconds["full"]["pieces"])["median"],
        "noise_share": ratio(seconds["full"]["noise"], seconds["full"]["loop"])["median"],
        "ranges": {f"loop, {method}": own["range"] for method, own in loop.items()}
        | {f"hooks, {method}": own["range"] for method, own in hooks.items()},
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

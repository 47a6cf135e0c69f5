"""What do parallel clients, batches in flight and a divided model's small clients bring?

    python benchmarks/speed/split_training.py

A server in this process trains a LLaMA-like decoder with random weights with clients that are processes of
`fedstrata join`, over gRPC on loopback; the same batches of random text are shared out evenly. Rounds
of the ways that are compared are timed in turn, several times; ratios are of medians, with their range over
the repeats. LoRA on the attention's query and value, as in FL-LLaMA, but for the memory of full training.

- `client_batch_over_sequential`: texts a second with mode client_batch over those with mode sequential, with
  4 clients (FL-LLaMA, table 3; `--clients 2 4 8` prints its other columns, beside the seconds that training
  the whole model on the same batches takes in one process). The server computes what it would for one client
  on a batch of all clients' rows, with one step of its optimiser for all.
- `hierarchical_over_sequential`: the same for mode hierarchical, where every client has its own copy of the
  middle; the server computes one copy after the other.
- `delayed`: both again where either side holds every message back (`--delay`).
- `overlap_on_over_off`: one client's texts a second with two batches of a step in flight over those with one,
  with that delay.
- `client_memory_share`: peak memory of a client with the first and the last of 16 blocks over that of a
  process that trains the whole model, each above its like with a tiny model, which has imported and done the
  same; full training with AdamW. `client_memory_share_lora`: with LoRA (FL-LLaMA, figure 6).
  `parameter_share`: the client's part of the parameters.

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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from remote_federation import Setting, federation

import fedstrata.transport.membership  # noqa: F401 - what a client has imported
from fedstrata.client.site import Examples
from fedstrata.client.store import ClientStore
from fedstrata.core.client import Client
from fedstrata.core.cut import Cut
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.sites import sites_of
from fedstrata.metrics.cost import peak_rss_bytes
from fedstrata.split.divide import ends_of
from fedstrata.train.local import fit

LORA = {"kind": "lora", "rank": 8, "targets": ["q_proj", "v_proj"]}
MODES = ("sequential", "client_batch", "hierarchical")
FLIGHTS = (1, 2)
TINY: dict[str, Any] = {"blocks": 3, "hidden": 8}

Seconds = dict[str, list[float]]


def time_modes(options: argparse.Namespace, clients: int, delay: float, folder: Path) -> Seconds:
    """Times rounds of every mode in turn."""
    names = [f"client-{number}" for number in range(clients)]
    setting = setting_of(options, adapter=LORA, batches=max(options.batches // clients, 1))
    with federation(setting, names, folder, delay=delay, threads=options.threads) as running:
        for mode in MODES:
            running.round(mode=mode)  # threads, allocator, connections
        found: Seconds = {mode: [] for mode in MODES}
        for _ in range(options.repeats):
            for mode, seconds in found.items():
                seconds.append(running.round(mode=mode))
    return found


def time_flights(options: argparse.Namespace, folder: Path) -> Seconds:
    """Times rounds of two federations in turn, one with one batch in flight and one with two."""
    more = {"batches": max(options.accumulation, 4), "accumulation": options.accumulation}
    found: Seconds = {f"in-flight-{each}": [] for each in FLIGHTS}
    with ExitStack() as stack:
        running = {}
        for name, in_flight in zip(found, FLIGHTS, strict=True):
            setting = setting_of(options, adapter=LORA, **more, in_flight=in_flight)
            own = federation(setting, [name], folder / name, delay=options.delay, threads=options.threads)
            running[name] = stack.enter_context(own)
            running[name].round()  # threads, allocator, connections
        for _ in range(options.repeats):
            for name, seconds in found.items():
                seconds.append(running[name].round())
    return found


def time_whole(options: argparse.Namespace, folder: Path) -> list[float]:
    """Times the training of the whole model on all batches, in this process."""
    setting = setting_of(options, adapter=LORA)
    path = setting.write(folder, ["client"], {"name": "centralized"})
    experiment = prepare(read_source(path, [f"threads={options.threads}"]))
    client, names = client_of(experiment, folder), experiment.model.layout.all
    found = []
    for _ in range(1 + options.repeats):  # the first one warms up
        experiment.model.restore()
        started = time.perf_counter()
        fit(client, names, Seed(0))
        found.append(time.perf_counter() - started)
    return found[1:]


def client_of(experiment: Experiment, folder: Path) -> Client:
    """Returns the only client of a configuration, with the whole model."""
    (site,), training = sites_of(experiment)[1], experiment.settings.training
    store = ClientStore(folder, 1)
    return Client(
        site.id, experiment.model, site.task, Examples(site), training, store, lambda progress: None
    )


def memory(options: argparse.Namespace, adapter: Mapping[str, Any] | None, folder: Path) -> dict[str, float]:
    """Returns what a client and a process with the whole model need beyond their like with a tiny model."""
    size: dict[str, Any] = {"blocks": options.memory_blocks, "hidden": options.memory_hidden, "batches": 2}
    setting = replace(setting_of(options, adapter=adapter), **size, front=1, back=1)
    peaks: dict[str, dict[str, int]] = {"client": {}, "whole": {}}
    for name, own in (("model", setting), ("tiny", replace(setting, **TINY))):
        with federation(own, ["client"], folder / f"{name}, divided") as running:
            running.round()
            peaks["client"][name] = peak_of(running.clients["client"].pid)
            if own is setting:
                whole = running.experiment.model
                part = ends_of(whole, Cut(1, 1)).parameter_count / whole.parameter_count
        peaks["whole"][name] = peak_of_whole(own.write(folder / name, ["client"], {"name": "centralized"}))
    added = {side: own["model"] - own["tiny"] for side, own in peaks.items()}
    return {
        "share": round(added["client"] / max(added["whole"], 1), 4),
        "parameter_share": round(part, 4),
        **{f"{side}_megabytes": round(own / 1e6, 1) for side, own in added.items()},
        **{f"{side}_baseline_megabytes": round(own["tiny"] / 1e6, 1) for side, own in peaks.items()},
    }


def peak_of(process: int) -> int:
    """Returns the largest resident memory of another process so far, in bytes."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) * 1024


def peak_of_whole(configuration: Path) -> int:
    """Returns the peak of a process that trains a whole model."""
    command = [sys.executable, str(Path(__file__)), "--whole", str(configuration)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return int(done.stdout.splitlines()[-1])


def train_whole(configuration: Path) -> None:
    """Trains a whole model as a client trains its ends, and prints the peak memory of this process."""
    experiment = prepare(read_source(configuration, []))
    fit(client_of(experiment, configuration.parent), experiment.model.layout.all, Seed(0))
    print(peak_rss_bytes())


def setting_of(options: argparse.Namespace, *, adapter: Mapping[str, Any] | None, **more: int) -> Setting:
    """Returns what is trained when time is measured."""
    size = {name: getattr(options, name) for name in ("blocks", "hidden", "tokens", "batch", "batches")}
    return Setting(**(size | more), front=options.front, back=options.back, adapter=adapter)


def ratio(slow: Sequence[float], fast: Sequence[float]) -> dict[str, Any]:
    """Returns how many times as fast, and the range over the repeats."""
    each = [one / other for one, other in zip(slow, fast, strict=True)]
    return {
        "median": round(statistics.median(slow) / statistics.median(fast), 3),
        "range": [round(min(each), 3), round(max(each), 3)],
    }


def over_sequential(seconds: Seconds) -> dict[str, dict[str, Any]]:
    """Returns the figures of the modes."""
    return {
        f"{mode}_over_sequential": ratio(seconds["sequential"], own)
        for mode, own in seconds.items()
        if mode != "sequential"
    }


def parallel(options: argparse.Namespace, folder: Path) -> dict[tuple[int, float], Seconds]:
    """Times all modes, by the number of clients and the delay; prints table 3."""
    found, whole = {}, statistics.median(time_whole(options, folder / "whole"))
    print(
        "| clients | delay, ms | " + " | ".join(f"{mode}, s a round" for mode in MODES) + " | whole model |"
    )
    print("|" + "---:|" * (3 + len(MODES)))
    for clients in options.clients:
        for delay in (0.0, options.delay):
            own = time_modes(options, clients, delay, folder / f"{clients} clients, {delay:g} s")
            found[clients, delay] = own
            shown = " | ".join(f"{statistics.median(own[mode]):.2f}" for mode in MODES)
            print(f"| {clients} | {1000 * delay:g} | {shown} | {whole:.2f} |", flush=True)
    return found


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[4])
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--front", type=int, default=1)
    parser.add_argument("--back", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=2, help="rows of a client's batch")
    parser.add_argument("--batches", type=int, default=16, help="of all clients in a round together")
    parser.add_argument("--accumulation", type=int, default=4, help="batches of a step; 2 or more overlap")
    parser.add_argument("--delay", type=float, default=0.02, help="seconds, each way")
    parser.add_argument("--memory-blocks", type=int, default=16)
    parser.add_argument("--memory-hidden", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of the server; a client has one")
    parser.add_argument("--whole", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.accumulation < max(FLIGHTS):
        parser.error(f"--accumulation {options.accumulation}: one batch a step overlaps with nothing")
    return options


def main() -> None:
    options = arguments()
    if options.whole:
        train_whole(options.whole)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        modes = parallel(options, folder)
        flights = time_flights(options, folder / "flights")
        full = memory(options, None, folder / "full")
        lora = memory(options, LORA, folder / "lora")
    clients = 4 if 4 in options.clients else options.clients[0]
    at_once, delayed = (over_sequential(modes[clients, delay]) for delay in (0.0, options.delay))
    overlap = ratio(*flights.values())
    result: dict[str, Any] = {name: figure["median"] for name, figure in at_once.items()}
    result |= {
        "overlap_on_over_off": overlap["median"],
        "client_memory_share": full["share"],
        "parameter_share": full["parameter_share"],
        "client_memory_share_lora": lora["share"],
        "delayed": {name: figure["median"] for name, figure in delayed.items()},
        "ranges": {name: figure["range"] for name, figure in at_once.items()}
        | {"overlap_on_over_off": overlap["range"]},
        "memory": {"full": full, "lora": lora},
        "clients": clients,
        "delay": options.delay,
        "threads": options.threads,
        "load": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

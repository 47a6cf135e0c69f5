"""How fast, and in how much memory, is FedAvg here beside a bare loop and beside other simulators?

    python benchmarks/peers/fedavg.py install
    python benchmarks/peers/fedavg.py measure --data ag_news/test.csv

`install` puts pfl, BlazeFL and Flower into environments of their own, versions pinned; what follows `--` goes
to pip. `measure` runs each system on the same workload (`prepare.py`, `workload.py`), all of them in turn,
again and again. Ratios are those of runs of one turn: the median, and in `*_range` the least and the most.

- `ours_over_bare_loop`: seconds of a round, two workers of one thread each, over a bare PyTorch loop with as
  many processes; `one_process_over_bare_loop` the same for one process with as many threads;
- `ours_over_best_peer_seconds`: over the peer with the shortest rounds;
- `ours_over_best_peer_memory`: peak memory (PSS of all processes) over that peer's.

The first round, in which processes start, is left out; `whole_over_*` is from a command's start to its end.
Linux only: PSS is read from /proc. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from observe import Observed, observe
from prepare import prepare

HERE = Path(__file__).resolve().parent
COMMON = ("torch==2.13.0", "transformers==5.23.0", "numpy==2.4.6")
"""What every system computes with, fedstrata included."""
PEERS = {
    "pfl": ("pfl==0.6.0",),
    # Asks for Python 3.12, for the threads of 3.13 and later; its code runs on 3.11.
    "blazefl": ("--no-deps", "--ignore-requires-python", "blazefl==2.0.3"),
    "flower": ("flwr[simulation]==1.41.0", "ray==2.55.1"),
}
OURS, BARE = "fedstrata", "bare loop"
ALONE = {OURS: "fedstrata, one process", BARE: "bare loop, one process"}
FIGURES = ("round_seconds", "end_seconds", "whole_seconds", "processor_seconds", "memory_megabytes")
"""Of a run: a round but for the first; from the last round to the end; all of it, also in processor time."""


def install(environments: Path, more: Sequence[str]) -> None:
    """Makes an environment for each peer."""
    for name, wanted in PEERS.items():
        venv.create(environments / name, clear=True, with_pip=True)
        pip = [str(environments / name / "bin" / "python"), "-m", "pip", "install", *more]
        subprocess.run([*pip, *COMMON], check=True)
        subprocess.run([*pip, *COMMON, *wanted], check=True)


def require_same_libraries() -> None:
    """Refuses to compare with what computes with another torch.

    Raises:
        SystemExit: fedstrata's own environment has other versions than those of the peers.
    """
    for each in COMMON:
        name, wanted = each.split("==")
        if (found := version(name).partition("+")[0]) != wanted:
            raise SystemExit(f"fedstrata runs with {name} {found} here, the peers with {wanted}")


def commands(environments: Path, work: Path, processes: int, rounds: int) -> dict[str, list[str]]:
    """Returns the command of each system."""
    many = str(processes)

    def python(peer: str) -> str:
        return str(environments / peer / "bin" / "python")

    def ours(*how: str) -> list[str]:
        verb = ("-m", "fedstrata", "run", str(HERE / "fedavg.yaml"))
        named = (f"data.path={work / 'corpus'}", f"model.name={work / 'model'}")
        return [
            sys.executable,
            *verb,
            *named,
            f"federation.rounds={rounds}",
            *how,
            "--out",
            str(work / "run"),
        ]

    def bare(*how: str) -> list[str]:
        return [sys.executable, str(HERE / "bare_loop.py"), *how]

    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", many)
    blazefl = [python("blazefl"), str(HERE / "blazefl_fedavg.py")]
    return {
        OURS: ours(f"workers={many}", "threads=1"),
        BARE: bare(many, "1"),
        ALONE[OURS]: ours("workers=1", f"threads={many}"),
        ALONE[BARE]: bare("1", many),
        "pfl": [python("pfl"), *ranks, str(HERE / "pfl_fedavg.py")],
        "BlazeFL, processes": [*blazefl, "processes", many, str(work)],
        "BlazeFL, threads": [*blazefl, "threads", many, str(work)],
        "Flower": [python("flower"), str(HERE / "flower_fedavg.py"), many],
    }


def events_of_ours(run: Path) -> list[dict[str, Any]]:
    """Returns the marks that the record of a run amounts to."""
    lines = (run / "record.jsonl").read_text("utf-8").splitlines()
    scores = json.loads((run / "summary.json").read_text("utf-8"))["metrics"]["global"]
    events = []
    for event in map(json.loads, lines):
        found = {"event": event["event"], "time": datetime.fromisoformat(event["time"]).timestamp()}
        match event["event"]:
            case "client":
                number = int(event["client"].rpartition("-")[2])
                events.append({**found, "client": number, "examples": event["examples"]})
            case "final":
                events.append({**found, "event": "score", **scores})
            case _:
                events.append(found)
    return events


def figures_of(seen: Observed, events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the figures of a run, and its scores."""
    rounds = [event["time"] for event in events if event["event"] == "round"]
    (scores,) = (event for event in events if event["event"] == "score")
    return {
        "round_seconds": (rounds[-1] - rounds[0]) / (len(rounds) - 1),
        "end_seconds": seen.ended - rounds[-1],
        "whole_seconds": seen.ended - seen.began,
        "processor_seconds": sum(seen.processor.values()),
        "memory_megabytes": seen.memory / 1e6,
        "accuracy": scores["accuracy"],
        "macro_auc": scores["macro_auc"],
    }


def run(name: str, command: Sequence[str], work: Path) -> tuple[dict[str, float], Counter[tuple[int, int]]]:
    """Runs a system once; returns its figures, and how often which client trained on how many examples."""
    marks = work / "marks"
    marks.write_text("")
    for leftover in ("run", "shared", "states"):
        shutil.rmtree(work / leftover, ignore_errors=True)
    environment = os.environ | {
        "FEDAVG_MARKS": str(marks),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "FLWR_HOME": str(work / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    seen = observe(command, environment, work / "log")
    ours = name in {OURS, ALONE[OURS]}
    events = events_of_ours(work / "run") if ours else list(map(json.loads, marks.read_text().splitlines()))
    trained = Counter((event["client"], event["examples"]) for event in events if event["event"] == "client")
    return figures_of(seen, events), trained


def ratios(runs: Mapping[str, list[dict[str, float]]], one: str, other: str, figure: str) -> list[float]:
    """Returns the ratio of two systems in each turn."""
    return [a[figure] / b[figure] for a, b in zip(runs[one], runs[other], strict=True)]


def summary(runs: Mapping[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Returns the figures that are told; see the module's docstring."""

    def median(name: str) -> float:
        return statistics.median(run["round_seconds"] for run in runs[name])

    best = min(runs.keys() - {OURS, BARE, *ALONE.values()}, key=median)
    pairs = {
        "ours_over_bare_loop": ratios(runs, OURS, BARE, "round_seconds"),
        "ours_over_best_peer_seconds": ratios(runs, OURS, best, "round_seconds"),
        "ours_over_best_peer_memory": ratios(runs, OURS, best, "memory_megabytes"),
        "one_process_over_bare_loop": ratios(runs, ALONE[OURS], ALONE[BARE], "round_seconds"),
        "whole_over_bare_loop": ratios(runs, OURS, BARE, "whole_seconds"),
        "whole_over_best_peer": ratios(runs, OURS, best, "whole_seconds"),
    }
    told: dict[str, Any] = {"best_peer": best}
    for name, found in pairs.items():
        told[name] = round(statistics.median(found), 3)
        told[f"{name}_range"] = [round(min(found), 3), round(max(found), 3)]
    return told


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Runs all systems in turn, every other time in the opposite order; returns what is told."""
    require_same_libraries()
    os.environ |= {"FEDAVG_WORKLOAD": str(work), "FEDAVG_ROUNDS": str(options.rounds)}
    prepare(options.data, work, options.rounds, options.articles)
    systems = commands(options.environments.absolute(), work, options.processes, options.rounds)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    expected: Counter[tuple[int, int]] | None = None
    for repeat in range(options.repeats):
        for name in list(systems)[:: -1 if repeat % 2 else 1]:
            found, trained = run(name, systems[name], work)
            expected = expected or trained
            if trained != expected or not trained:
                raise SystemExit(f"{name} has not trained the same clients on as many examples as the others")
            runs[name].append(found)
            print(name, json.dumps({key: round(value, 3) for key, value in found.items()}), flush=True)
    for name, own in runs.items():
        cells = (
            f"{statistics.median(column):.1f} ({min(column):.1f} to {max(column):.1f})"
            for column in ([each[figure] for each in own] for figure in FIGURES)
        )
        print("|", name, "|", " | ".join(cells), "|")
    return summary(runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--environments", type=Path, default=Path("build/peers"), help="where peers are installed"
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("install").add_argument("pip", nargs="*", help="more for pip, behind --")
    measuring = verbs.add_parser("measure")
    measuring.add_argument("--data", type=Path, required=True, help="test.csv of AG News")
    measuring.add_argument("--rounds", type=int, default=6)
    measuring.add_argument("--repeats", type=int, default=5)
    measuring.add_argument("--processes", type=int, default=2)
    measuring.add_argument("--articles", type=int, help="how many to take, for a trial; all if none")
    options = parser.parse_args()
    if options.verb == "install":
        install(options.environments, options.pip)
        return
    with tempfile.TemporaryDirectory() as work:
        print(json.dumps(measure(options, Path(work))))


if __name__ == "__main__":
    main()

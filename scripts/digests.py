"""Shows that a change of the code changes no result: runs the same cases at a commit and here, and compares.

    python scripts/digests.py compare HEAD
    python scripts/digests.py compare v0.1.0 --only fedavg "served sums" --jobs 2

The commit is checked out in a temporary worktree. Each side runs its own code with its own case file,
`digest_cases.yaml`, which also says which keys and files were renamed; a commit whose file has another format
is run with this one. `digest_differences.py` says what is compared. Bits differ between processors, so both
sides run on this machine and nothing is stored.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from digest_differences import Names, compared, differences, kept
from ruamel.yaml import YAML

REPOSITORY = Path(__file__).parents[1]
CASES = "scripts/digest_cases.yaml"
SHOWN = 12
"""Differences of a case that are shown."""
MOST_SECONDS = 900
"""After which a case is stopped."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "NO_COLOR": "1",
    "TERM": "dumb",
}
HEAVY = ("torch", "transformers", "peft", "pandas")
"""What takes long to import, whatever the code of a side is."""
FORK = multiprocessing.get_context("fork")

Settings = Mapping[str, Any]
Step = tuple[list[str], Settings]
"""Commands that run side by side, and the settings that all of them have."""


def steps_of(case: Settings | Sequence[Any], commands: Mapping[str, Any]) -> list[Step]:
    """Returns the steps of a case; one that is a mapping is the settings of the command `run`."""
    steps: list[Step] = []
    for given in [{"run": case}] if isinstance(case, Mapping) else case:
        ((name, settings),) = given.items() if isinstance(given, Mapping) else [(given, {})]
        known = commands.get(name, name)
        steps.append(([known] if isinstance(known, str) else list(known), settings))
    return steps


def call(command: str, settings: Settings, log: Path) -> None:
    """Runs one command of fedstrata in this process, which then ends with its exit status."""
    overrides = [f"{path}={json.dumps(value, ensure_ascii=False)}" for path, value in settings.items()]
    sys.argv = ["fedstrata", *shlex.split(command), *overrides]
    with log.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            try:
                runpy.run_module("fedstrata", run_name="__main__")
            except SystemExit:
                raise
            except BaseException:
                traceback.print_exc()
                sys.exit(1)
            finally:
                log.with_suffix(".modules").write_text("\n".join(sys.modules), encoding="utf-8")


def run_case(steps: Sequence[Step], folder: Path, base: str) -> None:
    """Runs the steps of a case in its folder, until one fails; writes beside it what failed, or nothing."""
    os.setpgid(0, 0)  # so that every process of the case can be ended
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(MOST_SECONDS)  # ends this process
    folder.mkdir(parents=True)
    os.chdir(folder)
    Path("site.yaml").write_text(base, encoding="utf-8")
    failed, printed = "", ""
    for commands, settings in steps:
        logs = {
            command: folder.with_suffix(f".{number}.log")
            for number, command in enumerate(with_values(commands, printed))
        }
        failed = run_step(logs, settings)
        printed += "".join(log.read_text(encoding="utf-8") for log in logs.values())
        if failed:
            break
    folder.with_suffix(".failed").write_text(failed, encoding="utf-8")


def run_step(logs: Mapping[str, Path], settings: Settings) -> str:
    """Runs commands side by side, until one fails; returns which that was and what it said, or ""."""
    running: dict[Any, tuple[str, Any]] = {}
    for command, log in logs.items():
        process = FORK.Process(target=call, args=(command.removesuffix(" &"), settings, log))
        process.start()
        running[process.sentinel] = (command, process)
    while running:
        interrupted = all(command.endswith(" &") for command, _ in running.values())
        for _, process in running.values() if interrupted else ():
            os.kill(process.pid, signal.SIGINT)
        for sentinel in wait(list(running)):
            command, process = running.pop(sentinel)
            process.join()
            if process.exitcode and not interrupted:
                for _, other in running.values():
                    other.kill()
                last = " / ".join(logs[command].read_text(encoding="utf-8").splitlines()[-4:])
                return f"`{command}` ended with {process.exitcode}: {last}"
    return ""


def with_values(commands: Sequence[str], printed: str) -> list[str]:
    """Returns commands with a free `{address}`, and with `{key 1}` and so on that were printed before."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        values = {"{address}": f"localhost:{probe.getsockname()[1]}"}
    for number, key in enumerate(re.findall(r"ed25519:\S+", printed), 1):
        values[f"{{key {number}}}"] = key
    filled = list(commands)
    for name, value in values.items():
        filled = [command.replace(name, value) for command in filled]
    return filled


def run_cases(cases: Mapping[str, Sequence[Step]], root: Path, base: str, jobs: int) -> None:
    """Runs cases side by side, each in a process forked from this one."""
    waiting, began = list(cases), {}
    running: dict[Any, tuple[str, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                process = FORK.Process(target=run_case, args=(cases[name], folder_of(name, root), base))
                process.start()
                running[process.sentinel], began[name] = (name, process), time.monotonic()
            for sentinel in wait(list(running)):
                name, process = running.pop(sentinel)
                process.join()
                end(process.pid)
                took = f"{time.monotonic() - began[name]:.1f} s"
                print(f"  {name}: {took}{', failed' if failure(name, root) else ''}", flush=True)
    finally:
        for _, process in running.values():
            end(process.pid)


def end(group: int) -> None:
    """Ends the processes of a case that are left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def folder_of(name: str, root: Path) -> Path:
    return root / "cases" / name.replace(" ", "_")


def failure(name: str, root: Path) -> str:
    """Returns which command of a case failed and what it said last, or "" if none did."""
    said = folder_of(name, root).with_suffix(".failed")
    return said.read_text(encoding="utf-8") if said.exists() else "it was stopped"


def stop(number: int, _: object) -> None:
    """Ends this process after what it has to clean up, which no second signal interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def record(file: Mapping[str, Any], wanted: Sequence[str], source: Path, root: Path, jobs: int) -> None:
    """Runs cases with the code in a folder; in a process of its own, which imports it."""
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    os.environ.update(ENVIRONMENT, PYTHONPATH=str(source))
    sys.path.insert(0, str(source))
    for paths, pieces in file["corpora"].items():
        text = "".join(
            piece["text"].replace("{n}", str(number))
            for piece in pieces
            for number in range(piece.get("repeat", 1))
        )
        for path in paths.split():
            (root / "corpora" / path).parent.mkdir(parents=True, exist_ok=True)
            (root / "corpora" / path).write_text(text, encoding="utf-8")
    import_all(HEAVY)
    for number, step in enumerate(steps_of(file["prepare"], file["commands"]), 1):
        name = f"prepare {number}"
        run_cases({name: [step]}, root, file["base"], 1)
        if said := failure(name, root):
            sys.exit(f"  {name}: {said}")
        modules = folder_of(name, root).with_suffix(".0.modules")
        import_all(modules.read_text(encoding="utf-8").splitlines())
    found = importlib.import_module("fedstrata").__file__
    if not Path(found or "").is_relative_to(source):
        sys.exit(f"fedstrata was imported from {found}, and not from {source}")
    cases = {name: steps_of(file["cases"][name], file["commands"]) for name in wanted}
    run_cases(cases, root, file["base"], jobs)


def import_all(modules: Sequence[str]) -> None:
    """Imports modules, so that no case waits for them; nothing else is computed in this process."""
    for name in modules:
        with contextlib.suppress(Exception):  # some are made by others, and cannot be imported
            importlib.import_module(name)


@contextlib.contextmanager
def worktree(commit: str, folder: Path) -> Iterator[Path]:
    """Checks a commit out in a folder, and removes it at the end."""
    git = ["git", "-C", str(REPOSITORY), "worktree"]
    try:
        added = subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=False)  # noqa: S603
        if added.returncode:
            sys.exit(f"{commit} cannot be checked out")
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=False, stderr=subprocess.DEVNULL)  # noqa: S603


def case_file(tree: Path) -> dict[str, Any]:
    """Returns the case file of a tree, or that of this one if its format is another."""
    path = tree / CASES
    read = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8")) if path.exists() else {}
    return read if read.keys() >= {"cases", "commands"} else case_file(REPOSITORY)


def compare(options: argparse.Namespace, root: Path) -> bool:
    """Runs and compares the cases; prints what differs, and returns whether anything does."""
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    with worktree(options.commit, root / "tree") as tree:
        trees = {"old": tree, "new": REPOSITORY}
        files = {side: case_file(each) for side, each in trees.items()}
        wanted = {
            side: [name for name in file["cases"] if name.startswith(tuple(options.only) or ("",))]
            for side, file in files.items()
        }
        both = [name for name in wanted["new"] if name in wanted["old"]]
        for side, own in wanted.items():
            if alone := [name for name in own if name not in both]:
                print(f"only the {side} side has: {', '.join(alone)}")
        if not both:
            sys.exit("no case is on both sides")
        for side, each in trees.items():
            (root / side).mkdir()
            print(f"{side}: {options.commit if side == 'old' else 'this working tree'}", flush=True)
            arguments = (files[side], both, each / "src", root / side, options.jobs)
            process = FORK.Process(target=record, args=arguments)
            process.start()
            try:
                process.join()
            finally:
                process.terminate()
                process.join()
            if process.exitcode:
                sys.exit(f"{side}: the cases could not be run")
    return report(both, files["new"], root, options.ignore)


def report(cases: Sequence[str], file: Mapping[str, Any], root: Path, ignored: Sequence[str]) -> bool:
    """Prints what differs in each case; returns whether anything does."""
    left_out = {key: None for group in ignored for key in file["ignorable"][group]}
    names = Names(file["keys"] | left_out, file["files"], file["events"])
    different = 0
    for name in cases:
        folders = [folder_of(name, root / side) for side in ("old", "new")]
        failures = {side: failure(name, root / side) for side in ("old", "new")}
        found = [f"{side}: {said}" for side, said in failures.items() if said]
        found = found or list(differences(folders[0], folders[1], names))
        if not found and not any(compared(str(path.relative_to(folders[1]))) for path in kept(folders[1])):
            found = ["no file to compare"]
        different += bool(found)
        for line in [name, *(f"  {each}" for each in found[:SHOWN])] if found else []:
            print(line)
        if len(found) > SHOWN:
            print(f"  and {len(found) - SHOWN} more")
    print(f"{different} of {len(cases)} cases differ")
    return bool(different)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("compare", help="run the cases at a commit and here; exit with 1 if any differs")
    verb.add_argument("commit", help="anything that git can check out")
    verb.add_argument("--only", nargs="+", default=[], metavar="NAME", help="how names of cases begin")
    verb.add_argument("--jobs", type=int, default=2, help="cases side by side (default: 2)")
    verb.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder to keep all files in")
    verb.add_argument(
        "--ignore", nargs="+", default=[], metavar="GROUP", help="of the file's `ignorable` keys"
    )
    options = parser.parse_args()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        if options.keep:
            options.keep.mkdir()
        root = options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="digests-"))
        different = compare(options, Path(root).resolve())
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(different)


if __name__ == "__main__":
    main()

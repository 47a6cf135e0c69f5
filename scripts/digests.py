"""Records what the command line does, in digests, so that two versions of the code can be compared.

    python scripts/digests.py record before.json
    python scripts/digests.py record after.json --only runs/fedavg served
    python scripts/digests.py compare before.json after.json

Everything goes through `python -m fedstrata`, whose code is that of PYTHONPATH or of the environment, so the
layout of the code does not matter. What is run stands in `digest_cases.yaml`; what is left out of the
digests, and why, in `digest_files.py`. Each entry is a process of its own in a folder of its own, forked from
one that has imported everything. Digests of floating-point numbers are those of one machine.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from digest_files import differences, folder_digest, json_digest, scrubbed_text
from ruamel.yaml import YAML

CASES = Path(__file__).with_name("digest_cases.yaml")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # sums come out equal, and small tensors gain nothing from more
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "COLUMNS": "200",
    "NO_COLOR": "1",
    "TERM": "dumb",
}
FIRST = ("demo", "compare", "served/", "asked/", "ner and what")
"""Parts of the names of entries that take longest, which are begun first."""
SHOWN = 12
"""Differences of an entry that are shown."""
MOST_SECONDS = 900
"""After which an entry is given up."""
CLIENTS = ("site-1", "site-2", "site-3")

Entry = Callable[[Path], list[dict[str, Any]]]
"""Runs commands in the current folder, and returns how each ended and what it said; takes the root."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    record = verbs.add_parser("record", help="run everything and write its digests")
    record.add_argument("file", type=Path)
    record.add_argument("--only", nargs="+", default=[], metavar="NAME", help="how names of entries begin")
    record.add_argument("--jobs", type=int, default=2, help="entries side by side")
    record.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder, to keep all files in")
    compare = verbs.add_parser("compare", help="say in which entries two recordings differ, and where")
    compare.add_argument("one", type=Path)
    compare.add_argument("other", type=Path)
    return parser.parse_args()


def overrides(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings by dotted path as the command line takes them."""
    return [f"{path}={json.dumps(value, ensure_ascii=False)}" for path, value in settings.items()]


def called(command: Sequence[str], root: Path) -> dict[str, Any]:
    """Calls one command in this process; returns its exit status and what it said."""
    files = [root / f"{name}-{os.getpid()}" for name in ("out", "err")]
    status: Any = 0
    with contextlib.ExitStack() as stack:
        out, err = (stack.enter_context(file.open("w", encoding="utf-8")) for file in files)
        for number, file in ((1, out), (2, err)):
            os.dup2(file.fileno(), number)  # of what is no Python, and of processes that are started
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        sys.argv = ["fedstrata", *command]
        try:
            runpy.run_module("fedstrata", run_name="__main__")
        except SystemExit as stop:
            status = stop.code or 0
    said = [file.read_text(encoding="utf-8") for file in files]
    return step(shlex.join(command), status, *said, root)


def step(command: str, status: Any, out: str, err: str, root: Path) -> dict[str, Any]:
    """Returns the digest of a command that has ended."""
    told = json_digest(out, root) if out.startswith("{") else scrubbed_text(out, root).splitlines()
    complained = scrubbed_text(err, root).splitlines()
    return {"command": command, "status": status, "stdout": told, "stderr": complained}


def sequence(commands: Sequence[Sequence[str]]) -> Entry:
    """Returns the entry of commands that are called one after the other."""
    return lambda root: [called(command, root) for command in commands]


def served(settings: Mapping[str, Any]) -> Entry:
    """Returns the entry of a run whose clients are processes of their own."""

    def entry(root: Path) -> list[dict[str, Any]]:
        options, where = credentials(), free_address()
        given = ["site.yaml", *overrides(settings)]
        serve = ["split", "serve", "--listen", where, "--out", "run", *options["server"], *given]
        joins = [
            ["split", "join", "--server", where, "--home", f"home-{client}", *options[client], *given]
            for client in CLIENTS
        ]
        return conversation([serve, *joins], root)

    return entry


def asked(settings: Mapping[str, Any]) -> Entry:
    """Returns the entry of a run whose model a client then generates with, divided between two processes."""

    def entry(root: Path) -> list[dict[str, Any]]:
        options, where = credentials(), free_address()
        given = ["site.yaml", *overrides(settings)]
        run = called(["run", "--out", "run", *given], root)
        answer = ["split", "answer", "run", "--listen", where, *options["server"]]
        generate = ["split", "generate", "--server", where, "--home", "run", "--out", "told.jsonl", *given]
        generate += [*options[CLIENTS[0]], "--prompts", "../../corpora/asked/one.txt", "--max-new-tokens=8"]
        return [run, *conversation([answer, generate], root, stop=True)]

    return entry


def conversation(
    commands: Sequence[Sequence[str]], root: Path, *, stop: bool = False
) -> list[dict[str, Any]]:
    """Starts commands side by side; with `stop` the first is interrupted once the others have ended."""
    processes = [start(command) for command in commands]
    try:
        told = [process.communicate(timeout=MOST_SECONDS / 2) for process in processes[1:]]
        if stop:
            processes[0].send_signal(signal.SIGINT)
        told.insert(0, processes[0].communicate(timeout=MOST_SECONDS / 2))
    finally:
        for process in processes:
            process.kill()
    return [
        step(" ".join(command[:2]), process.returncode, *said, root)
        for command, process, said in zip(commands, processes, told, strict=True)
    ]


def start(command: Sequence[str]) -> subprocess.Popen[str]:
    """Starts a command as a process of its own."""
    whole = [sys.executable, "-m", "fedstrata", *command]
    return subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603


def credentials() -> dict[str, list[str]]:
    """Writes certificates and tokens into `secret`; returns the options of each side."""
    import trustme  # noqa: PLC0415 - of the extra `test`

    folder, authority, options = Path("secret"), trustme.CA(), {}
    folder.mkdir()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    for name in ("server", *CLIENTS):
        issued = authority.issue_cert("localhost", common_name=name)
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        (folder / f"{name}.token").write_text(f"token-of-{name}\n")
        files = {"certificate": f"{name}.pem", "key": f"{name}.key", "authority": "authority.pem"}
        options[name] = [part for key, file in files.items() for part in (f"--{key}", f"secret/{file}")]
    (folder / "tokens").write_text("".join(f"{client} token-of-{client}\n" for client in CLIENTS))
    for file in folder.iterdir():
        file.chmod(0o600)
    options["server"] += ["--tokens", "secret/tokens"]
    for client in CLIENTS:
        options[client] += ["--client", client, "--token", f"secret/{client}.token"]
    return options


def free_address() -> str:
    """Returns an address of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"localhost:{probe.getsockname()[1]}"


def entries_of(cases: Mapping[str, Any]) -> dict[str, Entry]:
    """Returns every entry by its name."""
    entries = {"demo": sequence([["run", "--out", "run"]])}
    for name, settings in cases["runs"].items():
        command = ["run", "site.yaml", "--out", "run", *overrides(settings)]
        entries[f"runs/{name}"] = sequence([command])
    for name, settings in cases["plans"].items():
        command = ["plan", "site.yaml", "--json", "--seconds", "0", *overrides(settings)]
        entries[f"plans/{name}"] = sequence([command])
    for name, settings in cases["refused"].items():
        command = ["run", "site.yaml", "--out", "run", *overrides(settings)]
        entries[f"refused/{name}"] = sequence([command])
    for name, steps in cases["sequences"].items():
        entries[f"sequences/{name}"] = sequence([command_of(each) for each in steps])
    for name, settings in cases["served"].items():
        entries[f"served/{name}"] = served(settings)
    for name, settings in cases["asked"].items():
        entries[f"asked/{name}"] = asked(settings)
    return entries


def command_of(given: str | Mapping[str, Any]) -> list[str]:
    """Returns a command of a sequence, which may have settings."""
    if isinstance(given, str):
        return shlex.split(given)
    ((command, settings),) = given.items()
    return [*shlex.split(command), *overrides(settings)]


def prepare(root: Path, cases: Mapping[str, Any]) -> None:
    """Writes the corpora and imports what first commands had imported, so that no other entry waits for it.

    They are a process of their own: torch cannot train in a fork of one that has trained.
    """
    for names, pieces in cases["corpora"].items():
        text = "".join(
            piece["text"].replace("{n}", str(number))
            for piece in pieces
            for number in range(piece.get("repeat", 1))
        )
        for name in names.split():
            path = root / "corpora" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    synth = [
        ["synth", *shlex.split(options), "--out", str(root / "corpora" / name)]
        for name, options in cases["synthesised"].items()
    ]
    with as_it_was():  # in this process, which then has what the synthetic corpus is made from
        told = sequence(synth)(root)

    def first(root: Path) -> list[dict[str, Any]]:
        told = sequence([command_of(each) for each in cases["first"]])(root)
        (root / "modules.json").write_text(json.dumps(list(sys.modules)))
        return told

    told += record_all({"first": first}, root, cases["base"], 1)["first"]["steps"]
    if wrong := [each for each in told if each["status"]]:
        sys.exit(f"{wrong[0]['command']}: {wrong[0]['stderr']}")
    for name in json.loads((root / "modules.json").read_bytes()):
        with contextlib.suppress(Exception):  # some are made by others, and cannot be imported
            importlib.import_module(name)


@contextlib.contextmanager
def as_it_was() -> Iterator[None]:
    """Lets commands be called, and what is said afterwards go where it went before."""
    kept = [os.dup(number) for number in (1, 2)]
    try:
        yield
    finally:
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def record_entry(entry: Entry, folder: Path, root: Path, base: str) -> None:
    """Runs one entry in its folder, and writes its digest beside it."""
    os.setpgid(0, 0)  # with the processes that it starts, so that all can be ended
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(MOST_SECONDS)  # which ends the process
    folder.mkdir(parents=True)
    os.chdir(folder)
    (folder / "site.yaml").write_text(base, encoding="utf-8")
    steps = entry(root)
    secret = set((folder / "secret").glob("*"))
    digest = {"steps": steps, "files": folder_digest(folder, root, {folder / "site.yaml", *secret})}
    folder.with_name(f"{folder.name}.json").write_text(json.dumps(digest, sort_keys=True), encoding="utf-8")


def record_all(entries: Mapping[str, Entry], root: Path, base: str, jobs: int) -> dict[str, Any]:
    """Runs entries side by side; returns their digests."""
    context = multiprocessing.get_context("fork")
    waiting = sorted(entries, key=lambda name: not any(part in name for part in FIRST))
    running: dict[Any, tuple[str, Path, Any, float]] = {}
    digests: dict[str, Any] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                folder = root / "entries" / name.replace("/", "-").replace(" ", "_")
                process = context.Process(target=record_entry, args=(entries[name], folder, root, base))
                process.start()
                running[process.sentinel] = (name, folder, process, time.monotonic())
            for sentinel in wait(list(running)):
                name, folder, process, began = running.pop(sentinel)
                process.join()
                end(process)
                file = folder.with_name(f"{folder.name}.json")
                ended = f"ended with {process.exitcode}"
                digests[name] = json.loads(file.read_bytes()) if file.exists() else ended
                took = f"{time.monotonic() - began:.1f} s"
                print(f"{len(digests)} of {len(entries)}: {name}, {took}", flush=True)
    finally:
        for _, _, process, _ in running.values():
            end(process)
    return digests


def end(process: Any) -> None:
    """Ends what is left of an entry: its process, and those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def record(options: argparse.Namespace) -> None:
    os.environ.update(ENVIRONMENT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and leaves nothing behind
    import fedstrata  # noqa: PLC0415 - after the environment is set

    source = Path(fedstrata.__file__).parents[1]
    os.environ["PYTHONPATH"] = str(source)  # for processes that are started
    cases = YAML(typ="safe", pure=True).load(CASES.read_text(encoding="utf-8"))
    wanted = tuple(options.only) or ("",)
    entries = {name: entry for name, entry in entries_of(cases).items() if name.startswith(wanted)}
    print(f"{len(entries)} entries of the code in {source}", flush=True)
    began = time.monotonic()
    root = options.keep.absolute() if options.keep else Path(tempfile.mkdtemp(prefix="digests-")).resolve()
    root.mkdir(exist_ok=True)
    try:
        prepare(root, cases)
        digests = record_all(entries, root, cases["base"], options.jobs)
    finally:
        if not options.keep:
            shutil.rmtree(root)
    options.file.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{len(digests)} entries in {options.file}; {time.monotonic() - began:.0f} s")


def compare(options: argparse.Namespace) -> None:
    one, other = (json.loads(file.read_bytes()) for file in (options.one, options.other))
    different = 0
    for name in sorted(one.keys() | other.keys()):
        found = list(differences(one.get(name, "<absent>"), other.get(name, "<absent>")))
        different += bool(found)
        for line in [name, *found[:SHOWN]] if found else []:
            print(line if line == name else f"  {line}")
        if len(found) > SHOWN:
            print(f"  and {len(found) - SHOWN} more")
    print(f"{different} of {len(one.keys() | other.keys())} entries differ")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    chosen = arguments()
    record(chosen) if chosen.verb == "record" else compare(chosen)

"""A queue of experiments that computes in the background, for days, beside whoever works on this machine.

    python benchmarks/queue.py run      # computes the rows of queue.yaml in order, until none is left
    python benchmarks/queue.py status   # what is finished, running and to come
    python benchmarks/queue.py pause    # stops computing, also in the middle of a row; `resume` continues
    python benchmarks/queue.py retry NAME

Each row is a command of this repository. It runs in a clone at a recorded commit, with the environment of
that commit's lock file, at the lowest priority, with one thread; two rows at a time, as long as their memory
fits. A row that is killed, with or without the queue, is started again by the same command; one that cannot
continue begins anew. What is finished is in `results/NAME.json` and `results/README.md`, to be committed. A
row that fails is recorded with its error and passed over.

Why no library: doit, Snakemake and make run such lists with dependencies, and Snakemake bounds memory. None
of them binds a row to a commit with an environment of its own, can be paused within a row, or adopts
processes that have outlived it.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the standard library has a module of this name, which others import

import argparse
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import chain, product
from pathlib import Path
from typing import Any

import psutil
import yaml  # type: ignore[import-untyped]

from fedstrata.record.costs import Column

REPOSITORY = Path(__file__).resolve().parents[1]
QUEUE = Path(__file__).with_name("queue.yaml")
RESULTS = Path(__file__).with_name("results")
HOME = REPOSITORY / ".queue"
JOBS, MEMORY = 2, 12.0
"""Rows at a time, and the GiB that they may declare together."""
LARGEST = 50_000
"""Bytes of a result file."""
FOLDERS = ("FEDSTRATA_DATA", "FEDSTRATA_MODELS")
"""Environment variables that commands of rows may name: where data sets and models are."""
COSTS = (
    *("megabytes_sent", "megabytes_up", "megabytes_down", "total_seconds", "train_seconds_per_round"),
    *("peak_memory_megabytes", "rounds_to_90_percent", "percent_of_full_model", "trainable_parameters"),
)
"""Columns of a comparison's table that a result keeps beside those that are shown."""


@dataclass(frozen=True)
class Row:
    """An experiment.

    Attributes:
        name: Its name, that of its result.
        command: What runs, in the root of the clone; `{out}` is a folder of the row's own, and the
            variables of `FOLDERS` are filled in. `python` and `fedstrata` are those of the row's
            environment.
        hours: How long it takes, of one core.
        memory: GiB that it needs at most.
        page: The page that shows it.
        table: Rows of one table come from one commit.
        result: The JSON file, within `{out}`, that holds what was measured: a comparison's `table.json` or
            any other. The last line of what the command prints if empty.
        label: What stands behind the names of its table's rows, where other rows of the queue have the same.
        resumes: Whether the same command continues where it was stopped. If not, its folder is emptied first.
        needs: Rows that must be finished before.
    """

    name: str
    command: str
    hours: float
    memory: float
    page: str
    table: str = ""
    result: str = ""
    label: str = ""
    resumes: bool = True
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class State:
    """Where a row is, as `HOME/rows/NAME/state.json` holds it.

    Attributes:
        commit: The commit at which it began.
        began: When, in ISO 8601.
        starts: How often its command was started.
        anew: How often it lost what it had.
        seconds: Wall seconds that its processes have run, pauses not counted.
        peak: GiB that they have held at most, together.
    """

    commit: str
    began: str
    starts: int = 0
    anew: int = 0
    seconds: float = 0.0
    peak: float = 0.0


@dataclass
class Queue:
    """The rows, and what is known of each.

    Attributes:
        rows: The rows in order.
        home: Where clones, environments and the folders of rows are.
        results: Where results are.
        repository: What is cloned.
        programs: The folder of the programs that rows run; None makes an environment for each lock file.
        poll: Seconds between two looks at what runs.
    """

    rows: Sequence[Row]
    home: Path = HOME
    results: Path = RESULTS
    repository: Path = REPOSITORY
    programs: Path | None = None
    poll: float = 2.0

    def folder(self, row: Row) -> Path:
        """Returns the folder of a row."""
        return self.home / "rows" / row.name

    def result(self, row: Row) -> dict[str, Any] | None:
        """Returns what is recorded of a row that is finished or has failed; None of others."""
        path = self.results / f"{row.name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def is_finished(self, name: str) -> bool:
        """Whether a row has a result."""
        return any(
            row.name == name and (found := self.result(row)) is not None and found["status"] == "finished"
            for row in self.rows
        )

    def state(self, row: Row) -> State | None:
        """Returns where a row is; None if it has not begun on this machine."""
        path = self.folder(row) / "state.json"
        return State(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def keep(self, row: Row, state: State) -> None:
        """Records where a row is."""
        self.folder(row).mkdir(parents=True, exist_ok=True)
        write(self.folder(row) / "state.json", json.dumps(asdict(state), indent=1))

    @property
    def paused(self) -> bool:
        """Whether nothing is to compute at present."""
        return (self.home / "paused").exists()


def read_rows(path: Path) -> list[Row]:
    """Reads the rows of a queue.

    `for: {seed: [0, 1], rate: [1e-4, 1e-3]}` makes a row for every combination: `{seed}` and `{rate}` are
    filled in wherever the row has them.

    Raises:
        SystemExit: A row lacks a field or has an unknown one, a name stands twice, or a need is no earlier
            row.
    """
    rows: list[Row] = []
    for given in chain.from_iterable(map(each_of, yaml.safe_load(path.read_text(encoding="utf-8")))):
        try:
            row = Row(**{**given, "needs": tuple(given.get("needs", ()))})
        except TypeError as error:
            raise SystemExit(f"{path.name}: {given.get('name', given)}: {error}") from None
        names = {each.name for each in rows}
        if row.name in names or (missing := set(row.needs) - names) or row.memory > MEMORY:
            wrong = "stands twice" if row.name in names else f"needs {missing or f'{row.memory} GiB'}"
            raise SystemExit(f"{path.name}: {row.name} {wrong}")
        rows.append(row)
    return rows


def each_of(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a row of the file once for every combination of what it is for."""
    values = given.get("for", {})
    rest = {key: value for key, value in given.items() if key != "for"}
    for combination in product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        row = {key: with_choices(value, chosen) for key, value in rest.items()}
        if "name" in row:
            row["name"] = re.sub(r"[^\w.=]+", "-", row["name"])  # it names files
        yield row


def with_choices(value: Any, chosen: Mapping[str, Any]) -> Any:
    """Returns a text, or a list of texts, with the chosen values in the places of their names."""
    if isinstance(value, list):
        return [with_choices(each, chosen) for each in value]
    if isinstance(value, str):
        for name, choice in chosen.items():
            value = value.replace(f"{{{name}}}", str(choice))
    return value


def write(path: Path, text: str) -> None:
    """Writes a file that is there as a whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def is_running(queue: Queue, row: Row) -> bool:
    """Whether a row's supervisor, or the command that it has left behind, is alive: it holds a lock."""
    path = queue.folder(row) / "lock"
    if not path.exists():
        return False
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def signal_row(queue: Queue, row: Row, number: signal.Signals) -> None:
    """Sends a signal to all processes of a row."""
    path = queue.folder(row) / "process"
    leader = int(path.read_text(encoding="utf-8")) if path.exists() else 0
    for process in psutil.process_iter():
        try:
            if leader and (
                os.getsid(process.pid) == leader or leader in {each.pid for each in process.parents()}
            ):
                process.send_signal(number)
        except (psutil.Error, ProcessLookupError):
            continue


def git(*arguments: str, folder: Path) -> str:
    """Runs git, and returns what it prints."""
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit_for(queue: Queue, row: Row) -> str:
    """Returns the commit for a row that has not begun: that of its table, else the newest."""
    for other in queue.rows if row.table else ():
        if other.table == row.table and other.name != row.name:
            begun, done = queue.state(other), queue.result(other)
            if begun is not None or done is not None:
                return begun.commit if begun is not None else str(done and done["commit"])
    return git("rev-parse", "HEAD", folder=queue.repository)


def clone_at(queue: Queue, commit: str) -> Path:
    """Returns a clone at a commit, which is made if it is not there."""
    folder = queue.home / "clones" / commit[:12]
    if not folder.exists():
        unfinished = folder.with_name(f".{folder.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        git(
            "clone",
            "--quiet",
            "--no-checkout",
            str(queue.repository),
            str(unfinished),
            folder=queue.repository,
        )
        git("checkout", "--quiet", commit, folder=unfinished)
        unfinished.rename(folder)
    return folder


def environment_at(queue: Queue, clone: Path) -> Path:
    """Returns the folder of the programs for a clone, whose packages are those of its lock file.

    The environment is shared by commits with the same lock file: `PYTHONPATH` names the clone's own source.
    """
    lock = hashlib.sha256((clone / "requirements.lock").read_bytes()).hexdigest()[:12]
    folder = queue.home / "environments" / lock
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--constraint"]
        install.append(str(clone / "requirements.lock"))
        subprocess.run([*install, "torch"], check=True)
        subprocess.run([*install, f"{clone}[bench,gguf,privacy]"], check=True)
        (folder / "installed").touch()
    return folder / "bin"


def start(queue: Queue, row: Row) -> None:
    """Starts a row's supervisor, which outlives the queue."""
    state, folder = queue.state(row), queue.folder(row)
    if state is None:
        began = datetime.now(UTC).isoformat(timespec="seconds")
        state = State(commit_for(queue, row), began)
    clone = clone_at(queue, state.commit)
    programs = queue.programs or environment_at(queue, clone)
    out = folder / "out"
    lost = state.starts > 0 and not (row.resumes and out.exists())
    if lost:
        shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    (folder / "status").unlink(missing_ok=True)
    state = replace(state, starts=state.starts + 1, anew=state.anew + lost)
    queue.keep(row, state)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).resolve()),
                "_supervise",
                str(folder),
                str(queue.poll),
                *filled(row, out),
            ],
            cwd=clone,
            env={
                **os.environ,
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(clone / "src"),
                "OMP_NUM_THREADS": "1",
                "TORCHDYNAMO_DISABLE": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while process.poll() is None and not is_running(queue, row):
        time.sleep(0.01)


def filled(row: Row, out: Path) -> list[str]:
    """Returns a row's command with its folder and the variables in it."""
    rows = out.parents[1]
    command = row.command.replace("{out}", shlex.quote(str(out))).replace("{rows}", shlex.quote(str(rows)))
    for name in FOLDERS:
        command = command.replace(f"${name}", shlex.quote(os.environ.get(name, f"${name}")))
    return shlex.split(command)


def supervise(folder: Path, poll: float, command: Sequence[str]) -> None:
    """Runs a row's command at the lowest priority, and records how it ends.

    The command holds the row's lock too, so that a row whose supervisor was killed still counts as running.
    """
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        write(folder / "process", str(os.getpid()))
        os.nice(19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with suppress(OSError):  # Linux compares priorities within a session, and sessions by this number
            Path("/proc/self/autogroup").write_text("19", encoding="utf-8")
        child = subprocess.Popen(command, pass_fds=[lock.fileno()])
        peak, ran, own = 0.0, 0.0, psutil.Process()
        while (status := child.poll()) is None:
            before = time.monotonic()
            time.sleep(poll)
            ran += min(time.monotonic() - before, 2 * poll)  # a pause is no time that it ran
            peak = max(peak, held_by(own))
            write(folder / "measured", json.dumps({"seconds": ran, "peak": peak}))
        write(folder / "status", str(status))


def held_by(process: psutil.Process) -> float:
    """Returns the GiB that a process and all that it has started hold."""
    held = 0
    for each in (process, *process.children(recursive=True)):
        try:
            held += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return held / 2**30


def settle(queue: Queue, row: Row) -> None:
    """Records what a row that no longer runs has come to; one that was killed is left to be started again."""
    state, folder = queue.state(row), queue.folder(row)
    if state is None or queue.result(row) is not None or is_running(queue, row):
        return
    measured = {"seconds": 0.0, "peak": 0.0}
    if (folder / "measured").exists():
        measured = json.loads((folder / "measured").read_text(encoding="utf-8"))
        (folder / "measured").unlink()
    seconds, peak = state.seconds + measured["seconds"], max(state.peak, measured["peak"])
    state = replace(state, seconds=seconds, peak=peak)
    queue.keep(row, state)
    if not (folder / "status").exists():
        return
    status = int((folder / "status").read_text(encoding="utf-8"))
    if status < 0:  # killed by a signal
        return
    facts: dict[str, Any] = {"name": row.name, "status": "finished" if status == 0 else "failed"}
    if status == 0:
        try:
            facts["measured"] = measurements(row, folder)
        except (OSError, ValueError, KeyError, IndexError) as error:
            facts |= {"status": "failed", "error": f"no result: {type(error).__name__}: {error}"}
    else:
        lines = (folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        facts |= {"error": " | ".join(lines[-3:])[-500:], "exit_status": status}
    facts |= {
        "command": row.command,
        "page": row.page,
        "table": row.table,
        "commit": state.commit,
        "began": state.began,
        "hours": round(state.seconds / 3600, 3),
        "peak_memory_gib": round(state.peak, 2),
        "starts": state.starts,
        "begun_anew": state.anew,
        "machine": machine(),
    }
    queue.results.mkdir(exist_ok=True)
    text = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
    if len(text.encode()) > LARGEST:
        facts |= {"status": "failed", "error": f"the result has {len(text.encode())} bytes, over {LARGEST}"}
        facts.pop("measured", None)
        text = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
    write(queue.results / f"{row.name}.json", text)
    write(queue.results / "README.md", table_of_results(queue))


def measurements(row: Row, folder: Path) -> Any:
    """Returns what a row has measured: of a comparison the shown columns and costs of each row by seed."""
    if not row.result:
        lines = (folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return json.loads(lines[-1])
    found = json.loads((folder / "out" / row.result).read_text(encoding="utf-8"))
    if not (isinstance(found, dict) and {"rows", "shown", "seeds"} <= found.keys()):
        return found
    kept = [key for key in dict.fromkeys([*found["shown"], *COSTS]) if key in found["columns"]]
    return {
        "metric": found["metric"],
        "columns": {key: found["columns"][key] for key in kept},
        "rows": {
            each["name"]: {key: cell["by_seed"] for key in kept if (cell := each["values"].get(key))}
            for each in found["rows"]
        },
        "tuning": {each["name"]: each["tuning"] for each in found["rows"] if each["tuning"]},
        "data": sorted({cell["data"] for each in found["rows"] for cell in each["cells"] if cell["data"]}),
    }


def machine() -> str:
    """Returns the processor and its cores."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return f"{os.cpu_count()} cores of {names[0] if names else 'an unknown processor'}"


def table_of_results(queue: Queue) -> str:
    """Returns the page of all results."""
    lines = [
        "# Results of the queue",
        "",
        "Written by `python benchmarks/queue.py`: one line for each row of `queue.yaml`. What was measured "
        "is in `NAME.json`. Rows of one table are of one commit unless the last column says otherwise.",
        "",
        "| row | page | state | commit | hours | peak GiB | started | |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | --- |",
    ]
    commits: dict[str, set[str]] = {}
    for row in queue.rows:
        if row.table and (found := queue.result(row)) is not None:
            commits.setdefault(row.table, set()).add(found["commit"])
    for row in queue.rows:
        found = queue.result(row)
        page = f"[{row.page}]({os.path.relpath(queue.repository / row.page, queue.results)})"
        if found is None:
            lines.append(f"| {row.name} | {page} | to come | | {row.hours:g} expected | | | |")
            continue
        notes = [found.get("error", "")] if found["status"] == "failed" else []
        notes += ["other commit than its table"] if len(commits.get(row.table, ())) > 1 else []
        notes += [f"begun anew {found['begun_anew']} times"] if found["begun_anew"] else []
        cells = (
            f"[{row.name}]({row.name}.json)",
            page,
            found["status"],
            found["commit"][:10],
            f"{found['hours']:.2f}",
            f"{found['peak_memory_gib']:.1f}",
            str(found["starts"]),
            "; ".join(notes).replace("|", "/"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    for name in dict.fromkeys(row.table for row in queue.rows if row.table):
        lines += scores_of(queue, name)
    return "\n".join(lines) + "\n"


def scores_of(queue: Queue, table: str) -> Iterator[str]:
    """Yields the lines of a table: what its comparisons have measured, the mean and spread over seeds."""
    columns: dict[str, Column] = {}
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for row in queue.rows:
        measured = (queue.result(row) or {}).get("measured") if row.table == table else None
        if not isinstance(measured, dict) or "columns" not in measured:
            continue
        columns |= {key: Column(**column) for key, column in measured["columns"].items()}
        for name, values in measured["rows"].items():
            kept = rows.setdefault(", ".join(filter(None, (name, row.label))), {})
            for key, by_seed in values.items():
                kept[key] = kept.get(key, {}) | by_seed
    if not rows:
        return
    yield from ("", f"## {table}", "")
    yield f"| | seeds | {' | '.join(column.title for column in columns.values())} |"
    yield f"| --- | ---: | {' | '.join('---:' for _ in columns)} |"
    for name, values in rows.items():
        seeds = sorted({seed for by_seed in values.values() for seed in by_seed}, key=int)
        cells = [
            column.mean([*values[key].values()]) if key in values else "-" for key, column in columns.items()
        ]
        yield f"| {' | '.join([name, ', '.join(seeds), *cells])} |"


@contextmanager
def alone(queue: Queue) -> Iterator[None]:
    """Holds the lock of a queue.

    Raises:
        SystemExit: Another process computes it.
    """
    queue.home.mkdir(parents=True, exist_ok=True)
    with (queue.home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another process computes the queue in {queue.home}") from None
        yield


def run(queue: Queue) -> None:
    """Computes all rows."""
    with alone(queue):
        stopped = False
        while True:
            for row in queue.rows:
                settle(queue, row)
            left = [row for row in queue.rows if queue.result(row) is None]
            running = [row for row in left if is_running(queue, row)]
            if queue.paused or stopped:  # what has started processes since is stopped again
                stopped = queue.paused
                for row in running:
                    signal_row(queue, row, signal.SIGSTOP if stopped else signal.SIGCONT)
            if not left:
                return
            if not stopped and not launch(queue, left, running) and not running:
                return  # what is left needs rows that have failed
            time.sleep(queue.poll)


def launch(queue: Queue, left: Sequence[Row], running: Sequence[Row]) -> bool:
    """Starts the next row that there is room for; whether one was started."""
    if len(running) >= JOBS:
        return False
    room = MEMORY - sum(row.memory for row in running)
    for row in left:
        if row not in running and row.memory <= room and all(map(queue.is_finished, row.needs)):
            start(queue, row)
            return True
    return False


def print_status(queue: Queue) -> None:
    """Prints where each row is."""
    hours = 0.0
    for row in queue.rows:
        found, state = queue.result(row), queue.state(row)
        if found is not None:
            shown = f"{found['status']}, {found['hours']:.2f} h"
        else:
            hours += row.hours
            shown = "to come" if state is None else f"begun {state.began}"
            shown += ", running" if is_running(queue, row) else ""
            shown += f", {row.hours:g} h expected"
        print(f"{row.name:40} {shown}")
    print(f"{'paused; ' if queue.paused else ''}{hours:g} hours of one core to come")


def main() -> None:
    """Runs a command of the queue."""
    if sys.argv[1:2] == ["_supervise"]:
        supervise(Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description="Computes experiments in the background.")
    parser.add_argument("command", choices=["run", "status", "pause", "resume", "retry"])
    parser.add_argument("name", nargs="?", help="retry: the row that has failed")
    parser.add_argument("--queue", type=Path, default=QUEUE, help="the rows")
    parser.add_argument("--home", type=Path, default=HOME, help="where clones and rows are kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are written")
    parser.add_argument("--repository", type=Path, default=REPOSITORY, help="what is cloned")
    parser.add_argument("--programs", type=Path, help="the folder of python, in place of an own environment")
    parser.add_argument("--poll", type=float, default=2.0, help="seconds between two looks")
    given = parser.parse_args()
    queue = Queue(
        read_rows(given.queue),
        home=given.home.resolve(),
        results=given.results.resolve(),
        repository=given.repository.resolve(),
        programs=given.programs,
        poll=given.poll,
    )
    queue.home.mkdir(parents=True, exist_ok=True)
    if given.command == "run":
        run(queue)
    elif given.command == "status":
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # it ends quietly before `head`
        print_status(queue)
    elif given.command == "pause":
        (queue.home / "paused").touch()
    elif given.command == "resume":
        (queue.home / "paused").unlink(missing_ok=True)
    else:
        row = next((row for row in queue.rows if row.name == given.name), None)
        found = None if row is None else queue.result(row)
        if row is None or found is None or found["status"] != "failed":
            raise SystemExit(f"{given.name} is no row that has failed")
        (queue.results / f"{row.name}.json").unlink()
        shutil.rmtree(queue.folder(row), ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()

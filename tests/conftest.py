"""Fixtures for the tests of several folders."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Generator, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pytest
import torch
import typer.testing
from hypothesis import settings
from nvflare_federation import NVFlareFederation, nvflare_federation
from remote_run import Clients, Serve, serving
from support import (
    PREFIXES_REFUSED,
    REPOSITORY,
    TINY,
    WRITE_REPORT,
    Call,
    Finished,
    RunTiny,
    Told,
    executed,
    executed_once,
    files_of,
)
from tiny_models import saved, settings_of, tiny_model, tokenizer_folder, variant
from weekly_tests import WEEKLY

from fedstrata.cli import main as cli
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings import source
from fedstrata.data import synthetic
from fedstrata.engine.run import Run

__all__ = ["saved", "settings_of", "tiny_model", "tokenizer_folder", "variant"]

# Same examples every time, and no clock in a verdict. `make test-weekly` takes the other profile.
settings.register_profile("landing", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("weekly", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("landing")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks those that a landing does not wait for; those beside this file, which take longest, come first.

    So no core is left at the end with nothing to do but to wait for the other.
    """
    items.sort(key=lambda item: item.path.parent != REPOSITORY / "tests")
    whole = not any("::" in argument for argument in config.args)
    files = {item.nodeid.partition("::")[0] for item in items}
    for beginning in WEEKLY:
        found = [item for item in items if item.nodeid.startswith(beginning)]
        if not found and whole and beginning.partition("::")[0] in files:
            raise pytest.UsageError(f"{beginning} is in weekly_tests.py and no test")
        for item in found:
            if not item.get_closest_marker("slow"):
                raise pytest.UsageError(f"{item.nodeid} is in weekly_tests.py and not slow")
            item.add_marker(pytest.mark.weekly)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Skips what needs a prefix in a classifier where the installed transformers allows none."""
    try:
        return (yield)
    except ConfigurationError as error:
        if PREFIXES_REFUSED and "dependency_too_new" in [each.code for each in error.problems]:
            pytest.skip("PEFT puts no prefix into classifiers of this transformers")
        raise


def pytest_collection_finish() -> None:
    """What collecting made stays to the end: no collector of garbage need look through it again.

    And it looks seldom: at the default of 700 objects it takes a tenth of a run's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)


@pytest.fixture(autouse=True, scope="module")
def _what_is_there_stays() -> Iterator[None]:
    """A client that fails has garbage collected, which looks through all that tests before have imported."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that must not outlive the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """A background job of a shell ignores Ctrl-C, and so would the processes its tests interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _no_power_cut() -> Iterator[None]:
    """No test survives a power cut, and waiting for the disk would be a tenth of a run's time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os.fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _corpora_once() -> Iterator[None]:
    """Runs on the same synthetic notes, which nothing can change, find them written."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedstrata.data.synthetic.generate", cache(synthetic.generate))
        yield


@pytest.fixture(autouse=True, scope="session")
def _overrides_once() -> Iterator[None]:
    """The overrides of a tiny run take longer to read than its settings to check."""
    read, known = source.plain_values, cache(source.plain_values)

    def plain_values(text: str | bytes, *of_a_file: Any) -> Any:
        return read(text, *of_a_file) if of_a_file else deepcopy(known(text))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(source, "plain_values", plain_values)
        yield


@pytest.fixture(autouse=True, scope="session")
def _commands_once() -> Iterator[None]:
    """Typer makes all commands anew at each call, which takes longer than most of what tests call."""
    with pytest.MonkeyPatch.context() as patched:
        get_command = cache(typer.main.get_command)
        patched.setattr("typer.main.get_command", get_command)
        patched.setattr("typer.testing._get_command", get_command)
        yield


@pytest.fixture(autouse=True, scope="session")
def _card_once() -> Iterator[None]:
    """PEFT compiles the template of its model card at each save, which takes longer than a tiny adapter."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("jinja2.Template", cache(jinja2.Template))
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Small tensors are slower on many threads, and sums come out equal everywhere."""
    torch.set_num_threads(1)


@pytest.fixture
def data_root() -> Path:
    """The folder of real data; tests that need it are skipped where it is absent."""
    root = REPOSITORY / os.environ.get("FEDSTRATA_DATA", "../shared/data")
    if not root.is_dir():
        pytest.skip(f"no real data at {root}")
    return root


@pytest.fixture(autouse=True, scope="session")
def _no_reports() -> Iterator[None]:
    """Runs in this process write no report, unless a test asks for `reports`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Run, "_report", lambda run: None)
        yield


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process write their report."""
    monkeypatch.setattr(Run, "_report", WRITE_REPORT)


@pytest.fixture
def run_tiny(tmp_path: Path) -> RunTiny:
    """Runs a tiny federation in this process; takes overrides, and `out` for the name of its folder."""

    def run(*overrides: str, out: str = "run", resume: bool = False, **how: Any) -> Finished:
        given = overrides if resume else (*TINY, *overrides)
        return executed(tmp_path / out, given, resume=resume, **how)

    return run


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunTiny]:
    """Runs as `run_tiny` does what several tests look at and none changes: once for the same overrides.

    All processes of xdist share these runs; one whose files were changed is an error at the end. For what a
    run is compared with, hence never under a patch.
    """
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
    made: dict[tuple[str, ...], Finished] = {}

    def run(*overrides: str) -> Finished:
        if overrides not in made:
            made[overrides] = executed_once(shared, (*TINY, *overrides))
        return made[overrides]

    yield run
    for overrides, done in made.items():
        assert files_of(done.folder) == (done.folder.parent / "done").read_text(), overrides


@pytest.fixture(scope="session")
def clients() -> Iterator[Clients]:
    """Where client processes come from."""
    made = Clients()
    yield made
    made.close()


@pytest.fixture(scope="session")
def nvflare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NVFlareFederation]:
    """A federation of NVFlare's, in which many runs are served one after the other."""
    pytest.importorskip("nvflare")
    with nvflare_federation(tmp_path_factory.mktemp("nvflare")) as federation:
        yield federation


@pytest.fixture
def serve(tmp_path: Path, clients: Clients) -> Iterator[Serve]:
    """Starts a server that clients in other processes can join."""
    with serving(tmp_path, clients) as start:
        yield start


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls a command in an empty folder; a process of its own would spend seconds on imports."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Told:
        monkeypatch.setattr("sys.argv", ["fedstrata", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return Told(int(stop.value.code or 0), *capsys.readouterr())

    return run

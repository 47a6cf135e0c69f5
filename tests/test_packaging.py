"""What is handed on: a lock of what was tested, and a wheel that works where nothing else is."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Collection, Iterable, Iterator
from importlib.metadata import Distribution, PathDistribution, distribution, packages_distributions
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pages import configuration_of, python_of, text_of
from ruamel.yaml import YAML
from support import REPOSITORY

import fedstrata
from fedstrata.record.log import read_events

PACKAGE = REPOSITORY / "src" / "fedstrata"
NOT_INSTALLED = {"mlflow": "mlflow-skinny"}
"""Distributions of packages that the tests do without."""
LOCKED_EXTRAS = set(re.findall(r"--extra (\w+)", text_of("Makefile")))


def project() -> dict[str, Any]:
    """What pyproject.toml says of the project."""
    return tomllib.loads(text_of("pyproject.toml"))["project"]


def lock() -> dict[str, Version]:
    pins = re.findall(r"^([\w.-]+)==([^\s;#]+)", text_of("requirements.lock"), flags=re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in pins}


def test_the_lock_has_what_is_declared_at_a_version_that_is_allowed() -> None:
    pins, own = lock(), project()
    installed = set(re.findall(r"\w+", " ".join(re.findall(r"'\.\[(.*?)\]'", text_of("Makefile")))))
    assert installed == LOCKED_EXTRAS, "Makefile installs extras that it does not lock, or the other way"
    of_extras = [each for name in LOCKED_EXTRAS for each in own["optional-dependencies"][name]]
    wanted = [Requirement(each) for each in [*own["dependencies"], *of_extras]]
    named = [(each, pins.get(canonicalize_name(each.name))) for each in wanted]
    missing = [str(each) for each, pin in named if pin is None or pin not in each.specifier]
    assert missing == [], "run `make lock`"


def test_the_lock_brings_nothing_of_cuda() -> None:
    assert [name for name in lock() if name.startswith(("nvidia", "cuda", "triton"))] == []


@pytest.mark.parametrize(
    "page", ["pyproject.toml", "deploy/Dockerfile", "deploy/README.md", "benchmarks/peers/fedavg.py"]
)
def test_torch_is_everywhere_that_of_the_lock(page: str) -> None:
    named = set(re.findall(r"torch==([\w.]+)", text_of(page)))
    assert named == {str(lock()["torch"])}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make wheel` builds it: from the source distribution."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(REPOSITORY)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the programs of a fresh environment that holds the wheel and what it declares, without extras.

    What it declares is linked from where the tests run, as installed from the lock: the same files as another
    installation of them, in no time.
    """
    root = tmp_path_factory.mktemp("fresh")
    venv.create(root)
    (site,) = root.glob("lib/python*/site-packages")
    install(wheel, root)
    (own,) = site.glob("fedstrata-*.dist-info")
    for installed in needed(PathDistribution(own)):
        for name in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(str(installed.locate_file(name)))
    return root / "bin"


def install(wheel: Path, root: Path) -> None:
    """Installs a wheel into an environment, without what it needs."""
    pip = [sys.executable, "-m", "pip", "--python", str(root)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)


def required(texts: Iterable[str], extras: Collection[str] = ()) -> Iterator[Requirement]:
    """Those that hold here, with these extras of whoever requires them."""
    for each in map(Requirement, texts):
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield each


def needed(own: Distribution) -> Iterator[Distribution]:
    """All that a distribution needs, however indirectly, as it is installed where the tests run."""
    waiting, seen = list(required(own.requires or ())), set()
    while waiting:
        wanted = waiting.pop()
        found = distribution(wanted.name)
        if (found.name, *sorted(wanted.extras)) not in seen:
            seen.add((found.name, *sorted(wanted.extras)))
            waiting += required(found.requires or (), wanted.extras)
            yield found


def run_in(environment: Path, folder: Path, *command: str) -> str:
    """Runs one of its programs where nothing leads to the sources; returns what it printed."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    variables |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    program = [str(environment / command[0]), *command[1:]]
    done = subprocess.run(program, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {PurePosixPath(name) for name in archive.namelist()}
    files = (path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*") if path.is_file())
    there = {PurePosixPath(path) for path in files if "__pycache__" not in path.parts}
    packaged = {path for path in held if not path.parts[0].endswith(".dist-info")}
    assert packaged == there
    described = {path.name for path in held - packaged}
    assert described == {"METADATA", "WHEEL", "RECORD", "LICENSE", "entry_points.txt"}


@pytest.mark.slow
def test_the_wheel_declares_what_it_imports(wheel: Path) -> None:
    """By the names of distributions, in an extra or without one."""
    imported = set()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                imported |= modules_of(archive.read(name).decode())
    own = project()
    extras = {name: each for name, each in own["optional-dependencies"].items() if name != "test"}
    named = map(Requirement, chain(own["dependencies"], *extras.values()))
    declared = {canonicalize_name(each.name) for each in named}
    known = packages_distributions()
    undeclared = {
        name
        for name in imported - sys.stdlib_module_names - {"fedstrata"}
        if not declared & set(map(canonicalize_name, known.get(name, [NOT_INSTALLED.get(name, name)])))
    }
    assert undeclared == set()


def modules_of(source: str) -> set[str]:
    """Returns the packages that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.slow
def test_the_wheel_alone_runs_the_demo_in_another_folder(environment: Path, tmp_path: Path) -> None:
    small = ("data.synthetic.notes=12", "federation.rounds=1")
    said = run_in(environment, tmp_path, "fedstrata", "run", *small, "--out", "run")
    assert "all documents" in said
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    where = run_in(environment, tmp_path, "python", "-c", "import fedstrata; print(fedstrata.__file__)")
    assert Path(where.strip()).is_relative_to(environment.parent)


@pytest.mark.slow
def test_the_wheel_alone_runs_the_python_of_the_readme(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(configuration_of(text_of("README.md"), "site.yaml"))
    synth = ("--sites", "3", "--notes", "12", "--format", "brat", "--out", "notes")
    run_in(environment, tmp_path, "fedstrata", "synth", *synth)
    (lines,) = python_of(text_of("README.md"))
    run_in(environment, tmp_path, "python", "-c", lines)


PLUGGED_IN = """
data: {format: barred, path: notes, reader: {opens: "<", closes: ">"}}
task: {name: caseless_mentions, max_length: 64, stride: 8, extra_metrics: [{name: found_share}]}
method: {name: top_block, mu: 0.2}
training: {learning_rate: 0.001}
federation: {rounds: 2, metric: found_share}
workers: 2
"""
LINE = "She takes <drug|aspirin {number}> against <problem|pain> and <dose|{number} mg> of it.\n"


@pytest.mark.slow
def test_a_package_of_plug_ins_is_found_where_it_is_installed(environment: Path, tmp_path: Path) -> None:
    """A method, a task, a reader and a metric by name, in YAML, on two workers; one that is gone says so."""
    package = REPOSITORY / "tests" / "fixtures" / "site_plugins"
    built = tmp_path / "built"
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(built)]
    subprocess.run([*build, str(package)], check=True, capture_output=True)
    (found,) = built.glob("*.whl")
    install(found, environment.parent)
    for site in ("north", "south"):
        (tmp_path / "notes" / site).mkdir(parents=True)
        lines = "".join(LINE.format(number=number) for number in range(12))
        (tmp_path / "notes" / site / "ward.barred").write_text(lines)
    (tmp_path / "plugged.yaml").write_text(PLUGGED_IN)
    run_in(environment, tmp_path, "fedstrata", "run", "plugged.yaml", "--out", "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["method"], summary["task"]) == ("top_block", "caseless_mentions")
    assert "found_share" in summary["metrics"]["global"]
    assert read_events(tmp_path / "run" / "record.jsonl")[0]["workers"] == 2
    listed = run_in(environment, tmp_path, "fedstrata", "methods")
    assert "from site-plugins 1.0" in listed
    assert re.search("method gone from site-plugins 1.0 .*: 'gone' ", listed)


def test_the_citation_is_of_this_version() -> None:
    cited = YAML(typ="safe").load(text_of("CITATION.cff"))
    assert (cited["version"], cited["license"]) == (fedstrata.__version__, project()["license"])

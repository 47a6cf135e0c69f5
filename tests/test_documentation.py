"""Documents that describe the code are held equal to it, and the README's commands run."""

from __future__ import annotations

import pkgutil
import re
import shlex
from pathlib import Path

import pytest
import typer
from pages import commands_of, configuration_of, follow, text_of
from support import REPOSITORY, load_script

import fedstrata
from fedstrata.cli import main as cli
from fedstrata.core.metric import METRICS
from fedstrata.core.settings.reader import READERS
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import read_source
from fedstrata.core.settings.sweep import read_sweep, with_value
from fedstrata.engine.check import check_settings
from fedstrata.engine.privacy import privacy_of
from fedstrata.methods import METHODS
from fedstrata.planning.privacy import noise_ratio
from fedstrata.record.words import epsilon
from fedstrata.tasks import TASKS

SOURCES = sorted((REPOSITORY / "src").rglob("*.py"))
CONFIGURATIONS = sorted(
    path
    for folder in ("src", "benchmarks", "examples")
    for path in (REPOSITORY / folder).rglob("*.yaml")
    if not {"synthetic", "writers", "queue.yaml"}.intersection(path.parts)  # tables of the code, and a list
)


@pytest.mark.parametrize(
    "name",
    [
        "document_errors",
        "document_settings",
        "document_methods",
        pytest.param("document_combinations", marks=pytest.mark.slow),
    ],
)
def test_pages_that_scripts_write_are_up_to_date(name: str) -> None:
    script = load_script(f"scripts/{name}.py")
    assert script.DOCUMENT.read_text(encoding="utf-8") == script.document(), f"run scripts/{name}.py"


def test_the_reference_of_python_has_every_public_name_once() -> None:
    pages = [REPOSITORY / "docs" / name for name in ("api.md", "api_parts.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    shown = re.findall(r"^::: fedstrata\.(\w+)$", text, re.MULTILINE)
    assert sorted(shown) == sorted({*fedstrata.__all__} - {"methods", "settings", "tasks"})


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.name)
def test_every_shipped_configuration_is_valid(path: Path) -> None:
    """Every run of it, where it describes several."""
    sources = [read_source(path, [])]
    if "sweep" in sources[0].values:
        sweep = read_sweep([path], [])
        tried, tune = [("seed", sweep.settings.seeds[0])], sweep.settings.tune
        if tune:
            tried = [(tune.setting, value) for value in tune.values]
        sources = [with_value(row, *setting, "")[0].source for row in sweep.rows for setting in tried]
    assert sources
    for source in sources:
        checked = check_settings(source)
        assert not checked.problems, [problem.message for problem in checked.problems]
        assert checked.method is not None
        if path.is_relative_to(REPOSITORY / "benchmarks"):
            assert checked.settings.name.replace("-", "_") == path.stem


DOCUMENTS = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
    *sorted((REPOSITORY / "deploy").glob("*.md")),
    *sorted((REPOSITORY / "benchmarks").rglob("*.md")),
]
PAGES = [*DOCUMENTS, *SOURCES]
PACKAGES = {
    found.name for found in pkgutil.iter_modules(fedstrata.__path__)
} - RunSettings.model_fields.keys()
"""Whose names say by themselves that code is meant, and no setting."""


GROUPS = {plugins.group for plugins in (METHODS, TASKS, READERS, METRICS)}
"""Of entry points, which are called like modules."""


def leads_nowhere(name: str) -> bool:
    """Whether there is no such module, and nothing of this name in one."""
    try:
        pkgutil.resolve_name(name if name.startswith("fedstrata.") else f"fedstrata.{name}")
    except (ImportError, AttributeError):
        return True
    return False


def test_what_texts_name_of_the_code_is_there() -> None:
    """Modules and what is in them, and files of the repository."""
    missing = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = [
            name
            for name in re.findall(r"`(\w+(?:\.\w+)+)", text)
            if name.startswith("fedstrata.") or (page in SOURCES and name.partition(".")[0] in PACKAGES)
        ]
        files = re.findall(r"\b(?:benchmarks|docs|scripts|src|tests)/[\w./-]+\.(?:md|py|yaml)\b", text)
        missing |= {(page.name, name) for name in named if name not in GROUPS and leads_nowhere(name)}
        missing |= {(page.name, file) for file in files if not (REPOSITORY / file).exists()}
    assert missing == {("using_a_model.md", "fedstrata.json")}, "which is a file of a model"


@pytest.mark.slow
def test_the_commands_of_the_readme_run_in_order(tmp_path: Path) -> None:
    """As a new user, with the pages that go on in its folder. Its Python is run with the wheel alone."""
    pages = [text_of(page) for page in ("README.md", "docs/comparing.md", "docs/scoring.md")]
    pages[1:] = ["\n".join(f"    {line}" for line in commands_of(page)) + "\n" for page in pages[1:]]
    ran = follow("\n".join(pages), tmp_path, python=False)
    assert len(ran) == 22, "a page goes on in the README's folder"
    assert (tmp_path / "scores.json").exists()
    assert (tmp_path / "both.html").exists()
    assert len(list(tmp_path.glob("hospitals/sites/*/home/run-*/clients/*/model/model.safetensors"))) == 3
    assert (tmp_path / "runs" / "first" / "summary.json").exists()


def refusal(line: str) -> str:
    """Returns why a command line cannot be what somebody gives: an unknown command or option, or nothing."""
    command = typer.main.get_command(cli.app)
    arguments = shlex.split(line)[1:]
    context = command.make_context("fedstrata", [], resilient_parsing=True)
    while isinstance(command, typer.core.TyperGroup):
        if not arguments or arguments[0] in {"COMMAND", "--help", "--version"}:
            return ""
        found = command.get_command(context, arguments.pop(0))
        if found is None:
            return "no such command"
        command, context = found, type(context)(found)
    try:
        command.make_parser(context).parse_args(arguments)
    except Exception as error:  # of typer's own copy of click, which is private
        return "" if "requires an argument" in str(error) else str(error)
    return ""


def test_the_commands_that_texts_name_are_there() -> None:
    """In their blocks, their sentences and at the head of configurations: with options that are."""
    for page in [*PAGES, *CONFIGURATIONS]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        told = re.findall(r"`(?:\.venv/bin/)?(fedstrata [^`]+)`", text)
        shown = [line for line in commands_of(text) if Path(line.split()[0]).name == "fedstrata"]
        for line in [*told, *shown]:
            said = refusal(line.removesuffix("&"))
            assert not said, f"{page.name}: {line}: {said}"


def test_the_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), flags=re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md", "SECURITY.md", ".ci/run"):
        text = text_of(page)
        named = set(re.findall(r"(?:`|^ *)make ([a-z-]+)", text, flags=re.MULTILINE))
        for targets_beside in re.findall(r"^beside ([a-z -]+)", text, flags=re.MULTILINE):
            named |= set(targets_beside.split())
        assert named
        assert named <= targets, page


@pytest.mark.slow
def test_the_private_configuration_of_the_documentation_is_what_it_says(tmp_path: Path) -> None:
    """Valid, and with the noise, the turns and the ratio that the page shows of its plan."""
    page = "docs/differential_privacy.md"
    text = text_of(page)
    (tmp_path / "private.yaml").write_text(configuration_of(text, "private.yaml"))
    checked = check_settings(read_source(tmp_path / "private.yaml", []))
    assert not checked.problems, [problem.message for problem in checked.problems]
    assert checked.method is not None
    privacy = privacy_of(checked.settings, checked.method)
    own = privacy.settings
    noise = privacy.sigma / own.expected_batch
    steps = 2 * privacy.steps * checked.settings.federation.rounds
    for told in (
        f"epsilon at most {epsilon(privacy.epsilon('site-2', privacy.turns))} at delta {own.delta:g}",
        f"sigma {privacy.sigma:g} of the clipping norm {own.clip:g}, over {own.expected_batch} expected",
        f"noise of {noise:.3g} of it on the mean, {noise_ratio(noise, 57_033, steps):.3g} times",
        f"{privacy.turns} turns of {privacy.steps} steps, of these {own.spare_turns} to be taken again",
    ):
        assert told in text
    measured = re.findall(r"^\| (?:sigma|r) \| (.*) \|$", text, flags=re.MULTILINE)
    sigmas, ratios = ([float(cell) for cell in line.split("|")] for line in measured)
    worked_out = [noise_ratio(sigma / 8, 789_129, 2 * 100) for sigma in sigmas]
    assert ratios == pytest.approx(worked_out, rel=0.06)


def anchors_of(page: Path) -> set[str]:
    """Returns what can be linked to on a page: its headings, as Markdown spells them, and its own anchors."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    own = re.findall(r'<a [^>]*id="(.*?)"', text)
    return {*own, *(re.sub(r"[\s-]+", "-", heading) for heading in words)}


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    for page in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                linked = page.parent / target if target else page
                assert linked.exists(), f"{page.name}: {target}"
                assert not anchor or anchor in anchors_of(linked), f"{page.name}: {target}#{anchor}"


def test_the_readme_fits_on_two_screens_and_every_page_can_be_found() -> None:
    assert len(text_of("README.md").splitlines()) <= 120
    linked = set(re.findall(r"\]\((\w+\.md)", text_of("docs/all_pages.md")))
    assert linked == {page.name for page in (REPOSITORY / "docs").glob("*.md")} - {"all_pages.md"}

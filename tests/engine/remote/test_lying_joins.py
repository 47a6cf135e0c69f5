"""A server that lies at the join or between sessions: the site refuses before anything is computed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from lying_server import DATA, OTHER, RUN, SITES, Site, changed, policy_of, prepared, told
from support import refused

from fedstrata.core.errors import ConfigurationError, FrameError, PolicyError, PolicyRefusedError
from fedstrata.core.handlers import SCORE
from fedstrata.core.settings.source import flatten, read_source
from fedstrata.core.site_database import SITE_DATABASE
from fedstrata.core.types import Plan
from fedstrata.engine.prepare import prepare_server
from fedstrata.engine.remote.joined_runs import ChangedSettingsError, OtherRunError
from fedstrata.engine.remote.shared_settings import shared_settings
from fedstrata.engine.run_folder import MAY_CHANGE_ON_RESUME
from fedstrata.engine.simulated_identities import simulated_identities
from fedstrata.transport.grpc.hub import GrpcHub

NOISED = (
    "privacy={mechanism: local, unit: document, delta: 0.01, sigma: 1.0, expected_batch: 2, steps: 1, "
    "units: {site-1: 16, site-2: 16, site-3: 16, site-4: 16}}",
)
LM = (
    "model={init: random, tokenizer: mini, config: {model_type: llama, hidden_size: 32, "
    "intermediate_size: 64, num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2}}",
    "method={name: layer_skipping, top: 1}",
)
THIRD = "00112233445566aa"


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    return told()


@pytest.fixture(scope="module")
def noised() -> dict[str, Any]:
    return told(*NOISED)


@pytest.mark.claim("site_policy#seeded-noise")
@pytest.mark.claim("security_review#insist-noise")
def test_noise_that_the_server_can_draw_again_needs_the_own_file_of_the_site(
    noised: dict[str, Any], tmp_path: Path
) -> None:
    lie = changed(noised, "privacy.noise", "seeded")
    with refused(PolicyError, "not_named_here", at="privacy.noise"):
        prepared(lie)
    seeded = ["privacy.noise=seeded"]
    assert prepared(lie, own=seeded).privacy.settings.noise == "seeded"
    for line, value in {"epsilon": 50.0, "mechanisms": ["local"]}.items():
        with refused(PolicyError, "policy_refused", at=line):
            prepared(lie, own=seeded, guard=policy_of(tmp_path, **{line: value}))
    assert prepared(noised, guard=policy_of(tmp_path, mechanisms=["local"])).privacy.mechanism == "local"


@pytest.mark.claim("site_policy#one-run")
@pytest.mark.claim("security_review#insist-run")
def test_a_site_takes_part_in_one_run(said: dict[str, Any], tmp_path: Path) -> None:
    """Neither a new session nor a new process accepts another run, and a run without a name is none."""
    site = Site(tmp_path, said)
    site.welcome(RUN)
    for process in (site, Site(tmp_path, said)):
        for other in (OTHER, THIRD):
            with refused(OtherRunError, "other_run", values=[RUN, other]):
                process.welcome(other)
        with pytest.raises(FrameError):
            process.welcome(None)
    assert not list(site.home.glob(f"run-{OTHER}"))


@pytest.mark.claim("site_policy#new-run")
def test_a_person_accepts_one_other_run_and_an_earlier_one_never_comes_back(
    said: dict[str, Any], tmp_path: Path
) -> None:
    site = Site(tmp_path, said)
    accepted = Site(tmp_path, said, run=OTHER, runs=site.remote._runs.count + 1)
    for left, code in ((RUN, "run_left"), (THIRD, "other_run")):
        with refused(OtherRunError, code, values=[left]):
            accepted.welcome(left)
    with refused(OtherRunError, "run_left", values=[RUN, OTHER]):
        Site(tmp_path, said, run=RUN, runs=3)  # though a third run is accepted
    assert Site(tmp_path, said, run=OTHER).remote._runs.count == 2


OTHERWISE: Mapping[str, Any] = {
    "training.learning_rate": 1e-30,
    "training.epochs": 2,
    "seed": 7,
    "method.top": 2,
    "federation.sample": 0.5,
    "task.max_length": 32,
}
"""Settings of a later session."""


@pytest.mark.claim("site_policy#same-settings")
@pytest.mark.claim("security_review#insist-run")
def test_what_was_agreed_stays_while_the_run_lasts(said: dict[str, Any], tmp_path: Path) -> None:
    Site(tmp_path, said)
    assert set(OTHERWISE) <= {path for path, _ in flatten(said["settings"])} - MAY_CHANGE_ON_RESUME
    for path, value in OTHERWISE.items():
        with refused(ChangedSettingsError, "changed", values=[path]):
            Site(tmp_path, changed(said, path, value))
    resumed = changed(changed(said, "federation.rounds", 5), "federation.min_clients", 1)
    assert Site(tmp_path, changed(resumed, "name", "again")).remote._runs.run == RUN
    # For a new run everything is agreed anew.
    Site(tmp_path, changed(said, "training.epochs", 2), run=OTHER, runs=2)


@pytest.mark.claim("site_policy#counters")
def test_no_name_of_a_run_begins_the_counters_anew(said: dict[str, Any], tmp_path: Path) -> None:
    """Sessions in other processes, each with another name: none trains after the first has."""
    guard = policy_of(tmp_path, megabytes_up=0.001)
    site = Site(tmp_path, said, guard=guard)
    site.ask("train", site.start_plan())
    for number in range(2):
        again = Site(tmp_path, said, guard=guard)
        with pytest.raises(OtherRunError):
            again.welcome(f"{number:016x}")
        with pytest.raises(PolicyRefusedError):
            again.ask("train", again.start_plan(), call=2)
    # Greetings leave as well, and those of an earlier run do not count for a new one.
    left = site.remote._runs.sent()
    with closing(sqlite3.connect(site.home / SITE_DATABASE)) as database:
        assert database.execute("SELECT run FROM joined_runs").fetchall() == [(RUN,)]
    new = Site(tmp_path, said, guard=guard, run=OTHER, runs=2)
    assert left > new.remote._runs.sent() == 0
    new.ask("train", new.start_plan())


@pytest.mark.claim("site_policy#every-task")
@pytest.mark.parametrize("line", [{"rounds": 1}, {"megabytes_up": 0.001}, {"hours": 1.0}])
def test_every_bound_holds_for_scoring(line: dict[str, float], said: dict[str, Any], tmp_path: Path) -> None:
    agreed = changed(said, "federation.rounds", 1) if "rounds" in line else said
    site = Site(tmp_path, agreed, guard=policy_of(tmp_path, **line))
    site.ask("train", site.start_plan())
    with closing(sqlite3.connect(site.home / SITE_DATABASE)) as database, database:
        database.execute("UPDATE first_tasks SET began = began - 3601")
    before = site.remote._runs.sent()
    with pytest.raises(PolicyRefusedError):
        site.ask(SCORE, site.start_plan(part="test", final=True), number=2)
    assert site.remote._runs.sent() == before


def test_without_a_policy_the_rounds_of_the_join_and_two_scorings_a_round_are_allowed(
    said: dict[str, Any], tmp_path: Path
) -> None:
    site = Site(tmp_path, said)
    assert site.experiment.settings.federation.rounds == 3
    plans = {"train": site.start_plan(), SCORE: site.start_plan(part="test")}
    for handler, number in (("train", 4), (SCORE, 4), ("train", 0)):
        with pytest.raises(PolicyRefusedError):
            site.ask(handler, plans[handler], number=number)
    refused = [facts["message"].partition(":")[0] for event, facts in site.log if event == "policy_refused"]
    assert refused == ["rounds"] * 3


@pytest.mark.claim("site_policy#scorings")
def test_scorings_of_a_round_are_bounded(said: dict[str, Any], tmp_path: Path) -> None:
    """Of a thousand models two are scored; the same one again, as after a lost connection, is no new one."""
    site, scored = Site(tmp_path, said), 0
    for number in range(1000):
        plan = site.start_plan(part="validation", final=False)
        next(iter(plan.tensors.values())).view(-1)[0] += number
        try:
            site.ask(SCORE, plan)
            scored += 1
        except PolicyRefusedError:
            if scored == 2 and number == 20:  # the refusals after it are the same
                break
    assert scored == 2
    for process in (site, Site(tmp_path, said)):
        process.ask(SCORE, process.start_plan(part="validation", final=False))
        with pytest.raises(PolicyRefusedError):
            process.ask(SCORE, process.start_plan(part="test", final=True))
    site.ask(SCORE, site.start_plan(part="validation", final=False), number=3)
    site.ask(SCORE, site.start_plan(part="test", final=True), number=3)
    allowed = Site(tmp_path, said, guard=policy_of(tmp_path, scorings=3))
    allowed.ask(SCORE, allowed.start_plan(part="test", final=True), call=2)


def test_bounds_hold_for_masked_counts_which_are_no_handler_of_the_method(tmp_path: Path) -> None:
    """A sum that may not begin has no keys; of one that may all exchanges are one scoring."""
    simulated_identities(tmp_path, SITES)
    masked = told("privacy={secure_aggregation: true, scores: summed}")
    site = Site(tmp_path, masked, guard=policy_of(tmp_path, handlers=["train"]))

    def begin(number: int) -> None:
        name = {"run": RUN, "round": number, "handler": "scores/validation", "call": 1, "attempt": 0}
        counts = {"name": "counts", "shape": [12, 3], "bound": 1.0}
        terms = {"kind": "mean", "sum": name, "plan": "ab" * 32, "tensors": [counts], "scale": 1}
        site.ask("@score/keys", Plan({}, {**terms, "loss": False, "counts": True}), number=number)

    begin(3)
    with pytest.raises(PolicyRefusedError):
        begin(4)
    for number in range(4):
        plan = site.start_plan(part="validation", names=["as asked"])
        next(iter(plan.tensors.values())).view(-1)[0] += number // 2  # each twice
        site.ask("scores/validation", plan)
    # A site whose sum did not come about is asked in the clear for what tells nothing: no new scoring.
    site.ask(SCORE, site.start_plan(part="validation"))
    for handler in ("scores/test", SCORE):
        with pytest.raises(PolicyRefusedError):
            site.ask(handler, site.start_plan(part="test"))


PLANTED = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"
CODE = {
    "method.name": "package:Evil",
    "task.name": "package:Evil",
    "task.extra_metrics": [{"name": "package:Evil"}],
    "model.name": "planted:Evil",
}


@pytest.mark.claim("site_policy#no-code")
@pytest.mark.parametrize("path", CODE)
def test_no_code_that_the_server_names_is_imported(
    path: str, said: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("package", "planted"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as if the working folder were searched
    with refused(PolicyError, "not_named_here", at=path):
        prepared(changed(said, path, CODE[path]))
    assert not (tmp_path / "ran").exists()
    assert not {"package", "planted"} & sys.modules.keys()


def test_a_policy_is_asked_before_the_code_of_an_installed_package_is_imported(
    said: dict[str, Any], tmp_path: Path
) -> None:
    lie = changed(said, "method", {"name": "somebody_elses"})
    with refused(PolicyError, "policy_refused", at="methods", values=["policy.yaml, line 1"]):
        prepared(lie, guard=policy_of(tmp_path, methods=["layer_skipping"]))
    with pytest.raises(ConfigurationError) as unknown:
        prepared(lie)
    assert not isinstance(unknown.value, PolicyError)


@contextmanager
def hub_of(said: Mapping[str, Any]) -> Iterator[str]:
    hub = GrpcHub(lambda client, greeting: None, largest=2**20, clients=["site-1"], settings=said)  # type: ignore[arg-type,return-value]
    try:
        yield hub.listen("127.0.0.1:0")
    finally:
        hub.stop(1.0)


@pytest.mark.slow
@pytest.mark.claim("site_policy#working-folder")
@pytest.mark.parametrize("command", ["module", "script"])
def test_a_join_imports_nothing_of_its_working_folder(
    command: str, said: dict[str, Any], tmp_path: Path
) -> None:
    """A module that the process would import later has the name of one that lies there."""
    for name in ("package", "sentencepiece", "sqlite3"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    with hub_of(changed(said, "method", {"name": "package:Evil"})) as address:
        module, script = [sys.executable, "-m", "fedstrata"], [Path(sys.executable).with_name("fedstrata")]
        own = ("join", *DATA, "--insecure", "--client", "site-1", "--server", address)
        begun = [*(module if command == "module" else script), *own]
        done = subprocess.run(begun, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.claim("federation#only-the-server")
@pytest.mark.claim("security_review#insist-models")
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("model.name", "someones/model"),
        ("model.name", "package:carrier"),
        ("model.name", "{folder}"),
        ("model.tokenizer", "someones/tokenizer"),
        ("model.tokenizer", "{folder}"),
        ("model.weights", "{folder}"),
        ("model.vocabulary", "{folder}"),
    ],
)
def test_no_model_that_only_the_server_names_is_read_or_fetched(
    path: str, name: str, said: dict[str, Any], tmp_path: Path
) -> None:
    """Also where the site draws its weights and would read a tokenizer alone."""
    named = name.format(folder=tmp_path)
    lie = changed(said, path, named)
    if path == "model.name":
        lie = changed(changed(lie, "model.tokenizer", None), "model.init", "pretrained")
        lie = changed(lie, "model.config", {})
    with refused(PolicyError, "not_named_here", at=path):  # an attempt to read it would fail otherwise
        prepared(lie)


@pytest.mark.claim("federation#only-the-server")
@pytest.mark.parametrize(
    "task",
    ["summarize", "extract", "cloze"],
)
@pytest.mark.parametrize("folder", ["notes", "{a}"])
def test_no_file_of_a_site_is_read_as_a_template(
    task: str, said: dict[str, Any], tmp_path: Path, folder: str
) -> None:
    """Its text would be trained on, and could be read out of the update."""
    secret = tmp_path / folder / "secret.txt"
    secret.parent.mkdir()
    secret.write_text("{input} {text} {answer}")
    own = {"templates": {"ner": str(secret)}} if task == "extract" else {"template": str(secret)}
    at = "task.ner" if task == "extract" else "task.template"
    with refused(PolicyError, "not_named_here", at=at) as caught:
        prepared(changed(said, "task", {"name": task, **own}))
    assert len(caught.value.problems) == 1


def test_a_server_gives_sites_the_text_of_a_template(tmp_path: Path) -> None:
    template = tmp_path / "instruction.txt"
    template.write_text("Summarise: {text}")
    settings = read_source(None, [*LM, f"task={{name: summarize, template: {template}}}"])
    found = shared_settings(prepare_server(settings, SITES))
    assert found["settings"]["task"]["template"] == "Summarise: {text}"


def test_a_site_or_its_policy_names_the_models_that_it_reads(said: dict[str, Any], tmp_path: Path) -> None:
    trained = tmp_path / "model"
    prepared(said).model.save(trained)
    lie = changed(said, "model", {"name": str(trained)})
    with pytest.raises(PolicyError):
        prepared(lie)
    by_policy = prepared(lie, guard=policy_of(tmp_path, model_names=[str(trained)]))
    own = prepared(lie, own=[f"model.name={trained}"])
    elsewhere = prepared(changed(lie, "model.name", "/there"), own=[f"model.name={trained}"])
    assert {each.model.name for each in (by_policy, own, elsewhere)} == {str(trained)}
    shipped = changed(said, "model", {"name": "mini"})
    assert prepared(shipped).model.name == "mini"

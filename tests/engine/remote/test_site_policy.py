"""A site's own policy: what of a run it is against, with the line, before the run and before each turn."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from private_client import PRIVATE
from support import REPOSITORY, TINY, refused

from fedstrata.client.turn import Done, Order
from fedstrata.core.errors import ConfigurationError, PolicyError, PolicyRefusedError
from fedstrata.core.handlers import SCORE
from fedstrata.core.settings.policy import SitePolicy
from fedstrata.core.settings.source import read_source
from fedstrata.core.site_database import SITE_DATABASE
from fedstrata.core.types import Plan
from fedstrata.engine.check import check_settings
from fedstrata.engine.prepare import prepare_client
from fedstrata.engine.remote.joining import RemoteClient
from fedstrata.engine.remote.site_policy import PolicyGuard
from fedstrata.privacy.ledger_verification import LEDGER, read_ledger
from fedstrata.wire import frame

RUN = ("method={name: layer_skipping, top: 1}", "federation.rounds=5", "training.epochs=2")
SECURE = "privacy.secure_aggregation=true"
NOISED = (*PRIVATE, "privacy.noise=secure")


def guard(folder: Path, *lines: str) -> PolicyGuard:
    path = folder / "policy.yaml"
    path.write_text("".join(f"{line}\n" for line in lines))
    return PolicyGuard.read(path)


@pytest.mark.parametrize(
    ("line", "overrides", "values"),
    [
        ("methods: [fedper, fedavg]", (), ["fedper, fedavg here", "layer_skipping"]),
        ("rounds: 4", (), ["at most 4", 5]),
        ("epochs: 1", (), ["at most 1", 2]),
        ("steps: 2", PRIVATE, ["at most 2", 3]),
        ("secure_aggregation: true", (), []),
        ("scores: false", (), []),
        ("scores: false", (SECURE, "privacy.scores=summed"), []),
        ("floors: false", ("federation.floors=true",), ["federation.floors"]),
        ("mechanisms: [joint, local]", (), ["joint or local here", "'none'"]),
        ("mechanisms: [joint]", NOISED, ["joint here", "'local'"]),
        ("units: [patient]", PRIVATE, ["patient here", "document"]),
        ("mechanisms: [local]", PRIVATE, ["privacy.noise: seeded"]),
        ("epsilon: 40", PRIVATE, ["privacy.noise: seeded"]),
        ("epsilon: 4", (), ["at most 4", "differential privacy"]),
        ("delta: 0.00001", PRIVATE, ["at most 1e-05", 0.01]),
    ],
)
def test_a_run_that_asks_for_more_is_refused_with_the_line(
    tmp_path: Path, line: str, overrides: tuple[str, ...], values: list[object]
) -> None:
    own = [each for each in RUN if "epochs" not in each or not overrides or overrides[0] == SECURE]
    settings = check_settings(read_source(None, [*TINY, *own, *overrides])).settings
    with refused(PolicyError, "policy_refused", at=line.partition(":")[0], values=values) as caught:
        guard(tmp_path, "# of the board", line).require_settings(settings)
    assert [problem.origin for problem in caught.value.problems] == ["policy.yaml, line 2"]


def test_a_run_within_the_policy_goes_on_and_all_that_is_not_is_told_at_once(tmp_path: Path) -> None:
    own = [*TINY, *NOISED, "method={name: layer_skipping, top: 1}", SECURE]
    settings = check_settings(read_source(None, own)).settings
    lines = ("methods: [layer_skipping]", "rounds: 2", "secure_aggregation: true", "scores: false")
    more = ("mechanisms: [local]", "units: [document]", "delta: 0.01", "steps: 3", "epochs: 1")
    more = (*more, "floors: false")  # of which nothing leaves where training is protected
    guard(tmp_path, *lines, *more).require_settings(settings)
    with pytest.raises(PolicyError) as caught:
        guard(tmp_path, *lines, "mechanisms: [joint]", "units: [patient]").require_settings(settings)
    assert [problem.origin[-6:] for problem in caught.value.problems] == ["line 5", "line 6"]


@pytest.mark.parametrize(
    ("line", "path", "code", "values"),
    [
        ("methods: [fedagv]", "methods", "unknown_name", ["'fedagv'", "'fedavg'"]),
        ("round: 3", "round", "unknown_key", ["'rounds'"]),
        ("hours: -1", "hours", "out_of_range", [0, -1]),
        ("models: [abc]", "models.0", "wrong_form", []),
        ("mechanisms: [none]", "mechanisms.0", "unknown_name", ["'local', 'central' or 'joint'", "'none'"]),
    ],
)
def test_a_policy_that_is_none_is_refused_with_the_line(
    tmp_path: Path, line: str, path: str, code: str, values: list[object]
) -> None:
    with refused(ConfigurationError, code, at=path, values=values) as caught:
        guard(tmp_path, line)
    assert [each.origin for each in caught.value.problems] == ["policy.yaml, line 1"]


def test_a_model_is_known_by_its_hash_which_a_refusal_names(tmp_path: Path) -> None:
    experiment = prepare_client(read_source(None, [*TINY, *RUN]), "site-1")
    with refused(PolicyError, "policy_refused", at="models") as caught:
        guard(tmp_path, f"models: ['{64 * '0'}']").require_experiment(experiment, "site-1")
    (found,) = re.findall("[0-9a-f]{64}", str(caught.value))
    guard(tmp_path, f"models: ['{found}']").require_experiment(experiment, "site-1")
    other = prepare_client(read_source(None, [*TINY, *RUN, "seed=1"]), "site-1")
    with pytest.raises(PolicyError):
        guard(tmp_path, f"models: ['{found}']").require_experiment(other, "site-1")


def test_an_epsilon_is_that_of_all_turns_that_the_noise_allows(tmp_path: Path) -> None:
    experiment = prepare_client(read_source(None, [*TINY, *NOISED]), "site-1")
    spends = experiment.privacy.epsilon("site-1", experiment.privacy.turns)
    assert spends is not None
    guard(tmp_path, f"epsilon: {spends}").require_experiment(experiment, "site-1")
    with refused(PolicyError, "policy_refused", at="epsilon", values=["at most 1 ", f"{spends:.4g}"]):
        guard(tmp_path, "epsilon: 1").require_experiment(experiment, "site-1")
    quiet = prepare_client(read_source(None, [*TINY, *NOISED, "privacy.sigma=0"]), "site-1")
    with refused(PolicyError, "unbounded", at="epsilon"):
        guard(tmp_path, "epsilon: 1").require_experiment(quiet, "site-1")
    seeded = prepare_client(read_source(None, [*TINY, *PRIVATE]), "site-1")
    with refused(PolicyError, "unbounded", at="epsilon"):
        guard(tmp_path, "epsilon: 1000").require_experiment(seeded, "site-1")


class Joined:
    def __init__(self, folder: Path, *lines: str) -> None:
        self.heard: list[str] = []
        experiment = prepare_client(read_source(None, [*TINY, *RUN]), "site-1")
        own = guard(folder, *lines)
        self.client = RemoteClient(experiment, "site-1", folder / "home", self._listen, policy=own)
        self.folder = folder / "home" / "clients" / "site-1"
        shared = experiment.method.start(experiment.model).tensors
        self._plan = frame.encode(Plan(shared, {"part": "validation", "final": False}))

    def _listen(self, event: str, facts: Mapping[str, Any]) -> None:
        if event == "policy_refused":
            self.heard.append(facts["message"])

    def ask(self, number: int, handler: str = "train") -> None:
        own = self.client._scoring.score if handler == SCORE else None
        order = Order("site-1", number, handler, 1, self._plan)
        assert isinstance(self.client._workplace.compute(order, self.client._site, handle=own), Done)


def test_a_turn_that_asks_for_more_computes_nothing_and_the_server_hears_no_more(tmp_path: Path) -> None:
    site = Joined(tmp_path, "rounds: 1", "handlers: [train]")
    site.ask(1)
    before = (site.folder / LEDGER).read_bytes()
    for number, handler in ((2, "train"), (1, "round")):
        with refused(PolicyRefusedError, "policy_refused") as caught:
            site.ask(number, handler)
        assert not set(str(caught.value)) & set("0123456789")
        assert "train" not in str(caught.value)
    assert (site.folder / LEDGER).read_bytes() == before
    for heard, line, number in zip(site.heard, ("rounds", "handlers"), (1, 2), strict=True):
        assert heard.startswith(f"{line}: ")
        assert heard.endswith(f"  [policy_refused, from policy.yaml, line {number}]")


def test_no_turn_begins_once_so_much_has_left(tmp_path: Path) -> None:
    site = Joined(tmp_path, "megabytes_up: 0.01")
    site.ask(1)
    sent = sum(line["bytes"] for line in read_ledger(site.folder / LEDGER))
    assert sent > 0.01 * 2**20
    with pytest.raises(PolicyRefusedError):
        site.ask(2)
    assert site.heard[0].startswith("megabytes_up: at most 0.01 ")
    assert f" {sent / 2**20:.4g} " in site.heard[0]


def test_no_task_begins_once_a_run_has_gone_on_for_so_long(tmp_path: Path) -> None:
    """By the clock of its first task, which outlives the process; scoring is a task."""
    site = Joined(tmp_path, "hours: 2")
    site.ask(1, SCORE)
    site.ask(2)
    with closing(sqlite3.connect(tmp_path / "home" / SITE_DATABASE)) as database, database:
        database.execute("UPDATE first_tasks SET began = began - 7201")
    for handler in ("train", SCORE):
        with pytest.raises(PolicyRefusedError):
            site.ask(2, handler)
    assert re.match(r"hours: at most 2 .*\b2(\.\d+)? hours", site.heard[0])


def test_the_policy_of_the_documentation_is_one(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "site_policy.md").read_text()
    example = text.split("```yaml\n")[1].split("```")[0]
    shown = {line.partition(":")[0] for line in example.splitlines()}
    assert set(SitePolicy.model_fields) - shown == {"models", "steps"}
    guard(tmp_path, *example.splitlines())

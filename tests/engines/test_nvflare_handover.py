"""What `fedstrata serve --on nvflare` and the job at the server leave each other, and what kits need."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from support import TINY, Call, problems_of, refused

from fedstrata.core.errors import ConfigurationError, FedstrataError
from fedstrata.core.files import taking_turns
from fedstrata.core.settings.source import read_source
from fedstrata.engine.check import check_settings
from fedstrata.engine.run_folder import HANDOVER, require_free_folder
from fedstrata.nvflare.handover import (
    AT_WORK,
    Handover,
    Outcome,
    is_at_work,
    last_submission,
    leave,
    outcome_of,
    take,
    tell,
)
from fedstrata.nvflare.kit import prepare_kit
from fedstrata.nvflare.site import SiteSettings

ASKED = Handover(
    submission=2,
    directory="/srv",
    clients=["north"],
    cache_bytes=1,
    largest=2,
    patience=3.0,
    timing={"reconnect": 4.0},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    leave(tmp_path / "run", ASKED, check_settings(read_source(None, TINY)).settings)
    return tmp_path / "run"


def test_what_is_handed_over_is_taken_once_and_by_the_last_submission_alone(folder: Path) -> None:
    assert take(folder, 2) == ASKED
    assert last_submission(folder) == 2
    with refused(FedstrataError, "replaced", values=["submission 2", "of 1"]):
        take(folder, 1)
    assert last_submission(folder.parent) == 0
    require_free_folder(folder)  # nothing of a run has begun there


def test_a_folder_that_others_could_have_written_is_not_served(folder: Path) -> None:
    (folder / HANDOVER).chmod(0o777)
    with refused(ConfigurationError, "not_secret"):
        take(folder, 2)
    with refused(ConfigurationError, "not_found", at="folder"):
        take(folder.parent, 2)


def test_how_a_submission_has_ended_is_told_of_that_one(folder: Path) -> None:
    assert outcome_of(folder, 2) is None
    tell(folder, Outcome(submission=2, status=1, message="lost", again=True))
    assert outcome_of(folder, 3) is None
    found = outcome_of(folder, 2)
    assert found is not None
    assert (found.status, found.message, found.again) == (1, "lost", True)


def test_who_is_at_work_is_seen_by_others(folder: Path) -> None:
    assert not is_at_work(folder)
    with taking_turns(folder / HANDOVER / AT_WORK):
        assert is_at_work(folder)
    assert not is_at_work(folder)


def kit(folder: Path, role: str, **resources: object) -> Path:
    (folder / "startup").mkdir(parents=True)
    (folder / "local").mkdir()
    (folder / "startup" / f"fed_{role}.json").write_text("{}")
    (folder / "local" / "resources.json.default").write_text(json.dumps(resources))
    return folder


LAUNCHER = {"id": "process_launcher", "path": "another", "args": {}}


def test_a_site_may_start_what_takes_part_and_nothing_else(tmp_path: Path) -> None:
    site = kit(tmp_path / "north", "client", class_allow_list=["own"], components=[LAUNCHER], extra=1)
    for _ in range(2):
        found = json.loads(prepare_kit(site).read_text())
        assert sorted(found["class_allow_list"]) == [
            "fedstrata.nvflare.executor.JoinExecutor",
            "fedstrata.nvflare.launchers.ClientLauncher",
            "own",
        ]
    assert found["components"][0]["path"] == "fedstrata.nvflare.launchers.ClientLauncher"
    assert found["allow_log_streaming"] is False
    assert found["extra"] == 1


def test_a_server_keeps_jobs_where_nobody_else_looks(tmp_path: Path) -> None:
    manager = {"id": "job_manager", "path": "own", "args": {"uri_root": "/everybody/jobs"}}
    snapshots = {"args": {"storage": {"args": {"root_dir": "/everybody/snapshots"}}}}
    server = kit(tmp_path / "hub", "server", components=[LAUNCHER, manager], snapshot_persistor=snapshots)
    found = json.loads(prepare_kit(server).read_text())
    kept = found["snapshot_persistor"]["args"]["storage"]["args"]
    places = (found["components"][1]["args"]["uri_root"], kept["root_dir"])
    assert places == (str(server / "jobs"), str(server / "snapshots"))
    assert all(Path(place).stat().st_mode & 0o777 == 0o700 for place in places)


def test_what_is_no_kit_is_not_touched(tmp_path: Path, call: Call) -> None:
    told = call("nvflare-kit", tmp_path)
    assert told.status == 2
    assert "[wrong_kit]" in told.err
    assert not (tmp_path / "local").exists()


def test_all_that_is_wrong_with_what_a_site_says_is_told(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "fedstrata.yaml").write_text("home: 3\npolicies: none\n")
    with pytest.raises(ConfigurationError) as caught:
        SiteSettings.read(tmp_path)
    assert {at for at, _ in problems_of(caught.value)} == {"configuration", "home", "policies"}


@pytest.mark.parametrize(
    ("arguments", "path", "code"),
    [
        ("--admin kit --insecure --clients a", "--admin", "no_effect"),
        ("--on nvflare --clients a", "--admin", "missing"),
        ("--on nvflare --admin kit", "--clients", "missing"),
        ("--on nvflare --admin kit --clients a --insecure --listen 127.0.0.1:1", "--insecure", "no_effect"),
    ],
)
def test_what_has_no_effect_is_refused(call: Call, arguments: str, path: str, code: str) -> None:
    told = call("serve", *arguments.split())
    assert told.status == 2
    assert re.search(rf"{path}: .*?\[{code}\]", told.err.replace("\n", " "))


def test_without_nvflare_it_is_said_how_to_get_it(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is written."""
    monkeypatch.setitem(sys.modules, "nvflare", None)
    options = ("--on", "nvflare", "--admin", "kit", "--clients", "site-1,site-2,site-3")
    told = call("serve", *TINY, "federation.score_everywhere=false", *options)
    assert told.status == 2
    assert "[not_installed]" in told.err
    assert "'fedstrata[nvflare]'" in told.err
    assert not (tmp_path / "runs").exists()

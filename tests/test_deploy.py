"""What `deploy/` starts: the commands of its units and of its containers make a federation."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from processes import Started, fedstrata, free_address, output_of
from ruamel.yaml import YAML
from support import REPOSITORY, TINY

from fedstrata.core.settings.kit import FederationSettings
from fedstrata.core.settings.source import read_source
from fedstrata.core.settings.yaml import as_document
from fedstrata.transport.enrolment import Federation

DEPLOY = REPOSITORY / "deploy"
SITES = ("east", "north", "south")
RUN = ("federation.rounds=1", "method={name: layer_skipping, top: 1}", "threads=1")


def unit(name: str) -> dict[str, list[str]]:
    """Returns what a unit says, by key."""
    found: dict[str, list[str]] = defaultdict(list)
    text = (DEPLOY / "systemd" / f"fedstrata-{name}.service").read_text()
    for key, value in re.findall("^([^#=]+)=(.*)$", text, re.MULTILINE):
        found[key].append(value)
    return found


def by_systemd(member: str, kit: Path) -> tuple[list[str], Path]:
    """Returns the command of a member's unit, and where it runs; kit and state are where tests are."""
    said = unit("serve" if member == "server" else "join")
    (command,) = said["ExecStart"]
    assert command.startswith("/opt/fedstrata/bin/fedstrata ")
    state = kit.parent / f"state-of-{member}"
    state.mkdir()
    for variable in said["Environment"]:
        name, _, value = variable.partition("=")
        place = kit if name == "KIT" else state / Path(value).relative_to("/var/lib/fedstrata")
        command = command.replace(f"${{{name}}}", str(place))
    return command.split()[1:], state


def by_compose(member: str, kit: Path) -> tuple[list[str], Path]:
    """Returns the command of a member's container, and where it runs: its working directory is the kit."""
    services = YAML(typ="safe").load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"server", *SITES}
    (mount,) = services[member]["volumes"]
    assert mount == f"./{kit.relative_to(kit.parents[1 if member == 'server' else 2])}:/kit"
    image = (DEPLOY / "Dockerfile").read_text()
    assert "WORKDIR /kit\n" in image
    (stops,) = unit("serve")["KillSignal"]
    assert f"STOPSIGNAL {stops}\n" in image  # the first process of a container does not hear SIGTERM
    return list(services[member]["command"]), kit


@pytest.mark.slow
@pytest.mark.parametrize("command_of", [by_systemd, by_compose])
def test_the_commands_make_a_federation(
    tmp_path: Path,
    started: Started,
    command_of: Callable[[str, Path], tuple[Sequence[str], Path]],
) -> None:
    server = free_address().replace("localhost", "127.0.0.1")
    common = FederationSettings(name="hospitals", server=server, days=30)
    folder = tmp_path / "hospitals"
    Federation.create(folder, common, server, SITES, archive=False)
    run = {key: value for key, value in read_source(None, [*TINY, *RUN]).values.items() if key != "data"}
    types = ["problem", "test", "treatment", "drug"]
    run["task"] = {**run.get("task", {}), "name": "ner", "types": types}
    (folder / "server" / "run.yaml").write_bytes(as_document({"name": "hospitals", **run}))
    notes = tmp_path / "notes"
    made = fedstrata("synth", "--sites", "3", "--notes", "18", "--format", "brat", "--out", notes)
    started.append(made)
    output_of(made)
    places: dict[str, Path] = {}
    for member in ("server", *SITES):
        kit = folder / "server" if member == "server" else folder / "sites" / member
        if member != "server":
            own = notes / f"site-{SITES.index(member) + 1}"
            shutil.copytree(own, tmp_path / "own" / member / member)
            values: Any = {"data": {"format": "brat", "path": str(tmp_path / "own" / member), "types": types}}
            (kit / "site.yaml").write_bytes(as_document(values))
        arguments, places[member] = command_of(member, kit)
        started.append(fedstrata(*arguments, folder=places[member]))
    for process in started[1:]:
        output_of(process)
    summary = json.loads((places["server"] / "run" / "summary.json").read_text())
    assert set(summary["metrics"]["clients"]) == set(SITES)
    for site in SITES:
        assert list(places[site].glob(f"home/run-*/clients/{site}/model/model.safetensors"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("name", ["serve", "join"])
def test_systemd_understands_the_units(tmp_path: Path, name: str) -> None:
    """But for the program, which is not installed where the tests run."""
    path = tmp_path / f"fedstrata-{name}.service"
    text = (DEPLOY / "systemd" / path.name).read_text()
    path.write_text(text.replace("/opt/fedstrata/bin/fedstrata", "/bin/true"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, path.name in checked.stderr) == (0, False), checked.stderr

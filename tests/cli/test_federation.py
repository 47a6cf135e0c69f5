"""`fedstrata federation`, and a federation of processes that have nothing but their kits."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from click.testing import Result
from cryptography import x509
from processes import Started, fedstrata, free_address, output_of, read_until
from support import TINY, refused
from told import assert_told
from typer.testing import CliRunner

from fedstrata.cli.lines import ClientLine, ServerLine
from fedstrata.cli.main import app
from fedstrata.core.errors import ConfigurationError
from fedstrata.transport.authority import Authority
from fedstrata.transport.credentials import require_safe
from fedstrata.transport.enrolment import Federation
from fedstrata.transport.kit import Kit


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def invoke(*arguments: str) -> Result:
    """Calls a command in this process; what it raises comes through."""
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def said_by(*arguments: str) -> str:
    """Runs a verb that succeeds."""
    result = invoke("federation", *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_federation_is_made_and_its_members_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    said = said_by("init", "hospitals", "--sites", "north", "south", "--server", "10.0.0.1:7447")
    for command in ("serve hospitals/server", "join hospitals/sites/south", "keys new site.identity"):
        assert f"fedstrata {command}" in said
    monkeypatch.chdir("hospitals")
    assert "sites/west.zip " in said_by("add", "west", "--zip")
    assert "copy server/tokens there" in said_by("revoke", "south")
    said = said_by("renew", "north", "server")
    assert "sites/north has the" in said
    assert "copy server/tokens there" in said
    assert "tokens" not in said_by("renew", "server")
    listed = [line.split("│")[1:] for line in said_by("list").splitlines() if "UTC" in line]
    assert [cells[0].strip() for cells in listed] == ["server", "north", "south", "west"]
    assert [cells[2].strip() for cells in listed] == ["", "", "revoked", ""]


def test_what_can_be_no_federation_is_told_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    addresses = ["hub", "b\u00fccher.example:1", "a name:1", "http://hub:1", "*.example.org:1", "0.0.0.0:1"]
    addresses += ["[::]:1", "::1:1", "hub:0", f"{'a' * 64}.org:1", f"{'a.' * 127}org:1"]
    wrong: list[tuple[list[str], str, dict[str, str]]] = [
        (["init", "x"], "--sites", {"missing": ""}),
        (
            ["init", "x", "--sites", "a,b", "server", "c", "c"],
            "--sites",
            {"wrong_form": "'a,b'", "duplicate": "'c'", "conflict": "'server'"},
        ),
        (["init", "x", "--sites", "North", "north"], "--sites", {"duplicate": "'north'"}),
        (["init", "x", "--sites", "a.zip"], "--sites", {"conflict": "'a.zip'"}),
        (["init", "x", "--sites", "kit.yaml"], "--sites", {"conflict": "'kit.yaml'"}),
        (["init", "../x?", "--sites", "a"], "NAME", {"wrong_form": "'x?'"}),
        (["add", "north"], "--federation", {"not_found": "federation.yaml"}),
    ]
    for own in addresses:
        refusal = {"wrong_form": repr(own)[:80]}
        wrong.append((["init", "x", "--sites", "a", "--server", own], "--server", refusal))
    for arguments, path, told in wrong:
        for code, value in told.items():
            with refused(ConfigurationError, code, at=path, values=[value]):
                invoke("federation", *arguments)
        assert not list(tmp_path.iterdir())


def test_what_a_federation_has_no_room_for_is_refused_by_name_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said_by("init", "hospitals", "--sites", "north", "--server", free_address())
    monkeypatch.chdir("hospitals")
    tokens = Path("server/tokens").read_bytes()
    for arguments, path, code, values in (
        (["add", "North"], "SITE", "duplicate", ["'North'", "'north'"]),
        (["add", "a b"], "SITE", "wrong_form", ["'a b'"]),
        (["renew", "north", "--zip"], "--zip", "exists", ["sites/north"]),
    ):
        with refused(ConfigurationError, code, at=path, values=values):
            invoke("federation", *arguments)
    assert Path("server/tokens").read_bytes() == tokens
    settings = Path("federation.yaml")
    settings.write_text(settings.read_text().replace("server: ", "server: http://"))
    with refused(ConfigurationError, "wrong_form", values=["server", "'http://"]):
        invoke("federation", "renew", "server")
    settings.write_text(settings.read_text().replace("http://", "").replace("days: 365", "days: 99999999"))
    with refused(ConfigurationError, "out_of_range", at="days", values=[3650, 99999999]):
        invoke("federation", "renew", "server")


def test_a_federation_may_have_a_long_name() -> None:
    said_by("init", "h" * 60, "--sites", "north")
    certificate = x509.load_pem_x509_certificate(Path("h" * 60, "authority/authority.pem").read_bytes())
    assert certificate.subject.rfc4514_string() == f"CN={'h' * 52} (fedstrata)"


def test_a_certificate_that_no_longer_holds_is_marked() -> None:
    said_by("init", "hospitals", "--sites", "north")
    authority = Authority.read(*(Path(f"hospitals/authority/authority.{end}") for end in ("pem", "key")))
    Path("hospitals/authority/issued/north.pem").write_bytes(authority.site("north", 0).certificate)
    listed = [line.split("│")[1:] for line in said_by("list", "--federation", "hospitals").splitlines()]
    assert [cells[2].strip() for cells in listed if "UTC" in "".join(cells)] == ["", "expired"]


def test_a_kit_of_the_other_side_or_for_another_command_is_refused() -> None:
    said_by("init", "hospitals", "--sites", "north")
    for arguments, path, code, value in (
        ("run hospitals/server", "", "wrong_kit", "hospitals/server"),
        ("plan hospitals/server", "", "wrong_kit", "hospitals/server"),
        ("compare hospitals/server", "", "wrong_kit", "hospitals/server"),
        ("serve hospitals/sites/north", "", "wrong_kit", "'north'"),
        ("join hospitals/server", "", "wrong_kit", "hospitals/server"),
        ("join hospitals/sites/north hospitals/server", "", "conflict", "2"),
        ("join --insecure", "--client", "missing", ""),
    ):
        with refused(ConfigurationError, code, at=path, values=[value]):
            invoke(*arguments.split())


@pytest.mark.claim("federation#lost-file")
def test_what_a_kit_has_lost_is_named_and_not_done_without() -> None:
    """Without its policy a site would allow all, without its configuration bring the notes of the demo."""
    said_by("init", "hospitals", "--sites", "north", "--server", free_address())
    kit = Path("hospitals/sites/north")
    for lost, verb, path, code, value in (
        (kit / "site.yaml", "join", "", "not_found", "north/site.yaml"),
        (kit / "policy.yaml", "join", "", "not_found", "north/policy.yaml"),
        (kit / "token", "join", "--token", "missing", "hospitals/sites/north"),
        (kit / "key.pem", "join", "--key", "missing", ""),
        (Path("hospitals/server/run.yaml"), "serve", "", "not_found", "server/run.yaml"),
        (Path("hospitals/server/tokens"), "serve", "--tokens", "missing", ""),
    ):
        kept = lost.rename("kept")
        with refused(ConfigurationError, code, at=path, values=[value]):
            invoke(verb, str(lost.parent))
        kept.rename(lost)


@pytest.mark.claim("federation#nothing-listens")
@pytest.mark.slow
def test_sites_with_nothing_but_their_kits_learn_together(started: Started) -> None:
    """One of three is revoked on the way: it is out, and the others end the run."""
    sites = ("site-1", "site-2", "site-3")
    address = free_address().replace("localhost", "127.0.0.1")
    said_by("init", "hospitals", "--sites", *sites, "--server", address)
    run = ("data.synthetic.notes=18", "federation.rounds=6", "federation.min_clients=2")
    settings = (*TINY, *run, "method={name: layer_skipping, top: 1}", "threads=1")
    mine = (
        "data={format: synthetic, synthetic: {sites: 3, notes: 18}, types: [problem, test, treatment, drug]}",
    )
    Path("hospitals/sites/site-2/policy.yaml").write_text("rounds: 6\nmethods: [layer_skipping]\n")
    Path("empty.yaml").write_text("name: kits\n")
    serve = ["serve", "hospitals/server", "empty.yaml", *settings, "--out", "served", "--resume-if-begun"]
    started.append(fedstrata(*serve))
    started.extend(fedstrata("join", f"hospitals/sites/{site}", *mine) for site in sites)
    read_until(started[0], "round 1:")
    port = address.rpartition(":")[2]
    for site in started[1:]:
        sockets = psutil.Process(site.pid).net_connections("inet")
        assert not [each for each in sockets if each.status == psutil.CONN_LISTEN]
        assert {str(each.raddr.port) for each in sockets if each.raddr} == {port}
    said_by("revoke", "site-3", "--federation", "hospitals")
    _, complained = started[3].communicate(timeout=300)
    assert started[3].returncode == 2, complained
    assert_told(complained, "revoked", values=["'site-3'"])
    assert complained.count("\nfedstrata: ") == 1, complained  # a turn that this ends is named too
    for process in started[:3]:
        output_of(process)
    summary = json.loads(Path("served/summary.json").read_text())
    assert summary["rounds"] == 6
    scored = {site for site, scores in summary["metrics"]["clients"].items() if scores}
    assert scored >= {"site-1", "site-2"}
    for site in ("site-1", "site-2"):
        assert [*Path(f"hospitals/sites/{site}/home").glob(f"run-*/clients/{site}/model/model.safetensors")]
    started.append(fedstrata(*serve))
    assert "served has ended" in output_of(started[-1])
    assert Federation.read(Path("hospitals")).enrolled[-1].revoked


@pytest.mark.claim("federation#loopback-default")
@pytest.mark.claim("SECURITY#beyond-loopback")
def test_a_server_listens_on_this_machine_alone_unless_an_option_names_an_address() -> None:
    said_by("init", "hospitals", "--sites", "north")
    kit = Kit.read(Path("hospitals/server"))
    for line in (ServerLine(), ServerLine(**{**ServerLine.of_kit(kit), "kit": kit})):
        require_safe(line.address, insecure=True, setting="--listen")


def test_places_that_a_kit_names_are_in_the_kit() -> None:
    """Wherever the command is begun; what the command line says is from there."""
    said_by("init", "hospitals", "--sites", "north")
    line = ClientLine(kit=Kit.read(Path("hospitals/sites/north")))
    found, file = line.site_source([])
    assert file == Path("hospitals/sites/north/site.yaml")
    assert found.values["data"]["path"] == "hospitals/sites/north/notes"
    assert line.site_source(["data.path=notes"])[0].values["data"]["path"] == "notes"
    file.write_text("data: {format: brat, files: {train: [a, b], test: c}}\n")
    of_parts = line.site_source(["data.files.test=d"])[0].values["data"]["files"]
    assert of_parts == {"train": ["hospitals/sites/north/a", "hospitals/sites/north/b"], "test": "d"}
    Path("mine.yaml").write_text("data: {format: brat, path: elsewhere}\n")
    assert line.site_source(["mine.yaml"])[0].values["data"]["path"] == "elsewhere"

"""Kits: what is in them, what lets a site join with one, and what no longer does."""

from __future__ import annotations

import ssl
import stat
import threading
import tracemalloc
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from support import refused

from fedstrata.core.errors import ConfigurationError, DataError, LineError, RefusedError
from fedstrata.core.files import is_somebodys_turn
from fedstrata.core.settings.kit import FederationSettings
from fedstrata.transport.agreement import Agreement
from fedstrata.transport.authority import Authority, Issued, validities_of
from fedstrata.transport.credentials import Certificates, Tokens, read_token, read_tokens
from fedstrata.transport.enrolment import Federation
from fedstrata.transport.grpc.hub import GrpcHub
from fedstrata.transport.grpc.membership import GrpcMembership
from fedstrata.transport.kit import CREDENTIALS, Kit, open_kit
from fedstrata.transport.timing import LONGEST_WAIT, Timing

TIMING = Timing(answer=30.0, reconnect=10.0, keepalive=20.0)
AGREED = Agreement({}, run="demo", blocks=1, numbers=10, trained={})
SITES = ("north", "south")
COMMON = FederationSettings(name="hospitals", server="127.0.0.1:7447", days=30)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation.create(tmp_path / "hospitals", COMMON, COMMON.server, SITES, archive=False)


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def certificates_of(folder: Path) -> Certificates:
    return Certificates(*(folder / f"{name}.pem" for name in ("certificate", "key", "authority")))


def served(federation: Federation, closing: ExitStack) -> tuple[GrpcHub, str]:
    kit = federation.folder / "server"
    agreed: Any = lambda client, greeting: AGREED  # noqa: E731
    hub = GrpcHub(
        agreed,
        largest=2**16,
        clients=SITES,
        tokens=Tokens.read(kit / "tokens"),
        certificates=certificates_of(kit),
        timing=TIMING,
    )
    closing.callback(hub.stop, 1.0)
    return hub, hub.listen("127.0.0.1:0")


def member(address: str, kit: Path, client: str, timing: Timing = TIMING) -> GrpcMembership:
    own: Mapping[str, Any] = {"token": read_token(kit / "token"), "certificates": certificates_of(kit)}
    return GrpcMembership(address, client, AGREED, timing=timing, **own)


def lost(hub: GrpcHub) -> tuple[str, str] | None:
    """Who is lost next, and by which error."""
    arrival = hub.receive(30)
    return (arrival.client, arrival.lost.code) if arrival and arrival.lost else None


def unreachable(address: str, kit: Path) -> None:
    """The server does not trust the kit, or the kit the server."""
    brief = replace(TIMING, reconnect=0.5)
    with refused(LineError, "unreachable", values=["0.5 s"]), member(address, kit, "north", brief):
        pass


def certify(kit: Path, issued: Issued) -> None:
    """Gives a kit another certificate."""
    (kit / "certificate.pem").write_bytes(issued.certificate)
    (kit / "key.pem").write_bytes(issued.key)


def authority_of(federation: Federation) -> Authority:
    return Authority.read(*(federation.folder / "authority" / f"authority.{end}" for end in ("pem", "key")))


def kept(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.claim("federation#authority-key")
@pytest.mark.claim("federation#no-identity")
@pytest.mark.claim("federation#kit-holds")
def test_a_kit_has_what_its_owner_needs_and_nothing_of_the_others(federation: Federation) -> None:
    """No site gets the authority's key, the token of another, an identity or a lock."""
    server, north = (kept(federation.folder / name) for name in ("server", "sites/north"))
    assert server.keys() == {*CREDENTIALS - {"token"}, "run.yaml", "README.md"}
    assert north.keys() == {*CREDENTIALS - {"tokens"}, "site.yaml", "policy.yaml", "README.md"}
    south = kept(federation.folder / "sites" / "south")
    for name in ("token", "key.pem", "certificate.pem"):
        assert north[name] != south[name]
    key = (federation.folder / "authority" / "authority.key").read_bytes()
    for folder in ("server", *(f"sites/{name}" for name in SITES)):
        assert key.splitlines()[1] not in b"".join(kept(federation.folder / folder).values())
    assert b"$" not in b"".join(content for name, content in north.items() if name != "token")
    for path in federation.folder.rglob("*"):
        if path.name in {"key.pem", "token", "tokens", "authority.key"}:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_tokens(federation.folder / "server" / "tokens") == {
        name: read_token(federation.folder / "sites" / name / "token") for name in SITES
    }


@pytest.mark.claim("federation#revoked")
def test_a_site_joins_with_its_kit_until_it_is_revoked(federation: Federation, closing: ExitStack) -> None:
    """Its session ends, and it is refused from then on, without a restart of the server."""
    hub, address = served(federation, closing)
    north, south = (federation.folder / "sites" / name for name in SITES)
    with member(address, north, "north") as revoked, member(address, south, "south"):
        hub.wait_for(SITES, 30)
        federation.revoke("north")
        assert lost(hub) == ("north", "revoked")
        assert hub.present == ("south",)
        with refused(RefusedError, "revoked", values=["'north'"]):
            revoked.receive()
        with refused(RefusedError, "wrong_token", values=["'north'"]), member(address, north, "north"):
            pass
        with refused(LineError, "revoked", values=["north"]):
            hub.wait_for(SITES, 30)


@pytest.mark.claim("federation#revoked-while-waiting")
def test_a_revoked_site_is_not_waited_for(
    federation: Federation, closing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the server look at who may join only when something else happens."""
    hub, address = served(federation, closing)
    with member(address, federation.folder / "sites" / "south", "south"):
        hub.wait_for(["south"], 30)
        waits: list[float] = []
        here, wait = threading.current_thread(), hub._changed.wait

        def revoke(seconds: float | None = None) -> None:
            if threading.current_thread() is not here:  # the line to the south waits for the same
                wait(seconds)
                return
            assert seconds is not None
            federation.revoke("north")
            waits.append(seconds)

        monkeypatch.setattr(hub._changed, "wait", revoke)
        with refused(LineError, "revoked", values=["north"]):
            hub.wait_for(SITES, 3600)
        assert len(waits) == 1
        assert waits[0] <= LONGEST_WAIT


@pytest.mark.claim("federation#renewed-token")
@pytest.mark.claim("federation#stolen-kit")
def test_a_session_ends_with_the_token_that_it_began_with(federation: Federation, closing: ExitStack) -> None:
    """A thief of a kit is out when it is renewed, whether the site itself has come or not."""
    hub, address = served(federation, closing)
    north = federation.folder / "sites" / "north"
    with member(address, north, "north") as thief:
        hub.wait_for(["north"], 30)
        federation.renew("north", archive=False)
        assert lost(hub) == ("north", "wrong_token")
        with refused(RefusedError, "wrong_token", values=["'north'"]):
            thief.receive()
    with member(address, north, "north"):
        hub.wait_for(["north"], 30)
        assert hub.receive(0.0) is None


@pytest.mark.claim("federation#other-federation")
@pytest.mark.claim("federation#revoked-all")
def test_the_file_of_another_federation_lets_nobody_go(
    federation: Federation, closing: ExitStack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Copied to the wrong server it would end the run; it is told once, and who is revoked then still is."""
    hub, address = served(federation, closing)
    other = Federation.create(tmp_path / "other", COMMON, COMMON.server, ["west"], archive=False)
    sites, tokens = federation.folder / "sites", federation.folder / "server" / "tokens"
    with member(address, sites / "north", "north"), member(address, sites / "south", "south"):
        hub.wait_for(SITES, 30)
        own = tokens.rename(tmp_path / "own")
        (other.folder / "server" / "tokens").rename(tokens)
        assert [hub.receive(0.0) for _ in range(3)] == [None, None, None]
        assert set(hub.present) == set(SITES)
        (told,) = [each for each in caplog.records if each.levelname == "ERROR"]
        (error,) = told.args or ()
        assert isinstance(error, DataError)
        assert (error.path, error.code) == (tokens, "conflict")
        assert "north, south" in error.expected
        own.rename(tokens)
        federation.revoke("north")
        assert lost(hub) == ("north", "revoked")
        federation.revoke("south")  # the file is of nobody now, and means it
        assert lost(hub) == ("south", "revoked")


@pytest.mark.claim("federation#renewal-keeps")
@pytest.mark.claim("federation#renewed-token")
def test_a_renewed_kit_takes_the_place_of_the_one_before(federation: Federation, closing: ExitStack) -> None:
    """What is the site's own stays; the old token ends, also with the new certificate."""
    _, address = served(federation, closing)
    kit = federation.folder / "sites" / "north"
    (kit / "policy.yaml").write_text("rounds: 3\n")
    (kit / "site.identity").write_text("the site's own")
    before = kept(kit)
    federation.renew("north", archive=False)
    now = kept(kit)
    assert {name for name in before if before[name] != now[name]} == {"token", "certificate.pem", "key.pem"}
    with member(address, kit, "north"):
        pass
    (kit / "token").write_bytes(before["token"])
    with refused(RefusedError, "wrong_token", values=["'north'"]), member(address, kit, "north"):
        pass


@pytest.mark.claim("federation#no-server")
def test_a_site_cannot_take_the_place_of_the_server(federation: Federation, closing: ExitStack) -> None:
    """Its certificate is none of a server, even for the same address; nor may the server's be a client's."""
    kit, server = federation.folder / "sites" / "north", federation.folder / "server"
    certify(server, authority_of(federation).site("127.0.0.1", 30))
    _, address = served(federation, closing)
    unreachable(address, kit)
    federation.renew("server", archive=False)
    _, address = served(federation, closing)
    for name in ("certificate.pem", "key.pem"):
        (kit / name).write_bytes((server / name).read_bytes())
    unreachable(address, kit)


@pytest.mark.claim("federation#expired")
def test_a_certificate_that_no_longer_holds_is_told_before_anybody_is_called(federation: Federation) -> None:
    kit = federation.folder / "sites" / "north"
    assert 29.9 < certificates_of(kit).days_left <= 30
    certify(kit, authority_of(federation).site("north", 0))
    with refused(ConfigurationError, "expired", at="--certificate", values=[kit / "certificate.pem", " 20"]):
        certificates_of(kit)


def test_a_certificate_holds_no_longer_than_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstrata.transport.authority.MOST_DAYS", 10)
    authority = Authority.create("hospitals")
    for name, content in (
        ("certificate", authority.site("north", 30).certificate),
        ("authority", authority.issued.certificate),
    ):
        (tmp_path / f"{name}.pem").write_bytes(content)
    (own,), (signer,) = (validities_of(tmp_path / f"{name}.pem") for name in ("certificate", "authority"))
    assert own[1] == signer[1]
    monkeypatch.setattr("fedstrata.transport.authority.MOST_DAYS", 0)
    with refused(ConfigurationError, "expired", at="--federation", values=["federation init"]):
        Authority.create("hospitals").site("north", 30)


def test_an_authority_that_does_not_hold_is_told_as_well(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = federation.folder / "sites" / "north"
    whole = (kit / "authority.pem").read_bytes()
    monkeypatch.setattr("fedstrata.transport.authority.MOST_DAYS", 0)
    ended = Authority.create("hospitals").issued.certificate
    (kit / "authority.pem").write_bytes(ended)
    with refused(ConfigurationError, "expired", at="--authority", values=[kit / "authority.pem"]):
        certificates_of(kit)
    (kit / "authority.pem").write_bytes(ended + whole)  # one of them does
    certificates_of(kit)
    monkeypatch.setattr("fedstrata.transport.authority._BACKDATED", timedelta(days=-1))
    monkeypatch.setattr("fedstrata.transport.authority.MOST_DAYS", 10)
    (kit / "authority.pem").write_bytes(Authority.create("hospitals").issued.certificate)
    with refused(ConfigurationError, "not_yet_valid", at="--authority", values=[kit / "authority.pem"]):
        certificates_of(kit)


def test_what_is_no_certificate_is_named(federation: Federation) -> None:
    (federation.folder / "authority" / "issued" / "north.pem").write_text("junk")
    with refused(ConfigurationError, "wrong_form", values=["issued/north.pem"]):
        list(federation.enrolled)


def test_who_was_revoked_may_be_let_in_again_with_another_token(federation: Federation) -> None:
    first = read_token(federation.folder / "sites" / "north" / "token")
    federation.revoke("north")
    assert [each.name for each in federation.enrolled if each.revoked] == ["north"]
    for ask in (federation.revoke, federation.require_member):
        with refused(ConfigurationError, "revoked", at="SITE", values=["'north'", "federation add"]):
            ask("north")
    policy = federation.folder / "sites" / "north" / "policy.yaml"
    policy.write_text("rounds: 3\n")
    assert federation.add("north", archive=False) == federation.folder / "sites" / "north"
    assert policy.read_text() == "rounds: 3\n"
    assert [each.name for each in federation.enrolled] == ["server", "north", "south"]
    assert not any(each.revoked for each in federation.enrolled)
    tokens = read_tokens(federation.folder / "server" / "tokens")
    assert tokens["north"] != first
    with refused(ConfigurationError, "exists", at="SITE", values=["'north'"]):
        federation.add("north", archive=False)
    with refused(ConfigurationError, "unknown_name", at="SITE", values=["'nort'", "'north'"]):
        federation.renew("nort", archive=False)
    with refused(ConfigurationError, "unknown_name", at="SITE", values=["'server'"]):
        federation.revoke("server")
    for site in SITES:
        federation.revoke(site)
    assert Tokens.read(federation.folder / "server" / "tokens").clients == ()


def test_who_changes_who_may_join_takes_turns(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two at once the second would write back the tokens that the first has ended."""
    write, turns = Federation._write_tokens, list[bool]()

    def writes(own: Federation, tokens: Mapping[str, str]) -> None:
        turns.append(is_somebodys_turn(own.folder / ".lock"))
        write(own, tokens)

    monkeypatch.setattr(Federation, "_write_tokens", writes)
    federation.add("west", archive=False)
    federation.renew("north", archive=False)
    federation.revoke("south")
    assert turns == [True, True, True]
    assert not is_somebodys_turn(federation.folder / ".lock")


@pytest.mark.claim("federation#unpacked-once")
@pytest.mark.claim("federation#renewal-only")
def test_a_kit_that_came_as_an_archive_is_unpacked_once(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path / "hospitals", COMMON, COMMON.server, ["north"], archive=True)
    archive = federation.place_of("north")
    assert archive == federation.folder / "sites" / "north.zip"
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    kit = open_kit(archive)
    assert stat.S_IMODE(kit.folder.stat().st_mode) == 0o700
    assert kit.settings.client == "north"
    certificates_of(kit.folder)
    assert read_token(kit.folder / "token")
    with refused(ConfigurationError, "exists", values=["north.zip", kit.folder]):
        open_kit(archive)
    renewed = federation.renew("north", archive=True)
    with zipfile.ZipFile(renewed) as opened:  # whatever unpacks it: the site's own files are not in it
        assert set(opened.namelist()) == CREDENTIALS - {"tokens"}
    kit.folder.rename(tmp_path / "kit")
    with refused(ConfigurationError, "wrong_kit", values=["north.zip", "unzip -o"]):
        open_kit(renewed)  # else the site would take part without its policy and its lock
    assert not kit.folder.exists()
    assert federation.renew("north", archive=False) == kit.folder == federation.place_of("north")
    assert not renewed.exists()  # its token no longer holds


@pytest.mark.claim("federation#kit-files-only")
@pytest.mark.parametrize(
    ("entries", "code", "named"),
    [
        ({"kit.yaml": b"", "../../evil": b""}, "unknown_name", "'../../evil'"),
        ({"kit.yaml": b"", "/etc/passwd": b""}, "unknown_name", "'/etc/passwd'"),
        ({"token": b""}, "missing", "kit.yaml"),
        ({"kit.yaml": bytes(2**20 + 1)}, "too_large", "kit.yaml"),
        ({}, "missing", "kit.yaml"),
        (None, "damaged", "north.zip"),
    ],
)
def test_an_archive_that_is_no_kit_writes_nothing(
    tmp_path: Path, entries: dict[str, bytes] | None, code: str, named: str
) -> None:
    path = tmp_path / "in" / "north.zip"
    path.parent.mkdir()
    path.write_bytes(b"PK")
    if entries is not None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in entries.items():
                archive.writestr(name, content)
    with refused(ConfigurationError, code, values=[path, named]):
        open_kit(path)
    assert [found.name for found in tmp_path.rglob("*")] == ["in", "north.zip"]


def test_an_archive_that_is_damaged_is_refused_whatever_is_damaged(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path / "hospitals", COMMON, COMMON.server, ["north"], archive=True)
    whole, damaged = federation.place_of("north").read_bytes(), tmp_path / "north.zip"
    with zipfile.ZipFile(federation.place_of("north")) as archive:
        entry = archive.getinfo("README.md")
    begins = entry.header_offset + 30 + len(entry.filename)  # of what is compressed
    for place in range(begins, begins + entry.compress_size, 7):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with refused(ConfigurationError, "damaged", values=[damaged]):
            open_kit(damaged)
    with pytest.warns(UserWarning, match="README.md"), zipfile.ZipFile(damaged, "w") as archive:
        for name in ("kit.yaml", "README.md", "README.md"):
            archive.writestr(name, b"")
    with refused(ConfigurationError, "duplicate", values=[damaged]):
        open_kit(damaged)


@pytest.mark.claim("federation#kit-files-only")
def test_no_more_is_unpacked_than_a_kit_may_have(tmp_path: Path) -> None:
    """Whatever an archive says of its sizes."""
    path = tmp_path / "north.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("kit.yaml", bytes(50 * 2**20))
    said = (50 * 2**20).to_bytes(4, "little")
    assert path.read_bytes().count(said) == 2
    path.write_bytes(path.read_bytes().replace(said, (10).to_bytes(4, "little")))
    tracemalloc.start()
    try:
        with refused(ConfigurationError, "damaged", values=["north.zip"]):
            open_kit(path)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_an_archive_that_is_packed_otherwise_is_no_kit(tmp_path: Path, method: int) -> None:
    path = tmp_path / "north.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("kit.yaml", b"federation: a")
    with refused(ConfigurationError, "not_supported", values=["kit.yaml"]):
        open_kit(path)


def test_a_name_that_is_no_text_is_in_no_kit(tmp_path: Path) -> None:
    path = tmp_path / "north.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("kit.y\u00e4ml", b"")
    path.write_bytes(path.read_bytes().replace("\u00e4".encode(), b"\xff\xfe"))
    with refused(ConfigurationError, "damaged", values=["north.zip"]):
        open_kit(path)


@pytest.mark.parametrize(
    ("text", "at", "code"),
    [
        ("federation: a\n", "", "conflict"),
        ("federation: a\nclient: b\nlisten: c:1\n", "", "conflict"),
        ("federation: a\nclient: ../b\nserver: c:1\n", "client", "wrong_form"),
        ("federation: a\nlisten: c:1\ntokens: x\n", "tokens", "unknown_key"),
        ("client: b\nserver: c:1\n", "federation", "missing"),
    ],
)
def test_a_kit_that_says_nonsense_of_itself_is_refused(tmp_path: Path, text: str, at: str, code: str) -> None:
    (tmp_path / "kit.yaml").write_text(text)
    with refused(ConfigurationError, code, at=at):
        Kit.read(tmp_path)


@pytest.mark.claim("federation#server-name")
def test_a_server_of_another_name_is_refused(federation: Federation, closing: ExitStack) -> None:
    """Its certificate is of the same authority, as that of a machine that the server has left."""
    certify(federation.folder / "server", authority_of(federation).server("10.0.0.1", 30))
    _, address = served(federation, closing)
    unreachable(address, federation.folder / "sites" / "north")


@pytest.mark.claim("federation#p-256")
def test_every_certificate_is_of_p_256_and_the_authority_holds_for_ten_years(federation: Federation) -> None:
    found = {path.name: path for path in federation.folder.rglob("*.pem") if path.name != "key.pem"}
    assert found.keys() >= {"authority.pem", "certificate.pem", "north.pem", "server.pem"}
    for path in found.values():
        own = x509.load_pem_x509_certificate(path.read_bytes())
        public = own.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        assert isinstance(public.curve, ec.SECP256R1)
        assert isinstance(own.signature_algorithm_parameters, ec.ECDSA)
    ((begins, ends),) = validities_of(found["authority.pem"])
    assert round((ends - begins).days / 365) == 10


def test_a_server_is_certified_for_names_and_numbers(tmp_path: Path) -> None:
    for host, expected in (
        ("10.0.0.1", ("IP Address", "10.0.0.1")),
        ("hub.example.org", ("DNS", "hub.example.org")),
    ):
        authority = Authority.create("hospitals")
        path = tmp_path / f"{host}.pem"
        path.write_bytes(authority.server(host, 30).certificate)
        found: Any = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
        assert found["subjectAltName"] == (expected,)

"""Identities and locks: secrets that only their owner reads, names that no two sites share."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import example, given
from hypothesis import strategies as st
from support import refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.privacy.federation_lock import read_lock, write_lock
from fedstrata.privacy.identity import Identity, fingerprint, is_signed


def test_an_identity_is_kept_and_read_again(tmp_path: Path) -> None:
    made = Identity.create(tmp_path / "north.key")
    read = Identity.read(tmp_path / "north.key")
    assert made.public == read.public
    assert is_signed(made.public, read.sign(b"text"), b"text")
    assert [path.name for path in tmp_path.iterdir()] == ["north.key"]


def test_nobody_else_may_read_it_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Identity.create(tmp_path / "north.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "north.key").stat().st_mode) == 0o600
    (tmp_path / "north.key").chmod(0o640)
    with refused(ConfigurationError, "not_secret", values=["north.key", "chmod 600"]):
        Identity.read(tmp_path / "north.key")


def test_an_identity_is_never_overwritten(tmp_path: Path) -> None:
    Identity.create(tmp_path / "north.key")
    kept = (tmp_path / "north.key").read_bytes()
    with refused(ConfigurationError, "exists", values=[tmp_path / "north.key"]):
        Identity.create(tmp_path / "north.key")
    assert (tmp_path / "north.key").read_bytes() == kept
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("kind", ["text", "empty", "other key", "missing"])
def test_what_is_no_identity_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "north.key"
    other = X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    if kind != "missing":
        path.write_bytes({"text": b"key", "empty": b"", "other key": other}[kind])
        path.chmod(0o600)
    with refused(
        ConfigurationError, "not_found" if kind == "missing" else "no_identity", values=["north.key"]
    ):
        Identity.read(path)


@given(data=st.binary(max_size=50), other=st.binary(max_size=50), bit=st.integers(0, 511))
def test_a_signature_is_of_one_text_by_one_identity(data: bytes, other: bytes, bit: int) -> None:
    one, two = (Identity(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)) for number in (1, 2))
    signature = one.sign(data)
    assert is_signed(one.public, signature, data)
    assert is_signed(one.public, signature, other) == (data == other)
    assert not is_signed(two.public, signature, data)
    changed = (int.from_bytes(signature) ^ (1 << bit)).to_bytes(64)
    assert not is_signed(one.public, changed, data)
    assert not is_signed(b"short", signature, data)


PUBLIC = {name: bytes([number]) * 32 for number, name in enumerate(("north", "off", "it's: 1", "été"), 1)}


NAMES = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp", "Cn", "Co"]), min_size=1, max_size=20
)


@example(PUBLIC)
@given(st.dictionaries(NAMES, st.binary(min_size=32, max_size=32), max_size=4))
def test_any_names_come_back(tmp_path_factory: pytest.TempPathFactory, sites: dict[str, bytes]) -> None:
    path = tmp_path_factory.getbasetemp() / "federation.lock"
    if len(set(sites.values())) == len(sites) and sites:
        write_lock(path, sites)
        assert dict(read_lock(path)) == sites
        assert all(fingerprint(public) in path.read_text("utf-8") for public in sites.values())


def test_all_that_is_wrong_with_a_lock_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "federation.lock"
    good, short = "ed25519:" + "11" * 32, "ed25519:" + "22" * 31
    path.write_text(
        f"version: 2\nsights: 1\nsites:\n  a: '{good}'\n  b: '{good}'\n  c: '{short}'\n  d: 7\n"
        f'  e: ed25519:{"AA" * 32}\n  "f\\tg": ed25519:{"33" * 32}\n'
    )
    with pytest.raises(ConfigurationError) as raised:
        read_lock(path)
    expected = [
        ("unknown_key", ["'sights'", "'sites'"]),
        ("unknown_version", ["must be 1", "not 2"]),
        ("no_identity", ["site 'c': "]),
        ("no_identity", ["site 'd': 7 "]),
        ("no_identity", ["site 'e': "]),
        ("wrong_form", [r"'f\tg'"]),
        ("duplicate", ["sites a, b "]),
    ]
    problems = raised.value.problems
    assert [problem.code for problem in problems] == [code for code, _ in expected]
    for problem, (_, values) in zip(problems, expected, strict=True):
        assert all(value in problem.message for value in values)


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("sites: {a: 1, a: 2}", "not_yaml", ["duplicate"]),
        ("", "missing", ["`sites`"]),
        ("version: 1", "missing", ["`sites`"]),
        ("version: 1\nsites: [a]", "missing", ["`sites`"]),
        ("version: true\nsites: {}", "unknown_version", ["must be 1"]),
        ("a: " + "[" * 100, "not_yaml", ["within"]),
        ("#" * (2**20 + 1), "not_yaml", [2**20]),
        (
            "version: 1\nsites: {" + ", ".join(f"s{n}: ed25519:{n:064x}" for n in range(1025)) + "}",
            "out_of_range",
            ["1025 sites"],
        ),
        (b"\xff\xfe\xfa", "not_utf8", []),
        (None, "not_found", []),
    ],
    ids=range(10),
)
def test_what_is_no_lock_is_refused(
    text: str | bytes | None, code: str, values: list[object], tmp_path: Path
) -> None:
    path = tmp_path / "federation.lock"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with refused(ConfigurationError, code, at="", values=[path, *values]):
        read_lock(path)


@pytest.mark.parametrize(
    "sites", [{"a": bytes(31)}, {"a": bytes(32), "b": bytes(32)}, {"": bytes(32)}, {"a\nb": bytes(32)}]
)
def test_a_wrong_lock_is_not_written(sites: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        write_lock(tmp_path / "federation.lock", sites)
    assert not list(tmp_path.iterdir())

"""`fedstrata keys`: identities and locks as people make them."""

from __future__ import annotations

import stat
from pathlib import Path

from support import Call
from told import assert_told

from fedstrata.privacy.federation_lock import read_lock
from fedstrata.privacy.identity import Identity, fingerprint

OTHER = "ed25519:" + 64 * "a"


def public_of(out: str) -> str:
    return out.splitlines()[0].removeprefix("public half: ")


def test_an_identity_is_a_secret_that_is_made_once(call: Call, tmp_path: Path) -> None:
    made = call("keys", "new", "north.identity")
    path = tmp_path / "north.identity"
    assert made.status == 0, made.err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    public = Identity.read(path).public
    assert public_of(made.out) == f"ed25519:{public.hex()}"
    assert f"fingerprint: {fingerprint(public)}" in made.out
    assert call("keys", "show", "north.identity").out == made.out
    before = path.read_bytes()
    again = call("keys", "new", "north.identity")
    assert again.status == 2
    assert_told(again.err, "exists", values=["north.identity"])
    assert path.read_bytes() == before
    (tmp_path / "text").write_text("no key")
    (tmp_path / "text").chmod(0o600)
    told = call("keys", "show", "text")
    assert told.status == 2
    assert_told(told.err, "no_identity", values=["text"])


def test_what_cannot_be_a_file_is_named_and_not_made(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for command, sites in ((["new"], []), (["new", "--pseudonyms"], []), (["lock"], [f"north={OTHER}"])):
        for path in ("", "a/", "a", "north/"):
            refused = call("keys", *command, path, *sites)
            assert refused.status == 2
            assert repr(path) in refused.err
            assert "folder" in refused.err or not path
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]


def test_a_lock_of_too_few_sites_for_any_sum_says_so(call: Call) -> None:
    for count in (1, 2, 3):
        sites = [f"site-{number}=ed25519:{64 * f'{number}'}" for number in range(count)]
        told = call("keys", "lock", f"{count}.lock", *sites)
        assert told.status == 0, told.err
        assert f" {count} site{'s'[: count > 1]};" in told.out
        assert ("at least 3" in told.out) == (count < 3)


def test_a_lock_holds_the_sites_and_says_to_compare(call: Call, tmp_path: Path) -> None:
    public = public_of(call("keys", "new", "north.identity").out)
    told = call("keys", "lock", "federation.lock", f"north={public}", f"a=b={OTHER}")
    assert told.status == 0, told.err
    lock = read_lock(tmp_path / "federation.lock")
    assert {name: f"ed25519:{own.hex()}" for name, own in lock.items()} == {"north": public, "a=b": OTHER}
    for own in lock.values():
        assert fingerprint(own) in told.out
    assert "compare every fingerprint" in told.out
    before = (tmp_path / "federation.lock").read_bytes()
    again = call("keys", "lock", "federation.lock", f"north={OTHER}")
    assert (again.status, (tmp_path / "federation.lock").read_bytes()) == (2, before)
    assert_told(again.err, "exists", values=["federation.lock"])


def test_all_that_is_wrong_with_a_lock_is_told_at_once(call: Call, tmp_path: Path) -> None:
    wrong = ("north", f"={OTHER}", f"twice={OTHER}", f"twice={OTHER[:-1]}b", "short=ed25519:00", f"x={OTHER}")
    told = call("keys", "lock", "federation.lock", *wrong)
    assert told.status == 2
    for code, values in (
        ("missing", ["'north'"]),
        ("wrong_form", ["''"]),
        ("duplicate", ["'twice'", 2]),
        ("no_identity", ["'short'", "'ed25519:00'"]),
        ("duplicate", ["sites , x"]),
    ):
        assert_told(told.err, code, values=values)
    assert not (tmp_path / "federation.lock").exists()

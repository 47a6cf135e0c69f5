"""`fedstrata keys`: identities, and whom a site sums with."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from support import Call

from fedstrata.privacy.federation_lock import read_lock


def test_an_identity_is_made_shown_again_and_locked(call: Call) -> None:
    made = {name: call("keys", "new", f"{name}.identity") for name in ("north", "south")}
    publics = {name: told.out.splitlines()[0] for name, told in made.items()}
    assert all(re.fullmatch(r"ed25519:[0-9a-f]{64}", public) for public in publics.values())
    assert stat.S_IMODE(Path("north.identity").stat().st_mode) == 0o600
    assert call("keys", "show", "north.identity").out == made["north"].out
    locked = call("keys", "lock", "federation.lock", *(f"{name}={text}" for name, text in publics.items()))
    assert locked.status == 0
    for told in made.values():
        assert told.out.splitlines()[1].removeprefix("fingerprint: ") in locked.out
    assert {
        name: f"ed25519:{own.hex()}" for name, own in read_lock(Path("federation.lock")).items()
    } == publics


def test_an_identity_is_never_overwritten(call: Call) -> None:
    assert call("keys", "new", "north.identity").status == 0
    again = call("keys", "new", "north.identity")
    assert again.status == 2
    assert "exists" in again.err


def test_a_wrong_public_half_is_named(call: Call) -> None:
    for wrong in ("north", "north=abcd", "north=ed25519:xy"):
        told = call("keys", "lock", "federation.lock", wrong)
        assert told.status == 2
        assert wrong in told.err
    assert not Path("federation.lock").exists()

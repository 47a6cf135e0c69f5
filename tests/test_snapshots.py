"""What users read and call is in tests/snapshots/ as the code has it, so that a diff shows what changes."""

from __future__ import annotations

import pytest
from support import REPOSITORY, load_script


@pytest.mark.parametrize("name", ["api.txt", "help.txt", "messages.txt"])
def test_the_snapshot_is_up_to_date(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    script = load_script("scripts/snapshots.py")
    same = script.SNAPSHOTS[name]() == (script.FOLDER / name).read_text(encoding="utf-8")
    assert same, f"{script.COMMAND}, and read its diff"

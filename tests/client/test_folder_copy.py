"""A client's folder at two places is the same after what has changed was sent."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from fedstrata.client.folder_copy import apply, changes, listing
from fedstrata.models.prefix_cache import FILE

NAMES = ("egress.jsonl", "store-00001.safetensors", "sums.sqlite")
Files = dict[str, bytes]
files = st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=8))


def found(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.glob("*")}


@given(versions=st.lists(files, min_size=1, max_size=4))
def test_it_follows_every_version(versions: list[Files]) -> None:
    """Whatever is written again, as long as it says another time, as what `apply` writes does."""
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        here, there = Path(one) / "client", Path(other) / "client"
        known: dict[str, tuple[int, int, int]] = {}
        for stamp, version in enumerate(versions, start=1):
            before = found(here)
            here.mkdir(exist_ok=True)
            for name in before.keys() - version.keys():
                (here / name).unlink()
            for name, data in version.items():
                if before.get(name) != data:
                    (here / name).write_bytes(data)
                    os.utime(here / name, ns=(stamp, stamp))
            sent = changes(here, known)
            apply(sent, there, stamp, durable=False)
            known = dict(listing(here))
            assert found(there) == version


def test_stored_states_and_folders_stay_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name in (FILE, ".store.tmp", "egress.jsonl"):
        (tmp_path / name).write_bytes(b"1")
    assert list(changes(tmp_path, {}).written) == ["egress.jsonl"]

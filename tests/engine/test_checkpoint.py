from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import refused

from fedstrata.client.store import ClientStore, client_folder
from fedstrata.core.errors import FedstrataError, FrameError
from fedstrata.core.types import Message, State
from fedstrata.engine.checkpoint import Checkpoints, discard_uncommitted


def state(value: float) -> State:
    return State({"w": torch.full((3,), value)}, {"round": value})


def write_rounds(folder: Path, count: int) -> None:
    """Keeps in each round its number."""
    for number in range(1, count + 1):
        ClientStore(folder, number).write(Message({"head": torch.full((2,), float(number))}))


def head_in(folder: Path, number: int) -> float:
    """What a round begins with."""
    return float(ClientStore(folder, number).read().tensors["head"][0])


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"\1")


def test_only_committed_rounds_are_loaded(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for number in (1, 2, 3):
        checkpoints.save(number, state(number))
        checkpoints.prune()
    assert checkpoints.rounds() == [2, 3]
    number, loaded = checkpoints.load(2)
    assert number == 2
    assert loaded.values == {"round": 2}
    assert torch.equal(loaded.tensors["w"], torch.full((3,), 2.0))
    with refused(FedstrataError, "not_found", values=[tmp_path / "nowhere"]):
        Checkpoints(tmp_path / "nowhere").load(1)


def test_a_store_reads_what_was_committed_before_the_round(tmp_path: Path) -> None:
    assert ClientStore(tmp_path, 1).read() == Message()
    write_rounds(tmp_path, 4)
    assert [head_in(tmp_path, number) for number in (4, 3, 9)] == [4.0, 3.0, 4.0]


def test_before_a_damaged_store_stands_the_version_before_but_not_in_its_own_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_rounds(tmp_path, 2)
    damage(tmp_path / "store-00002.safetensors")
    assert head_in(tmp_path, 3) == 1.0
    assert "store-00002.safetensors" in caplog.text
    assert "round 1" in caplog.text
    with refused(FrameError, "damaged", values=["store-00002.safetensors"]):
        ClientStore(tmp_path, 2).read()
    damage(tmp_path / "store-00001.safetensors")
    with refused(FrameError, "damaged", values=["store-00002.safetensors"]):
        ClientStore(tmp_path, 3).read()


def test_a_store_that_is_damaged_and_older_than_every_checkpoint_is_named(tmp_path: Path) -> None:
    write_rounds(client_folder(tmp_path, "a"), 1)
    damage(client_folder(tmp_path, "a") / "store-00001.safetensors")
    Checkpoints(tmp_path / "checkpoints").save(3, state(3))
    with refused(FedstrataError, "unreadable", values=["clients/a/store-00001.safetensors"]):
        Checkpoints(tmp_path / "checkpoints").load(3)


def test_what_is_discarded_or_was_not_committed_gives_way_to_the_version_before(tmp_path: Path) -> None:
    one, other = (client_folder(tmp_path, name) for name in ("site-1", "site-2"))
    for folder in (one, other):
        write_rounds(folder, 2)
    for _ in range(2):  # the second time nothing is there any more
        ClientStore(one, 2).discard()
    assert (head_in(one, 3), head_in(other, 3)) == (1.0, 2.0)
    discard_uncommitted(tmp_path, 1)
    assert head_in(other, 3) == 1.0
    ClientStore(tmp_path / "nobody", 1).discard()


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../../etc", "St. Mary's", "北", "con:1"])
def test_a_clients_name_never_leaves_the_run_directory(tmp_path: Path, name: str) -> None:
    folder = client_folder(tmp_path, name)
    assert folder.resolve().parent == (tmp_path / "clients").resolve()


def test_different_names_have_different_folders(tmp_path: Path) -> None:
    names = ["a b", "a%20b", "a/b", "a%2Fb", ".", "%2E"]
    assert len({client_folder(tmp_path, name) for name in names}) == len(names)


def test_a_name_too_long_for_a_folder_is_cut_and_stays_one_of_its_own(tmp_path: Path) -> None:
    alike = "北" * 40
    for name in (f"{alike}院", f"{alike}所"):
        write_rounds(client_folder(tmp_path, name), 1)
    assert len(list((tmp_path / "clients").iterdir())) == 2
    whole = "x" * 255  # which a run of before may have
    assert client_folder(tmp_path, whole).name == whole

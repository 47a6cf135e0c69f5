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


def test_no_readable_checkpoint_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    with refused(FedstrataError, "not_found", values=[tmp_path / "checkpoints"]):
        Checkpoints(tmp_path / "checkpoints").load(1)


def test_a_store_reads_what_was_committed_before_the_round(tmp_path: Path) -> None:
    assert ClientStore(tmp_path, 1).read() == Message()
    for number in (1, 2, 3, 4):
        ClientStore(tmp_path, number).write(Message({"head": torch.full((2,), float(number))}))
    assert ClientStore(tmp_path, 4).read().tensors["head"][0] == 4.0
    assert ClientStore(tmp_path, 3).read().tensors["head"][0] == 3.0
    assert ClientStore(tmp_path, 9).read().tensors["head"][0] == 4.0


def test_before_a_damaged_store_stands_the_version_before_but_not_in_its_own_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        ClientStore(tmp_path, number).write(Message({"head": torch.full((2,), float(number))}))
    damage(tmp_path / "store-00002.safetensors")
    assert ClientStore(tmp_path, 3).read().tensors["head"][0] == 1.0
    assert "store-00002.safetensors" in caplog.text
    assert "round 1" in caplog.text
    with refused(FrameError, "damaged", values=["store-00002.safetensors"]):
        ClientStore(tmp_path, 2).read()
    damage(tmp_path / "store-00001.safetensors")
    with refused(FrameError, "damaged", values=["store-00002.safetensors"]):
        ClientStore(tmp_path, 3).read()


def test_a_store_that_is_damaged_and_older_than_every_checkpoint_is_named(tmp_path: Path) -> None:
    ClientStore(client_folder(tmp_path, "a"), 1).write(Message({"head": torch.ones(2)}))
    damage(client_folder(tmp_path, "a") / "store-00001.safetensors")
    Checkpoints(tmp_path / "checkpoints").save(3, state(3))
    with refused(FedstrataError, "unreadable", values=["clients/a/store-00001.safetensors"]):
        Checkpoints(tmp_path / "checkpoints").load(3)


def test_versions_of_a_round_that_was_not_committed_are_discarded(tmp_path: Path) -> None:
    folder = client_folder(tmp_path, "site-1")
    for number in (1, 2):
        ClientStore(folder, number).write(Message({"head": torch.full((2,), float(number))}))
    discard_uncommitted(tmp_path, 1)
    assert ClientStore(folder, 2).read().tensors["head"][0] == 1.0


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
        ClientStore(client_folder(tmp_path, name), 1).write(Message({"head": torch.zeros(1)}))
    assert len(list((tmp_path / "clients").iterdir())) == 2
    whole = "x" * 255  # which a run of before may have
    assert client_folder(tmp_path, whole).name == whole

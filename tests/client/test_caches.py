"""What all clients of a run store together stays within its limit, in as many processes as they are."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stored_states import Regression, texts
from torch import Tensor

from fedstrata.client.caches import ClientCaches
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.models.prefix_cache import estimate_bytes
from fedstrata.models.state import Model

Facts = dict[str, Any]
Tiny = Callable[..., Model]
SIZE = estimate_bytes(map(len, texts()), 32, torch.float32)
PASSES = 3
"""How often the texts are gone through: for their lengths, for a first trial, and to be written."""


def store(caches: ClientCaches, client: str, model: Model, meanwhile: Callable[[], None]) -> None:
    task, passes = Regression(), 0

    def batches() -> Iterator[Mapping[str, Tensor]]:
        nonlocal passes
        passes += 1
        yield task.collate(texts()[:1])
        if passes == PASSES:
            meanwhile()
        yield task.collate(texts()[1:])

    cache = caches.of(client)
    assert cache is not None
    model.train_only(())
    with cache.serve(model, 1, batches, lambda batch: task.loss(model.module, batch)[0], "cpu"):
        pass


@pytest.fixture
def process(tmp_path: Path) -> Callable[[float], tuple[ClientCaches, list[Facts]]]:
    """Returns what another process has of the caches, which all may take so many files, and what it tells."""

    def begin(files: float) -> tuple[ClientCaches, list[Facts]]:
        told: list[Facts] = []
        training = TrainingSettings(cache="on", cache_gigabytes=files * SIZE / 1e9)
        settings: Any = SimpleNamespace(training=training)
        return ClientCaches(tmp_path, settings, lambda event, facts: told.append(dict(facts))), told

    return begin


def test_what_is_being_written_counts_in_full(process: Any, tiny_model: Tiny, tmp_path: Path) -> None:
    """Three clients begin before any has ended; there is room for two."""
    model = tiny_model("llama")
    (one, of_one), (two, of_two), (three, of_three) = process(2.5), process(2.5), process(2.5)
    store(one, "a", model, lambda: store(two, "b", model, lambda: store(three, "c", model, lambda: None)))
    assert [facts["used"] for facts in (*of_one, *of_two, *of_three)] == [True, True, False]
    assert "training.cache_gigabytes" in of_three[0]["reason"]
    found = sorted(path.parent.name for path in tmp_path.rglob("*.safetensors"))
    assert found == ["a", "b"]
    one.remove()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_disk_that_others_are_going_to_fill_is_not_free(
    process: Any, tiny_model: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system counts a file's bytes when they come."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2 * SIZE))
    model = tiny_model("llama")
    (one, of_one), (two, of_two) = process(9), process(9)
    store(one, "a", model, lambda: store(two, "b", model, lambda: None))
    assert [facts["used"] for facts in (*of_one, *of_two)] == [True, False]
    assert "90%" in of_two[0]["reason"]


def test_what_a_killed_process_was_writing_takes_no_room(
    process: Any, tiny_model: Tiny, tmp_path: Path
) -> None:
    model = tiny_model("llama")
    (killed, _), (again, told) = process(1.5), process(1.5)

    def kill() -> None:
        (half,) = (tmp_path / "clients" / "a").iterdir()
        half.rename(half.with_name(half.name.replace(".tmp", "0.tmp")))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store(killed, "a", model, kill)
    store(again, "a", model, lambda: None)
    assert [facts["used"] for facts in told] == [True]
    (path,) = (tmp_path / "clients" / "a").iterdir()
    assert path.stat().st_size == told[0]["bytes"] > SIZE

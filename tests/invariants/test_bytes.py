"""Bytes counted are the bytes of real frames, and only what a card says travels does."""

from __future__ import annotations

import pytest
from support import RunTiny

from fedstrata.core.types import Plan, Update
from fedstrata.wire import frame

BRIEF = ("data.synthetic.notes=6", "federation.floors=false")


def test_the_bytes_of_a_run_are_those_of_its_frames(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {Plan: 0, Update: 0}
    encode = frame.encode

    def counting(message):
        encoded = encode(message)
        if type(message) in sizes:
            sizes[type(message)] += len(encoded.tobytes())
        return encoded

    monkeypatch.setattr(frame, "encode", counting)
    sent = run_tiny(*BRIEF).summary["communication"]
    assert sent["bytes_down"] == sizes[Plan] > 0
    assert sent["bytes_up"] == sizes[Update] > 0
    assert sent["bytes_up_per_client_round"] == sizes[Update] / 6


def layout_of(run) -> dict[str, int]:
    """Sizes in bytes of the parts of the tiny model."""
    sizes: dict[str, int] = {}
    for name, tensor in run.state.tensors.items():
        part = name.split(".layers.")[1][0] if ".layers." in name else name
        sizes[part] = sizes.get(part, 0) + tensor.nbytes
    return sizes


def test_layer_skipping_sends_the_top_blocks_the_norm_and_the_head(run_once: RunTiny) -> None:
    once = ("federation.rounds=1", "federation.floors=false")
    whole, top = (run_once(f"method={{name: {own}}}", *once) for own in ("fedavg", "layer_skipping, top: 1"))
    sizes = layout_of(whole)
    expected = sizes["2"] + sizes["model.norm.weight"] + sizes["score.weight"] + sizes["score.bias"]
    assert set(layout_of(top)) == {"2", "model.norm.weight", "score.weight", "score.bias"}
    sent = top.summary["communication"]
    header = 2000
    assert expected < sent["bytes_up_per_client_round"] < expected + header
    percent = 100 * expected / sum(sizes.values())
    assert sent["percent_of_full_model"] == pytest.approx(percent, abs=1.5)
    assert whole.summary["communication"]["percent_of_full_model"] == pytest.approx(100, abs=0.1)
    assert top.summary["trainable_parameters"] == expected / 4


def test_a_local_head_stays_at_home(run_once: RunTiny) -> None:
    local = run_once("method={name: layer_skipping, top: 1, head: local}", *BRIEF)
    assert not [name for name in local.state.tensors if "score" in name]
    stores = sorted(path.parent.name for path in local.folder.glob("clients/*/store-00002.safetensors"))
    assert stores == ["site-1", "site-2", "site-3"]
    head = frame.decode(frame.read(local.folder / "clients/site-1/store-00002.safetensors"), Plan)
    assert set(head.tensors) == {"score.weight", "score.bias"}


def test_local_only_sends_no_tensor(run_once: RunTiny) -> None:
    sent = run_once("method={name: local_only}").summary["communication"]
    assert sent["bytes_up_per_client_round"] < 200


def test_centralised_training_sends_no_model(run_once: RunTiny) -> None:
    sent = run_once("method={name: centralized}").summary["communication"]
    assert set(sent.values()) == {None}

"""A divided model in whole runs: what travels, what noise and rounding do, and clients that are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import TINY, Finished, RunTiny, assert_same_tensors, prepared, refused

from fedstrata.core.client import Client
from fedstrata.core.cut import Cut
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Plan, Update
from fedstrata.engine.prepare import prepare
from fedstrata.engine.sites import sites_of
from fedstrata.planning.plan import make_plan
from fedstrata.record.history import read_history
from fedstrata.record.report.run import run_page
from fedstrata.results.result import open_result
from fedstrata.split.client_step import Exchange
from fedstrata.wire import frame

LM = (
    "data.types=null", "data.synthetic.sites=1", "data.synthetic.notes=3", "task={name: lm, max_length: 128}",
    "federation.rounds=1", "training.batch_size=1000",
)  # fmt: skip

ALONE = ("data.synthetic.sites=1", "data.synthetic.notes=4", "federation.rounds=1", "training.batch_size=1")
LORA = "{kind: lora, rank: 4}"
SPLITNN = "method={name: fl_llama, front: 1, back: 0}"


@pytest.mark.parametrize(
    ("wire", "size"), [("float32", 4), pytest.param("bfloat16", 2, marks=pytest.mark.slow), ("int8", 1)]
)
def test_a_step_sends_four_tensors_and_little_else(run_once: RunTiny, wire: str, size: int) -> None:
    run = run_once(f"method={{name: fl_llama, average_ends: never, wire: {wire}}}", *LM)
    event = run.of("client")[0]
    windows = event["examples"] * 128
    scales = 4 if wire == "int8" else 0  # one number a token
    tensors = 4 * windows * (32 * size + scales)  # the model is 32 wide, and the last window is padded
    values = {"loss": event["loss"], **run.summary["state"]}
    around = frame.size(Plan()) + frame.size(Update({}, values, weight=event["examples"]))
    errors = 4 * len('"error":0.00123,') if wire == "int8" else 0  # said with every message
    assert 0 < event["bytes_up"] + event["bytes_down"] - around - tensors < 1024 + errors


def test_splitnn_sends_its_lower_half_and_four_tensors_a_step(run_once: RunTiny) -> None:
    """The head, and with it the labels, at the client; all blocks above the cut at the server."""
    run = run_once(SPLITNN, *ALONE)
    site = sites_of(prepared(SPLITNN, *ALONE))[1][0]
    tokens = sum(len(window.input_ids) for window in site.encode())
    served = (".layers.1.", ".layers.2.")
    ends = {name: own for name, own in run.state.tensors.items() if not any(part in name for part in served)}
    event = run.of("client")[0]
    update = Update(ends, {"loss": event["loss"]}, weight=event["examples"])
    expected = frame.size(Plan(ends)) + frame.size(update) + 4 * tokens * 32 * 4  # the model is 32 wide
    assert 0 < event["bytes_up"] + event["bytes_down"] - expected < 1024 * event["examples"]
    whole = sum(tensor.nbytes for tensor in run.state.tensors.values())
    sent = run.summary["communication"]["percent_of_full_model"]
    assert sent == pytest.approx(100 * event["bytes_up"] / whole, rel=0.01)


@pytest.mark.parametrize("wire", [pytest.param("bfloat16", marks=pytest.mark.slow), "int8"])
def test_fewer_bits_on_the_wire_change_little(run_once: RunTiny, wire: str) -> None:
    exact = run_once("method={name: fl_llama}", *LM[:5]).of("round")[0]["loss"]
    rounded = run_once(f"method={{name: fl_llama, wire: {wire}}}", *LM[:5]).of("round")[0]["loss"]
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=5e-3)


def test_what_8_bits_change_is_in_record_and_report(run_once: RunTiny) -> None:
    run = run_once("method={name: fl_llama, wire: int8}", *LM[:5])
    rounding = run.summary["state"]["rounding"]
    assert list(rounding) == ["states_up", "states_down", "gradient_up", "gradient_down"]
    # Off by up to half a 127th of a token's largest number, evenly: a few tenths of a percent of the norm.
    assert all(0.002 < error < 0.02 for error in rounding.values())
    shown = f"states down {100 * rounding['states_down']:.2f} %"
    assert shown in run_page(read_history(run.folder))
    assert "rounding" not in run_once("method={name: fl_llama}", *LM[:5]).summary["state"]


@pytest.mark.slow
def test_noise_is_the_same_every_time_and_more_of_it_hurts_more(run_tiny: RunTiny, run_once: RunTiny) -> None:
    def loss(noise: str, out: str) -> float:
        return run_tiny(f"method={{name: fl_llama, noise: {noise}}}", *LM[:5], out=out).of("round")[0]["loss"]

    none = run_once("method={name: fl_llama}", *LM[:5]).of("round")[0]["loss"]
    little = loss("{scale: 0.01}", "little")
    assert little == loss("{scale: 0.01}", "again")
    assert none != little
    assert loss("{scale: 100.0, kind: std}", "much") > little > 0.9 * none


def test_noise_on_gradients_changes_what_the_middle_learns_and_not_what_goes_up(
    run_tiny: RunTiny, run_once: RunTiny
) -> None:
    def run(noise: str, out: str) -> Finished:
        return run_tiny(f"method={{name: fl_llama, noise: {noise}}}", *LM, out=out)

    without = run_once("method={name: fl_llama}", *LM)
    none = run("{on: gradients, scale: 0}", "none")
    some = run("{on: gradients, scale: 1.0, relative: true}", "some")
    assert_same_tensors(without.state.tensors, none.state.tensors)
    assert some.of("round")[0]["loss"] == without.of("round")[0]["loss"], "one step: A and C saw no noise yet"
    differs = {
        name for name, own in some.state.tensors.items() if not torch.equal(own, without.state.tensors[name])
    }
    assert any(".layers.1." in name for name in differs), "B learns from it"
    assert "lm_head.weight" not in differs, "C's own gradient has none"


def test_noise_at_inference_is_in_the_scores_and_in_nothing_else(run_once: RunTiny) -> None:
    def run(inference: str) -> Finished:
        noise = f"noise: {{scale: 2.0, inference: {inference}}}"
        return run_once(f"method={{name: fl_llama, {noise}}}", *LM)

    without, noised = run("false"), run("true")
    assert_same_tensors(without.state.tensors, noised.state.tensors)
    scores = [own.summary["metrics"]["clients"]["site-1"] for own in (without, noised)]
    assert scores[0] != pytest.approx(scores[1], rel=1e-4)


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("sequential, turns: step", marks=pytest.mark.slow),
        "client_batch",
        pytest.param("hierarchical, average_every: 1", marks=pytest.mark.slow),
    ],
)
def test_a_client_lost_in_the_middle_of_a_step_holds_nobody_up(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    back = Exchange.gradients

    def failing(self: Exchange, client: Client, *args: Any) -> Any:
        if client.id == "site-2" and self._steps == 1:
            monkeypatch.setattr(self.line, "receive", lambda: (_ for _ in ()).throw(OSError(5, "gone")))
        return back(self, client, *args)

    monkeypatch.setattr(Exchange, "gradients", failing)
    few = ("federation={min_clients: 2, rounds: 1}", "data.synthetic.notes=6")
    run = run_tiny(f"method={{name: fl_llama, mode: {mode}}}", *few)
    assert [event["client"] for event in run.of("client_failed")] == ["site-2"]
    assert {event["client"] for event in run.of("client")} == {"site-1", "site-3"}
    assert run.summary["metrics"]["global"]["f1"] >= 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", ["mode: client_batch", pytest.param("full: [front, back]", marks=pytest.mark.slow)]
)
def test_a_plan_says_what_training_will_send(run_tiny: RunTiny, tmp_path: Path, settings: str) -> None:
    adapter = f"adapter={LORA if 'full' in settings else 'null'}"
    few = ("federation.rounds=1", "data.synthetic.notes=6")
    method = [f"method={{name: fl_llama, {settings}}}", adapter, *few]
    planned = make_plan(read_source(None, [*TINY, *method]), folder=tmp_path, seconds=0.1)
    found = run_tiny(*method).summary["communication"]
    assert planned.communication["bytes_up"] == pytest.approx(found["bytes_up"], rel=0.03)
    assert planned.communication["bytes_down"] == pytest.approx(found["bytes_down"], rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "full"),
    [
        pytest.param("round", ["front", "back"], marks=pytest.mark.slow),
        ("never", ["middle"]),
        pytest.param("round", ["middle"], marks=pytest.mark.slow),
        pytest.param("never", ["front", "back"], marks=pytest.mark.slow),
    ],
)
def test_segments_that_train_in_full_learn_and_the_others_keep_their_weights(
    run_tiny: RunTiny, full: list[str], ends: str
) -> None:
    """The saved model is a plain one, since the folder of an adapter would not hold them."""
    method = f"method={{name: fl_llama, average_ends: {ends}, full: {full}}}"
    done = run_tiny(method, f"adapter={LORA}", "federation.rounds=1")
    before = prepared().model
    client = "site-1" if ends == "never" else None
    result = open_result(done.folder, client=client)
    metrics = done.summary["metrics"]
    assert result.scores == (metrics["clients"][client] if client else metrics["global"])
    for segment in ("front", "middle", "back"):
        names = getattr(Cut(1, 1).segments(before.layout), segment)
        old, new = before.tensors(names), result.model.tensors(names)
        changed = {name.rsplit(".", 2)[-2] for name in names if not torch.equal(old[name], new[name])}
        assert ("input_layernorm" in changed) == (segment in full)  # LoRA is added to linear layers alone
        assert "q_proj" in changed


def test_bfloat16_and_quantized_weights_do_not_train_in_full() -> None:
    task = ("task={name: lm, max_length: 64}", "data.types=null", "method={name: fl_llama, full: [back]}")
    for setting, path, told in (
        ("dtype: bfloat16", "model.dtype", "be float32"),
        ("quantization: nf4", "model.quantization", "leave method.full"),
    ):
        with refused(ConfigurationError, "conflict", at=path, values=[told]):
            prepare(read_source(None, [f"model={{name: mini, {setting}}}", f"adapter={LORA}", *task]))

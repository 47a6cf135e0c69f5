"""A run that starts from stored states is the run that does not, whatever happens to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import TINY, Finished, RunTiny, assert_same_tensors, refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.display.run import Display
from fedstrata.engine.prepare import prepare
from fedstrata.engine.run_folder import open_run, resumable
from fedstrata.models.prefix_cache import FILE

SGD = ("training.optimizer=sgd", "training.learning_rate=0.1")
LONG = ("training.epochs=2", *SGD, "federation.floors=false")
BERT = (
    "model.config={model_type: bert, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 3, "
    "num_attention_heads: 4}"
)
LM = ("data.types=null", "task={name: lm, max_length: 32}")
POST_NORM = "model.config={model_type: openai-gpt, n_embd: 32, n_layer: 3, n_head: 2, n_positions: 64}"


class StoppedError(Exception):
    """Stands for whatever ends a process."""


def assert_same_run(one: Finished, other: Finished) -> None:
    assert one.state.tensors.keys() == other.state.tensors.keys()
    for name, tensor in one.state.tensors.items():
        torch.testing.assert_close(tensor, other.state.tensors[name], rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(one.of("round"), other.of("round"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert mine["groups_up"] == theirs["groups_up"]
        assert mine["exchanges"].keys() == theirs["exchanges"].keys()
        for client, sent in mine["exchanges"].items():
            # Losses that agree to a few digits have more digits or fewer; a frame is filled up to 8 bytes.
            assert sent == pytest.approx(theirs["exchanges"][client], abs=8)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(
            ("method={name: layer_skipping, top: 1}",), id="llama, shared head", marks=pytest.mark.slow
        ),
        pytest.param(
            ("method={name: layer_skipping, top: 2, head: local}", BERT), id="bert with dropout, local head"
        ),
        pytest.param(("method={name: layer_skipping, top: 1}", *LM), id="lm", marks=pytest.mark.slow),
        pytest.param(
            ("method={name: layer_skipping, top: 1}", *LM, POST_NORM),
            id="lm, post-norm",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_cache_on_is_cache_off(run_once: RunTiny, overrides: tuple[str, ...]) -> None:
    plain = run_once(*LONG, *overrides, "training.cache=off")
    cached = run_once(*LONG, *overrides, "training.cache=on")
    assert_same_run(cached, plain)
    assert not plain.of("cache")
    assert [(event["client"], event["used"]) for event in cached.of("cache")] == [
        (f"site-{number}", True) for number in (1, 2, 3)
    ]


def test_a_finished_run_keeps_no_states(run_once: RunTiny) -> None:
    plain = run_once("training.cache=off")
    cached = run_once()
    assert cached.of("cache")
    assert {path.relative_to(cached.folder) for path in cached.folder.rglob("*")} == {
        path.relative_to(plain.folder) for path in plain.folder.rglob("*")
    }


def test_a_method_that_trains_everything_has_nothing_to_keep(run_once: RunTiny) -> None:
    assert not run_once("method={name: fedavg}").of("cache")
    with refused(ConfigurationError, "conflict", at="training.cache", values=["'on'"]):
        prepare(read_source(None, [*TINY, "method={name: fedavg}", "training.cache=on"]))


def test_a_run_given_more_rounds_is_the_run_that_had_them_where_clients_are_rarely_sampled(
    run_tiny: RunTiny, run_once: RunTiny
) -> None:
    rare = ("federation.sample=0.33", "federation.evaluate_every=4", "federation.floors=false")
    whole = run_once(*rare, "federation.rounds=4")
    run_tiny(*rare, "federation.rounds=1", out="short")
    longer = run_tiny("federation.rounds=4", out="short", resume=True)
    assert_same_tensors(whole.state.tensors, longer.state.tensors)


def test_a_run_that_ends_before_its_summary_has_removed_its_states(
    run_tiny: RunTiny, run_once: RunTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a summary it counts as finished, and nobody would come back for them."""

    def stop(*arguments: object) -> None:
        raise StoppedError

    with monkeypatch.context() as patched, pytest.raises(StoppedError):
        patched.setattr("fedstrata.engine.run.write_summary", stop)
        run_tiny(out="broken")
    assert not list((tmp_path / "broken").rglob(FILE))
    assert run_tiny(out="broken", resume=True).summary["metrics"] == run_once().summary["metrics"]


@pytest.mark.slow
def test_resumed_is_uninterrupted_and_uses_what_is_there(run_tiny: RunTiny, tmp_path: Path) -> None:
    """Stopped twice: before a round is committed, and after two of them."""
    overrides = ["federation.rounds=4", "federation.sample=0.67", "training.epochs=2"]
    overrides.append("federation.evaluate_every=4")
    whole = run_tiny(*overrides, out="whole")
    folder = tmp_path / "broken"
    source = read_source(None, [*TINY, *overrides])
    for after in (0, 2):

        def listen(event: str, facts, after: int = after) -> None:
            if event == "client" and facts["round"] == after + 1:
                raise StoppedError

        with pytest.raises(StoppedError):
            open_run(source, folder, listen, resume=after > 0).execute(resume=after > 0)
        kept = {path.parent.name for path in folder.glob(f"clients/*/{FILE}")}
        assert kept
        source = resumable(folder, None, [])
    resumed = run_tiny(out="broken", resume=True)
    assert_same_tensors(whole.state.tensors, resumed.state.tensors)
    stored = [event["client"] for event in resumed.of("cache")]
    assert len(stored) == len(set(stored)), "no client stored its states twice"
    assert kept <= set(stored)


@pytest.mark.slow
def test_a_run_goes_on_without_a_cache(run_tiny: RunTiny, tmp_path: Path) -> None:
    whole = run_tiny(*SGD, "federation.rounds=2", out="whole")
    run_tiny(*SGD, "federation.rounds=1", out="short")
    assert whole.of("cache")
    longer = run_tiny("federation.rounds=2", "training.cache=off", out="short", resume=True)
    assert_same_run(longer, whole)


def test_over_the_budget_the_run_is_that_without_a_cache_and_its_watcher_is_told_why_once(
    run_tiny: RunTiny, run_once: RunTiny, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = run_once("training.cache=off")
    with Display() as display:
        full = run_tiny("training.cache_gigabytes=1e-5", listen=display)
    assert capsys.readouterr().out.count("training.cache_gigabytes (1e-05)") == 1
    assert_same_tensors(plain.state.tensors, full.state.tensors)
    events = full.of("cache")
    assert [event["client"] for event in events] == ["site-1", "site-2", "site-3"], "once for each client"
    assert all(not event["used"] for event in events)
    assert "training.cache_gigabytes (1e-05)" in events[0]["reason"]
    assert "1e-05 GB" in events[0]["reason"]


def test_the_budget_is_that_of_all_clients_together(run_tiny: RunTiny, run_once: RunTiny) -> None:
    sizes = [event["bytes"] for event in run_once().of("cache")]
    allowed = (sum(sizes[:2]) + 100) / 1e9
    events = run_tiny(f"training.cache_gigabytes={allowed}", out="two").of("cache")
    assert [event["used"] for event in events] == [True, True, False]

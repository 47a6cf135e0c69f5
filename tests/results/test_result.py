"""A finished run opened again: the model that was trained, or one clear message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from support import RunTiny, opened, refused
from transformers import AutoModelForTokenClassification, AutoTokenizer

from fedstrata.core.errors import ConfigurationError, DataError
from fedstrata.record.log import read_events
from fedstrata.results.result import open_result

SENTENCE = "The patient denies chest pain and takes 81 mg of aspirin."
LONG = SENTENCE * 50


def logits_of(module: torch.nn.Module, tokenizer: object) -> torch.Tensor:
    batch = tokenizer([SENTENCE], return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        return module(**batch).logits


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((), id="causal"),
        pytest.param(("model.config.is_causal=false", "federation.rounds=0"), id="both ways"),
        pytest.param(
            ("model.init=pretrained", "model.name=mini", "model.config={is_causal: false}"),
            id="pretrained, both ways",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_saved_model_gives_the_logits_of_the_run(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    run = opened(tmp_path / "run", "federation.rounds=1", *overrides)
    run.execute()
    trained = run.experiment.model
    expected = logits_of(trained.module, trained.tokenizer)
    folder = tmp_path / "run" / "model"
    by_transformers = AutoModelForTokenClassification.from_pretrained(folder)
    assert torch.equal(logits_of(by_transformers.eval(), AutoTokenizer.from_pretrained(folder)), expected)
    result = open_result(tmp_path / "run")
    assert torch.equal(logits_of(result.model.module, result.model.tokenizer), expected)
    assert result.task.classes == run.experiment.task.classes
    assert list(by_transformers.config.id2label.values()) == list(result.task.classes)


def test_how_the_run_cut_windows_is_not_saved_with_the_tokenizer(run_once: RunTiny) -> None:
    """`tokenizers` itself would cut every text a user gives it; and local reading is nobody else's."""
    folder = run_once("federation.rounds=1").folder / "model"
    assert json.loads((folder / "tokenizer.json").read_text())["truncation"] is None
    assert "local_files_only" not in (folder / "tokenizer_config.json").read_text()
    assert len(AutoTokenizer.from_pretrained(folder)(LONG)["input_ids"]) > 64


def test_a_client_with_a_model_of_its_own(run_tiny: RunTiny) -> None:
    done = run_tiny("federation.rounds=1", "method={name: layer_skipping, head: local}")
    results = [open_result(done.folder, client=client) for client in ("site-1", "site-2")]
    heads = [result.model.tensors(result.model.layout.head) for result in results]
    assert any(not torch.equal(heads[0][name], heads[1][name]) for name in heads[0])
    own = done.folder / "clients" / "site-2" / "model" / "model.safetensors"
    own.write_bytes(own.read_bytes()[:-1] + b"\1")
    assert open_result(done.folder, client="site-1")
    with refused(DataError, "damaged", at="model.safetensors", values=["site-2/model/model.safetensors"]):
        open_result(done.folder, client="site-2")
    assert results[0].scores == done.summary["metrics"]["clients"]["site-1"]
    with refused(ConfigurationError, "missing", at="--client", values=["site-1, site-2, site-3"]):
        open_result(done.folder)
    values = ["site-1, site-2, site-3", "'site-9'"]
    with refused(ConfigurationError, "unknown_name", at="--client", values=values):
        open_result(done.folder, client="site-9")


def test_only_how_the_model_is_used_may_change(run_once: RunTiny) -> None:
    done = run_once("federation.rounds=1")
    with refused(ConfigurationError, "no_effect", at="--client", values=["layer_skipping"]):
        open_result(done.folder, client="site-1")
    chosen = open_result(done.folder, ["training.eval_batch_size=3", "device=cpu"])
    assert chosen.settings.training.eval_batch_size == 3
    assert chosen.scores == done.summary["metrics"]["global"]
    values = ["32", "device", "threads", "the command line"]
    with refused(ConfigurationError, "changed", at="task.max_length", values=values):
        open_result(done.folder, ["task.max_length=32"])
    with refused(ConfigurationError, "out_of_range", at="training.eval_batch_size", values=[" 0"]):
        open_result(done.folder, ["training.eval_batch_size=0"])


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with refused(ConfigurationError, "not_found", at="RUN"):
        open_result(tmp_path)


def test_a_run_that_stopped_says_how_to_finish_it_and_how_to_end_it(
    run_once: RunTiny, run_tiny: RunTiny, tmp_path: Path
) -> None:
    folder = shutil.copytree(run_once("federation.rounds=1").folder, tmp_path / "run")
    record = folder / "record.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(line for line in lines if '"event": "final"' not in line))
    values = [f"fedstrata run --resume --out {folder},", "federation.rounds=1"]
    with refused(ConfigurationError, "not_finished", at="RUN", values=values):
        open_result(folder)
    run_tiny("federation.rounds=1", resume=True)  # as the message says
    open_result(folder)


def test_a_run_that_goes_on_has_no_model_until_it_is_finished_again(
    run_once: RunTiny, tmp_path: Path
) -> None:
    done = run_once("federation.rounds=1")
    folder = shutil.copytree(done.folder, tmp_path / "run")
    round_event = next(event for event in done.events if event["event"] == "round")
    with (folder / "record.jsonl").open("a") as record:
        record.write(json.dumps({**round_event, "round": 2}) + "\n")
    with refused(ConfigurationError, "not_finished", at="RUN", values=["federation.rounds=2"]):
        open_result(folder)


def test_a_model_that_is_gone_or_damaged(run_once: RunTiny, run_tiny: RunTiny, tmp_path: Path) -> None:
    folder = shutil.copytree(run_once("federation.rounds=1").folder, tmp_path / "run")
    weights = folder / "model" / "model.safetensors"
    whole = weights.read_bytes()
    for damaged in (whole[:1000], whole[:-1] + bytes([whole[-1] ^ 1])):
        weights.write_bytes(damaged)
        with refused(DataError, "damaged", at="model.safetensors", values=["run --resume"]):
            open_result(folder)
    run_tiny(resume=True)
    assert weights.read_bytes() == whole
    weights.write_bytes(damaged)
    record = folder / "record.jsonl"
    of_before = [{**event, "saved": {}} for event in read_events(record)]
    record.write_text("".join(f"{json.dumps(event)}\n" for event in of_before))
    assert open_result(folder).model.layout.blocks  # nothing is known of a run of before there were hashes
    for path in (folder / "model").iterdir():
        path.unlink()
    (folder / "model").rmdir()
    with refused(DataError, "not_found", at="model"):
        open_result(folder)

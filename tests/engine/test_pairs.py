"""Runs on pairs of texts, from GLUE's tables to the saved model and its predictions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import TINY, RunTiny, problems_of, refused
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.data import DataSettings
from fedstrata.core.settings.source import read_source
from fedstrata.data.readers import read
from fedstrata.engine.run_folder import open_run
from fedstrata.results.predict import open_inputs, predict_files
from fedstrata.results.result import open_result

HEADER = "index\tsentence1\tsentence2\tlabel\n"
COLOURS = ("red", "blue")
PAIRS = (
    "task.name=classify", "data.types=null", "task.max_length=24", "training.batch_size=8",
    "partition={by: dirichlet_equal, clients: 3, alpha: 1.0}", "method={name: fedavg}",
    "federation.floors=false",
)  # fmt: skip
BERT = (
    "model.config={model_type: bert, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 3, "
    "num_attention_heads: 4}"
)


@pytest.fixture
def rte(tmp_path: Path) -> Path:
    """Train and dev tables of pairs of colours; the second text differs from the first, or does not."""
    folder = tmp_path / "RTE"
    folder.mkdir()
    for name, count in (("train", 80), ("dev", 16)):
        rows = []
        for n in range(count):
            one, other = COLOURS[n % 2], COLOURS[n // 2 % 2]
            label = "entailment" if one == other else "not_entailment"
            rows.append(f'{n}\tThe "{one} house {n}.\tIt is {other}.\t{label}\n')
        (folder / f"{name}.tsv").write_text(HEADER + "".join(rows))
    (folder / "test.tsv").write_text("index\tsentence1\tsentence2\n0\tThe red house.\tIt is red.\n")
    return folder


@pytest.fixture
def bert_tokenizer(tmp_path: Path) -> Path:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token=special[1]))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(['The "red house 0123456789.', "It is blue."] * 9, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = dict(zip(["pad_token", "unk_token", "cls_token", "sep_token"], special, strict=True))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names).save_pretrained(
        tmp_path / "tokenizer"
    )
    return tmp_path / "tokenizer"


def data(folder: Path) -> str:
    return f"data={{format: glue, path: {folder}, unannotated: skip}}"


def test_a_run_on_pairs_and_the_predictions_of_its_model_and_no_other_second_text(
    run_tiny: RunTiny, rte: Path, tmp_path: Path
) -> None:
    run = run_tiny(*PAIRS, data(rte), "federation.rounds=1")
    (clients,) = [event["clients"] for event in run.of("run")]
    sizes = [[own[part] for own in clients.values()] for part in ("train", "validation", "test")]
    assert [sum(own) for own in sizes] == [62, 16, 18]  # test documents are cut off the training documents
    assert all(max(own) - min(own) <= 1 for own in sizes)
    assert 0.0 <= run.summary["metrics"]["global"]["accuracy"] <= 1.0
    inputs = open_inputs(rte / "test.tsv", "glue", "jsonl", DataSettings())
    outcome = predict_files(open_result(run.folder), inputs, tmp_path / "found", "jsonl", lambda count: None)
    (found,) = read(tmp_path / "found" / "predictions.jsonl", "jsonl")
    assert outcome.documents == 1
    assert found.texts == ("The red house.", "It is red.")
    assert found.labels[0] in {"entailment", "not_entailment"}
    table = rte / "train.tsv"
    table.write_text(table.read_text().replace("It is red.\tentailment", "It is reddish.\tentailment"))
    with refused(ConfigurationError, "changed", at="data"):
        run_tiny("federation.rounds=2", resume=True)


def test_a_model_with_token_types_learns_from_the_file_of_its_frozen_blocks(
    run_once: RunTiny, rte: Path, bert_tokenizer: Path
) -> None:
    common = [
        *PAIRS, data(rte), BERT, f"model.tokenizer={bert_tokenizer}", "model.dtype=float32",
        "training.epochs=2", "federation.rounds=1", "method={name: layer_skipping, top: 1}",
    ]  # fmt: skip
    runs = [run_once(*common, f"training.cache={cache}") for cache in ("on", "off")]
    assert any(facts["used"] for facts in runs[0].of("cache"))
    torch.testing.assert_close(runs[0].state.tensors, runs[1].state.tensors, rtol=0, atol=1e-5)


@pytest.mark.parametrize("more", ["name: lm", "name: ner, stride: 4"])
def test_a_task_on_single_texts_is_refused_before_anything_starts(
    rte: Path, tmp_path: Path, more: str
) -> None:
    task = f"task={{{more}, max_length: 24}}"
    tiny = [override for override in TINY if not override.startswith("task.")]
    overrides = [*tiny, data(rte), task, "partition={by: iid, clients: 2}"]
    with refused(ConfigurationError, "not_supported", at="task.name") as raised:
        open_run(read_source(None, overrides), tmp_path / "run", lambda *_: None, resume=False)
    assert [path for path, _ in problems_of(raised.value)] == ["task.name"]
    assert "house" not in str(raised.value)

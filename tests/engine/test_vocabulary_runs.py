"""Runs whose model's vocabulary is cut to public text, and what may not be such text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import support
import torch
from peft import PeftModel
from support import Finished, assert_same_tensors, executed
from transformers import AutoModelForCausalLM, AutoTokenizer

from fedstrata.comparing.check import check_comparison
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.core.settings.sweep import read_sweep
from fedstrata.data.public_texts import find_public_texts, read_public_texts
from fedstrata.engine.agreed import hash_of_tokenizer
from fedstrata.engine.prepare import prepare
from fedstrata.models.locate import MINI
from fedstrata.models.vocabulary import cut_tokenizer, kept_tokens
from fedstrata.results.result import open_result

CENTRAL = "privacy={mechanism: central, sigma: 1.0, delta: 0.00001, clip: 1.0}"
NOTE = "Patient {n} takes {drug} daily.\nNo fever, no pain."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    for site, drug in (("north", "aspirin"), ("south", "insulin")):
        (folder / "notes" / site).mkdir(parents=True)
        lines = [NOTE.format(n=n, drug=drug) for n in range(6)]
        (folder / "notes" / site / "notes.txt").write_text("\n\n".join(lines))
    (folder / "public").mkdir()
    (folder / "public" / "one.txt").write_text("The patient takes aspirin daily.\n\nNo fever, no chest pain.")
    return folder


def settings(folder: Path, *more: str) -> tuple[str, ...]:
    return (
        *(f"data.path={folder / 'notes'}", "data.format=text", "data.text.documents=paragraphs"),
        *("task={name: lm, max_length: 32}", "training.batch_size=4", "federation.rounds=2"),
        "federation.floors=false",
        *("method={name: fedlora}", "adapter={kind: lora, rank: 2}", f"model.vocabulary={folder / 'public'}"),
        *more,
    )


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return executed(tmp_path_factory.mktemp("runs") / "whole", settings(folder))


def problems_of(folder: Path, *more: str) -> set[str]:
    with pytest.raises(ConfigurationError) as refused:
        prepare(read_source(None, settings(folder, *more)))
    return {path for path, _ in support.problems_of(refused.value)}


def test_the_record_has_the_number_and_the_hash_of_the_kept_tokens(finished: Finished, folder: Path) -> None:
    (event,) = finished.of("run")
    texts = read_public_texts(folder / "public" / "one.txt")
    kept = kept_tokens(cut_tokenizer(AutoTokenizer.from_pretrained(MINI), texts))
    assert kept is not None
    assert event["model"]["vocabulary"]["kept"] == len(kept) < 1000
    assert len(event["model"]["vocabulary"]["sha256"]) == 64
    whole = AutoModelForCausalLM.from_pretrained(MINI)
    fewer = (whole.config.vocab_size - len(kept)) * whole.config.hidden_size
    adapter = 3 * 2  # at least: it adds to the model's parameters
    assert event["model"]["parameters"] >= whole.num_parameters() - fewer + adapter


def test_a_resumed_run_has_the_same_vocabulary(finished: Finished, folder: Path, tmp_path: Path) -> None:
    one = settings(folder, "federation.rounds=1")
    executed(tmp_path / "run", one)
    again = executed(tmp_path / "run", ["federation.rounds=2"], resume=True)
    assert_same_tensors(again.state.tensors, finished.state.tensors)


@pytest.mark.slow  # of any run it is fast (test_conformance)
def test_workers_have_the_same_vocabulary(finished: Finished, folder: Path, tmp_path: Path) -> None:
    again = executed(tmp_path / "run", settings(folder, "workers=2"))
    assert_same_tensors(again.state.tensors, finished.state.tensors)


def test_a_saved_run_needs_the_public_text_no_more(finished: Finished, folder: Path) -> None:
    public = folder / "public"
    public.rename(folder / "moved")
    try:
        model = open_result(finished.folder).model
    finally:
        (folder / "moved").rename(public)
    assert kept_tokens(model.tokenizer) is not None
    assert model.module.get_input_embeddings().num_embeddings == len(model.tokenizer)


def test_an_adapter_fits_the_whole_model(finished: Finished) -> None:
    """Its losses there are those of the cut model, but for the probability of what was cut off."""
    cut = open_result(finished.folder).model
    kept = kept_tokens(cut.tokenizer)
    assert kept is not None
    whole = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(MINI, dtype=torch.float32), finished.folder / "model"
    ).eval()
    ids = cut.tokenizer("The patient takes insulin daily.")["input_ids"]
    with torch.inference_mode():
        logits = whole(input_ids=torch.tensor([[kept[each] for each in ids]])).logits[0]
        own = cut.module(input_ids=torch.tensor([ids])).logits[0]
    torch.testing.assert_close(own.log_softmax(-1), logits[:, kept].log_softmax(-1))


def test_sites_with_other_public_text_have_another_model() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MINI)
    one, same, other = (
        hash_of_tokenizer(cut_tokenizer(tokenizer, texts))
        for texts in (["No pain.", "No fever."], ["No fever.", "No pain."], ["Chest pain."])
    )
    assert one == same != other


def linked(folder: Path, kind: str) -> Path:
    """Another name for a file of the notes."""
    place, note = folder / kind, folder / "notes" / "north" / "notes.txt"
    place.mkdir()
    if kind == "symbolic":
        (place / "text.txt").symlink_to(note)
    elif kind == "hard":
        os.link(note, place / "text.txt")
    return place if kind != "within" else note


@pytest.mark.claim("models#public-vocabulary")
@pytest.mark.parametrize("kind", ["within", "symbolic", "hard", "around"])
def test_a_vocabulary_of_a_runs_own_data_is_refused(folder: Path, kind: str) -> None:
    place = folder if kind == "around" else linked(folder, kind)
    assert problems_of(folder, f"model.vocabulary={place}") == {"model.vocabulary"}
    if kind == "symbolic":
        allowed = settings(folder, f"model.vocabulary={place}", "data.allow_in_vocabulary=true")
        assert kept_tokens(prepare(read_source(None, allowed)).model.tokenizer) is not None


@pytest.mark.parametrize(
    ("more", "path"),
    [
        (["data.allow_in_vocabulary=true"], "data.allow_in_vocabulary"),
        (["data.allow_in_vocabulary=true", "model.vocabulary=null"], "data.allow_in_vocabulary"),
        (["model.vocabulary=nowhere"], "model.vocabulary"),
        (["model.init=random"], "model"),
        (["data.allow_in_vocabulary=true", "model.vocabulary={notes}", CENTRAL], "data.allow_in_vocabulary"),
    ],
)
def test_a_setting_without_effect_and_a_place_that_is_not_there_are_refused(
    folder: Path, more: list[str], path: str
) -> None:
    """And own data in a vocabulary under differential privacy."""
    assert path in problems_of(folder, *(each.replace("{notes}", str(folder / "notes")) for each in more))


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.txt", "one\r\ntwo", ["one\r\ntwo"]),
        ("a.csv", 'id,text\n1,"one, two"\n', ["1", "one, two"]),
        ("a.tsv", "id\ttext\n1\tone\n", ["1", "one"]),
        ("a.jsonl", '{"text": "one", "more": ["two", 3]}\n', ["one", "two"]),
    ],
)
def test_public_texts_are_read_by_their_names(
    name: str, content: str, texts: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / name).write_bytes(content.encode())
    (path,) = find_public_texts(tmp_path)
    assert list(read_public_texts(path)) == texts


def test_a_long_text_is_divided_at_empty_lines_and_loses_nothing(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n\n" for n in range(40_000))
    (tmp_path / "long.txt").write_text(text)
    parts = list(read_public_texts(tmp_path / "long.txt"))
    assert len(parts) > 1
    assert "".join(parts) == text
    assert all(part.startswith("line") for part in parts)


def test_no_table_has_perplexities_of_two_vocabularies(
    finished: Finished, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "sweep.yaml").write_text("name: vocabularies")
    shared = [each for each in settings(folder) if not each.startswith("model.vocabulary")]

    def problems(rows: str) -> set[str]:
        sweep = read_sweep([tmp_path / "sweep.yaml"], [*shared, "sweep.baseline=null", f"sweep.rows={rows}"])
        try:
            check_comparison(sweep, tmp_path / "comparison", jobs=1, listen=lambda event, facts: None)
        except ConfigurationError as refused:
            return {problem.path for problem in refused.problems}
        return set()

    whole, cut = "{model: {vocabulary: null}}", f"{{model: {{vocabulary: {folder / 'public'}}}}}"
    other = f"{{model: {{vocabulary: {folder / 'public' / 'one.txt'}}}}}"
    model = open_result(finished.folder).model
    model.module.get_base_model().save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    cut_before = f"{{model: {{vocabulary: null, name: {tmp_path / 'model'}}}}}"
    assert problems(f"{{a: {cut}, b: {cut}}}") == set()
    assert problems(f"{{a: {whole}, b: {cut}}}") == {"b: model.vocabulary"}
    assert problems(f"{{a: {cut}, b: {other}}}") == {"b: model.vocabulary"}
    assert problems(f"{{a: {whole}, b: {cut_before}}}") >= {"b: model.vocabulary"}

"""What `predict` writes is what `score` expects, in every format that holds mentions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import RunTiny, refused

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.readers import FORMATS, read
from fedstrata.data.writers import write
from fedstrata.results.document_pairs import paired, read_documents, select_part
from fedstrata.results.predict import check_output, open_inputs, predict_files
from fedstrata.results.result import Result, open_result


@pytest.fixture(scope="module")
def result(run_once: RunTiny) -> Result:
    return open_result(run_once("federation.rounds=1", "training.learning_rate=1e-9").folder)


def pubtator(folder: Path, part: str) -> Path:
    lines = [f"{part}{number}|t|{part} {number} has fever.\n{part}{number}|a|Pain.\n" for number in (1, 2)]
    (folder / f"XY{part}set_corpus.txt").write_text("".join(lines))
    return folder / f"XY{part}set_corpus.txt"


def table(folder: Path, part: str) -> Path:
    (folder / f"{part}.rel").write_text(f"text|head|tail\n{part} has fever and pain.|fever|pain\n")
    return folder / f"{part}.rel"


def written(folder: Path, part: str, form: str) -> Path:
    text = f"{part} has chest pain , and 5mg ."
    note = Document("note", text, (Span(text.index("chest"), text.index(" ,"), "problem"),))
    write([note, Document("other", "No fever .")], folder / part, form)
    return folder / part


def corpus(folder: Path, form: str) -> dict[str, Path]:
    """A corpus with two parts, and where each of them is."""
    folder.mkdir()
    if form == "pubtator":
        return {part: pubtator(folder, part) for part in ("train", "test")}
    if form == "relation_table":
        return {part: table(folder, part) for part in ("train", "test")}
    return {part: written(folder, part, form) for part in ("train", "test")}


def predicted(result: Result, path: Path, out: Path, form: str, output: str) -> list[Document]:
    inputs = open_inputs(path, form, check_output(result.task, output))
    predict_files(result, inputs, out, output, lambda count: None)
    return read_documents(out, output, "--format")


@pytest.mark.parametrize("output", ["jsonl", "brat", "i2b2"])
@pytest.mark.parametrize("form", ["brat", "i2b2", "conll", "jsonl", "pubtator", "relation_table"])
def test_predictions_of_a_corpus_and_of_a_part_of_it_are_scored(
    result: Result, tmp_path: Path, form: str, output: str
) -> None:
    if output == "i2b2" and form != "i2b2":
        pytest.skip("i2b2 holds tokens: another text than that of the annotations, which scoring refuses")
    parts = corpus(tmp_path / "corpus", form)
    whole = read(tmp_path / "corpus", form)
    run = tmp_path / "run"
    run.mkdir()
    ids = {part: [own.id for own in whole if own.metadata["split"] == part] for part in ("train", "test")}
    (run / "documents.json").write_text(json.dumps({"a": {**ids, "validation": []}}))
    of_whole = predicted(result, tmp_path / "corpus", tmp_path / "whole", form, output)
    of_test = predicted(result, parts["test"], tmp_path / "part", form, output)
    test = read(parts["test"], form)
    pairs = [
        (whole, of_whole),
        (whole, of_test),
        (test, of_test),
        *([(test, of_whole)] if output == "jsonl" else []),
    ]
    for annotated, found in pairs:
        gold, system = select_part(run, "test", [annotated, found])
        assert [own.text for own in paired(gold, system, "PRED")] == [own.text for own in test]
    assert [own.text for own in paired(whole, of_whole, "PRED")] == [own.text for own in whole]


def test_names_that_several_documents_have_are_no_ids(tmp_path: Path) -> None:
    gold = [Document(f"{site}/n", f"Fever {site}.", site=site) for site in ("north", "south")]
    with refused(ConfigurationError, "missing", at="PRED", values=["'north/n', 'south/n'"]):
        paired(gold, [Document("n", "Fever north.")], "PRED")
    with refused(ConfigurationError, "conflict", at="PRED", values=["'north/n'"]):
        paired(gold[:1], [Document("n", "Fever south.")], "PRED")


def test_every_format_with_mentions_is_tried() -> None:
    texts = {"text", "medline", "conllu", "mtsamples", "mimic"}
    without = {*texts, "ag_news", "glue", "superglue", "mts_dialog", "coqa", "xsum"}
    assert FORMATS.keys() - without == {"brat", "i2b2", "conll", "jsonl", "pubtator", "relation_table"}

"""Files that a configuration names for each part of the split (`data.files`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.data.divide import read_documents
from fedstrata.data.readers import read
from fedstrata.engine.check import check_settings
from fedstrata.engine.prepare import prepare

FEVER = "Fever\tB-problem\nrose\tO\n\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files whose names say nothing, or something else, of parts."""
    for name, sentences in (("old/a.conll", 3), ("new/test.conll", 2), ("new/b.conll", 1)):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(FEVER * sentences)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data_of(text: str):
    checked = check_settings(read_source(None, [f"data={text}"]))
    assert not checked.problems
    return checked.settings.data


def test_files_are_of_the_part_that_names_them_whatever_they_are_called(files: Path) -> None:
    data = data_of("{format: conll, files: {train: [old/a.conll, new/test.conll], test: new/b.conll}}")
    assert data.files == {
        "train": [str(files / "old/a.conll"), str(files / "new/test.conll")],
        "test": str(files / "new/b.conll"),
    }
    documents = read_documents(data, Seed(0))
    assert [(document.id, document.metadata["split"]) for document in documents] == [
        *((f"train/a-{number}", "train") for number in (1, 2, 3)),
        *((f"train/test-{number}", "train") for number in (1, 2)),
        ("test/b-1", "test"),
    ]


def test_folders_give_what_a_folder_of_folders_gives(tmp_path: Path) -> None:
    for name in ("train/north/x", "train/south/x", "test/north/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.jsonl").write_text('{"text": "Fever."}\n')
    parts = f"{{train: {tmp_path / 'train'}, test: {tmp_path / 'test'}}}"
    named = read_documents(data_of(f"{{format: jsonl, files: {parts}}}"), Seed(0))
    assert sorted(named, key=lambda document: document.id) == read(tmp_path, "jsonl")


def test_missing_files_are_named_together(files: Path) -> None:
    source = read_source(
        None, ["data={format: conll, files: {train: [old/a.conll, gone], test: lost.conll}}"]
    )
    with pytest.raises(ConfigurationError) as raised:
        prepare(source)
    told = {problem.path: problem for problem in raised.value.problems}
    assert list(told) == ["data.files.train", "data.files.test"]
    assert {problem.code for problem in told.values()} == {"not_found"}
    assert told["data.files.train"].message.startswith(f"{files / 'gone'}: ")
    assert {problem.origin for problem in told.values()} == {"the command line"}


def test_a_folder_whose_own_names_say_another_part_is_refused(files: Path) -> None:
    (files / "old/a.conll").rename(files / "old/dev.conll")
    with refused(ConfigurationError, "conflict", at="data.files.train", values=["dev.conll", "'validation'"]):
        read_documents(data_of("{format: conll, files: {train: old}}"), Seed(0))
    text = '{"text": "Fever.", "metadata": {"split": "test"}}\n'
    (files / "own.jsonl").write_text(text)
    with refused(
        ConfigurationError, "conflict", at="data.files.train", values=["own.jsonl", "own-1", "'test'"]
    ):
        read_documents(data_of("{format: jsonl, files: {train: own.jsonl}}"), Seed(0))


def test_one_document_in_two_files_is_refused(files: Path) -> None:
    for name in ("x.jsonl", "y.jsonl"):
        (files / name).write_text('{"id": "n1", "text": "Fever.", "site": "north"}\n')
    with refused(ConfigurationError, "duplicate", at="data.files.test", values=["'n1'"]):
        read_documents(data_of("{format: jsonl, files: {train: x.jsonl, test: y.jsonl}}"), Seed(0))


def test_an_external_corpus_may_name_files_too(files: Path) -> None:
    corpus = "{format: conll, files: {test: gone.conll}}"
    source = read_source(None, [f"data.external={{other: {corpus}}}"])
    with refused(ConfigurationError, "not_found", at="data.external.other.files.test"):
        prepare(source)

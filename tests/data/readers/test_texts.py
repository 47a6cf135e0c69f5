"""Plain texts as a corpus: what a document is, and where it lies."""

from __future__ import annotations

from pathlib import Path

from support import refused

import fedstrata as fs
from fedstrata.core.errors import DataError
from fedstrata.data.readers import read, read_prompts

WIKI = (
    " \n = One = \n \n Text one . \n \n = = Part = = \n \n More = more . \n = Two <unk> = \n \n Text two . \n"
)


def texts(path: Path, documents: str = "files") -> dict[str, str]:
    found = fs.read(path, "text", text={"documents": documents})
    return {document.id: document.text for document in found}


def test_paragraphs_are_set_apart_by_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\none\ntwo\r\n\r\n \n\n  three\n\n\n")
    assert texts(tmp_path, "paragraphs") == {"a-1": "one\ntwo", "a-2": "three"}


def test_headings_of_articles_begin_documents_and_those_of_sections_do_not(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(WIKI)
    found = texts(tmp_path, "headings")
    assert list(found) == ["a-1", "a-2"]
    assert found["a-1"] == " = One = \n \n Text one . \n \n = = Part = = \n \n More = more . "
    assert found["a-2"].split() == ["=", "Two", "<unk>", "=", "Text", "two", "."]


def test_folders_are_sites_and_names_are_splits(tmp_path: Path) -> None:
    (tmp_path / "north").mkdir()
    for part in ("train", "valid"):
        (tmp_path / "north" / f"ptb.{part}.txt").write_text(f"{part}\n\nmore")
    found = fs.read(tmp_path, "text", text={"documents": "paragraphs"})
    assert [(each.id, each.site, each.metadata["split"]) for each in found[1:3]] == [
        ("north/ptb.train/ptb.train-2", "north", "train"),
        ("north/ptb.valid/ptb.valid-1", "north", "validation"),
    ]


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.txt").write_text("about")
    with refused(DataError, "not_enough_data", at=tmp_path.name):
        read(tmp_path, "text")


def test_prompts_are_lines_of_text_or_texts_of_json_lines(tmp_path: Path) -> None:
    text, lines = tmp_path / "p.txt", tmp_path / "q.jsonl"
    text.write_text("one\n\n two \r\n")
    lines.write_text('{"text": "one\\nline"}\n{"id": "x", "text": "two"}\n')
    assert [(each.id, each.text) for each in read_prompts(text)] == [("p-1", "one"), ("p-3", "two")]
    assert [each.text for each in read_prompts(lines)] == ["one\nline", "two"]


def test_wikitext(data_root: Path) -> None:
    found = texts(data_root / "wikitext2" / "valid.txt.gz", "headings")
    assert len(found) == 60
    assert all(text.lstrip().startswith("= ") for text in found.values())
    assert sum(len(text.split()) for text in found.values()) == 213886

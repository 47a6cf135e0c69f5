"""The page of data formats: its examples are files of the formats they stand under, and are read here."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from ruamel.yaml import YAML
from support import REPOSITORY

from fedstrata.core.documents import Document
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.data import FORMATS, CorpusSettings
from fedstrata.core.settings.source import Source, validate
from fedstrata.data.divide import read_documents
from fedstrata.data.patients import read_patients

PAGE = (REPOSITORY / "docs" / "data_formats.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
BLOCK = r"\n\n((?:(?: {4}.*)?\n)+?)(?=\S|\Z)"
GIVES = {
    "spans": lambda item: bool(item.spans),
    "relations": lambda item: bool(item.relations),
    "labels": lambda item: bool(item.labels),
    "label": lambda item: bool(item.labels),
    "pairs": lambda item: item.text_pair is not None,
    "assertions": lambda item: any(span.assertion for span in item.spans),
}


def files_of(section: str) -> list[tuple[str, str]]:
    """The files of a section's examples: their names and what they hold."""
    found = re.findall(rf"^File `(.*?)`:{BLOCK}", SECTIONS[section], re.MULTILINE)
    return [(name, dedent(text).strip("\n") + "\n") for name, text in found]


def settings_of(section: str) -> dict[str, Any]:
    """The settings that read a section's example, where they are not the usual ones."""
    found = re.search(rf"<!-- settings -->{BLOCK}", SECTIONS[section])
    return YAML(typ="safe").load(dedent(found[1]))["data"] if found else {}


def table_of_formats() -> dict[str, str]:
    """What each format gives, by the first table of the page."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", PAGE.partition("\n## ")[0], re.MULTILINE)
    return dict(rows)


def read_example(section: str, folder: Path) -> list[Document]:
    for name, text in files_of(section):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    given = {"format": section, **settings_of(section), "path": str(folder)}
    settings, problems = validate(CorpusSettings, Source(given))
    assert settings is not None, problems
    return read_documents(settings, Seed(0), annotated=True)


def test_the_first_table_has_every_format_and_each_has_a_section() -> None:
    assert table_of_formats().keys() == set(FORMATS)
    assert set(FORMATS) - SECTIONS.keys() == {"synthetic"}


@pytest.mark.parametrize("form", [name for name in FORMATS if name != "synthetic"])
def test_the_example_of_a_format_gives_what_the_table_says(form: str, tmp_path: Path) -> None:
    assert files_of(form), f"no example of {form}"
    documents = read_example(form, tmp_path)
    assert all(document.text.strip() for document in documents)
    said = table_of_formats()[form]
    there = {
        what: any(gives(document) for document in documents)
        for what, gives in GIVES.items()
        if re.search(rf"\b{what}\b", said)
    }
    assert any(there.values()) if " or " in said else all(there.values()), there


def test_the_columns_of_the_tables_are_what_is_read(tmp_path: Path) -> None:
    documents = read_example("superglue", tmp_path)
    shown = {document.metadata["superglue"]: document for document in documents}
    lines = re.findall(r"^\| [A-Z].*\|$", SECTIONS["superglue"], re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    tasks = {task.lower(): row[1:] for row in rows for task in row[0].split(", ")}
    assert tasks.keys() == shown.keys()
    for task, (_, pair, metadata, _) in tasks.items():
        document = shown[task]
        assert (document.text_pair is not None) == bool(pair), task
        assert set(re.findall(r"`(\w+)`", metadata)) - {"candidates"} <= document.metadata.keys(), task
    settings = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", SECTIONS["conll"], re.MULTILINE))
    assert settings.keys() == {"token", "tag", "separator"}


def test_what_conll_and_relation_table_say_of_their_examples(tmp_path: Path) -> None:
    (document,) = read_example("conll", tmp_path / "conll")
    assert [document.text[span.start : span.end] for span in document.spans] == ["chest pain"]
    (document,) = read_example("relation_table", tmp_path / "table")
    assert (len(document.spans), len(document.relations), document.id) == (3, 2, "7001")


def test_the_file_of_patients(tmp_path: Path) -> None:
    ((name, text),) = files_of("Patients")
    (tmp_path / name).write_text(text)
    assert read_patients(tmp_path / name) == {"north/n1": "p07", "north/n2": "p07", "north/n3": "p11"}

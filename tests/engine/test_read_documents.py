"""From `data:` in a configuration to documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fedstrata.core.documents import Document
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import Source
from fedstrata.data.divide import read_documents
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.engine.check import check_settings


def settings_of(text: str) -> RunSettings:
    """The checked settings of a YAML text."""
    checked = check_settings(Source(YAML(typ="safe").load(text)))
    assert not checked.problems
    return checked.settings


def documents_of(text: str) -> list[Document]:
    return read_documents(settings_of(text).data, Seed(0))


def test_mimic_keeps_its_fifty_most_frequent_codes_unless_told_otherwise(tmp_path: Path) -> None:
    write(generate(seed=0, sites=2, notes=60), tmp_path / "mimic", "mimic")
    data = f"format: mimic, path: {tmp_path / 'mimic'}, mimic: {{categories: null}}"
    labels = [
        {
            label
            for document in documents_of(f"task: {{name: classify}}\ndata: {{{data}{more}}}")
            for label in document.labels
        }
        for more in ("", ", labels: {top: all}", ", labels: {top: 3, digits: 3, without_labels: drop}")
    ]
    assert len(labels[0]) == 50
    assert len(labels[1]) > 60
    assert labels[0] < labels[1]
    assert len(labels[2]) == 3
    assert all("." not in label for label in labels[2])


def test_a_hub_id_stays_and_a_file_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.csv").write_text("text,class\nfever,1\n")
    assert settings_of("data: {format: datasets, path: acme/news}").data.path == "acme/news"
    data = "data: {format: datasets, path: notes.csv, columns: {labels: class}}"
    assert settings_of(data).data.path == str(tmp_path / "notes.csv")
    assert documents_of(data) == [Document("notes-1", "fever", labels=("1",))]

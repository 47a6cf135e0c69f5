"""From `data:` in a configuration to documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML
from support import refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import Source
from fedstrata.data.divide import divide, read_documents
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.engine.check import check_settings
from fedstrata.tasks import task_of


def settings_of(text: str, problems: int = 0):
    """The checked settings of a YAML text, and its problems."""
    checked = check_settings(Source(YAML(typ="safe").load(text)))
    assert len(checked.problems) == problems, checked.problems
    return checked.settings, checked.problems


def documents_of(text: str) -> list[Document]:
    return read_documents(settings_of(text)[0].data, Seed(0))


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


def test_patients_are_kept_together(tmp_path: Path) -> None:
    write(generate(seed=0, sites=2, notes=60), tmp_path / "mimic", "mimic")
    data = f"format: mimic, path: {tmp_path / 'mimic'}, mimic: {{categories: null}}"
    settings, _ = settings_of(f"data: {{{data}}}\npartition: {{by: iid, clients: 2}}")
    clients = divide(settings, task_of(settings.task)).clients
    parts = [
        {document.metadata["patient"] for own in clients.values() for document in getattr(own, part)}
        for part in ("train", "validation", "test")
    ]
    assert all(parts)
    assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])


def test_a_hub_id_stays_and_a_file_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.csv").write_text("text,class\nfever,1\n")
    settings, _ = settings_of("data: {format: datasets, path: acme/news}")
    assert settings.data.path == "acme/news"
    data = "data: {format: datasets, path: notes.csv, columns: {labels: class}}"
    settings, _ = settings_of(data)
    assert settings.data.path == str(tmp_path / "notes.csv")
    assert documents_of(data) == [Document("notes-1", "fever", labels=("1",))]


@pytest.mark.parametrize(
    ("data", "path", "code", "names"),
    [
        ("{format: brat, path: x, mimic: {categories: null}}", "data", "no_effect",
         ["data.mimic", "'mimic'"]),
        ("{format: mimic, path: x, columns: {text: body}}", "data", "no_effect",
         ["data.columns", "'datasets'"]),
        ("{dataset: {config: small}}", "data", "no_effect", ["'synthetic'"]),
        ("{format: datasets, path: x, columns: {tokens: words}}", "data.columns", "missing", ["tokens"]),
        ("{format: mimic}", "data", "missing", ["data.path"]),
        ("{labels: {top: 0}}", "data.labels.top", "out_of_range", []),
        ("{labels: {top: 3}}", "data.labels.top", "no_effect", ["ner"]),
        ("{labels: {digits: 4}}", "data.labels.digits", "unknown_name", []),
        ("{labels: {keep: []}}", "data.labels.keep", "out_of_range", []),
        ("{format: mimic, path: x, mimic: {categories: []}}", "data.mimic.categories", "out_of_range", []),
        ("{split: {by: site}}", "data.split.by", "unknown_name", []),
        ("{format: mimic, path: x, synthetic: {notes: 4}}", "data", "no_effect",
         ["data.synthetic", "'synthetic'"]),
        ("{conllu: {text: tokens}}", "data", "no_effect", ["data.conllu", "'conllu'"]),
        ("{text: {documents: headings}}", "data", "no_effect", ["data.text", "'text'"]),
        ("{unannotated: skip}", "data", "no_effect", ["data.unannotated", "'i2b2' or 'brat'"]),
        ("{format: bioc, path: x}", "data.format", "unknown_name",
         ["'text', 'medline', 'relation_table', 'datasets'", "'bioc'"]),
    ],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(data: str, path: str, code: str, names: list[str]) -> None:
    _, (problem,) = settings_of(f"data: {data}", problems=1)
    assert (problem.path, problem.code) == (path, code)
    assert all(name in problem.message for name in names)


def test_a_label_that_occurs_nowhere_is_a_problem_of_its_setting() -> None:
    with refused(ConfigurationError, "not_found", at="data.labels.keep", values=["'401'"]):
        documents_of("task: {name: classify}\ndata: {synthetic: {notes: 4}, labels: {keep: ['401']}}")

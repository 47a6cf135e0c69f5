"""From `data:` in a configuration to documents: which, whose they are, and where `data.patients` counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from support import TINY, RunTiny, refused

from fedstrata.client.site import Site
from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.source import Source, read_source
from fedstrata.data.divide import divide, read_documents
from fedstrata.data.split import Split
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.engine.check import check_settings
from fedstrata.engine.prepare import prepare_client, prepare_server
from fedstrata.engine.remote.shared_settings import shared_settings, with_shared
from fedstrata.engine.sites import fingerprint
from fedstrata.tasks import TASKS


def table(path: Path, patients: Mapping[str, str]) -> Path:
    rows = [f"{document},{patient}" for document, patient in patients.items()]
    path.write_text("\n".join(["document,patient", *rows]) + "\n")
    return path


@pytest.fixture
def notes(tmp_path: Path) -> dict[str, str]:
    """Writes notes as BRAT, which names no patients; returns a patient for each, of two notes or one."""
    corpus = generate(seed=1, sites=2, notes=24)
    write(corpus, tmp_path / "notes", "brat")
    return {f"{note.site}/{note.id}": f"{note.site}-{int(note.id[-4:]) // 2}" for note in corpus}


def overrides(tmp_path: Path, *more: str) -> list[str]:
    """A configuration of these notes, which takes the place of what `run_tiny` says of data."""
    types = "types: [problem, test, treatment, drug]"
    return [f"data={{format: brat, path: {tmp_path / 'notes'}, {types}}}", *more]


def divided(*settings: str) -> dict[str, Split]:
    checked = check_settings(read_source(None, list(settings)))
    assert not checked.problems
    return divide(checked.settings, checked.task).clients


def test_a_split_goes_by_the_patients_of_the_file(tmp_path: Path, notes: dict[str, str]) -> None:
    file = table(tmp_path / "patients.csv", notes)
    clients = divided(*overrides(tmp_path, f"data.patients={file}", "data.split.by=patient"))
    where: dict[str, set[str]] = {}
    for own in clients.values():
        for part in ("train", "validation", "test"):
            for document in getattr(own, part):
                assert document.patient == notes[document.id]
                where.setdefault(document.patient, set()).add(part)
    assert set(where) == set(notes.values())
    assert all(len(parts) == 1 for parts in where.values())


def test_the_place_of_a_problem_and_an_absolute_path(
    tmp_path: Path, notes: dict[str, str], run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = read_source(None, ["data.patients=p.csv", "data.external={x: {patients: q.tsv}}"])
    settings = check_settings(source).settings
    assert settings.data.patients == str(tmp_path / "p.csv")
    assert settings.data.external["x"].patients == str(tmp_path / "q.tsv")
    with refused(ConfigurationError, "not_found", at="data.patients", values=["p.csv", "the command line"]):
        run_tiny(*overrides(tmp_path, "data.patients=p.csv"))


def test_patients_of_an_external_corpus(tmp_path: Path, notes: dict[str, str]) -> None:
    external = "data.external={{elsewhere: {{format: brat, path: {}, patients: {}}}}}"
    file = table(tmp_path / "patients.csv", notes)
    types = "data.types=[problem, test, treatment, drug]"
    outside = divided(external.format(tmp_path / "notes", file), types)["elsewhere"].test
    assert {document.id.removeprefix("elsewhere/"): document.patient for document in outside} == notes
    broken = table(tmp_path / "broken.csv", {"n1": "p1"})
    with refused(
        ConfigurationError, "not_found", at="data.external.elsewhere.patients", values=["broken.csv"]
    ):
        divided(external.format(tmp_path / "notes", broken), types)


def test_a_file_may_repeat_what_a_format_says(tmp_path: Path) -> None:
    patients = {note.id: note.patient for note in generate(seed=0, sites=4, notes=24)}
    settings = ["data.synthetic.notes=24", f"data.patients={table(tmp_path / 'patients.csv', patients)}"]
    assert divided(*settings) == divided("data.synthetic.notes=24")


def test_a_run_cannot_go_on_with_other_patients(
    run_tiny: RunTiny, tmp_path: Path, notes: dict[str, str]
) -> None:
    """Even if they leave each document in its part of the split."""
    file = table(tmp_path / "patients.csv", notes)
    settings = overrides(
        tmp_path, f"data.patients={file}", "data.split.by=document", "federation.floors=false"
    )
    run_tiny(*settings, "federation.rounds=0")
    table(file, {**notes, "site-1/site-1-0001": "another"})
    with refused(ConfigurationError, "changed", at="data"):
        run_tiny(*settings, "federation.rounds=1", resume=True)
    table(file, notes)
    assert run_tiny(*settings, "federation.rounds=1", resume=True).summary["rounds"] == 1


def test_the_fingerprint_has_patients_only_where_a_file_names_them() -> None:
    """That of a run of before, which has none of them, stays."""
    first, second = generate(seed=0, sites=1, notes=2)
    other = replace(second, metadata={**second.metadata, "patient": "another"})

    def of(document: Document, *, patients: bool, server: bool = False) -> str:
        train, kept = ((first,), (document,)) if server else ((first, document), ())
        return fingerprint([Site("a", Split(train=train), TASKS["ner"](), None)], kept, patients=patients)

    for server in (False, True):
        assert of(second, patients=False, server=server) == of(other, patients=False, server=server)
        assert of(second, patients=True, server=server) != of(other, patients=True, server=server)


def test_a_site_of_a_served_run_names_its_own_patients(tmp_path: Path, notes: dict[str, str]) -> None:
    server = prepare_server(
        read_source(None, [*TINY, "method={name: layer_skipping, top: 1}"]), ["site-1", "site-2"]
    )
    file = table(tmp_path / "patients.csv", notes)
    own = overrides(tmp_path, f"data.patients={file}", "data.split.by=patient")
    site = prepare_client(with_shared(read_source(None, own), shared_settings(server)), "site-1")
    found = {document.id: document.patient for document in site.clients["site-1"].all}
    assert found == {name: patient for name, patient in notes.items() if name.startswith("site-1/")}


def settings_of(text: str) -> RunSettings:
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

"""Sites from one note to thirty in one run: small ones lack parts of the split, and nothing breaks on it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import RunTiny, refused, write_lines

from fedstrata.core.errors import ConfigurationError
from fedstrata.data.synthetic.corpus import generate

SIZES = {"a": 1, "b": 2, "c": 3, "d": 5, "g": 15, "h": 30}
WORDS = {"problem": "fever", "test": "x-ray", "treatment": "surgery", "drug": "aspirin"}


def note(number: int) -> dict[str, object]:
    text, spans = f"Note {number}:", []
    for label, word in WORDS.items():
        spans.append({"start": len(text) + 1, "end": len(text) + 1 + len(word), "label": label})
        text += f" {word}"
    return {"text": text, "spans": spans}


def write_site(folder: Path, count: int) -> None:
    rows = ({"id": f"{folder}-{number}", **note(number)} for number in range(count))
    write_lines(folder / "notes.jsonl", rows)


def data(folder: Path) -> str:
    return f"data={{format: jsonl, path: {folder}}}"


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    notes = tmp_path_factory.mktemp("uneven") / "notes"
    for name, count in SIZES.items():
        write_site(notes / name, count)
    return notes


@pytest.mark.parametrize(
    "method",
    [
        "layer_skipping, top: 1, head: local",
        pytest.param("local_only", marks=pytest.mark.slow),
        pytest.param("centralized", marks=pytest.mark.slow),
    ],
)
def test_a_site_of_a_single_note_takes_part(run_once: RunTiny, uneven: Path, method: str) -> None:
    run = run_once(data(uneven), f"method={{name: {method}}}", "training.epochs=2", "federation.floors=false")
    (begun,) = run.of("run")
    assert {name: sum(parts.values()) for name, parts in begun["clients"].items()} == SIZES
    assert all(parts["train"] >= 1 for parts in begun["clients"].values())
    assert begun["clients"]["a"] == {"train": 1, "validation": 0, "test": 0}
    clients = run.summary["metrics"]["clients"]
    without = {name for name, parts in begun["clients"].items() if not parts["test"]}
    assert {name for name, scores in clients.items() if scores is None} == without >= {"a"}
    scored = [scores["f1"] for scores in clients.values() if scores]
    assert run.summary["metrics"]["mean_client"]["f1"] == pytest.approx(sum(scored) / len(scored))
    for event in run.of("round"):
        assert event["clients"]["a"] is None
        assert event["clients"]["h"] is not None
    if method != "centralized":
        examples = {event["client"]: event["examples"] for event in run.of("client")}
        assert examples["h"] > 10 * examples["a"]
    assert run.summary["metrics"]["global"]["f1"] > 0


def test_a_split_that_folders_name_may_lack_parts_at_some_sites(run_tiny: RunTiny, tmp_path: Path) -> None:
    sites = {
        "north": {"train": 3, "validation": 1, "test": 2},
        "south": {"train": 1, "validation": 0, "test": 0},
        "west": {"train": 2, "validation": 0, "test": 1},
    }
    for site, parts in sites.items():
        for part, count in parts.items():
            if count:
                write_site(tmp_path / "notes" / site / part, count)
    run = run_tiny(data(tmp_path / "notes"), "federation.rounds=0")
    assert run.of("run")[0]["clients"] == sites
    clients = run.summary["metrics"]["clients"]
    assert [name for name, scores in clients.items() if scores] == ["north", "west"]


def test_a_corpus_without_test_documents_has_no_final_scores(run_tiny: RunTiny, tmp_path: Path) -> None:
    for site in ("north", "south"):
        write_site(tmp_path / "notes" / site, 1)
    run = run_tiny(data(tmp_path / "notes"), "federation.rounds=0")
    metrics = dict(run.summary["metrics"])
    assert metrics.pop("clients") == {"north": None, "south": None}
    assert set(metrics.values()) == {None}


@given(st.integers(1, 6), st.integers(0, 9), st.floats(0, 10))
def test_unequal_sites_add_up_and_none_is_empty(sites: int, more: int, imbalance: float) -> None:
    documents = generate(seed=1, sites=sites, notes=sites + more, imbalance=imbalance)
    sizes = [sum(document.site == f"site-{site}" for document in documents) for site in range(1, sites + 1)]
    assert sum(sizes) == sites + more
    assert min(sizes) >= 1
    assert sizes == sorted(sizes, reverse=True)
    shares = [site**-imbalance for site in range(1, sites + 1)]
    for size, share in zip(sizes, shares, strict=True):
        assert abs(size - 1 - more * share / sum(shares)) < 1
    if imbalance == 0:
        assert max(sizes) - min(sizes) <= 1


def test_the_notes_of_a_site_do_not_depend_on_how_many_it_has() -> None:
    equal, skewed = (generate(seed=3, sites=3, notes=12, imbalance=value) for value in (0.0, 2.0))
    texts = {document.id: document.text for document in equal}
    common = [document for document in skewed if document.id in texts]
    assert len(common) >= 6
    assert all(texts[document.id] == document.text for document in common)


@pytest.mark.parametrize("imbalance", [-1.0, math.nan, math.inf])
def test_an_imbalance_without_meaning_is_refused(imbalance: float) -> None:
    with refused(ConfigurationError, "out_of_range", at="imbalance"):
        generate(seed=0, sites=2, notes=4, imbalance=imbalance)


def test_a_run_takes_the_imbalance_from_its_configuration(run_once: RunTiny) -> None:
    run = run_once("data.synthetic={sites: 3, notes: 24, imbalance: 2.0}", "federation.rounds=0")
    sizes = [sum(parts.values()) for parts in run.of("run")[0]["clients"].values()]
    assert sizes == [16, 5, 3]

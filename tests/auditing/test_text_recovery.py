"""What a curious server reads in the first round of whole runs: everything, or nothing, and what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import Call

from fedstrata.auditing.text_recovery import SUM, Recovery, audit_recovery
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source

NOTES = {
    "north": ("Blood pressure remains high.", "He was given insulin twice daily."),
    "south": ("CT of the head was normal.", "No fever or chills overnight."),
    "west": ("Started aspirin for stroke.", "The patient denies chest pain today."),
}
SGD = ("training.optimizer=sgd", "training.learning_rate=0.1")


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites with two sentences each."""
    file = tmp_path_factory.mktemp("sentences") / "notes.jsonl"
    lines = [
        {
            "id": f"{site}-{number}",
            "site": site,
            "text": text,
            "metadata": {"split": "train", "patient": text},
        }
        for site, own in NOTES.items()
        for number, text in enumerate(own)
    ]
    lines += [
        {"id": f"{site}-{part}", "site": site, "text": f"{site} {part}", "metadata": {"split": part}}
        for site in NOTES
        for part in ("validation", "test")
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


def settings(notes: Path, *overrides: str) -> list[str]:
    return [
        *(
            "data={format: jsonl, path: " + str(notes) + ", split: {by: document}}",
            "task={name: lm, max_length: 24}",
        ),
        *("method={name: layer_skipping, top: 2}", "training.epochs=1", "training.precision=float32"),
        *("federation.evaluate_every=100", "model.name=mini"),
        *overrides,
    ]


def read(notes: Path, *overrides: str) -> dict[str, Recovery]:
    source = read_source(None, settings(notes, *overrides))
    return {own.seen: own for own in audit_recovery(source, 20, lambda event, facts: None)}


@pytest.mark.slow
def test_an_undefended_round_gives_everything_away(notes: Path) -> None:
    found = read(notes, *SGD, "training.epochs=3")
    assert found.keys() == {*NOTES, SUM}
    assert all(own.exact == own.texts > 0 for own in found.values())
    assert all(own.rouge == 1.0 for own in found.values())
    assert found[SUM].texts == sum(found[site].texts for site in NOTES)


@pytest.mark.slow
def test_with_a_secure_sum_the_server_reads_the_sum_alone(notes: Path) -> None:
    found = read(notes, *SGD, "privacy.secure_aggregation=true", "privacy.mechanism=none")
    assert found.keys() == {SUM}
    assert found[SUM].exact == found[SUM].texts == 3, "53 tokens are too few to hide in"


@pytest.mark.slow
def test_more_tokens_than_layers_are_wide_give_nothing_away() -> None:
    overrides = [
        *("data={format: synthetic, synthetic: {sites: 3, notes: 12}}", "task={name: lm, max_length: 48}"),
        *("method={name: layer_skipping, top: 2}", "training.epochs=1", "federation.evaluate_every=100"),
    ]
    source = read_source(None, [*overrides, *SGD])
    for own in audit_recovery(source, 20, lambda event, facts: None):
        assert own.tokens > own.width == 192
        assert (own.exact, own.rank, own.rouge) == (0, None, 0.0)
        assert own.why.startswith(f"information: {own.tokens:,} tokens fill all 192 directions")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("training.optimizer=adamw",), "information: the change has no space of few directions"),
        (
            (
                *SGD,
                "privacy={mechanism: local, unit: patient, units: {north: 2, south: 2, west: 2}, "
                "epsilon: 8.0, delta: 0.01, clip: 1.0, expected_batch: 1, steps: 1}",
            ),
            "information: the change has no space of few directions",
        ),
    ],
    ids=["adam", "differential privacy"],
)
def test_what_leaves_no_space_gives_nothing_away(notes: Path, overrides: tuple[str, ...], why: str) -> None:
    for own in read(notes, *overrides).values():
        assert (own.exact, own.rouge, own.why) == (0, 0.0, why)


def test_a_divided_model_has_another_attack(notes: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"method\.name: fl_llama divides the model.*attack hidden"):
        read(notes, "method={name: fl_llama}")


@pytest.mark.slow
def test_the_command_writes_numbers_and_shows_text_only_where_it_is_asked_to(
    notes: Path, tmp_path: Path, call: Call
) -> None:
    chosen = settings(notes, *SGD, "federation.sample=0.34")  # one of three
    command = ["attack", "span", *chosen, "--longest", "20", "--out", str(tmp_path / "out")]
    done = call(*command)
    assert done.status == 0, done.err
    assert "1 of 1 texts found" in done.out
    written = (tmp_path / "out" / "recovery.json").read_text()
    assert [row["recovered"] for row in json.loads(written)] == [1]
    assert not any(text in done.out + done.err + written for own in NOTES.values() for text in own)
    shown = call(*command, "--show-text")
    told = " ".join(shown.out.split())
    assert any(all(text in told for text in own) for own in NOTES.values())

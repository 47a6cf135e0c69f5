"""What a curious server reads in the first round of whole runs: everything, or nothing, and what is said.

Gates for the top blocks of `mini` are those of `benchmarks/privacy/span.py`, which `test_benchmarks.py` runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import Call, refused

from fedstrata.auditing.observed_run import SUM, observe_round
from fedstrata.auditing.text_recovery import Recovery, finding_of, recoveries, texts_of
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
    file = tmp_path_factory.mktemp("sentences") / "notes.jsonl"

    def line(site: str, part: str, text: str) -> str:
        facts = {"id": text, "site": site, "text": text, "metadata": {"split": part, "patient": text}}
        return json.dumps({**facts, "spans": [{"start": 0, "end": text.index(" "), "label": "first"}]})

    lines = [line(site, "train", text) for site, own in NOTES.items() for text in own]
    lines += [line(site, part, f"{site} {part}") for site in NOTES for part in ("validation", "test")]
    file.write_text("\n".join(lines))
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
    return {own.seen: own for own in recoveries(observe_round(source, lambda event, facts: None), 20)}


def test_a_run_that_is_observed_scores_nothing(notes: Path) -> None:
    rounds: list[Mapping[str, Any]] = []

    def listen(event: str, facts: Mapping[str, Any]) -> None:
        rounds.extend([facts] if event == "round" else [])

    asked = ("federation.score_clients=true", "federation.evaluate_every=1")
    observed = observe_round(read_source(None, settings(notes, *SGD, *asked)), listen)
    (event,) = rounds
    assert not event["trained"]
    assert event.keys().isdisjoint({"global", "clients"})
    assert observed.experiment.settings.federation.score_clients, "what is told of the run is as it was asked"


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("method={name: fedavg}",),
        ("method={name: fedtlu}",),
        ("method={name: fedlora}", "adapter={kind: lora, rank: 64}"),
    ],
    ids=["whole model", "changes", "adapters of a rank above the tokens"],
)
def test_an_undefended_round_gives_everything_away(notes: Path, overrides: tuple[str, ...]) -> None:
    found = read(notes, *SGD, *overrides)
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
def test_adapters_of_few_rows_give_no_text_away(notes: Path) -> None:
    """One step of LoRA moves B alone, which reads 8 numbers of a token."""
    for own in read(notes, *SGD, "method={name: fedlora}").values():
        assert own.tokens > 8
        assert (own.exact, own.named, own.rank) == (0, 0.0, None)
        assert own.why.startswith("information:")


@pytest.mark.slow
def test_an_encoder_that_trains_whole_names_tokens_by_place(notes: Path) -> None:
    """Its first block reads a token and its place; behind frozen blocks it would have read the whole text."""
    encoder = (
        "model={name: tiny, init: random, tokenizer: {train: bytes, vocabulary: 400}, config: {model_type: "
        "bert, hidden_size: 128, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 128, "
        "max_position_embeddings: 64, hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0}}"
    )
    task = "task={name: ner, types: [first], max_length: 24, stride: 8}"
    whole, top = (
        read(notes, encoder, task, *SGD, f"method={method}")
        for method in ("{name: fedavg}", "{name: layer_skipping, top: 1}")
    )
    assert all(own.named == 1.0 for own in whole.values())
    assert all(own.exact == 0 and own.named == 0.0 for own in top.values())
    assert all(own.why.startswith("compute:") for own in top.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("training.optimizer=adamw",),
        (
            *SGD,
            "privacy={mechanism: local, unit: patient, units: {north: 2, south: 2, west: 2}, "
            "epsilon: 8.0, delta: 0.01, clip: 1.0, expected_batch: 1, steps: 1}",
        ),
    ],
    ids=["adam", "differential privacy"],
)
def test_what_leaves_no_space_gives_nothing_away(notes: Path, overrides: tuple[str, ...]) -> None:
    for own in read(notes, *overrides).values():
        assert (own.exact, own.rouge, own.why.partition(":")[0]) == (0, 0.0, "information")


@pytest.mark.parametrize(
    ("override", "path", "code", "values"),
    [
        ("method={name: fl_llama}", "method.name", "divides_model", ["fl_llama", "attack hidden"]),
        ("method={name: local_only}", "method.name", "nothing_sent", ["local_only"]),
        ("method={name: centralized}", "method.name", "documents_sent", ["centralized"]),
        ("federation.rounds=0", "federation.rounds", "out_of_range", ["1"]),
    ],
)
def test_where_no_update_leaves_a_client_there_is_nothing_to_attack(
    notes: Path, override: str, path: str, code: str, values: list[str]
) -> None:
    with refused(ConfigurationError, code, at=path, values=values):
        read(notes, override)


@pytest.mark.slow
def test_adapters_of_a_rank_for_each_client_are_read_at_its_rank(notes: Path) -> None:
    ranks = "method={name: hetlora, ranks: [8, 64]}"
    found = read(notes, *SGD, ranks, "adapter={kind: lora, rank: 64}", "training.epochs=3")
    assert found.keys() == set(NOTES), "what is merged is no mean"
    assert sorted(own.rank <= 8 for own in found.values()) == [False, False, True], "one of three has rank 8"
    assert any(own.named for own in found.values())


@pytest.mark.slow
def test_a_text_of_which_the_beginning_alone_was_looked_for_is_not_read(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks finds it; here it is given, since looking takes a minute."""
    texts: list[tuple[int, ...]] = []

    def beginnings(model: Any, *_: Any, longest: int, **__: Any) -> list[tuple[int, ...]]:
        return [text[:longest] for text in texts]

    observed = observe_round(read_source(None, settings(notes, *SGD)), lambda event, facts: None)
    texts += [text for seen in observed.seen for text in texts_of(observed.experiment.task, seen)]
    monkeypatch.setattr("fedstrata.auditing.text_recovery.search_span", beginnings)
    short, whole = (list(recoveries(observed, longest)) for longest in (2, 30))
    assert all(own.exact == 0 and own.beyond == own.texts for own in short)
    assert all(own.exact == own.texts and own.beyond == 0 for own in whole)
    told, ended = (
        finding_of(own, observed, longest=longest, show_text=False)
        for own, longest in ((short, 2), (whole, 30))
    )
    apart = sum(len(texts_of(observed.experiment.task, seen)) for seen in observed.seen if seen.name != SUM)
    assert any(f"0 of {apart} texts" in sentence for sentence in told.says)
    assert any("--longest" in sentence for sentence in told.says)
    assert any(f"{apart} of {apart} texts" in sentence for sentence in ended.says)
    assert not any("--longest" in sentence for sentence in ended.says)
    assert (ended.facts["method"], ended.facts["longest"]) == ("layer_skipping", 30)


@pytest.mark.slow
def test_the_scratch_folder_of_an_attack_that_is_told_to_end_is_gone(tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "from fedstrata.auditing.observed_run import scratch_folder\n"
        "with scratch_folder() as folder:\n"
        "    (folder / 'texts').write_text('of a client')\n"
        "    print(folder, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert done.stdout.startswith(str(tmp_path)) and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_writes_numbers_and_shows_text_only_where_it_is_asked_to(
    notes: Path, tmp_path: Path, call: Call
) -> None:
    chosen = settings(notes, *SGD, "federation.sample=0.34")  # one of three
    command = ["attack", "span", *chosen, "--longest", "20", "--out", str(tmp_path / "out")]
    done = call(*command)
    assert done.status == 0, done.err
    assert "1 of 1 texts" in done.out
    written = "".join((tmp_path / "out" / f"span.{ending}").read_text() for ending in ("json", "md"))
    facts = json.loads((tmp_path / "out" / "span.json").read_text())
    assert [row["recovered"] for row in facts["found"]] == [1]
    assert not any(text in done.out + done.err + written for own in NOTES.values() for text in own)
    shown = call(*command, "--show-text")
    told = " ".join(shown.out.split())
    assert any(all(text in told for text in own) for own in NOTES.values())

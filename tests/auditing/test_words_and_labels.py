"""Rows of updates tell words and labels, with any optimizer; what does not travel tells nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from private_client import PRIVATE
from support import TINY, Call

from fedstrata.auditing.observed_run import SUM, observe_round
from fedstrata.auditing.words_and_labels import Inversion, inversions
from fedstrata.core.settings.source import read_source


def told(*overrides: str) -> dict[str, Inversion]:
    source = read_source(None, [*TINY, "data.synthetic.sites=2", *overrides])
    return {own.seen: own for own in inversions(observe_round(source, lambda event, facts: None))}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_trained_embedding_names_every_word_and_no_other(optimizer: str) -> None:
    found = told("method={name: fedavg}", f"training.optimizer={optimizer}", "training.epochs=2")
    assert len(found) == 3
    for own in found.values():
        assert own.found == own.right == own.there > 0
        assert own.area == 1.0


def test_a_secure_sum_names_the_words_of_all() -> None:
    secure = ("privacy={mechanism: none, secure_aggregation: true}", "data.synthetic.sites=3")
    found = told("method={name: fedavg}", *secure)
    assert found.keys() == {SUM}
    assert found[SUM].right == found[SUM].there


def test_a_frozen_embedding_names_none() -> None:
    for own in told("method={name: layer_skipping, top: 1}").values():
        assert (own.found, own.right, own.area) == (None, 0, None)
        assert own.labels_off is not None, "the head travels"


@pytest.mark.claim("security_review#local-epsilon")
def test_noise_hides_words() -> None:
    for own in told("method={name: fedavg}", *PRIVATE, "data.synthetic.sites=3").values():
        assert own.right < 0.2 * own.there
        assert abs(own.area - 0.5) < 0.15


def test_labels_follow_from_one_step_of_descent() -> None:
    one_step = ("training.batch_size=512", "training.clip_norm=null", "training.weight_decay=0")
    found = told(
        "method={name: layer_skipping, top: 1}",
        "training.optimizer=sgd",
        "training.learning_rate=0.01",
        *one_step,
    )
    for own in found.values():
        assert own.labels_off < 0.2 * own.unlearnt_off


def test_the_command_shows_synthetic_words_and_real_ones_only_when_asked(call: Call, tmp_path: Path) -> None:
    done = call("attack", "invert", *TINY, "method={name: fedavg}", "--out", "found")
    assert done.status == 0, done.err
    facts = json.loads((tmp_path / "found" / "invert.json").read_text())
    assert all(own["right"] == own["tokens"] for own in facts["found"])
    assert facts["readings"], "the corpus is synthetic"
    alone = sum(own["tokens"] for own in facts["found"] if own["seen"] != SUM)
    assert any(f"{alone:,} of {alone:,} tokens" in own for own in facts["says"])
    notes = tmp_path / "notes.jsonl"
    rows = [{"id": f"{row}", "site": "ab"[row % 2], "text": f"Zyklopendruck {row}."} for row in range(12)]
    notes.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    real = ("data={format: jsonl, path: notes.jsonl}", "task={name: lm, max_length: 16}")
    others = [own for own in TINY if not own.startswith(("data", "task"))]
    command = ("attack", "invert", *others, *real, "method={name: fedavg}")
    done = call(*command, "--json")
    assert done.status == 0, done.err
    assert "readings" not in json.loads(done.out)
    assert "readings" in json.loads(call(*command, "--json", "--show-text").out)

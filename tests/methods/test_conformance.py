"""What holds for every method: the contract of `fedstrata.testing`."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import fedstrata as fs
from fedstrata.methods import METHODS
from fedstrata.testing import methods

SETTINGS: dict[str, Any] = {
    **{"model.init": "random", "model.tokenizer": "mini", "task.max_length": 64, "task.stride": 0},
    **{"data.types": ["drug", "problem"], "task.types": ["drug", "problem"]},
    "model.config": {
        **{"model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True},
    },
    "data.split": {"train": 0.4, "validation": 0.3, "test": 0.3},
    "federation.evaluate_every": 2,
}
OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "fedmedlora_plus": {"data.split": {**SETTINGS["data.split"], "server": 1}},
    "fl_llama, client_batch": {"adapter": {"kind": "lora", "rank": 2, "dropout": 0.5}},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "fedavg, median": {"aggregation": "median"},
    "fedtlu, sketched": {"portion": 0.34, "selection": "sketched"},
    "fl_llama, client_batch": {"mode": "client_batch"},
    "fl_llama, hierarchical": {"mode": "hierarchical"},
    "flora, ranks": {"ranks": [2, 5]},
    "hetlora, prune": {"prune": {"penalty": 1.0}},
    "layer_skipping, auto": {"top": "auto"},
}
"""Settings with which a method does something else between clients and server."""


@cache
def corpus() -> dict[str, list[fs.Document]]:
    """Three notes of three sites, cut short."""
    return {
        site: [
            fs.Document(note.id, note.text[:300], tuple(span for span in note.spans if span.end <= 300))
            for note in notes
        ]
        for site, notes in fs.synth(sites=3, notes=9).items()
    }


def clauses_of(name: str, **settings: Any) -> list[str]:
    method = METHODS.make({"name": name.partition(",")[0], **VARIANTS.get(name, {})}, "method")
    return fs.testing.check_method(
        method, data=corpus(), settings={**SETTINGS, **OWN_SETTINGS.get(name, {}), **settings}
    )


@pytest.mark.parametrize("name", METHODS)
def test_one_round_of_a_method_keeps_its_contract(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What else there is to look at takes five more runs, which the next test makes."""
    monkeypatch.setattr(methods, "check_engines", lambda *args, **options: None)
    monkeypatch.setattr(methods, "_check_privacy", lambda *args: None)
    assert len(clauses_of(name, **{"federation.rounds": 1})) == 5


LANDING = {
    "droppeft",
    "fedavg",
    "fedsa_lora",
    "fl_llama, client_batch",
    "flora, ranks",
    "layer_skipping, auto",
}
"""What a landing looks at: one of each kind; two workers are compared in tests/engines as well."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in LANDING else pytest.mark.weekly)
        for name in [*METHODS, *VARIANTS]
    ],
)
def test_a_method_keeps_its_contract(name: str) -> None:
    assert len(clauses_of(name)) >= 6

"""What holds for every task: the contract of `fedstrata.testing`, and what it says of tasks without it."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import pytest
import torch

import fedstrata as fs
from fedstrata.tasks import TASKS
from fedstrata.testing import tasks

TYPES = ["drug", "problem", "severity"]
SETTINGS: dict[str, Any] = {
    **{"model.init": "random", "model.tokenizer": "mini"},
    "model.config": {
        **{"model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True},
    },
    "data.split": {"train": 0.5, "validation": 0.0, "test": 0.5},
    "federation.evaluate_every": 9,
}
ASKED: dict[str, dict[str, Any]] = {
    "ner": {"max_length": 64, "stride": 8},
    "classify": {"max_length": 64, "stride": 8},
    "lm": {"max_length": 64},
    "extract": {"templates": "short", "max_length": 400, "mentions": TYPES[:2],
                "modifiers": {"problem": ["severity"]}},
    "relations": {"max_length": 64, "modifiers": {"problem": ["severity"]}},
    "cloze": {"max_length": 100},
    "summarize": {"max_length": 128, "answer_length": 16},
}  # fmt: skip
"""The settings of each task."""


@cache
def corpus(name: str) -> dict[str, list[fs.Document]]:
    """Beginnings of notes of two sites; as long a text is what summaries and questions are of."""
    made: dict[str, list[fs.Document]] = {"site-1": [], "site-2": []}
    for number, note in enumerate(each for own in fs.synth(sites=2, notes=8).values() for each in own):
        text, more = note.text[:250], dict[str, Any]()
        if name == "summarize":
            more = {"text_pair": note.text[:30]}
        elif name == "cloze":
            more = {"text_pair": "is it pain", "labels": (("true", "false")[number // 2 % 2],),
                    "metadata": {"superglue": "boolq"}}  # fmt: skip
        elif name == "classify":
            more = {"labels": (("x", "y")[number // 2 % 2],)}
        else:
            text = note.text[:500]
            kept = [n for n, span in enumerate(note.spans) if span.end <= len(text) and span.label in TYPES]
            related = [own for own in note.relations if {own.head, own.tail} <= {*kept}]
            more = {
                "spans": tuple(note.spans[n] for n in kept),
                "relations": tuple(
                    fs.Relation(kept.index(own.head), kept.index(own.tail), own.label) for own in related
                ),
            }
        made[f"site-{number % 2 + 1}"].append(fs.Document(note.id, text, **more))
    return made


def clauses_of(name: str, task: Any = None, **settings: Any) -> list[str]:
    task = task or TASKS.make({"name": name, **ASKED[name]}, "task")
    return fs.testing.check_task(task, data=corpus(name), settings={**SETTINGS, **settings})


@pytest.fixture
def one_round(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of one round; whether resumed runs and workers give the same needs three more runs."""
    monkeypatch.setattr(tasks, "check_engines", lambda *args, **options: None)
    return {"federation.rounds": 1}


@pytest.mark.parametrize("name", TASKS)
def test_one_round_of_a_task_keeps_its_contract(name: str, one_round: dict[str, Any]) -> None:
    assert len(clauses_of(name, **one_round)) == 11


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "ner" else pytest.mark.weekly) for name in TASKS]
)
def test_a_task_keeps_its_contract(name: str) -> None:
    assert len(clauses_of(name)) == 13


class Mean(fs.tasks.NamedEntityRecognition):
    """Its loss is a mean, which of unequal batches no sum is made of."""

    name: Literal["mean"] = "mean"  # type: ignore[assignment]

    def loss(self, module: Any, batch: Any) -> Any:
        loss, terms = super().loss(module, batch)
        return loss / terms, terms


class Low(fs.tasks.NamedEntityRecognition):
    """Its loss is rounded."""

    name: Literal["low"] = "low"  # type: ignore[assignment]

    def loss(self, module: Any, batch: Any) -> Any:
        loss, terms = super().loss(module, batch)
        return loss.bfloat16() if torch.is_autocast_enabled("cpu") else loss, terms


class Honest(fs.tasks.NamedEntityRecognition):
    """A corrupt client trains on what is right."""

    name: Literal["honest"] = "honest"  # type: ignore[assignment]

    def corrupt(self, examples: Any, *_: Any) -> Any:
        return examples


@pytest.mark.parametrize(
    ("task", "said"),
    [(Mean, "sum of those of its examples"), (Low, "float32 number"), (Honest, "changes nothing")],
)
def test_what_is_wrong_with_a_task_is_found(task: Any, said: str, one_round: dict[str, Any]) -> None:
    with pytest.raises(fs.testing.ContractError, match=said) as raised:
        clauses_of("ner", task(**ASKED["ner"]), **one_round)
    assert str(raised.value).count("  - ") == 1

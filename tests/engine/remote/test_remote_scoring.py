"""Scores made of what clients elsewhere say that they have counted."""

from __future__ import annotations

import math

import pytest
from support import TINY

from fedstrata.core.errors import FedstrataError
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import JSON, ClientInfo, Update
from fedstrata.engine.prepare import prepare
from fedstrata.engine.remote.scoring import gathered
from fedstrata.engine.sites import sites_of
from fedstrata.tasks import task_of
from fedstrata.train.evaluate import answer

COUNTED: dict[str, JSON] = {"nats": 100.0, "tokens": 100.0, "bytes": 100.0}
DOCUMENTS = {"north": 4, "south": 4}
FLOOR = dict.fromkeys(("global", "mean_client"), math.e)
TEXTS = "data.types=null"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"tally": {"nats": -1.0, "tokens": -100.0}, "apart": {}}, "out_of_range"),
        ({"tally": {"gold": [1]}, "apart": {}}, "wrong_type"),
        ({"tally": {}, "apart": {}}, "malformed_frame"),
        ({"tally": {"nats": 1e300}, "apart": {}}, "wrong_type"),
        ({"tally": COUNTED, "apart": {}, "floors": {"look-up table": COUNTED}}, "unknown_name"),
        ({"tally": COUNTED, "apart": {}, "floors": [COUNTED]}, "unknown_name"),
        ({"tally": COUNTED, "apart": {}, "floors": {"unigram": {"nats": "1"}}}, "wrong_type"),
        ({"tally": COUNTED, "apart": {}, "floors": {"unigram": {**COUNTED, "tokens": -1}}}, "out_of_range"),
        ({"tally": COUNTED, "apart": {}, "floors": {"untrained model": {}}}, "malformed_frame"),
    ],
)
def test_counts_that_are_of_no_use_cost_their_client_its_scores_and_nobody_else(
    said: dict[str, JSON], code: str
) -> None:
    """The scores are those of the other one, as if this one had not been there."""
    task, lost = task_of({"name": "lm"}), {}

    def reject(client: str, error: FedstrataError) -> None:
        lost[client] = error.code

    good = Update({}, {"tally": COUNTED, "apart": {}, "floors": {"unigram": COUNTED}}, weight=4.0)
    updates = [(ClientInfo("north", 9), good), (ClientInfo("south", 9), Update({}, said, weight=4.0))]
    found, alone = (
        gathered(task, some, DOCUMENTS, reject, one_model=True, metric="perplexity")
        for some in (updates, updates[:1])
    )
    assert found["clients"]["south"] is None
    assert found["global"] == alone["global"] == found["clients"]["north"]
    assert found["floors"] == alone["floors"] == {"unigram": {**FLOOR, "documents": 4}}
    assert lost["south"] == code


def test_a_floor_that_a_client_withholds_is_no_floor_of_the_run() -> None:
    """That of the others would be one of those where it is very good, or nothing."""
    said: dict[str, JSON] = {"tally": COUNTED, "apart": {}}
    floors: list[JSON] = [{"unigram": COUNTED, "untrained model": COUNTED}, {"unigram": None}]
    updates = [
        (ClientInfo(name, 9), Update({}, {**said, "floors": own}, weight=4.0))
        for name, own in zip(DOCUMENTS, floors, strict=True)
    ]
    task = task_of({"name": "lm"})
    found = gathered(task, updates, DOCUMENTS, lambda *_: None, one_model=True, metric="perplexity")
    assert found["floors"] == {"untrained model": {**FLOOR, "documents": 4}}
    assert found["floors_withheld"] == ["unigram"]


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("task={name: lm, max_length: 48}", TEXTS),
        ("task={name: classify, max_length: 64}", TEXTS),
        ("task={name: relations, max_length: 48}", TEXTS),
        ("task={name: extract, templates: short, max_length: 320}", TEXTS),
    ],
    ids=["ner", "lm", "classify", "relations", "extract"],
)
def test_what_is_counted_has_the_same_names_whatever_the_documents(overrides: tuple[str, ...]) -> None:
    """A masked sum has a place for each; clients cannot tell each other which they have."""
    experiment = prepare(read_source(None, [*TINY, *overrides]))
    task, documents = experiment.task, sites_of(experiment)[1][0].documents.train[:1]
    answers = answer(experiment.model, task, documents, experiment.settings.training)
    nothing = task.tally([], [])
    assert nothing.keys() == task.tally(documents, answers).keys()
    assert not any(nothing.values())

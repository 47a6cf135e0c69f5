"""Scores made of what clients elsewhere say that they have counted."""

from __future__ import annotations

import pytest

from fedstrata.core.errors import FedstrataError
from fedstrata.core.types import JSON, ClientInfo, Update
from fedstrata.engine.remote_scoring import gathered
from fedstrata.tasks import task_of

DOCUMENTS = {"north": 4, "south": 4}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"tally": {"nats": -1.0, "tokens": -100.0}, "apart": {}}, "less than nothing"),
        ({"tally": {"gold": [1]}, "apart": {}}, "no numbers by name"),
        ({"tally": {}, "apart": {}}, "no scores can be made"),
        ({"tally": {"nats": 1e300}, "apart": {}}, "no numbers by name"),
    ],
)
def test_counts_that_are_of_no_use_cost_their_client_its_scores_and_nobody_else(
    said: dict[str, JSON], told: str
) -> None:
    """The scores are those of the other one, as if this one had not been there."""
    task, lost = task_of({"name": "lm"}), {}

    def reject(client: str, error: FedstrataError) -> None:
        lost[client] = str(error)

    honest = task.tally([], [])
    tally: dict[str, JSON] = dict.fromkeys(honest, 100.0)
    good = Update({}, {"tally": tally, "apart": {}}, weight=4.0)
    updates = [(ClientInfo("north", 9), good), (ClientInfo("south", 9), Update({}, said, weight=4.0))]
    found = gathered(task, updates, DOCUMENTS, reject, one_model=True)
    alone = gathered(task, updates[:1], DOCUMENTS, reject, one_model=True)
    assert found["clients"]["south"] is None
    assert found["global"] == alone["global"] == found["clients"]["north"]
    assert told in lost["south"]

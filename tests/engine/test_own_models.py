"""Models of clients' own: how far they are scored, and what a run of many says."""

from __future__ import annotations

from support import RunTiny

OWN = "method={name: fedper}"
BRIEF = ("federation.rounds=1", "federation.floors=false")
UNTIED = (
    "model.config={model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, "
    "num_attention_heads: 4, num_key_value_heads: 2}"
)


def test_own_models_are_scored_everywhere_unless_they_are_many(run_once: RunTiny) -> None:
    few = run_once(OWN, UNTIED, *BRIEF)
    never = run_once(OWN, UNTIED, *BRIEF, "federation.score_everywhere=false")
    assert few.summary["metrics"]["global"]["f1"] >= 0
    assert never.summary["metrics"]["global"] is None
    assert never.summary["metrics"]["mean_client"] == few.summary["metrics"]["mean_client"]
    assert never.summary["metrics"]["clients"] == few.summary["metrics"]["clients"]
    dealt = ("data.synthetic.notes=42", "federation.sample=0.1", "partition={by: iid, clients: 21}")
    many = run_once(OWN, UNTIED, *BRIEF, *dealt)
    assert many.summary["metrics"]["global"] is None
    assert len(many.summary["metrics"]["clients"]) == 21

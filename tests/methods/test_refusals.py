"""What the settings of a method cannot be, and what a method cannot work with."""

from __future__ import annotations

import pytest
from support import TINY, prepared, refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import prepare_server

LORA = "adapter={kind: lora, rank: 4}"
WIDE = "adapter={kind: bottleneck, width: 24}"
MEAN = "fl_llama, mode: client_batch, mean: clients"
CUT = "cuts: {site-1: {front: 0, back: 0}}"
ORIGIN = "from the command line"
REFUSED = [
    ("droppeft, shared_blocks: 4", "method.shared_blocks", "out_of_range", ["less than 3"]),
    ("droppeft, shared_blocks: 3", "method.shared_blocks", "out_of_range", ["not 3"]),
    ("droppeft, shared_blocks: 0.9", "method.shared_blocks", "out_of_range", ["0.9"]),
    ("droppeft; federation.sample=0.34", "federation.sample", "not_enough_data", ["droppeft"]),
    ("droppeft, rates: 0.3, bandit_of: device", "method", "no_effect", ["bandit_of"]),
    ("droppeft; adapter={kind: prefix}", "adapter.kind", "conflict", ["lora or bottleneck"]),
    ("droppeft, rates: 0.99", "method.rates", "out_of_range", []),
    (f"fedmedlora_plus, cap: 0.3; {LORA}; data.split.server=2", "method.cap", "out_of_range", ["1/3", 0.3]),
    (f"fedmedlora_plus; {LORA}", "data.split.server", "out_of_range", ["1 or more", "fedmedlora_plus"]),
    (f"fedmedlora, literal: true, aggregation: median; {LORA}", "method", "conflict", ["literal", "median"]),
    *(
        (f"{name}; {WIDE}; data.split.server=2", "adapter.kind", "conflict", ["lora", name, "'bottleneck'"])
        for name in ("fedmedlora", "fedmedlora_plus", "fedsa_lora", "ffa_lora")
    ),
    (f"hetlora, ranks: [2, 16]; {LORA}", "method.ranks", "out_of_range", ["adapter.rank, 4", 16]),
    (f"flora, ranks: [2, 16]; {LORA}", "method.ranks", "out_of_range", ["adapter.rank, 4", 16]),
    (f"flora; {LORA}; training.cache=on", "training.cache", "conflict", ["'on'"]),
    (f"fedadaopt, width: 32; {WIDE}", "method.width", "out_of_range", ["adapter.width, 24", 32]),
    (f"fedadaopt, depth: 4; {WIDE}", "method.depth", "out_of_range", ["most 3", 4]),
    (f"fedadaopt; {WIDE}; federation.sample=0.67", "federation.sample", "not_enough_data", [3, 2, 0.67]),
    (
        f"fedadaopt; {WIDE}; data.split={{train: 0.8, validation: 0.0, test: 0.2}}",
        "data.split.validation",
        "not_enough_data",
        [],
    ),
    ("layer_skipping, top: {budget: 0.0001}", "method.top.budget", "out_of_range", [0.0001]),
    ("layer_skipping, top: deep", "method.top", "wrong_type", ["'deep'"]),
    ("layer_skipping, top: {shares: 0.5}", "method.top.shares", "unknown_key", ["'share'"]),
    ("fedper, personal_blocks: 4", "method.personal_blocks", "out_of_range", ["most 3"]),
    ("fedtlu, update: random, selection: sketched", "method", "no_effect", ["sketched", "update random"]),
    ("fedtlu, update: full, portion: 0.5", "method", "no_effect", ["portion", "update full"]),
    ("fedtlu, width: 64", "method", "no_effect", ["width"]),
    *(
        (f"fedtlu, update: {update}, scored: matrices", "method", "no_effect", ["scored"])
        for update in ("random", "last", "full")
    ),
    ("fedtlu, portion: 0.0", "method.portion", "out_of_range", []),
    ("fedtlu, proximal: decoupled", "method", "no_effect", ["proximal decoupled"]),
    ("fedtlu, selection: sketched, aggregation: median", "method", "conflict", ["median", "sketched"]),
    ("fl_llama, front: 2, back: 1", "method.front", "conflict", ["model's 3", ORIGIN]),
    (
        "fl_llama, cuts: {site-2: {front: 3, back: 0}}",
        "method.cuts.site-2.front",
        "conflict",
        ["model's 3", ORIGIN],
    ),
    ("fl_llama, mode: client_batch, in_flight: 2", "method", "out_of_range", ["in_flight=2"]),
    ("fl_llama, average_every: 3", "method", "no_effect", ["average_every=3"]),
    ("fl_llama, mean: clients", "method", "no_effect", ["mean=clients", "mode sequential"]),
    ("fl_llama, mode: hierarchical, turns: step", "method", "no_effect", ["turns=step", "mode hierarchical"]),
    ("fl_llama, in_flight: 2", "method.in_flight", "no_effect", [2, "training.accumulation 1"]),
    (
        "fl_llama, cuts: {sit-2: {front: 0, back: 1}}",
        "method.cuts.sit-2",
        "unknown_name",
        ["'sit-2'", "site-1, site-2"],
    ),
    ("fl_llama, average_ends: 3", "method", "conflict", ["average_ends=3"]),
    ("fl_llama, average_ends: hand_on, turns: step", "method", "conflict", ["hand_on", "turns"]),
    ("fl_llama, average_ends: hand_on, mode: hierarchical", "method", "conflict", ["hand_on", "turns"]),
    (f"fl_llama, average_ends: hand_on, {CUT}", "method", "conflict", ["hand_on", "cuts"]),
    (f"fl_llama, mode: client_batch, {CUT}", "method", "conflict", ["cuts", "mode"]),
    ("fl_llama, noise: {scale: -1}", "method.noise.scale", "out_of_range", []),
    (
        "fl_llama, noise: {on: gradients, inference: true}",
        "method.noise",
        "no_effect",
        ["inference=True", "on gradients"],
    ),
    ("fl_llama, full: [head]", "method.full.0", "unknown_name", ["'front', 'middle' or 'back'", "'head'"]),
    ("fl_llama, full: [front]", "method.full", "no_effect", ["adapter.kind lora"]),
    ("fl_llama, full: [front, middle, back]", "method", "no_effect", ["full", "adapter"]),
    (f"fl_llama, full: [front], {CUT}", "method", "conflict", ["full", "cuts"]),
    ("fl_llama; federation.score_clients=true", "federation.score_clients", "no_effect", ["fl_llama"]),
    ("fl_llama; devices={}", "devices", "conflict", ["fl_llama"]),
    (f"{MEAN}; training.accumulation=4", "method.mean", "conflict", ["'clients'", "accumulation 1", 4]),
]
"""A method with its settings, and others of the run; and the problem."""


@pytest.mark.parametrize(("asked", "path", "code", "values"), REFUSED)
def test_what_cannot_be_is_refused(asked: str, path: str, code: str, values: list[object]) -> None:
    method, *others = asked.split("; ")
    with refused(ConfigurationError, code, at=path, values=values):
        prepared(f"method={{name: {method}}}", *others)


def test_a_server_refuses_a_mean_over_clients_that_accumulate() -> None:
    source = read_source(None, [*TINY, f"method={{name: {MEAN}}}", "training.accumulation=4"])
    with refused(ConfigurationError, "conflict", at="method.mean", values=["'clients'", "4"]):
        prepare_server(source, ["site-1"])

"""What the settings of a method cannot be, and what a method cannot work with."""

from __future__ import annotations

import pytest
from support import TINY, refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import prepare, prepare_server

LORA = "adapter={kind: lora, rank: 4}"
BOTTLENECK = "adapter={kind: bottleneck, width: 24}"
PREFIX = "adapter={kind: prefix}"
SERVER = "data.split.server=2"
MEAN = "fl_llama, mode: client_batch, mean: clients"
CUT = "cuts: {site-1: {front: 0, back: 0}}"
ORIGIN = "from the command line"

Row = tuple[str, tuple[str, ...], str, str, list[str]]
DROPPEFT: list[Row] = [
    ("droppeft, shared_blocks: 4", (), "method.shared_blocks", "out_of_range", ["less than 3"]),
    ("droppeft, shared_blocks: 3", (), "method.shared_blocks", "out_of_range", ["not 3"]),
    ("droppeft, shared_blocks: 0.9", (), "method.shared_blocks", "out_of_range", ["0.9"]),
    ("droppeft", ("federation.sample=0.34",), "federation.sample", "not_enough_data", ["droppeft"]),
    ("droppeft, rates: 0.3, bandit_of: device", (), "method", "no_effect", ["bandit_of"]),
    ("droppeft", (PREFIX,), "adapter.kind", "conflict", ["lora or bottleneck"]),
    ("droppeft, rates: 0.99", (), "method.rates", "out_of_range", []),
]
FEDMEDLORA: list[Row] = [
    ("fedmedlora_plus, cap: 0.3", (LORA, SERVER), "method.cap", "out_of_range", ["1/3", "not 0.3"]),
    ("fedmedlora_plus", (LORA,), "data.split.server", "out_of_range", ["1 or more", "fedmedlora_plus"]),
    (
        "fedmedlora, literal: true, aggregation: median",
        (LORA,),
        "method",
        "conflict",
        ["literal", "median"],
    ),
    *(
        (
            name,
            (BOTTLENECK, SERVER),
            "adapter.kind",
            "conflict",
            ["be lora", name, "bottleneck"],
        )
        for name in ("fedmedlora", "fedmedlora_plus", "fedsa_lora", "ffa_lora")
    ),
]
SIZES: list[Row] = [
    ("hetlora, ranks: [2, 16]", (LORA,), "method.ranks", "out_of_range", ["adapter.rank, 4", "16"]),
    ("flora, ranks: [2, 16]", (LORA,), "method.ranks", "out_of_range", ["adapter.rank, 4", "16"]),
    ("flora", (LORA, "training.cache=on"), "training.cache", "conflict", ["'on'"]),
    ("fedadaopt, width: 32", (BOTTLENECK,), "method.width", "out_of_range", ["adapter.width, 24", "32"]),
    ("fedadaopt, depth: 4", (BOTTLENECK,), "method.depth", "out_of_range", ["most 3", "4"]),
    (
        "fedadaopt",
        (BOTTLENECK, "federation.sample=0.67"),
        "federation.sample",
        "not_enough_data",
        ["3 configurations"],
    ),
    (
        "fedadaopt",
        (BOTTLENECK, "data.split={train: 0.8, validation: 0.0, test: 0.2}"),
        "data.split.validation",
        "not_enough_data",
        [],
    ),
    ("layer_skipping, top: {budget: 0.0001}", (), "method.top.budget", "out_of_range", ["0.0001"]),
    ("layer_skipping, top: deep", (), "method.top", "wrong_type", ["'deep'"]),
    ("layer_skipping, top: {shares: 0.5}", (), "method.top.shares", "unknown_key", ["'share'"]),
    ("fedper, personal_blocks: 4", (), "method.personal_blocks", "out_of_range", ["most 3"]),
]
FEDTLU: list[Row] = [
    (f"fedtlu, {settings}", (), path, code, values)
    for settings, path, code, values in (
        (
            "update: random, selection: sketched",
            "method",
            "no_effect",
            ["sketched", "update random"],
        ),
        ("update: full, portion: 0.5", "method", "no_effect", ["portion", "update full"]),
        ("width: 64", "method", "no_effect", ["width"]),
        ("update: random, scored: matrices", "method", "no_effect", ["scored"]),
        ("update: last, scored: matrices", "method", "no_effect", ["scored"]),
        ("update: full, scored: matrices", "method", "no_effect", ["scored"]),
        ("portion: 0.0", "method.portion", "out_of_range", []),
        ("proximal: decoupled", "method", "no_effect", ["proximal decoupled"]),
        (
            "selection: sketched, aggregation: median",
            "method",
            "conflict",
            ["median", "sketched"],
        ),
    )
]
FL_LLAMA: list[Row] = [
    *(
        (f"fl_llama, {settings}", (), path, code, values)
        for settings, path, code, values in (
            ("front: 2, back: 1", "method.front", "conflict", ["model's 3", ORIGIN]),
            (
                "cuts: {site-2: {front: 3, back: 0}}",
                "method.cuts.site-2.front",
                "conflict",
                ["model's 3", ORIGIN],
            ),
            ("mode: client_batch, in_flight: 2", "method", "out_of_range", ["in_flight=2"]),
            ("average_every: 3", "method", "no_effect", ["average_every=3"]),
            ("mean: clients", "method", "no_effect", ["mean=clients", "mode sequential"]),
            ("mode: hierarchical, turns: step", "method", "no_effect", ["turns=step", "mode hierarchical"]),
            ("in_flight: 2", "method.in_flight", "no_effect", ["2", "training.accumulation 1"]),
            (
                "cuts: {sit-2: {front: 0, back: 1}}",
                "method.cuts.sit-2",
                "unknown_name",
                ["'sit-2'", "site-1, site-2"],
            ),
            ("average_ends: 3", "method", "conflict", ["average_ends=3"]),
            ("average_ends: hand_on, turns: step", "method", "conflict", ["average_ends=hand_on", "turns"]),
            ("average_ends: hand_on, mode: hierarchical", "method", "conflict", ["hand_on", "turns"]),
            (f"average_ends: hand_on, {CUT}", "method", "conflict", ["average_ends=hand_on", "cuts"]),
            (f"mode: client_batch, {CUT}", "method", "conflict", ["cuts", "mode"]),
            ("noise: {scale: -1}", "method.noise.scale", "out_of_range", []),
            (
                "noise: {on: gradients, inference: true}",
                "method.noise",
                "no_effect",
                ["inference=True", "on gradients"],
            ),
            ("full: [head]", "method.full.0", "unknown_name", ["'front', 'middle' or 'back'", "'head'"]),
            ("full: [front]", "method.full", "no_effect", ["adapter.kind lora"]),
            ("full: [front, middle, back]", "method", "no_effect", ["full", "adapter"]),
            (f"full: [front], {CUT}", "method", "conflict", ["full", "cuts"]),
        )
    ),
    ("fl_llama", ("federation.score_clients=true",), "federation.score_clients", "no_effect", ["fl_llama"]),
    ("fl_llama", ("devices={}",), "devices", "conflict", ["fl_llama"]),
    (MEAN, ("training.accumulation=4",), "method.mean", "conflict", ["'clients'", "accumulation 1", "4"]),
]


@pytest.mark.parametrize(
    ("method", "others", "path", "code", "values"),
    [*DROPPEFT, *FEDMEDLORA, *SIZES, *FEDTLU, *FL_LLAMA],
)
def test_what_cannot_be_is_refused(
    method: str, others: tuple[str, ...], path: str, code: str, values: list[str]
) -> None:
    with refused(ConfigurationError, code, at=path, values=values):
        prepare(read_source(None, [*TINY, f"method={{name: {method}}}", *others]))


def test_a_server_refuses_a_mean_over_clients_that_accumulate() -> None:
    source = read_source(None, [*TINY, f"method={{name: {MEAN}}}", "training.accumulation=4"])
    with refused(ConfigurationError, "conflict", at="method.mean", values=["'clients'", "4"]):
        prepare_server(source, ["site-1"])

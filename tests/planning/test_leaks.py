"""What a plan says of texts that a run gives away: of whom, by which numbers, and of whom not."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from support import TINY, Call

from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Plan
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.sites import sites_of
from fedstrata.planning.estimate import Estimate
from fedstrata.planning.leaks import leak_warnings
from fedstrata.planning.measurements import Rehearsed, RoundCost, Timed, Turn
from fedstrata.planning.survey import Survey, survey

SMALL = (*TINY, "data.synthetic.notes=6", "task.max_length=32")
FIVE = ("data.synthetic.sites=5", "data.synthetic.notes=12")
WIDTH, MOST = 32, 30
"""Numbers that layers read of a token, and tokens whose space can be told from chance."""
SGD = "training.optimizer=sgd"
TOP = "method={name: layer_skipping, top: 1}"
FEDAVG = "method={name: fedavg}"
SUMMED = "privacy={secure_aggregation: true}"
PRIVATE = (
    "task.types=[problem, test, treatment, drug]",
    "privacy={mechanism: local, unit: document, units: {site-1: 12, site-2: 12, site-3: 12}, sigma: 1, "
    "delta: 0.001, expected_batch: 4, steps: 3}",
)
BERT = "model.config={model_type: bert, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 3, "
BERT += "num_attention_heads: 4}"


@cache
def prepared(*overrides: str) -> tuple[Experiment, Survey, Rehearsed]:
    """Returns a run, once for the same overrides; what it sends is asked of its method and not rehearsed."""
    experiment = prepare(read_source(None, [*SMALL, *overrides]))
    method, model = experiment.method, experiment.model
    plan = Plan(method.start(model).tensors)
    trained = model.tensors(method.trainable(model.layout))
    sent = method.sends("train", plan, {"loss": 0.5}, trained, model.layout)
    turns = [Turn(number, "site-1", [Timed(1, 1.0)]) for number in (1, 2)]
    costs = [RoundCost(1.0, 1.0, 0.0, 0.0)] * 2
    return experiment, survey(experiment), Rehearsed(turns, costs, up=dict.fromkeys(sent, 1))


def estimate_of(*overrides: str, tokens: Sequence[int] = ()) -> Estimate:
    """Returns what a plan estimates of a run, of clients of so many tokens."""
    experiment, surveyed, rehearsed = prepared(*overrides)
    if tokens:
        counted = zip(surveyed.workloads, tokens, strict=True)
        workloads = tuple(replace(workload, tokens=count) for workload, count in counted)
        surveyed = replace(surveyed, workloads=workloads)
    return Estimate(experiment, surveyed, rehearsed)


def leaks_of(*overrides: str, tokens: Sequence[int] = ()) -> list[str]:
    """Returns by the names of the attacks that show them what a plan says of such a run."""
    return list(leak_warnings(estimate_of(*overrides, tokens=tokens)))


def shown_by(warnings: Sequence[str]) -> list[str]:
    return [
        found for each in warnings for found in re.findall(r"fedstrata attack (\w+) CONFIG shows it$", each)
    ]


ADAM = "training.optimizer=adamw"
LORA = "adapter={kind: lora, rank: 2, targets: [q_proj, k_proj, v_proj]}"
NOISY = "method={name: fl_llama, front: 0, noise: {scale: SCALE}}"
FEW, MANY = [1, 500, 500], [500, 500, 500]
SUM = [r"3 clients in round 1 .* 30 tokens", "if not whose", "^(?!.*site-)"]
WORDS = [r"summed .* word embedding", "if not whose", "^(?!.*site-)"]
SEVEN = r"\(site-1 3, site-2 4, site-3 5, site-4 6, site-5 7 and 2 more\)"
LEAKS: dict[str, tuple[tuple[str, ...], list[int], list[str], list[str]]] = {
    "fewer tokens than layers are wide": (
        (TOP, SGD),
        [MOST, MOST + 1, 500],
        ["span"],
        ["^layer_skipping .* SGD", r"\(site-1 30\), .* 32 numbers", "token by token"],
    ),
    "as many tokens": ((TOP, SGD), [WIDTH] * 3, [], []),
    "many clients": ((TOP, SGD, *FIVE, "data.synthetic.sites=7"), [3, 4, 5, 6, 7, 8, 9], ["span"], [SEVEN]),
    "Adam": ((TOP, ADAM), [1] * 3, [], []),
    "Adam and an adapter": (("method={name: fedlora}", ADAM), [1] * 3, [], []),
    "differential privacy": ((TOP, SGD, *PRIVATE), [1] * 3, [], []),
    "nothing is sent": (("method={name: local_only}", SGD), [1] * 3, [], []),
    "notes themselves travel": (("method={name: centralized}", SGD), [1], [], []),
    # Queries, keys and values read the same, so that three times the rank of each is sent of it.
    "the rank of an adapter": (
        ("method={name: fedlora}", LORA, SGD),
        [5, 6, WIDTH - 1],
        ["span"],
        [r"\(site-1 5\), fewer than 6,"],
    ),
    "an encoder": ((TOP, SGD, BERT), [MOST, 500, 500], [], ["guesses", "^(?!.*token by token)"]),
    "a secure sum of few tokens": ((TOP, SGD, SUMMED), [10, 10, 10], ["span"], SUM),
    "a secure sum of enough": ((TOP, SGD, SUMMED), [10, 11, 10], [], []),
    "few tokens and the embedding": ((FEDAVG, SGD), FEW, ["span", "invert"], []),
    "the embedding with Adam": ((FEDAVG,), FEW, ["invert"], []),
    "the embedding with noise": ((FEDAVG, SGD, *PRIVATE), FEW, [], []),
    "the embedding in a secure sum": ((FEDAVG, SUMMED), MANY, ["invert"], WORDS),
    "the embedding is the output layer": (
        (FEDAVG, "task={name: lm, max_length: 32}", "data.types=null"),
        MANY,
        ["invert"],
        ["change most"],
    ),
    "the embedding is shared": (("method={name: fedper}",), MANY, ["invert"], []),
    "a portion of all travels": (
        ("method={name: fedtlu, portion: 0.5, selection: exact}",),
        MANY,
        ["invert"],
        [],
    ),
    "an adapter travels": (("method={name: fedlora}",), MANY, [], []),
    "upper blocks travel": (("method={name: layer_skipping, top: 2}",), MANY, [], []),
    "hidden states": ((NOISY.replace("SCALE", "0.0"),), MANY, ["hidden"], []),
    "hidden states with noise": ((NOISY.replace("SCALE", "0.1"),), MANY, [], []),
}
"""What is run by clients of so many tokens, the attacks that show what leaks, and what is said."""


@pytest.mark.parametrize(("overrides", "tokens", "attacks", "said"), LEAKS.values(), ids=LEAKS)
def test_what_leaks_is_warned_of(
    overrides: tuple[str, ...], tokens: list[int], attacks: list[str], said: list[str]
) -> None:
    warnings = leaks_of(*overrides, tokens=tokens)
    assert shown_by(warnings) == attacks
    assert len(warnings) == max(len(attacks), bool(said))
    assert all(re.search(each, warnings[0]) for each in said)


def test_epochs_make_no_more_tokens_and_those_counted_are_those_trained_on() -> None:
    estimate = estimate_of(TOP, SGD, "training.epochs=3")
    for site in sites_of(estimate.experiment)[1]:
        batch = site.task.collate(site.encode())
        assert estimate.workloads[site.id].tokens == int(batch["attention_mask"].sum())


def test_of_sums_of_other_clients_in_every_round_the_one_of_fewest_tokens_counts() -> None:
    tokens = [1, 2, 4, 8, 16]
    overrides = (TOP, SGD, SUMMED, *FIVE, "federation={rounds: 4, sample: 0.6}")
    estimate = estimate_of(*overrides, tokens=tokens)
    known = dict(zip(estimate.workloads, tokens, strict=True))
    sums = [sum(known[client] for client in clients) for clients in estimate.sampled]
    assert len(set(sums)) > 1
    (warning,) = leak_warnings(estimate)
    assert re.search(rf"3 clients in round {sums.index(min(sums)) + 1} .* {min(sums)} tokens", warning)
    estimate.delivered[sums.index(min(sums))] = ["site-1"]  # of which nothing is unmasked
    (warning,) = leak_warnings(estimate)
    assert f" {sorted(sums)[1]} tokens" in warning


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_method_that_sends_the_word_embedding_names_words(optimizer: str) -> None:
    estimate = estimate_of(FEDAVG, f"training.optimizer={optimizer}", tokens=[500] * 3)
    (warning,) = leak_warnings(estimate)
    count = len(estimate.experiment.model.tokenizer)
    assert re.match("fedavg .* word embedding", warning)
    assert re.search(f"of {count:,} tokens .* site-1, site-2, site-3", warning)
    assert "alone change" in warning
    assert shown_by([warning]) == ["invert"]


def test_hidden_states_without_noise_are_warned_of_by_the_blocks_in_front_of_them() -> None:
    cuts = "cuts: {site-2: {front: 1, back: 1}}"
    found = leaks_of(f"method={{name: fl_llama, front: 0, back: 1, {cuts}}}", SGD, tokens=[1, 1, 1])
    assert shown_by(found) == ["hidden", "hidden"]
    assert re.search("site-1, site-3 .*0 blocks", found[0])
    assert "nearest embedding" in found[0]
    assert re.search("site-2 .*1 block ", found[1])


@pytest.fixture
def sentences(tmp_path: Path) -> str:
    """Three sites of one short sentence each to train on."""
    texts = ("He was given insulin.", "CT was normal.", "No fever or chills.")
    lines = [
        {"id": f"{site}-{part}", "site": f"site-{site}", "text": text, "metadata": {"split": part}}
        for site, text in enumerate(texts, start=1)
        for part in ("train", "validation", "test")
    ]
    file = tmp_path / "notes.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return "data={format: jsonl, path: " + str(file) + ", split: {by: document}}"


@pytest.mark.slow
def test_what_the_command_warns_of_the_attack_that_it_names_does(
    sentences: str, tmp_path: Path, call: Call
) -> None:
    causal = ("task={name: lm, max_length: 24}", "training.learning_rate=0.1", "federation.rounds=1")
    chosen = [*(each for each in TINY if not each.startswith(("data", "task"))), sentences, *causal, TOP, SGD]
    told = call("plan", *chosen, "--json", "--seconds", "0")
    assert told.status == 0, told.err
    (warning,) = (each for each in json.loads(told.out)["warnings"] if "attack" in each)
    assert re.search(r"\(site-1 \d+, site-2 \d+, site-3 \d+\), .* 32 numbers", warning)
    shown = call("plan", *chosen, "--seconds", "0")
    assert f"warning: {warning}" in " ".join(shown.out.split())
    (attack,) = shown_by([warning])
    found = call("attack", attack, *chosen, "--json", "--out", str(tmp_path / "out"))
    assert found.status == 0, found.err
    read = {row["seen"]: row for row in json.loads(found.out)["found"] if row["seen"].startswith("site-")}
    assert len(read) == 3
    for site, row in read.items():
        assert row["recovered"] == row["texts"] > 0
        assert f"{site} {row['tokens']}" in warning

"""Every benchmark of speed and reliability runs and ends with one JSON object that has its figures."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import baselines
import pytest
from support import REPOSITORY, executed, load_script

import fedstrata
from fedstrata.core.documents import Document
from fedstrata.data.split import Split
from fedstrata.metrics.errors import CATEGORIES
from fedstrata.tasks.classify import DocumentClassification

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at the peaks of /proc")
TEXT = f"--data {REPOSITORY / 'LICENSE'} --format text data.text.documents=paragraphs"
TINY = "--blocks 3 --hidden 24 --tokens 8"
SCRIPTS = [
    (
        "llama_shapes.py",
        "--shapes tiny llama-3-8b --weights bfloat16 --batch 1 --tokens 8 --steps 1",
        "tiny llama-3-8b",
    ),
    pytest.param(
        "streaming_mean.py",
        "--clients 2 --tensors 2 --rows 8 --repeats 1",
        "fraction_of_copy peak_payloads",
        marks=linux,
    ),
    (
        "prefix_cache.py",
        f"{TINY} --top 1 --batches 2 --repeats 1",
        "full_over_cached frozen_over_cached max_abs_diff fill_over_frozen_epoch",
    ),
    (
        "layer_dropout.py",
        f"{TINY} --batch 2 --batches 2 --repeats 1 --rank 1",
        "time_ratio activation_ratio share_run",
    ),
    ("adapter_swap.py", f"{TINY} --batch 2 --clients 2 --repeats 1", "swap_fraction_of_step"),
    (
        "split_wire.py",
        "--blocks 3 --hidden 8 --rows 2 --columns 8 --steps 1",
        "step_bytes four_tensors_bytes mask_bytes_over_length_bytes",
    ),
    ("import_time.py", "--repeats 1", "import_seconds over_start run_seconds"),
    (
        "split_generation.py",
        "--blocks 3 --hidden 8 --contexts 8 12 --tokens 3 --repeats 1",
        "cached_over_uncached bytes_per_token context",
    ),
    pytest.param(
        "split_training.py",
        "--clients 2 --blocks 3 --hidden 8 --tokens 8 --batches 1 --accumulation 2 --delay 0.001 --repeats 1 "
        "--memory-blocks 4 --memory-hidden 32",
        "client_batch_over_sequential overlap_on_over_off parameter_share",
        marks=linux,
    ),
    pytest.param(
        "secure_sum.py",
        "--sites 7 --numbers 20000 --clients 0 --repeats 1",
        "overhead_over_plain_round mask_gigabytes_per_second extra_payloads bytes_over_float32 error",
        marks=linux,
    ),
    ("engine_overhead.py", "--rounds 1", "overhead_fraction"),
    ("client_memory.py", "--few 1 --many 2 --rounds 1", "rss_ratio_2_over_1"),
    (
        "sketched_selection.py",
        f"{TEXT} --clients 2 --rounds 1 --blocks 2 --hidden 8 --tokens 16 --vocabulary 300 --width 8",
        "agreement uplink_fraction_of_blocks perplexity_ratio downlink_fraction",
    ),
    (
        "many_clients.py",
        f"{TEXT} --few 2 --many 3 --sampled 1 --rounds 1 --repeats 1",
        "overhead_fraction rss_ratio seconds_per_round",
    ),
    (
        "workers.py",
        "--repeats 1 federation.rounds=2 data.synthetic.notes=12",
        "speedup speedup_over_one_thread rss_ratio equal",
    ),
    (
        "served_memory.py",
        "--clients 1 2 --blocks 2 --hidden 8",
        "most_over_least payload_megabytes megabytes",
    ),
    (
        "private_step.py",
        "--units 2 --windows 2 --tokens 24 --repeats 1 --memory-repeats 1",
        "patient_loop_over_plain hooks_over_plain_lora hooks_over_plain_top peak_memory_ratio",
    ),
]


def last_line_of(script: str, *arguments: object) -> dict[str, Any]:
    """Runs a script of benchmarks/, and returns the object in its last line."""
    command = [sys.executable, str(REPOSITORY / "benchmarks" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "figures"), SCRIPTS, ids=lambda value: value if value.endswith(".py") else ""
)
def test_the_last_line_is_one_json_object(script: str, arguments: str, figures: str) -> None:
    result = last_line_of(f"speed/{script}", *arguments.split())
    named = [result[figure] for figure in figures.split()]  # a number, or several by name
    numbers = [
        number for value in named for number in (value.values() if isinstance(value, dict) else [value])
    ]
    assert numbers
    assert all(math.isfinite(number) for number in numbers), "one time less another may be less than nothing"


def test_what_is_recovered_is_the_share_of_each_seed(tmp_path: Path) -> None:
    scores = {"all annotate everything": [0.9, 0.8]}
    for way, unknown in (("three types a site", [0.8, 0.7]), ("one type a site", [0.5, 0.2])):
        scores |= {f"{way}, others absent": [0.1, 0.2], f"{way}, others unknown": unknown}
    rows = [
        {"name": name, "values": {"external.new_notes.f1": {"by_seed": dict(enumerate(own))}, "f1": None}}
        for name, own in scores.items()
    ]
    (tmp_path / "table.json").write_text(json.dumps({"rows": rows}))
    found = last_line_of("corpora/recovered.py", tmp_path)
    assert found["three types a site"]["recovered"] == round((0.7 / 0.8 + 0.5 / 0.6) / 2, 3)
    shares = {"recovered": 0.25, "least": 0.0, "all": 0.85, "absent": 0.15, "unknown": 0.35}
    assert found["one type a site"] == shares


@pytest.mark.slow
def test_errors_and_differences_are_those_of_the_rows_models(tmp_path: Path) -> None:
    rows = ["top 1", "top 8"]
    compared = fedstrata.compare(
        rows={name: {"method": {"name": "layer_skipping", "top": int(name[-1])}} for name in rows},
        seeds=(0,),
        data=fedstrata.synth(sites=1, notes=16),
        rounds=1,
        settings={"data.types": ["drug", "problem"], "training.learning_rate": 2e-3},
        out=tmp_path / "compared",
        progress=False,
    )
    found = last_line_of("fed_medlora/errors.py", tmp_path / "compared", *rows, "--seeds", 0)
    mentions = found["by_seed"]["0"]["mentions"]
    scores = [compared.result(name, 0).metrics["f1"] for name in rows]
    assert [mentions["first"], mentions["second"]] == pytest.approx(scores)
    assert 0 < mentions["paired_p"] <= 1
    assert set(found["errors"]) <= set(CATEGORIES)


@pytest.mark.slow
def test_two_ways_of_decoding_are_told_side_by_side(tmp_path: Path) -> None:
    settings = [
        "data={types: [drug, problem], synthetic: {sites: 2, notes: 12}}",
        "task={name: extract, tasks: [ner], templates: short, max_length: 256}",
        "method={name: fedmedlora}",
        "adapter={kind: lora, rank: 4}",
        "federation.rounds=1",
    ]
    run = executed(tmp_path / "run", settings)
    found = last_line_of("fed_medlora/decoding.py", run.folder)
    strict = found["f1"]["strict_"]
    assert strict["first"] == pytest.approx(run.summary["metrics"]["global"]["ner_f1"])
    assert strict["interval"]["low"] <= strict["first"] - strict["second"] <= strict["interval"]["high"]
    faults = [name for name in found["cost"]["copy"] if name.endswith("left_out")]
    assert faults
    assert not any(found["cost"]["copy"][name] for name in faults)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "held"),
    [
        ("kill.py", "--engine local --kills 2", {"kills": 2, "completed": True, "equal": True}),
        ("fifty_sites.py", "--sites 2 --rounds 2", {"sites": 2, "rounds": 2, "equal": True}),
        ("poor_line.py", "--rounds 2", {"equal": True, "bytes_equal": True, "restarts": 0}),
        ("hostile.py", "--only absent", {"cases": 1, "held": 1, "broken_promises": {}}),
    ],
)
def test_what_is_disturbed_ends_as_if_nobody_had(
    script: str, arguments: str, held: dict[str, object]
) -> None:
    assert held.items() <= last_line_of(f"reliability/{script}", *arguments.split()).items()


def test_a_documented_cost_of_a_hostile_site_is_no_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks" / "reliability")
    hostile = importlib.import_module("hostile")
    ended, left_out = (hostile.Loss(kind, "") for kind in ("run ended", "site left out"))
    costly = hostile.CASES["false shares"]
    assert hostile.is_documented(costly, [ended])
    assert not hostile.is_documented(costly, [ended, ended])
    assert not hostile.is_documented(costly, [ended, left_out])
    assert not hostile.is_documented(hostile.CASES["garbled shares"], [ended])
    named = {each.claim for case in hostile.CASES.values() for each in (case, case.cost) if each}
    for claim in named:
        page, _, anchor = claim.partition("#")
        assert f'<a class="claim" id="{anchor}"></a>' in (REPOSITORY / "docs" / f"{page}.md").read_text()


@pytest.mark.slow
def test_the_gates_of_texts_in_updates_hold() -> None:
    """Undefended all is read, or the attack is broken; with privacy, and in a sum of many tokens, nothing."""
    gates = last_line_of("privacy/span.py", "--seeds", 0)
    assert gates.pop("minutes") > 0
    assert gates == {"undefended_recovered": 1.0, "dp_recovered": 0.0, "secure_sum_recovered": 0.0}


@pytest.mark.slow
def test_two_mistakes_in_the_mechanism_are_noticed() -> None:
    found = last_line_of("privacy/mutations.py", "--only", "half of sigma", "a killed turn is not spent")
    assert found == {"mutants": 2, "killed": 2}


OF_PRIVACY = ("mutations", "secure_sum_mutations", "budget_mutations", "joint_noise_mutations")


@pytest.mark.parametrize("file", [*(f"privacy/{name}" for name in OF_PRIVACY), "reliability/suite_mutations"])
def test_every_mistake_is_one_in_the_mechanism_as_it_is(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks" / "privacy")
    mutations = load_script("benchmarks/privacy/mutations.py")
    mutants = load_script(f"benchmarks/{file}.py").MUTANTS
    names = [mutant.name for mutant in mutants]
    assert len(names) == len(set(names))
    for mutant in mutants:
        mutations.check(mutant, REPOSITORY)
        assert mutant.tests
        assert all((REPOSITORY / test.split("::")[0]).exists() for test in mutant.tests)


@pytest.mark.slow
def test_the_paper_s_adapter_has_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks" / "speed")
    shapes = load_script("benchmarks/speed/llama_shapes.py")
    shape = shapes.estimate("llama-3-8b", Namespace(rank=16, batch=4, tokens=800, weights="nf4"))
    assert (shape["adapter_parameters"], shape["adapter_percent"]) == (41_943_040, 0.522)


def test_the_commonest_label_of_a_client_s_own_is_a_floor() -> None:
    def documents(labels: str) -> tuple[Document, ...]:
        return tuple(Document(str(number), "text", labels=(label,)) for number, label in enumerate(labels))

    clients = {
        "one": Split(documents("aab"), validation=documents("ab"), test=documents("aaab")),
        "other": Split(documents("bcc"), validation=(), test=documents("cb")),
    }
    task = DocumentClassification(name="classify").fitted(clients)
    floor = baselines.own_majority(task, clients)
    assert floor == {"own_majority.accuracy": (0.75 + 0.5) / 2, "own_majority.validation_accuracy": 0.5}

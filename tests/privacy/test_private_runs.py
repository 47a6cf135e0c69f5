"""Whole private runs: what they spend, what leaves a client, and what a killed one costs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from private_client import PRIVATE, norm_of, private_client
from remote_run import Clients, served
from support import TINY, RunTiny, assert_same_tensors, problems_of, refused

from fedstrata.adapters.rank import cut, pad, tails
from fedstrata.client.releases import Release, ReleaseRecord
from fedstrata.client.store import ClientStore, client_folder
from fedstrata.client.turn import Done, Order
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.site_database import SITE_DATABASE
from fedstrata.core.types import Plan, Update
from fedstrata.engine.check import check_settings
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import prepare
from fedstrata.engine.run_folder import open_run
from fedstrata.methods import METHODS
from fedstrata.privacy.accounting import Mechanism, epsilon_of
from fedstrata.train.local import fit
from fedstrata.wire import frame

MAY = {
    "layer_skipping": "{name: layer_skipping, top: 1}",
    "fedavg": "{name: fedavg}",
    "fedprox": "{name: fedprox}",
    "fedper": "{name: fedper}",
    "fedlora": "{name: fedlora}",
    "ffa_lora": "{name: ffa_lora}",
    "fedsa_lora": "{name: fedsa_lora}",
    "fedadapter": "{name: fedadapter}",
    "fedmedlora": "{name: fedmedlora}",
    "hetlora": "{name: hetlora, prune: {penalty: 1.0}}",
    "flora": "{name: flora, ranks: [2, 5]}",
    "droppeft": "{name: droppeft, rates: 0.3}",
    "fedtlu": "{name: fedtlu, portion: 0.34, selection: sketched}",
    "local_only": "{name: local_only}",
    "centralized": "{name: centralized}",
}
"""Methods that may train privately at clients, with the settings under which they may."""
MAY_NOT = {
    "layer_skipping": ("{name: layer_skipping, top: auto}", "norms"),
    "droppeft": ("{name: droppeft}", "rewards"),
    "fedtlu": ("{name: fedtlu}", "losses"),
    "fedmedlora_plus": ("{name: fedmedlora_plus}", "documents of the server"),
    "fedpeptao": ("{name: fedpeptao}", "norms"),
    "fedadaopt": ("{name: fedadaopt}", "scores"),
    "fl_llama": ("{name: fl_llama}", "hidden states"),
}


def test_every_method_is_said_to_be_private_or_not() -> None:
    assert {*MAY, *MAY_NOT} == set(METHODS)


FEW = ("layer_skipping", "centralized")
"""Those that people wait for; test_clipping.py has steps with adapters and without some blocks."""


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in MAY]
)
def test_nothing_of_a_single_client_is_recorded_but_noise_and_constants(
    method: str, run_once: RunTiny
) -> None:
    rounds = 1 if method in FEW else 2
    own = (f"method={MAY[method]}", "privacy.noise=secure", f"federation.rounds={rounds}")
    run = run_once(*PRIVATE, *own)
    assert all(event["loss"] is None for event in run.of("client") + run.of("round"))
    declared = 24 if method == "centralized" else 8
    assert {event["examples"] for event in run.of("client")} == {declared}
    told = run.summary["privacy"]
    rate, delta = 2 / declared, 0.01
    assert told["epsilon"] == pytest.approx(epsilon_of([Mechanism(1.0, rate, 3 * rounds)], delta))
    assert told["mechanism"] == "local"
    assert (told["unit"], told["adjacency"]) == ("document", "zero-out")
    sites = {"pooled"} if method == "centralized" else {"site-1", "site-2", "site-3"}
    assert set(told["clients"]) == sites
    clipped = [event["privacy"]["clipped"] for event in run.of("round")]
    assert all(0 <= share <= 1 for own in clipped for share in own.values())


@pytest.mark.parametrize("method", MAY_NOT)
def test_a_method_that_sends_more_is_refused_with_the_reason(method: str) -> None:
    settings, reason = MAY_NOT[method]
    with refused(
        ConfigurationError, "not_private", at="privacy.mechanism", values=["'local'", method, reason]
    ):
        private_client(f"method={settings}")


@pytest.mark.claim("security_review#declared-units")
def test_a_unit_more_or_less_changes_nothing_but_the_gradient() -> None:
    """Section 6.3: what is divided by, the rate, the noise, the steps and the weight are declared."""
    whole, other = private_client(), private_client("data.synthetic.notes=13")
    assert len(whole.units) != len(other.units)
    for own in (whole, other):
        own.client.privacy = own.gradients(clip=1.0)
    assert whole.experiment.privacy == other.experiment.privacy
    assert whole.client.size == other.client.size == 8
    assert whole.site.count == other.site.count == 8
    assert whole.gradients(1.0).steps == other.gradients(1.0).steps == 3


@pytest.mark.parametrize("sample", [pytest.param(1.0, marks=pytest.mark.slow), 0.34])
def test_the_turns_are_those_of_the_client_that_is_drawn_most(sample: float, run_tiny: RunTiny) -> None:
    run = run_tiny(*PRIVATE, f"federation.sample={sample}", "federation.rounds=4", "privacy.spare_turns=0")
    clients = [f"site-{number}" for number in (1, 2, 3)]
    paths = [client_folder(run.folder, client) / SITE_DATABASE for client in clients]
    begun = [ReleaseRecord(*each).turns_begun for each in zip(paths, clients, strict=True)]
    assert max(begun) == run.of("run")[0]["privacy"]["turns"]
    assert run.of("round")[-1]["privacy"]["clients"]["site-1"]["turns"] == begun[0]


def test_a_resumed_run_goes_on_to_the_same_numbers(
    run_tiny: RunTiny, run_once: RunTiny, tmp_path: Path
) -> None:
    """Stopped when a client of the second round has sent its update, which it sends again."""
    own = (*PRIVATE, "method={name: fedper}", "privacy.steps=1", "federation.evaluate_every=2")

    def listen(event: str, facts: Mapping[str, Any]) -> None:
        if event == "client" and facts["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source = read_source(None, [*TINY, *own])
        open_run(source, tmp_path / "part", listen, resume=False).execute()
    resumed = run_tiny(out="part", resume=True)
    whole = run_once(*own)
    assert_same_tensors(resumed.state.tensors, whole.state.tensors)
    assert resumed.summary["privacy"] == whole.summary["privacy"]
    assert resumed.summary["communication"] == whole.summary["communication"]


def test_a_run_goes_on_with_the_noise_it_began_with(run_tiny: RunTiny) -> None:
    epsilon = ("privacy.sigma=null", "privacy.epsilon=3", "privacy.expected_batch=8")
    run_tiny(*PRIVATE, *epsilon, "federation.rounds=0")
    with refused(ConfigurationError, "changed", at="privacy", values=["sigma"]) as caught:
        run_tiny("federation.rounds=1", resume=True)
    assert len(set(re.findall(r"\d+\.\d+", str(caught.value)))) == 2, "what it was, and what it would be"


def engine_of(folder: Path, *overrides: str) -> tuple[LocalEngine, Order]:
    """Returns an engine of a private run whose noise is secure, and the first order of one of its clients."""
    experiment = prepare(read_source(None, [*TINY, *PRIVATE, "privacy.noise=secure", *overrides]))
    engine = LocalEngine(experiment, folder, lambda *_: None)
    plan = frame.encode(Plan(experiment.method.start(experiment.model).tensors))
    return engine, Order("site-1", 1, "train", 1, plan)


def test_a_repeated_order_is_answered_with_what_was_sent(tmp_path: Path) -> None:
    engine, order = engine_of(tmp_path, "method={name: fedper}")
    first = engine.compute(order)
    sent, kept = (
        first.update.tobytes(),
        frame.encode(ClientStore(tmp_path / "clients/site-1", 1).read()).tobytes(),
    )
    ClientStore(tmp_path / "clients/site-1", 0).discard_after(0)  # as a run that goes on does
    again = engine.compute(order)
    assert again.update.tobytes() == sent
    assert frame.encode(ClientStore(tmp_path / "clients/site-1", 1).read()).tobytes() == kept
    assert engine.turns_begun("site-1") == 1


def test_a_damaged_answer_is_computed_anew(tmp_path: Path) -> None:
    engine, order = engine_of(tmp_path)
    engine.compute(order)
    path = tmp_path / "clients/site-1/release-sent.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert isinstance(engine.compute(order), Done)
    assert engine.turns_begun("site-1") == 2


def test_nothing_is_kept_of_a_turn_that_spent_nothing(tmp_path: Path) -> None:
    record = ReleaseRecord(tmp_path / SITE_DATABASE, "one")
    release = Release(record, tmp_path, (1, "upload", 1), frame.encode(Plan()), 1)
    release.finish(Update({}), ClientStore(tmp_path, 1))
    assert not list(tmp_path.iterdir())
    assert release.finished(ClientStore(tmp_path, 1)) is None


@pytest.mark.parametrize(
    ("override", "path", "code", "values"),
    [
        ("privacy.sigma=-1", "privacy.sigma", "out_of_range", ["0, not -1"]),
        ("privacy={mechanism: local, epsilon: 0}", "privacy.epsilon", "out_of_range", ["0, not 0"]),
        ("privacy.delta=0.2", "privacy", "out_of_range", ["delta", "1/8", "8 units", "not 0.2"]),
        ("privacy.epsilon=1", "privacy", "conflict", ["epsilon", "sigma"]),
        ("privacy.sigma=null", "privacy", "missing", ["epsilon", "sigma"]),
        ("privacy.units.site-1=2", "privacy.units", "out_of_range", ["'site-1'", "2 documents", "has 4"]),
        ("privacy.units={site-1: 8, site-2: 8}", "privacy.units", "missing", ["site-1, site-2", "'site-3'"]),
        ("privacy.units.site-4=8", "privacy.units", "unknown_name", ["'site-4'"]),
        ("privacy.expected_batch=9", "privacy", "out_of_range", ["'site-1'", "expected_batch (9), not 8"]),
        ("privacy.steps=null", "privacy", "missing", ["'local'", "steps"]),
        ("training.epochs=2", "training.epochs", "no_effect", [": 2 ", "privacy.steps"]),
        ("training.clip_norm=0.5", "training.clip_norm", "no_effect", [": 0.5 ", "privacy.clip"]),
        ("federation.corrupt={share: 0.3}", "federation.corrupt", "conflict", ["'local'"]),
        ("task.types=auto", "task.types", "not_private", ["'auto'"]),
        ("privacy.mechanism=central", "privacy", "no_effect", ["units", "'central'"]),
        ("privacy.mechanism=none", "privacy", "no_effect", ["sigma", "'none'"]),
    ],
)
def test_bad_input_is_one_message(override: str, path: str, code: str, values: list[str]) -> None:
    with refused(ConfigurationError, code, at=path, values=values) as caught:
        private_client(override)
    assert {where for where, _ in problems_of(caught.value)} == {path}


def test_patients_as_units_must_be_named(tmp_path: Path) -> None:
    span = {"start": 0, "end": 7, "label": "drug"}
    notes = [
        {"id": f"n{number}", "site": f"site-{number % 3 + 1}", "text": "Aspirin was given.", "spans": [span]}
        for number in range(9)
    ]
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps(note) + "\n" for note in notes))
    with refused(ConfigurationError, "missing", at="privacy.unit", values=["'patient'", "data.patients"]):
        own = f"data={{format: jsonl, path: {path}}}"
        prepare(read_source(None, [*TINY[3:], *PRIVATE, own, "task.types=[drug]", "privacy.unit=patient"]))


def test_a_site_that_has_more_windows_than_it_declares_is_told_before_anything_is_written(
    run_tiny: RunTiny, tmp_path: Path
) -> None:
    values = ["'site-1'", "2 windows"]
    with refused(ConfigurationError, "out_of_range", at="privacy.units", values=values) as told:
        run_tiny(*PRIVATE, "privacy.unit=window", "privacy.units={site-1: 2, site-2: 99, site-3: 2}")
    assert re.search(r"2 windows, and has \d+", str(told.value))
    assert "'site-2'" not in str(told.value)
    assert not list(tmp_path.glob("*"))


def test_how_many_units_a_client_has_is_in_no_message_that_the_server_hears() -> None:
    own = private_client().gradients(1.0)
    own.declared = 1
    with refused(
        ConfigurationError, "out_of_range", at="privacy.units", values=["documents", "the 1 "]
    ) as told:
        _ = own.units
    assert str(len(own.units_of())) not in str(told.value)


def test_a_partition_that_parts_a_patient_is_refused() -> None:
    """What its documents cost at all clients together is no client's epsilon."""
    patients = ("data.synthetic.notes_per_patient=3", "data.synthetic.notes=30", "privacy.unit=patient")
    units = "{" + ", ".join(f"client-0{number}: 40" for number in range(1, 5)) + "}"
    by = ("partition={by: iid, clients: 4}", f"privacy.units={units}")
    values = ["'iid'", "'patient'", "6 patients"]
    with refused(ConfigurationError, "conflict", at="partition.by", values=values) as told:
        prepare(read_source(None, [*TINY, *PRIVATE, *patients, *by]))
    assert "client-01, client-0" in str(told.value), "and nobody's name"
    prepare(read_source(None, [*TINY, *PRIVATE, *patients[:2], *by, "privacy.unit=document"]))
    cut = (
        "task={name: lm}",
        "data.types=null",
        "partition={by: tokens, clients: 4}",
        f"privacy.units={units}",
    )
    with refused(ConfigurationError, "conflict", at="partition.by", values=["'tokens'", "'document'"]):
        prepare(read_source(None, [*TINY, PRIVATE[1], *cut]))


@pytest.mark.parametrize(
    ("task", "path", "values"),
    [
        ("{name: classify, labels: [a, b]}", "task.problem_type", ["'auto'"]),
        ("{name: classify, problem_type: multi_label}", "task.labels", ["'auto'"]),
        ("{name: cloze}", "task.question", ["'auto'"]),
        ("{name: cloze, question: cb}", "task.question", ["'cb'"]),
    ],
)
def test_what_a_task_would_read_from_private_documents_is_to_be_named(
    task: str, path: str, values: list[str]
) -> None:
    checked = check_settings(read_source(None, [*TINY, PRIVATE[1], f"task={task}"]))
    (found,) = [each for each in checked.problems if (each.path, each.code) == (path, "not_private")]
    assert all(value in found.message for value in values)


@pytest.mark.parametrize(
    ("overrides", "values"),
    [
        (("method={name: centralized}", "privacy.delta=0.05"), ["1/24", "24 units", "not 0.05"]),
        (
            ("privacy={mechanism: central, sigma: 1.0, delta: 0.9, noise: seeded}",),
            ["1/3", "3 clients", "not 0.9"],
        ),
    ],
)
def test_delta_is_below_one_over_all_who_are_protected(overrides: tuple[str, ...], values: list[str]) -> None:
    with refused(ConfigurationError, "out_of_range", at="privacy.delta", values=values):
        prepare(read_source(None, [*TINY, *PRIVATE, *overrides]))


def test_the_patients_of_a_client_are_its_units(tmp_path: Path) -> None:
    own = private_client(
        "data.synthetic.notes_per_patient=3", "data.synthetic.notes=30", "privacy.unit=patient"
    )
    documents = own.site.documents.train
    assert len(own.units) == len({document.patient for document in documents}) < len(documents)


CENTRAL = ("task={name: ner, types: [problem, test, treatment, drug]}", "method={name: fedavg}")


def test_without_noise_and_clip_the_central_mean_is_the_plain_one(run_tiny: RunTiny) -> None:
    """With equal weights, which the server is told of by none but the size of the sites."""
    equal = ("data.synthetic.imbalance=0", "federation.rounds=1")
    central = "privacy={mechanism: central, sigma: 0.0, delta: 0.1, clip: 1.0e+9, noise: seeded}"
    one = run_tiny(*CENTRAL, *equal, central, out="one")
    updates = {}
    experiment = prepare(read_source(None, [*TINY, *CENTRAL, *equal]))
    engine = LocalEngine(experiment, one.folder.parent / "plain", lambda *_: None)
    start = experiment.method.start(experiment.model).tensors
    for client in engine.clients():
        done = engine.compute(Order(client, 1, "train", 1, frame.encode(Plan(start))))
        update = frame.decode(done.update, Update)
        updates[client] = {name: tensor.clone() for name, tensor in update.tensors.items()}
    for name, tensor in one.state.tensors.items():
        mean = torch.stack([own[name] for own in updates.values()]).mean(dim=0)
        torch.testing.assert_close(tensor, mean, rtol=1e-4, atol=1e-6)
    assert one.summary["privacy"]["epsilon"] is None  # nothing bounds it without noise


@pytest.mark.claim("security_review#central-epsilon")
def test_a_client_moves_the_central_mean_by_no_more_than_the_clip(run_once: RunTiny) -> None:
    central = "privacy={mechanism: central, sigma: 0.0, delta: 0.1, clip: 0.01, noise: seeded}"
    run = run_once(*CENTRAL, "federation.rounds=1", central)
    experiment = prepare(read_source(None, [*TINY, *CENTRAL]))
    start = experiment.method.start(experiment.model).tensors
    moved = torch.cat([(run.state.tensors[name] - start[name]).flatten() for name in start]).double()
    assert 0 < float(moved.norm()) <= 0.01 * (1 + 1e-3)


def test_a_round_of_nobody_is_a_round_of_noise(run_once: RunTiny) -> None:
    central = "privacy={mechanism: central, sigma: 1.0, delta: 0.1, clip: 0.1, noise: seeded}"
    run = run_once(*CENTRAL, "federation.rounds=2", "federation.sample=0.2", central)
    privacy = prepare(read_source(None, [*TINY, *CENTRAL, "federation.sample=0.2", central])).privacy
    cohorts = [len(event["exchanges"]) for event in run.of("round")]
    assert 0 in cohorts
    assert not any(event["abandoned"] for event in run.of("round"))
    assert privacy.nominal_epsilon("", 2) == pytest.approx(epsilon_of([Mechanism(1.0, 0.2, 2)], 0.1))
    assert run.summary["privacy"]["epsilon"] is None, "it is seeded"
    assert {own["turns"] for own in run.of("privacy")[-1]["clients"].values()} == {2}


@pytest.mark.claim("security_review#declared-units")
@pytest.mark.slow
def test_a_server_hears_of_a_private_client_what_it_declares(
    tmp_path: Path, clients: Clients, run_tiny: RunTiny
) -> None:
    """Of scores, documents and losses nothing; and clients have scores of their own all the same."""
    method = "method={name: fedper}"
    run = served(tmp_path / "served", clients, *PRIVATE, method, "threads=1")
    local = run_tiny(*PRIVATE, method, "threads=1")
    assert_same_tensors(run.state.tensors, local.state.tensors)
    assert run.summary["metrics"]["global"] is None
    assert set(run.summary["metrics"]["clients"].values()) == {None}
    assert run.summary["privacy"] == local.summary["privacy"]
    told = {"train": 8, "validation": 0, "test": 0}
    assert set(map(str, run.of("run")[0]["clients"].values())) == {str(told)}
    assert all(event["seconds"] == 0 and event["loss"] is None for event in run.of("client"))
    own = [json.loads(path.read_text()) for path in tmp_path.rglob("clients/site-*/summary.json")]
    assert own
    assert all(summary["metrics"]["global"]["f1"] is not None for summary in own)


def test_ranks_that_a_device_lacks_get_no_noise() -> None:
    """Zeros beyond a device's rank stay zeros, or it would train at the rank of the largest."""
    own = private_client("method={name: hetlora, ranks: [2]}", "adapter={kind: lora, rank: 8}")
    model, names = own.experiment.model, own.experiment.model.layout.all
    own.client.privacy, own.client.rank = own.gradients(clip=1.0, sigma=1.0), 2
    model.load(pad(cut(model.snapshot(names), 2), model.snapshot(names)))
    fit(own.client, names, Seed(0))
    beyond = tails(model.tensors(names), 2, 8)
    assert beyond
    assert not any(float(tensor.abs().max()) for pair in beyond for tensor in pair)


def test_so_many_steps_that_no_noise_can_be_found_for_them_are_refused() -> None:
    asked = ("privacy.sigma=null", "privacy.epsilon=4", "privacy.steps=100000", "federation.rounds=9")
    checked = check_settings(read_source(None, [*TINY, *PRIVATE, *asked]))
    (wrong,) = checked.problems
    assert (wrong.path, wrong.code) == ("privacy.steps", "out_of_range")
    assert "1100000 steps" in wrong.message
    assert " 1000000 " in wrong.message
    fewer = check_settings(read_source(None, [*TINY, *PRIVATE, *asked, "federation.rounds=8"]))
    assert not fewer.problems


TASKS = {
    "lm": ("{name: lm, max_length: 48}", "data.types=null"),
    "classify": ("{name: classify, max_length: 64, stride: 8, max_windows: 3}", "data.types=null"),
    "relations": ("{name: relations, max_length: 48}", "data.types=null"),
    "extract": ("{name: extract, templates: short, max_length: 320}", "data.types=null"),
}


@pytest.mark.parametrize(
    "task",
    [pytest.param(task, marks=() if task == "lm" else pytest.mark.slow) for task in TASKS],
)
def test_every_task_has_units(task: str) -> None:
    """Their examples are made of each unit's documents alone; rows at once are the rows one by one."""
    given, *data = TASKS[task]
    fitted = prepare(read_source(None, [*TINY, f"task={given}", *data])).task
    named = fitted.model_dump()
    named |= {
        key: list(set(fitted.classes) - {"none"}) for key in ("labels", "types") if named.get(key) == "auto"
    }
    own = private_client(*data, "method={name: fedlora}", f"task={json.dumps(named)}")
    assert 1 < len(own.units) <= 8
    alone = sum(
        len(own.experiment.task.training_examples([each], own.experiment.model.tokenizer))
        for each in own.site.documents.train
    )
    assert sum(map(len, own.units)) == alone
    rows = [[example] for unit in own.units for example in unit][:6]
    at_once = own.sum_over(rows, 1e9)
    one_by_one = [torch.zeros_like(total) for total in at_once]
    for row in rows:
        for total, gradient in zip(one_by_one, own.sum_over([row], 1e9), strict=True):
            total.add_(gradient)
    difference = norm_of([one - other for one, other in zip(at_once, one_by_one, strict=True)])
    assert difference <= 1e-5 * norm_of(one_by_one)
    own.client.privacy = own.gradients(clip=1.0, sigma=0.5)
    fit(own.client, own.names, Seed(0))


@pytest.mark.slow
def test_quantized_weights_stay_under_private_adapters() -> None:
    pytest.importorskip("bitsandbytes")
    own = private_client("model={name: mini, quantization: nf4}", "method={name: fedlora}")
    rows = [[example] for unit in own.units for example in unit][:4]
    whole = own.sum_over(rows, 1.0)
    without = own.sum_over(rows[1:], 1.0)
    assert 0 < norm_of([one - other for one, other in zip(whole, without, strict=True)]) <= 1 + 1e-5


def test_a_private_run_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstrata.privacy.accounting.find_spec", lambda name: None)
    values = ["opacus, dp-accounting", "'fedstrata[privacy]'"]
    with refused(ConfigurationError, "not_installed", at="privacy.mechanism", values=values):
        private_client()

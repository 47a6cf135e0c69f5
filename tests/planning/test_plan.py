from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from support import REPOSITORY, TINY, RunTiny, assert_same_tensors, refused

from fedstrata.core.errors import ConfigurationError, TrainingError
from fedstrata.core.settings.source import read_source
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.run_folder import open_run
from fedstrata.methods import METHODS
from fedstrata.planning.estimate import Estimate
from fedstrata.planning.measurements import Rehearsed, RoundCost, Timed, Turn
from fedstrata.planning.plan import RunPlan, make_plan
from fedstrata.planning.rehearsal import rehearse
from fedstrata.planning.survey import padded_tokens, survey

SMALL = (*TINY, "task.max_length=32")


@cache
def plan_tiny(*overrides: str) -> RunPlan:
    """Plans a tiny run, once for the same overrides."""
    return make_plan(read_source(None, [*SMALL, *overrides]), seconds=0.0)


def experiment_of(*overrides: str) -> Experiment:
    return prepare(read_source(None, [*SMALL, *overrides]))


SIZES_VARY = ("hetlora", "fedadaopt")
"""Methods whose clients send adapters of several sizes; a rehearsal of two clients cannot know them."""


REPORTING = ("layer_skipping", "fedtlu", "local_only", "flora")
"""Methods of which the report is written too, which takes as long as the run."""


SAMPLED = ("federation.sample=0.34", "training.batch_size=4")


SUMMED = (
    "method={name: fedavg}",
    # So wide that none is widened, whose digits would travel.
    "privacy={secure_aggregation: true, range: 1000, ring: 24}",
    "data.synthetic.sites=5",
)
"""A run whose updates are masked and seen as sums alone."""


PORTION = "method={name: fedtlu, portion: 0.5, selection: exact}"
SLOW = pytest.mark.slow


@pytest.mark.parametrize("name", [SIZES_VARY[0], pytest.param(SIZES_VARY[1], marks=SLOW)])
def test_a_plan_says_that_it_cannot_know_the_sizes_of_adapters(name: str) -> None:
    plan = plan_tiny(f"method={{name: {name}}}")
    assert any("several sizes" in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    "task",
    [
        "{name: summarize, max_length: 96, answer_length: 8}",
        "{name: cloze, question: labels, template: '{text} {text_pair} {answer}', words: {yes: y, no: n}}",
    ],
    ids=["summarize", "cloze"],
)
def test_a_question_that_names_what_documents_say_is_planned(tmp_path: Path, task: str) -> None:
    common = {"text": "He was treated.", "text_pair": "He was ill.", "metadata": {"section": "CC"}}
    lines = [{"id": str(number), "labels": [("no", "yes")[number % 2]], **common} for number in range(24)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    kept = [value for value in TINY if not value.startswith(("data.", "task."))]
    data = [f"data={{format: jsonl, path: {tmp_path / 'pairs.jsonl'}}}", "partition={by: iid, clients: 2}"]
    source = read_source(None, [*kept, *data, f"task={task}", "method={name: fedavg}"])
    assert make_plan(source, seconds=0.0).communication["bytes_up"]


def test_what_workers_do_at_once_takes_its_time_once() -> None:
    experiment = experiment_of("workers=2", "threads=1")
    assert experiment.workers == 2
    time = Estimate(experiment, survey(experiment), REHEARSED).time()
    parts = ("train", "serve", "evaluate", "engine_overhead", "finish")
    assert time["total_seconds"] < sum(time[f"{part}_seconds"] for part in parts)
    assert time["total_seconds"] > time["train_seconds"] / 2


def test_a_plan_counts_the_patients_of_each_client_whose_documents_name_them(tmp_path: Path) -> None:
    """A patient of several notes once."""
    corpus = [
        note if note.site == "site-1" else replace(note, metadata={})
        for note in generate(seed=1, sites=2, notes=16, notes_per_patient=3)
    ]
    write(corpus, tmp_path / "notes", "jsonl")
    data = f"data={{format: jsonl, path: {tmp_path / 'notes'}, types: [problem, test, treatment, drug]}}"
    named, unnamed = plan_tiny(data, "federation.rounds=1").clients.values()
    assert unnamed.patients is None
    assert named.patients is not None
    assert sum(named.patients.values()) == len({note.patient for note in corpus if note.site == "site-1"})
    assert 0 < named.patients["train"] < named.documents["train"]


@pytest.mark.slow
def test_a_plan_says_that_it_cannot_know_which_blocks_run() -> None:
    plan = plan_tiny("method={name: droppeft}")
    assert any("only blocks" in warning for warning in plan.warnings)
    assert not plan_tiny("method={name: droppeft, rates: 0.0}").warnings


@pytest.mark.parametrize(
    "overrides",
    [
        SAMPLED,
        *(
            pytest.param(each, marks=SLOW)
            for each in (
                *(
                    (f"method={{name: {name}}}", "data.split.server=2")
                    for name in METHODS
                    if name not in (*SIZES_VARY, "droppeft")  # whose blocks that run are drawn
                ),
                ("method={name: droppeft, rates: 0.0}",),
                ("method={name: droppeft, rates: 0.0}", "federation.sample=0.67"),
                ("method={name: layer_skipping, top: 1, head: local}",),
                ("method={name: layer_skipping, top: auto}", "training.cache=off"),
                ("method={name: fedper}", "data.split.test_sites=[site-3]"),
                ("method={name: flora}", "federation.sample=0.67"),
                SUMMED,
                (PORTION, *SUMMED[1:], "federation={rounds: 3, sample: 0.8}"),
            )
        ),
    ],
    ids=str,
)
def test_any_run_is_planned_as_it_then_runs(run_tiny: RunTiny, overrides: tuple[str, ...]) -> None:
    reports = any(name in overrides[0] for name in REPORTING) and "federation.sample=0.67" not in overrides
    plan = plan_tiny(*overrides)
    run = run_tiny(*SMALL[len(TINY) :], *overrides, report=reports)
    assert plan.model == run.summary["model"]
    assert plan.trainable_parameters == run.summary["trainable_parameters"]
    assert plan.metric == run.summary["convergence"]["metric"]
    assert {event["client"]: event["examples"] for event in run.of("client")} == {
        name: client.examples for name, client in plan.clients.items() if client.rounds
    }
    measured = run.summary["communication"]
    if measured["bytes_up"] is None:
        assert set(plan.communication.values()) == {None}
    else:
        turns = sum(client.rounds for client in plan.clients.values())
        # Whether FLoRA sends stacks or weights decides how many names and shapes a frame begins with.
        heads = 150 * 7 * 3 * turns if plan.method == "flora" else 0
        # What a message about a batch begins with grows with its rows, and is counted by its tokens.
        heads = 0.01 * measured["bytes_down"] if plan.method == "fl_llama" else heads
        assert plan.communication["bytes_down"] == pytest.approx(measured["bytes_down"], abs=heads)
        assert turns == sum(len(event["exchanges"]) for event in run.of("round"))
        told = run.summary["secure_aggregation"]
        ways = ("bytes_up", "bytes_down")
        assert plan.secure_aggregation == (told and {way: told[way] for way in ways})
        # The digits of an update's loss, and of a reward, are text in its frame, in steps of 8.
        assert plan.communication["bytes_up"] == pytest.approx(measured["bytes_up"], abs=16 * turns + heads)
        assert plan.communication["full_model_bytes_up"] == turns * run.summary["model"]["bytes"]
    held = sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
    cached = sum(event["bytes"] for event in run.of("cache"))  # removed at the end
    left = plan.disk["bytes"] - (0 if reports else plan.disk["report_bytes"])
    assert left == pytest.approx(held + cached, rel=0.1)
    assert plan.disk["caches_bytes"] == pytest.approx(cached, rel=0.1)
    written = ["egress.jsonl", *(["witnessed.jsonl", "site.sqlite"] if plan.secure_aggregation else [])]
    kept = sum(path.stat().st_size for name in written for path in run.folder.glob(f"clients/*/{name}"))
    assert plan.disk["ledgers_bytes"] + plan.disk["sums_bytes"] == pytest.approx(kept, rel=0.1)


@pytest.mark.parametrize(("chance", "summed"), [(0.5, ()), pytest.param(0.25, SUMMED, marks=SLOW)])
def test_drop_outs_and_abandoned_rounds_are_in_the_plan(
    run_tiny: RunTiny, chance: float, summed: tuple[str, ...]
) -> None:
    federation = f"federation={{rounds: 4, dropout: {chance}, min_clients: 2, evaluate_every: 4}}"
    overrides = (*summed, federation)
    plan, run = plan_tiny(*overrides), run_tiny(*SMALL[len(TINY) :], *overrides)
    assert run.summary["failures"]["clients"]
    assert run.summary["failures"]["abandoned_rounds"]
    assert plan.communication["bytes_down"] == run.summary["communication"]["bytes_down"]
    if summed:
        told = run.summary["secure_aggregation"]
        assert told["refused"] and told["rounds"]
        assert plan.secure_aggregation == {way: told[way] for way in ("bytes_up", "bytes_down")}
        assert plan.communication["bytes_up"] == run.summary["communication"]["bytes_up"]
    trained = Counter(event["client"] for event in run.of("client"))
    assert {name: client.rounds for name, client in plan.clients.items()} == {
        name: trained[name] for name in plan.clients
    }


def test_a_plan_says_where_all_stored_states_will_not_fit() -> None:
    overrides = SAMPLED  # what the rehearsal itself stores of small batches does fit
    plenty = plan_tiny(*overrides)
    half = plenty.disk["caches_bytes"] // 2
    scarce = plan_tiny(*overrides, f"training.cache_gigabytes={half / 1e9}")
    assert scarce.disk["caches_bytes"] == pytest.approx(half, abs=1)
    (told,) = set(scarce.warnings) - set(plenty.warnings)
    assert "training.cache_gigabytes allows" in told


def test_a_look_at_gradients_is_had_once_by_the_clients_of_the_first_round() -> None:
    experiment = experiment_of("federation={rounds: 5, sample: 0.67}")
    surveyed = survey(experiment)
    looked = replace(REHEARSED, turns=[Turn(1, "site-2", [], 4.0), *REHEARSED.turns])
    times = [Estimate(experiment, surveyed, measured).time() for measured in (REHEARSED, looked)]
    assert times[1]["train_seconds"] - times[0]["train_seconds"] == pytest.approx(2 * 4.0)


def test_what_trains_and_travels_is_told_by_part_of_the_model() -> None:
    plan = plan_tiny("method={name: layer_skipping, top: 1, head: local}")
    groups = {group.name: group for group in plan.groups}
    assert list(groups) == ["embedding", "block 0", "block 1", "block 2", "final norm", "head"]
    assert sum(group.parameters for group in plan.groups) == plan.model["parameters"]
    assert sum(group.trainable_parameters for group in plan.groups) == plan.trainable_parameters
    for name in ("embedding", "block 0", "block 1"):
        assert groups[name].trainable_parameters == groups[name].bytes_up == groups[name].bytes_down == 0
    for name in ("block 2", "final norm"):
        assert groups[name].trainable_parameters == groups[name].parameters
        assert groups[name].bytes_up == groups[name].bytes_down == groups[name].bytes > 0
    assert groups["head"].trainable_parameters == groups["head"].parameters
    assert groups["head"].bytes_up == groups["head"].bytes_down == 0


@pytest.mark.slow
def test_what_is_said_while_a_divided_model_trains_is_no_part_of_what_travels_by_group() -> None:
    whole, divided = plan_tiny(), plan_tiny("method={name: fl_llama}", "data.split.server=2")
    assert [group.name for group in divided.groups] == [group.name for group in whole.groups]


@pytest.mark.slow
def test_steps_and_who_takes_part_are_those_of_the_run(tmp_path: Path) -> None:
    overrides = [
        *SMALL,
        "training={epochs: 2, batch_size: 4, accumulation: 3}",
        "federation={rounds: 4, sample: 0.67, evaluate_every: 4}",
    ]
    steps: dict[tuple[int, str], int] = {}

    def listen(event: str, facts) -> None:
        if event == "client_progress":
            steps[facts["round"], facts["client"]] = facts["steps"]

    open_run(read_source(None, overrides), tmp_path / "run", listen, resume=False).execute()
    plan = make_plan(read_source(None, overrides), seconds=0.0)
    rounds = Counter(client for _, client in steps)
    assert {name: client.rounds for name, client in plan.clients.items()} == {
        name: rounds[name] for name in plan.clients
    }
    assert all(plan.clients[client].steps == count for (_, client), count in steps.items())


@pytest.mark.slow
def test_a_run_after_a_plan_is_the_run_before_it(run_tiny: RunTiny, run_once: RunTiny) -> None:
    before = run_once("federation.rounds=1")
    make_plan(read_source(None, [*TINY, "method={name: local_only}"]), seconds=0.0)
    after = run_tiny("federation.rounds=1")
    assert_same_tensors(before.state.tensors, after.state.tensors)


def test_a_plan_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "empty"))
    random_state = torch.get_rng_state()
    make_plan(read_source(None, [*TINY, "method={name: local_only}"]), seconds=0.0)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not list((tmp_path / "empty").iterdir())


def test_the_model_is_as_before_after_a_rehearsal() -> None:
    experiment = experiment_of("method={name: fedavg}")
    before = experiment.model.snapshot(experiment.model.layout.all)
    rehearse(experiment, survey(experiment).samples, seconds=0.0)
    assert_same_tensors(before, experiment.model.tensors(experiment.model.layout.all))
    assert not experiment.model.trainable


def test_a_rehearsal_meets_the_largest_batch_with_the_optimisers_moments() -> None:
    experiment = experiment_of("training.batch_size=4")
    surveyed = survey(experiment)
    largest = max(size for workload in surveyed.workloads for size in workload.batches)
    examples = list(surveyed.samples.largest)
    assert padded_tokens(experiment.task.collate(examples[:4])) == largest
    assert len(examples) == 8


def test_the_survey_counts_the_tokens_that_scoring_will_pad() -> None:
    experiment = experiment_of("training.eval_batch_size=3", "data.split.server=2")
    counted = {"validation": 0, "test": 0, "server": 0}
    owned = [
        (part, getattr(own, part)) for own in experiment.clients.values() for part in ("validation", "test")
    ]
    for part, documents in [*owned, ("server", experiment.server)]:
        if documents:
            lengths = sorted(map(len, experiment.task.encode(documents, experiment.model.tokenizer)))
            batches = [lengths[start : start + 3] for start in range(0, len(lengths), 3)]
            counted[part] += sum(len(batch) * batch[-1] for batch in batches)
    assert dict(survey(experiment).scored_tokens) == counted


REHEARSED = Rehearsed(
    turns=[
        Turn(1, "site-1", [Timed(100, 9.0)], 9.0),
        Turn(1, "site-2", [Timed(100, 9.0)], 9.0),
        # A step takes 0.5 s and 0.01 s a token, a turn 2 s besides.
        Turn(2, "site-1", [Timed(100, 1.5), Timed(300, 3.5)], 1.0),
        Turn(2, "site-2", [Timed(200, 2.5)], 3.0),
    ],
    rounds=[RoundCost(10.0, 100.0, 99.0, 99.0), RoundCost(20.0, 200.0, 0.25, 0.75, serve_seconds=0.125)],
    scorings=[Timed(10, 99.0), Timed(100, 2.0), Timed(50, 1.0)],
    save_seconds=7.0,
)
"""A rehearsal whose first round is slow and sends less."""


@pytest.mark.parametrize("method", ["layer_skipping", "local_only", "fedmedlora_plus"])
@pytest.mark.parametrize("every", [pytest.param(1, marks=SLOW), 2])
def test_time_and_bytes_are_the_sums_over_what_a_run_does(method: str, every: int) -> None:
    federation = f"federation={{rounds: 3, sample: 0.67, evaluate_every: {every}}}"
    experiment = experiment_of(
        federation,
        f"method={{name: {method}}}",
        "training={epochs: 2, batch_size: 4, accumulation: 2}",
        "data.split.server=2",
    )
    surveyed = survey(experiment)
    workloads = {workload.id: workload for workload in surveyed.workloads}
    estimate = Estimate(experiment, surveyed, REHEARSED)
    train = serve = evaluate = engine = up = down = 0.0
    seen = set()
    for number in (1, 2, 3):
        cohort = sorted(
            experiment.seed.child("round", number, "sample").numpy().choice(3, 2, replace=False).tolist()
        )
        for index in cohort:
            work = workloads[f"site-{index + 1}"]
            train += 2.0 + 2 * (0.5 * math.ceil(math.ceil(work.examples / 4) / 2) + 0.01 * sum(work.batches))
            if method == "fedmedlora_plus":
                evaluate += 0.02 * surveyed.scored_tokens["server"]
            serve += 0.125 * 2 * sum(work.batches)
            engine += 0.25 + work.encode_seconds * (2 if work.id not in seen else 1)
            seen.add(work.id)
            up += 10 if number == 1 else 20
            down += 100 if number == 1 else 200
        engine += 0.75
        evaluate += 0.02 * surveyed.scored_tokens["validation"] * (number % every == 0 or number == 3)
    models = 3 if method == "local_only" else 1
    finish = models * 7.0 + (models + 1) * 0.02 * surveyed.scored_tokens["test"]  # the untrained model's
    time = estimate.time()
    assert time["train_seconds"] == pytest.approx(train)
    assert time["serve_seconds"] == pytest.approx(serve)
    assert time["evaluate_seconds"] == pytest.approx(evaluate)
    assert time["engine_overhead_seconds"] == pytest.approx(engine)
    assert time["finish_seconds"] == pytest.approx(finish)
    assert time["total_seconds"] == pytest.approx(train + serve + evaluate + engine + finish)
    sent = estimate.communication()
    assert (sent["bytes_up"], sent["bytes_down"]) == (up, down)
    assert sent["bytes_up_per_client_round"] == pytest.approx(up / 6)


def test_a_run_that_would_fail_fails_in_the_rehearsal() -> None:
    with refused(TrainingError, "diverged", values=["learning_rate"]):
        plan_tiny("training.optimizer=sgd", "training.learning_rate=1e38", "training.clip_norm=null")


def test_a_run_of_one_client_without_validation_is_planned_and_warned_of() -> None:
    plan = plan_tiny("data.synthetic.sites=1", "data.split={train: 0.7, validation: 0.0, test: 0.3}")
    assert list(plan.clients) == ["site-1"]
    assert plan.time["evaluate_seconds"] == 0
    (warning,) = plan.warnings
    assert "validation documents" in warning


@pytest.mark.slow  # that the best round is that of the score is fast in tests/record
def test_the_score_a_run_is_judged_by_can_be_named(run_tiny: RunTiny) -> None:
    run = run_tiny("federation.metric=recall/problem", "federation.rounds=1")
    assert run.summary["convergence"]["metric"] == "recall/problem"
    rounds = run.of("round")
    assert run.summary["metrics"]["best"]["recall/problem"] == max(
        event["global"].get("recall/problem", 0.0) for event in rounds
    )
    resumed = run_tiny("federation.metric=precision", resume=True)
    assert resumed.summary["convergence"]["metric"] == "precision"
    assert resumed.summary["metrics"]["global"] == run.summary["metrics"]["global"]


def test_a_score_of_a_type_that_is_not_there_is_refused() -> None:
    values = ["'f1/problem'?", "single labels"]
    with refused(ConfigurationError, "unknown_name", at="federation.metric", values=values):
        experiment_of("federation.metric=f1/problems")


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a program inherits its parent's peak of memory"
)
@pytest.mark.parametrize("configuration", ["top2", "fl_llama", "private"])
def test_estimates_are_within_20_percent_of_what_the_run_measures(configuration: str) -> None:
    """But for the seconds, in which all shows that the machine does else: the benchmark has them."""
    script = REPOSITORY / "benchmarks" / "speed" / "plan_accuracy.py"
    command = [sys.executable, str(script), "--configurations", configuration, "--rounds", "2"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    ratios = json.loads(done.stdout.splitlines()[-1])[configuration]
    exact = configuration != "fl_llama"
    assert ratios["bytes"] == pytest.approx(1.0, abs=1e-4 if exact else 0.1)
    for quantity in ("disk", "memory"):
        assert ratios[quantity] == pytest.approx(1.0, abs=0.2)
    timed = {"seconds", "train_seconds"} | ({"serve_seconds"} if configuration == "fl_llama" else set())
    assert timed == {quantity for quantity in ratios if "seconds" in quantity and ratios[quantity] > 0}

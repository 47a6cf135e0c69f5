"""The contract of a task."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import torch

from fedstrata.api.corpora import synth
from fedstrata.api.options import Options
from fedstrata.core.documents import Document
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.federation import DATA_CORRUPTIONS
from fedstrata.core.task import Task
from fedstrata.core.types import State
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.metrics.counts import added
from fedstrata.models.state import Model
from fedstrata.record.words import COUNTED
from fedstrata.tasks import TASKS
from fedstrata.testing.contract import Contract, TinyRuns, check_engines
from fedstrata.train.evaluate import answer


def check_task(task: Task, /, **options: Unpack[Options]) -> list[str]:
    """Checks a task of one's own on synthetic notes, or on documents that are given.

    It must describe itself as a configuration; turn documents into examples, batches and a finite loss, which
    for a batch is the sum over its examples, in float32; answer every document; count what adds up over
    documents to the same scores; and come to the same numbers when it is resumed, and on two workers.

    Args:
        task: The task with its settings.
        **options: What else is run, as for `fedstrata.run`: `data`, `model`, `method`, `settings` ...

    Returns:
        The clauses that hold, in words.

    Raises:
        ContractError: Clauses do not hold; the message has all of them with the reason.
        ConfigurationError: The task cannot run with these options.
    """
    contract = Contract(f"task {task.name!r}")
    given: dict[str, Any] = {"data": synth(sites=3, notes=12)}
    with tempfile.TemporaryDirectory() as folder:
        runs = TinyRuns({**given, **options, "task": task}, Path(folder))
        with contract.clause("it describes itself as a configuration"):
            section = TASKS.section_of(task)
            if TASKS.make(section, "task") != task:
                raise AssertionError(f"{section} describes another task")
        experiment = prepare(runs.source())
        documents = [each for own in experiment.clients.values() for each in own.train]
        _check_parts(contract, experiment, documents)
        with contract.clause("a saved model's classes give the task again"):
            again = experiment.task.restored(experiment.task.classes)
            if again.classes != experiment.task.classes:
                raise AssertionError(f"its classes are {again.classes} then, not {experiment.task.classes}")
        whole: State | None = None
        with contract.clause("it is trained to its end"):
            whole = runs.state("whole")
        if whole is not None:
            check_engines(contract, runs, whole, TASKS.why_only_here(TASKS.name_of(type(task))))
    return contract.require()


def _check_parts(contract: Contract, experiment: Experiment, documents: Sequence[Document]) -> None:
    """Looks at what a run asks of a task, one part after the other."""
    task, model = experiment.task, experiment.model
    known = [document for document in map(task.known, documents) if task.scorable(document)]
    examples: Sequence[Any] = ()
    with contract.clause("documents become examples that have windows and a length"):
        examples = task.training_examples(known, model.tokenizer)
        if not examples:
            raise AssertionError("there are none")
        if any(len(example) < 1 or not len(example.windows) for example in examples):
            raise AssertionError("an example has none")
    if examples:
        _check_losses(contract, task, model, examples[:4])
    with contract.clause("every document is answered, and an answer is an annotation of it"):
        answers = answer(model, task, known, experiment.settings.training)
        if len(answers) != len(known):
            raise AssertionError(f"{len(known)} documents have {len(answers)} answers")
        for document, own in zip(known, answers, strict=True):
            if task.annotate(document, own).text != document.text:
                raise AssertionError("an annotated document has another text")
    with contract.clause("what is counted adds up, and scores are of the names that it says"):
        _require_added(task, known, answer(model, task, known, experiment.settings.training))
    with contract.clause("its floors are named, and answer every document"):
        for name, own in task.floors(known, known, model.tokenizer).items():
            if name not in task.floor_names or len(own) != len(known):
                raise AssertionError(f"{name!r} is not named, or has {len(own)} answers to {len(known)}")
            _require_added(task, known, own)
    with contract.clause("a corrupt client has as many examples as before, and other ones"):
        for kind in DATA_CORRUPTIONS:
            _require_corrupt(task, kind, examples, task.corrupt(examples, kind, model.tokenizer, Seed(0)))


def _check_losses(contract: Contract, task: Task, model: Model, examples: Sequence[Any]) -> None:
    """Looks at the loss of a batch of these examples."""
    with contract.clause("a batch has a finite loss, of as many terms as it says"):
        batch = task.collate(examples)
        with torch.no_grad():
            loss, terms = task.loss(model.module, batch)
        if not math.isfinite(float(loss)):
            raise AssertionError(f"the loss is {float(loss)}")
        if float(terms) != float(task.terms(batch).sum()):
            raise AssertionError(
                f"`loss` says {float(terms):g} terms, `terms` {float(task.terms(batch).sum()):g}"
            )
    with contract.clause("the loss of a batch is the sum of those of its examples"):
        _require_summed(task, model, examples)
    with contract.clause("the loss is a float32 number where a model computes in bfloat16"):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            loss, _ = task.loss(model.module, task.collate(examples))
        if loss.dtype != torch.float32:
            raise AssertionError(f"it is a {loss.dtype} number")


def _require_summed(task: Task, model: Model, examples: Sequence[Any]) -> None:
    """Compares the loss of a batch, in which examples are padded, with those of its examples alone."""
    was_training = model.module.training
    model.module.eval()  # without dropout
    try:
        with torch.no_grad():
            loss, terms = task.loss(model.module, task.collate(examples))
            alone = [task.loss(model.module, task.collate([example])) for example in examples]
    finally:
        model.module.train(was_training)
    counted = sum(float(own) for _, own in alone)
    if counted != float(terms):
        raise AssertionError(f"together they have {float(terms):g} terms, and {counted:g} alone")
    summed = sum(float(own) for own, _ in alone)
    if not math.isclose(summed, float(loss), rel_tol=1e-3, abs_tol=1e-4):
        raise AssertionError(f"together they have a loss of {float(loss):g}, and {summed:g} alone")


def _require_corrupt(task: Task, kind: str, before: Sequence[Any], after: Sequence[Any]) -> None:
    if len(before) != len(after):
        raise AssertionError(f"{kind} gives another number")
    one, other = task.collate(before), task.collate(after)
    if kind == "shuffled_tokens" and task.terms(one).tolist() != task.terms(other).tolist():
        raise AssertionError(f"{kind} gives other numbers of terms")
    # Labels that are all the same are so in any order.
    same = one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    if same and kind != "shuffled_labels":
        raise AssertionError(f"{kind} changes nothing")


def _require_added(task: Task, documents: Sequence[Document], answers: Sequence[Any]) -> None:
    half = len(documents) // 2
    whole = task.counted(documents, answers)
    parts = [task.counted(documents[:half], answers[:half]), task.counted(documents[half:], answers[half:])]
    if task.counted([], []).keys() != whole.keys():
        raise AssertionError("its names are others where there are no documents")
    if any(value for value in task.counted([], []).values()):
        raise AssertionError("of no documents not all numbers are 0")
    if any(value < 0 for value in whole.values()):
        raise AssertionError("a number is negative")
    for name, value in added(parts).items():
        if not math.isclose(value, whole[name], rel_tol=1e-9, abs_tol=1e-9):
            raise AssertionError(f"{name} is {whole[name]:g} of all documents, and {value:g} of their halves")
    scores = task.scored(whole, task.apart(documents, answers))
    unknown = [name for name in scores if name not in task.score_names and not name.endswith(COUNTED)]
    if unknown or task.metric not in scores:
        raise AssertionError(
            f"`score` gives {unknown or 'no ' + task.metric}, which `metric_names` does not say"
        )

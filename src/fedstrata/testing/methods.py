"""The contract of a federated method."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import torch
from pydantic import ValidationError

from fedstrata.api.corpora import synth
from fedstrata.api.options import Options
from fedstrata.core.handlers import is_exchange
from fedstrata.core.method import Method
from fedstrata.core.types import Plan, State, Update
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import prepare
from fedstrata.engine.remote.turns import check_trained, check_update
from fedstrata.methods import METHODS
from fedstrata.testing.contract import Contract, TinyRuns, check_engines, require_same, watched
from fedstrata.wire import frame

TYPES = ["drug", "problem", "test", "treatment"]
SITES = 3


def check_method(method: Method, /, **options: Unpack[Options]) -> list[str]:
    """Checks a method of one's own on synthetic notes of three hospitals.

    It must describe itself as a configuration; keep its state in a frame; send what it declares and nothing
    that stays at home; come to the same numbers when it is resumed, and on two workers; and run under secure
    aggregation and differential privacy where it says that it can.

    Args:
        method: The method with its settings.
        **options: What else is run, as for `fedstrata.run`: `task`, `model`, `data`, `settings` ...; mentions
            are found when no task is given.

    Returns:
        The clauses that hold, in words; and what cannot be looked at, of a method of a notebook or a script.

    Raises:
        ContractError: Clauses do not hold; the message has all of them with the reason.
        ConfigurationError: The method cannot run with these options.
    """
    contract = Contract(f"method {method.name!r}")
    given: dict[str, Any] = {"data": synth(sites=SITES, notes=4 * SITES)}
    if "data" not in options and "task" not in options:
        named = {"data.types": TYPES, "task.types": TYPES}  # which private runs do not read from documents
        options["settings"] = {**named, **options.get("settings", {})}
    with tempfile.TemporaryDirectory() as folder:
        runs = TinyRuns({**given, **options, "method": method}, Path(folder))
        with contract.clause("it describes itself as a configuration"):
            _describes_itself(method)
        with contract.clause("it answers itself whether it is private, and summed, where it changes a half"):
            if method.unanswered:
                raise AssertionError(f"{type(method).__name__} leaves open: {', '.join(method.unanswered)}")
        with contract.clause("it refuses settings that it does not know, and never changes"):
            _is_strict(method)
        experiment = prepare(runs.source())
        with contract.clause("its state fits into a frame"):
            _fits_a_frame(experiment.method.start(experiment.model))
        whole: State | None = None
        with contract.clause("clients send what it declares, and nothing that stays at home"):
            judge = _Judge(experiment.method)
            try:
                whole = runs.state("whole", watched(judge))
            finally:
                judge.require()  # first: a server half fails over what nobody declared
        if whole is not None:
            at_once = not experiment.method.pooled and experiment.method.divides("") is None
            why_only_here = METHODS.why_only_here(METHODS.name_of(type(method)))
            check_engines(contract, runs, whole, why_only_here, at_once=at_once)
            _check_privacy(contract, runs, experiment.method, whole)
    return contract.require()


def _describes_itself(method: Method) -> None:
    section = METHODS.section_of(method)
    again = METHODS.make(section, "method")
    if again != method:
        raise AssertionError(f"{section} describes another method")
    if not method.travels:
        raise AssertionError("`travels` says nothing of what travels")


def _is_strict(method: Method) -> None:
    values = METHODS.values_of(METHODS.section_of(method))
    try:
        type(method).model_validate({**values, "no_such_setting": 1})
    except ValidationError:
        pass
    else:
        raise AssertionError("it takes a setting `no_such_setting` that has no effect")
    if not type(method).model_config.get("frozen"):
        raise AssertionError("its settings can be changed")


def _fits_a_frame(state: State) -> None:
    require_same(frame.decode(frame.encode(state), State), state)


class _Judge:
    """Looks at every update as the server of a federation does.

    Args:
        method: The method that is run.
    """

    def __init__(self, method: Method) -> None:
        self._method, self._wrong = method, list[str]()

    def __call__(self, order: Any, update: Update, engine: LocalEngine) -> None:
        """Looks at one update."""
        if is_exchange(order.handler):
            return
        layout, plan = engine.whole.layout, frame.decode(order.plan, Plan)
        names = self._method.trainable(layout)
        trained = {name: tensor.to("meta") for name, tensor in engine.whole.tensors(names).items()}
        due = self._method.sends(order.handler, plan, update.values, trained, layout)
        try:
            check_trained(update, self._method.weighs(engine.info(order.client)), due)
            check_update(update)
        except Exception as error:
            self._wrong.append(f"{order.handler} of {order.client} in round {order.round}: {error}")
        if texts := [name for name, value in update.values.items() if _has_text(value)]:
            self._wrong.append(f"{order.handler} sends text as {texts[0]!r}, where numbers travel")
        private = set(self._method.private(layout)) & update.tensors.keys()
        if private:
            self._wrong.append(f"{order.handler} sends {sorted(private)[0]}, which it says stays at home")

    def require(self) -> None:
        """Raises AssertionError if an update was not as it should be."""
        if self._wrong:
            raise AssertionError(
                self._wrong[0] + (f" (and {len(self._wrong) - 1} more)" * (len(self._wrong) > 1))
            )


def _has_text(value: Any) -> bool:
    """Whether a value has text in it anywhere but in names."""
    if isinstance(value, Mapping):
        return any(map(_has_text, value.values()))
    return isinstance(value, str) or (isinstance(value, list | tuple) and any(map(_has_text, value)))


def _check_privacy(contract: Contract, runs: TinyRuns, method: Method, whole: State) -> None:
    """Holds a method to what it says of itself."""
    if not method.not_summed():
        with contract.clause("it runs under secure aggregation, as it says"):
            _require_near(runs.state("summed", privacy__secure_aggregation=True), whole)
    installed = all(importlib.util.find_spec(name) for name in ("opacus", "dp_accounting"))
    if not method.not_private("local") and installed:
        with contract.clause("it runs under differential privacy, as it says, and sends what was released"):
            units = {f"site-{number}": 8 for number in range(1, SITES + 1)}
            private: Mapping[str, Any] = {
                **{"mechanism": "local", "unit": "document", "units": units, "delta": 0.01, "sigma": 1.0},
                **{"expected_batch": 2, "steps": 2, "noise": "seeded"},
            }
            runs.state("private", privacy=private)


def _require_near(one: State, other: State) -> None:
    """Compares what masked sums came to with plain ones: they are rounded to fixed points."""
    if one.tensors.keys() != other.tensors.keys():
        raise AssertionError("the state has other tensors")
    for name, tensor in one.tensors.items():
        if not torch.allclose(tensor.float(), other.tensors[name].float(), rtol=1e-2, atol=1e-2):
            raise AssertionError(f"{name} is another than without it")

"""What the checks share: clauses, and tiny runs of which the end is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedstrata.api.options import lay
from fedstrata.api.running import with_objects
from fedstrata.client.turn import Done
from fedstrata.core.errors import FedstrataError
from fedstrata.core.settings.source import Source
from fedstrata.core.types import State, Update
from fedstrata.engine.checkpoint import Checkpoints
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import prepare
from fedstrata.engine.protocol import Turns
from fedstrata.engine.run import Run
from fedstrata.engine.run_folder import write_documents, write_settings
from fedstrata.wire import frame

ROUNDS = 2
USUAL = {
    "federation.rounds": ROUNDS,
    "training.learning_rate": 1e-3,
    "training.cache": "off",
    "task.max_length": 64,
    "threads": 1,
}
"""Settings of the runs that are made; what their author sets is laid over them."""


class ContractError(AssertionError):
    """Clauses of a contract do not hold; the message has all of them."""


@dataclass
class Contract:
    """The clauses of a contract as they are found to hold or not.

    Attributes:
        what: Whose contract it is, for messages.
        held: The clauses that hold.
        broken: Those that do not, and why.
    """

    what: str
    held: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def clause(self, words: str) -> Iterator[None]:
        """Holds if nothing is raised in the block."""
        try:
            yield
        except Exception as error:
            self.broken[words] = (
                str(error) if isinstance(error, AssertionError | FedstrataError) else repr(error)
            )
        else:
            self.held.append(words)

    def require(self) -> list[str]:
        """Returns the clauses that hold.

        Raises:
            ContractError: Not all do.
        """
        if self.broken:
            told = "\n".join(f"  - {words}: {why}" for words, why in self.broken.items())
            raise ContractError(f"{self.what} does not keep its contract:\n{told}")
        return self.held


@dataclass(frozen=True)
class TinyRuns:
    """Runs of the same configuration, each in a folder of its own.

    Attributes:
        options: What is run, as arguments of `fedstrata.run`.
        folder: Where runs go.
    """

    options: Mapping[str, Any]
    folder: Path

    def source(self, **settings: Any) -> Source:
        """Returns the configuration, with some settings (dots as two underscores) laid over it."""
        source = Source()
        single = {name.replace("__", "."): value for name, value in settings.items()}
        own = dict(self.options.get("settings") or {})
        lay(source, {"settings": USUAL})
        lay(source, {**self.options, "settings": own | single})
        with_objects(source, self.options, self.folder)
        return source

    def state(
        self,
        name: str,
        engine_of: Callable[..., LocalEngine] = LocalEngine,
        *,
        resume: bool = False,
        **settings: Any,
    ) -> State:
        """Runs, or goes on with a run, and returns the state after its last round.

        Raises:
            AssertionError: The method or the task has changed its own settings.
        """
        experiment = prepare(self.source(**settings))
        before = experiment.method.model_dump(), experiment.task.model_dump()
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        write_documents(experiment.clients, folder / "documents.json")
        write_settings(experiment.settings, folder / "config.yaml")
        run = Run(experiment, folder, lambda event, facts: None, engine_of)
        if resume:
            run.load()
        run.execute(resume=resume)
        if (experiment.method.model_dump(), experiment.task.model_dump()) != before:
            raise AssertionError("settings of the method or the task have changed while it ran")
        return Checkpoints(folder / "checkpoints").load(experiment.settings.federation.rounds)[1]


def check_engines(
    contract: Contract, runs: TinyRuns, whole: State, why_only_here: str, *, at_once: bool = True
) -> None:
    """Looks at whether a run comes to the same numbers when it is resumed, and on two workers.

    Args:
        contract: Whose clauses these are.
        runs: Runs of it.
        whole: The state after one that was not interrupted.
        why_only_here: Why no worker can have what is checked; empty if one can.
        at_once: Whether clients of it may compute at the same time.
    """
    with contract.clause("a resumed run comes to the numbers of an uninterrupted one"):
        runs.state("resumed", federation__rounds=1)
        require_same(runs.state("resumed", resume=True), whole)
    if at_once and why_only_here:
        contract.held.append(f"not looked at on two workers: {why_only_here}")
    elif at_once:
        with contract.clause("two workers come to the numbers of one process"):
            require_same(runs.state("workers", workers=2), whole)


def watched(seen: Callable[[Any, Update, LocalEngine], None]) -> Callable[..., LocalEngine]:
    """Returns an engine that shows every update before it is used.

    Args:
        seen: Told of each: the order, the update and the engine.
    """

    class Watched(LocalEngine):
        """Computes in this process, and shows what clients send."""

        def turns(self, orders: Any) -> Turns:
            """Computes turns."""
            for order, result in super().turns(orders):
                if isinstance(result, Done):
                    seen(order, frame.decode(result.update, Update), self)
                yield order, result

    return Watched


def require_same(one: State, other: State) -> None:
    """Compares two states to the last bit.

    Raises:
        AssertionError: They differ.
    """
    names = one.tensors.keys() ^ other.tensors.keys()
    if names:
        raise AssertionError(f"only one of them has {sorted(names)[0]}")
    different = [name for name, tensor in one.tensors.items() if not torch.equal(tensor, other.tensors[name])]
    if different:
        raise AssertionError(f"{len(different)} tensors differ, {different[0]} for one")
    if dict(one.values) != dict(other.values):
        raise AssertionError("the values differ that stand beside the tensors")

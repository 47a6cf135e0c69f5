"""A server that lies at the join or between sessions, as a site meets it: all that it says is the test's.

A site goes through what `fedstrata join` does: `with_shared`, the policy, `prepare_client`, `RemoteClient`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from fedstrata.client.turn import Failed, Order
from fedstrata.core.handlers import counts_documents, is_exchange
from fedstrata.core.settings.source import read_source
from fedstrata.core.settings.yaml import as_document
from fedstrata.core.types import JSON, Plan, Update
from fedstrata.engine.agreed import SESSION, agreed
from fedstrata.engine.check import check_settings
from fedstrata.engine.prepare import Experiment, prepare_client
from fedstrata.engine.remote.joining import RemoteClient
from fedstrata.engine.remote.shared_settings import shared_settings, with_shared
from fedstrata.engine.remote.site_policy import PolicyGuard
from fedstrata.engine.simulated_identities import files_of
from fedstrata.wire import frame

RUN, OTHER = "0123456789abcdef", "fedcba9876543210"
"""Ids of two runs."""
SITES = ("site-1", "site-2", "site-3", "site-4")
DATA = ("data.types=[problem, test, treatment, drug]", "data.synthetic.sites=4", "data.synthetic.notes=48")
"""What a site says itself."""
SHARED = (
    "model.init=random",
    "model.tokenizer=mini",
    "model.config={model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 3, "
    "num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}",
    "task={name: ner, types: [problem, test, treatment, drug], max_length: 64, stride: 8}",
    "method={name: layer_skipping, top: 1}",
    "training.learning_rate=0.005",
    "federation.rounds=3",
    "threads=1",
)
"""What an honest server says."""


def told(*overrides: str) -> dict[str, Any]:
    """Returns what an honest server says with these settings."""
    return deepcopy(_told(overrides))


@cache
def _told(overrides: tuple[str, ...]) -> dict[str, Any]:
    return shared_settings(prepare_client(read_source(None, [*DATA, *SHARED, *overrides]), SITES[0]))


def changed(said: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Returns what a server says that lies in one setting."""
    lie = deepcopy(dict(said))
    *sections, key = path.split(".")
    place = lie["settings"]
    for section in sections:
        place = place[section]
    place[key] = value
    return lie


def policy_of(folder: Path, **lines: Any) -> PolicyGuard:
    """Returns a site's policy of these lines."""
    path = folder / "policy.yaml"
    path.write_bytes(as_document(lines))
    return PolicyGuard.read(path)


def prepared(
    said: Mapping[str, Any], name: str = SITES[0], own: Sequence[str] = (), guard: PolicyGuard | None = None
) -> Experiment:
    """Returns what a site has loaded once it has accepted what the server says."""
    guard = guard or PolicyGuard()
    source = with_shared(read_source(None, [*DATA, *own]), said, guard)
    guard.require_settings(check_settings(source).settings)
    experiment = prepare_client(source, name)
    guard.require_experiment(experiment, name)
    return experiment


@cache
def _prepared_once(said: str, name: str, own: tuple[str, ...]) -> Experiment:
    """Returns what a site without a policy has loaded: each task begins with the model as it was."""
    return prepared(json.loads(said), name, own)


class Site:
    """A process of a site, in its own home.

    Args:
        folder: In which every site has a home, and its identity and lock under secure aggregation.
        said: What the server says at the join.
        name: Of the site.
        own: What the site says itself.
        guard: Its policy.
        run: The run that the welcome of the first session names.
        runs: How many runs its people have accepted.
    """

    def __init__(
        self,
        folder: Path,
        said: Mapping[str, Any],
        name: str = SITES[0],
        *,
        own: Sequence[str] = (),
        guard: PolicyGuard | None = None,
        run: JSON = RUN,
        runs: int = 1,
    ) -> None:
        self.name, self.home = name, folder / "homes" / name
        self.log: list[tuple[str, Mapping[str, Any]]] = []
        if guard:
            self.experiment = prepared(said, name, own, guard)
        else:
            self.experiment = _prepared_once(json.dumps(said), name, tuple(own))
        secure = self.experiment.privacy.settings.secure_aggregation
        identity, lock = files_of(folder, name) if secure else (None, None)
        self.remote = RemoteClient(
            self.experiment,
            name,
            self.home,
            lambda event, facts: self.log.append((event, facts)),
            identity=identity,
            lock=lock,
            policy=guard,
            runs=runs,
        )
        self.welcome(run)

    def welcome(self, run: JSON) -> None:
        """Begins a session with a welcome that names a run."""
        settings = {path: value for path, value in agreed(self.experiment).items() if path in SESSION}
        self.remote.enter({"run": run, "counted": 0, "settings": settings})

    def start_plan(self, **values: JSON) -> Plan:
        """Returns the plan of a first round, with these values."""
        self.experiment.model.restore()
        state = self.experiment.method.start(self.experiment.model)
        return Plan({name: tensor.clone() for name, tensor in state.tensors.items()}, values)

    def ask(self, handler: str, plan: Plan, *, number: int = 1, call: int = 1) -> Update:
        """Asks for a task; raises why nothing came of it."""
        order, remote = Order(self.name, number, handler, call, frame.encode(plan)), self.remote
        if is_exchange(handler):
            if remote._secure is None:
                raise ValueError("the site takes part in no masked sums")
            result = remote._secure.compute(order, remote._site)
        else:
            own = remote._scoring.score if counts_documents(handler) else None
            result = remote._workplace.compute(order, remote._site, handle=own)
        if isinstance(result, Failed):
            raise result.error
        return frame.decode(frame.split(result.update.tobytes()), Update)

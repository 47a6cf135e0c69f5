"""A site as `fedstrata join` makes it, for tests of a server that lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from fedstrata.client.store import home_of
from fedstrata.client.turn import Failed, Order
from fedstrata.core.handlers import SCORE, is_exchange
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import JSON, Plan, Update
from fedstrata.engine.agreed import agreed, agreed_hash
from fedstrata.engine.prepare import prepare_client
from fedstrata.engine.remote.joining import RemoteClient
from fedstrata.engine.remote.shared_settings import shared_settings, with_shared
from fedstrata.engine.simulated_identities import files_of
from fedstrata.wire import frame

RUN, OTHER = "0123456789abcdef", "fedcba9876543210"
SITES = ("site-1", "site-2", "site-3", "site-4")
DATA = ("data.types=[problem, test, treatment, drug]", "data.synthetic.sites=4", "data.synthetic.notes=48")
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


def told(*overrides: str) -> dict[str, Any]:
    return shared_settings(prepare_client(read_source(None, [*DATA, *SHARED, *overrides]), SITES[0]))


def changed(said: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    lie = deepcopy(dict(said))
    *sections, key = path.split(".")
    place = lie["settings"]
    for section in sections:
        place = place[section]
    place[key] = value
    return lie


class Site:
    def __init__(
        self,
        folder: Path,
        said: Mapping[str, Any],
        name: str = SITES[0],
        *,
        own: Sequence[str] = (),
        run: JSON = RUN,
        runs: int = 1,
    ) -> None:
        self.name, self.home = name, folder / "homes" / name
        self.log: list[tuple[str, Mapping[str, Any]]] = []
        self.experiment = prepare_client(with_shared(read_source(None, [*DATA, *own]), said), name)
        secure = self.experiment.privacy.settings.secure_aggregation
        identity, lock = files_of(folder, name) if secure else (None, None)
        self.remote = RemoteClient(
            self.experiment,
            name,
            self.home,
            lambda event, facts: self.log.append((event, facts)),
            identity=identity,
            lock=lock,
        )
        self.welcome(run)

    def welcome(self, run: JSON) -> None:
        w = self.remote._workplace
        w.folder, w.run = home_of(self.home, run), run
        w.agreed = agreed_hash(agreed(self.experiment))

    def ask(self, handler: str, plan: Plan, *, number: int = 1, call: int = 1) -> Update:
        order, remote = Order(self.name, number, handler, call, frame.encode(plan)), self.remote
        if is_exchange(handler):
            result = remote._secure.compute(order, remote._site)
        else:
            own = remote._scoring.score if handler == SCORE else None
            result = remote._workplace.compute(order, remote._site, handle=own)
        if isinstance(result, Failed):
            raise result.error
        return frame.decode(frame.split(result.update.tobytes()), Update)

"""What a server makes of sums of what sites have counted of their documents; sites answer in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from remote_run import RELATIONS
from support import TINY

from fedstrata.client.turn import Done, Order
from fedstrata.core.handlers import is_exchange
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import JSON, State, Update
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.engine.agreed import agreed, agreed_hash
from fedstrata.engine.book import Book
from fedstrata.engine.prepare import prepare_client, prepare_server
from fedstrata.engine.protocol import Turns
from fedstrata.engine.remote.agreeing import info_of
from fedstrata.engine.remote.engine import RemoteEngine
from fedstrata.engine.remote.joining import RemoteClient
from fedstrata.engine.secure_mean import SecureAggregation
from fedstrata.engine.simulated_identities import files_of, simulated_identities
from fedstrata.wire import frame

SUMMED = (
    *(setting for setting in TINY if not setting.startswith("data.synthetic")),
    *RELATIONS,
    "method={name: layer_skipping, top: 1}",
    "privacy={secure_aggregation: true, scores: summed}",
    "federation.min_clients=1",
)
SITES = ("site-1", "site-2", "site-3", "site-4")
Told = list[tuple[str, Mapping[str, Any]]]


class Here(RemoteEngine):
    """The server of sites that are in this process and have joined it; those that are away do not answer."""

    def __init__(self, folder: Path, sites: Mapping[str, RemoteClient], told: Told, run: str = "") -> None:
        def listen(event: str, facts: Mapping[str, Any]) -> None:
            told.append((event, facts))

        experiment = prepare_server(read_source(None, list(SUMMED)), SITES)
        super().__init__(experiment, folder, listen, names=SITES, cache_bytes=0, patience=0.0)
        for site in () if run else sites.values():  # each run finds sites that have released nothing
            site._workplace.database(site.id).unlink(missing_ok=True)
        self.id = run = run or self.sums
        self._sites, self.away = sites, set[str]()
        self.more: Mapping[str, JSON] = {}  # what site-2 says beside what it is asked for
        self.as_if = ""  # the name of another sum's handler, of which site-2 says that it speaks
        for name, site in sites.items():
            site._workplace.run = run
            site._workplace.agreed = agreed_hash(agreed(site._experiment))
            self._greetings[name], self._known[name] = site.greeting, info_of(name, site.greeting)
        self.counting = SecureAggregation(
            experiment.privacy,
            run,
            folder,
            experiment.method,
            experiment.model,
            next(iter(sites.values()))._workplace.agreed,  # a handshake compares them
            len(SITES),
        )

    @property
    def hub(self) -> Any:
        return SimpleNamespace(present=[name for name in self._sites if name not in self.away])

    def turns(self, orders: Iterable[Order]) -> Turns:
        for order in orders:
            site = self._sites[order.client]
            assert site._secure is not None
            assert is_exchange(order.handler)
            done = site._secure.compute(order, site._site)
            if self.as_if and order.client == "site-2" and isinstance(done, Done):
                said = frame.decode(done.update, Update)
                text = json.dumps(said.values).replace("scores/validation", self.as_if)
                done = replace(done, update=frame.encode(Update(said.tensors, json.loads(text))))
            if self.more and order.client == "site-2" and isinstance(done, Done):
                said = frame.decode(done.update, Update)
                done = replace(
                    done, update=frame.encode(Update(said.tensors, {**said.values, **self.more}, 1e308))
                )
            yield order, done

    def scores(self, number: int, state: State | None = None) -> dict[str, Any]:
        """Has the validation documents scored, with the model as it begins if no other is given."""
        self._lost = set(self.away)
        state = state or self._experiment.method.start(self._experiment.model)
        return self.score(number, state, "validation", final=False)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RemoteClient]:
    """Four sites; in every third document nobody looked for relations, so that it cannot be scored."""
    folder = tmp_path_factory.mktemp("sites")
    write(generate(seed=1, sites=4, notes=24), folder / "notes", "jsonl")
    for path in sorted((folder / "notes").rglob("*.jsonl")):
        notes = [json.loads(line) for line in path.read_text().splitlines()]
        for note in notes[::3]:
            note |= {"relations": [], "lacks_relations": True}
        path.write_text("".join(f"{json.dumps(note)}\n" for note in notes))
    simulated_identities(folder, SITES)
    data = (
        "data.format=jsonl",
        f"data.path={folder / 'notes'}",
        "data.split={train: 0.4, validation: 0.4, test: 0.2}",
    )
    made = {}
    for name in SITES:
        (identity, lock), home = files_of(folder, name), folder / f"home of {name}"
        experiment = prepare_client(read_source(None, [*SUMMED, *data]), name)
        made[name] = RemoteClient(
            experiment, name, home, lambda event, facts: None, identity=identity, lock=lock
        )
    return made


def server_of(folder: Path, sites: Mapping[str, RemoteClient], run: str = "") -> tuple[Here, Told]:
    told: Told = []
    return Here(folder, sites, told, run), told


def test_documents_that_cannot_be_scored_are_not_expected_in_a_sum(
    sites: dict[str, RemoteClient], tmp_path: Path
) -> None:
    for site in sites.values():
        documents = site.greeting["documents"]
        assert isinstance(documents, dict)
        assert documents["validation"] == len(site._site.scored("validation"))
    held = [len(site._site.documents.validation) for site in sites.values()]
    assert sum(held) > sum(len(site._site.scored("validation")) for site in sites.values()) > 0
    server, told = server_of(tmp_path, sites)
    assert server.scores(1)["global"]["f1"] >= 0
    assert not told


def test_that_too_few_sites_can_hide_each_other_is_said(
    sites: dict[str, RemoteClient], tmp_path: Path
) -> None:
    server, told = server_of(tmp_path, sites)
    server.away = {"site-2", "site-4"}
    assert server.scores(1)["global"] is None
    ((event, facts),) = told
    assert event == "warning"
    assert re.findall(r"\d+", facts["message"]) == ["3", "2"]


def test_a_model_that_was_scored_last_is_not_scored_again_with_other_sites(
    sites: dict[str, RemoteClient], tmp_path: Path
) -> None:
    """A round that changes nothing leaves it as it was; the difference would be what one site has counted."""
    server, told = server_of(tmp_path, sites)
    first = server.scores(1)
    assert first["global"]
    server.away = {"site-2"}
    assert server.scores(2) == first
    assert not told


def test_a_resumed_server_does_not_count_the_same_model_with_other_sites(
    sites: dict[str, RemoteClient], tmp_path: Path
) -> None:
    before, _ = server_of(tmp_path, sites)
    first = before.scores(1)
    resumed, told = server_of(tmp_path, sites, before.sums)
    resumed.counting.load(1, 1)  # type: ignore[attr-defined]
    resumed.away = {"site-2"}
    assert resumed.scores(2) == first
    assert not told


def test_a_sum_that_a_killed_server_left_is_used_though_one_of_its_sites_is_not_back(
    sites: dict[str, RemoteClient], tmp_path: Path
) -> None:
    killed, _ = server_of(tmp_path, sites)
    first = killed.scores(1)
    assert (tmp_path / "secure_sums" / "00001-scores-validation-1").is_dir()
    again, told = server_of(tmp_path, sites, killed.sums)
    del again._known["site-2"], again._greetings["site-2"]
    assert again.scores(1)["global"] == first["global"]
    assert not told


@pytest.mark.parametrize(
    ("lie", "code"), [({"as_if": "scores/test"}, "wrong_sum"), ({"more": {"loss": 1e308}}, "not_agreed")]
)
def test_a_site_that_speaks_of_another_sum_or_says_more_is_lost_to_this_one_alone(
    sites: dict[str, RemoteClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lie: dict[str, Any],
    code: str,
) -> None:
    """A loss with such a weight would be beyond all numbers that a record can hold."""
    codes: list[str] = []
    fail = Book.fail

    def noted(book: Book, client: str, error: Exception) -> None:
        codes.append(getattr(error, "code", ""))
        fail(book, client, error)

    monkeypatch.setattr(Book, "fail", noted)
    server, told = server_of(tmp_path, sites)
    vars(server).update(lie)
    assert server.scores(1)["global"]
    ((event, facts),) = told
    assert (event, facts["client"]) == ("client_failed", "site-2")
    assert codes == [code]

"""What a server says of a run, and what a site may say beside it."""

from __future__ import annotations

import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from support import TINY, problems_of, refused

from fedstrata.core.errors import ConfigurationError, PolicyError, RefusedError
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import JSON
from fedstrata.engine.check import check_settings
from fedstrata.engine.prepare import prepare_client, prepare_server
from fedstrata.engine.remote.engine import RemoteEngine
from fedstrata.engine.remote.shared_settings import shared_settings, with_shared
from fedstrata.engine.run_folder import open_served

SITE = ("data.synthetic.sites=3", "data.synthetic.notes=12", "data.types=[problem, test, treatment, drug]")


@pytest.fixture(scope="module")
def said() -> dict[str, JSON]:
    source = read_source(None, [*TINY, "method={name: layer_skipping, top: 1}", "training.epochs=2"])
    return shared_settings(prepare_server(source, ["site-1"]))


def test_a_site_that_names_its_documents_has_the_rest_of_the_server(said: dict[str, JSON]) -> None:
    own = with_shared(read_source(None, [*SITE, "device=cpu", "training.cache=on"]), said)
    settings = check_settings(own).settings
    assert (settings.training.epochs, settings.training.cache, settings.device) == (2, "on", "cpu")
    assert settings.method["top"] == 1
    assert settings.data.types == ["problem", "test", "treatment", "drug"]


def test_a_factory_that_a_server_names_is_imported_where_the_site_names_it_too(
    said: dict[str, JSON], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(said["settings"], dict)
    model = {"name": "own_models:plain"}
    told = {**said, "settings": {**said["settings"], "model": model}}
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    with refused(PolicyError, "not_named_here", at="model.name", values=["own_models:plain"]):
        with_shared(read_source(None, [*SITE]), told)
    assert "own_models" not in sys.modules
    own = with_shared(read_source(None, [*SITE, "model.name=own_models:plain"]), told)
    assert not check_settings(own).problems


def test_a_site_joins_a_run_whose_server_has_documents_of_its_own() -> None:
    """None of them is the site's, which may not name any."""
    plus = ["method={name: fedmedlora_plus}", "data.split.server=2"]
    server = prepare_server(read_source(None, [*TINY, *plus]), ["site-1"])
    assert len(server.server) == 2
    site = prepare_client(with_shared(read_source(None, [*SITE]), shared_settings(server)), "site-1")
    assert (site.server, site.method.name) == ((), "fedmedlora_plus")


@pytest.mark.parametrize("same", ["training.epochs=2", "method.top=1", "federation={rounds: 2}", "seed=0"])
def test_a_site_may_say_the_same(said: dict[str, JSON], same: str) -> None:
    assert with_shared(read_source(None, [*SITE, same]), said)


@pytest.mark.parametrize(
    ("other", "found", "values"),
    [
        (["training.epochs=3", "seed=1"], {"training.epochs": "server_decides", "seed": "server_decides"},
         ["has 0"]),
        (["method={name: fedprox, mu: 0.1}"], {"method.name": "server_decides"},
         ["layer_skipping", "not fedprox"]),
        (["method={name: layer_skipping, top: 2}"], {"method.top": "server_decides"}, ["has 1, not 2"]),
        (["threads=2"], {"threads": "server_decides"}, ["has 1, not 2"]),
        (["data.split.server=2"], {"data.split.server": "not_supported"}, []),
        (["federation.min_clients=2"], {"federation.min_clients": "server_decides"}, ["has null, not 2"]),
        (["report_to=[tensorboard]"], {"report_to": "not_supported"}, []),
        (["workers=2"], {"workers": "not_supported"}, []),
        (["federation={dropout: 0.2, corrupt: {share: 0.5}}"],
         {"federation.dropout": "not_supported", "federation.corrupt": "not_supported"}, []),
        (["devices={}"], {"devices": "not_supported"}, []),
        (["training.learning_rate=no"], {"training.learning_rate": "wrong_type"}, []),
    ],
)  # fmt: skip
def test_what_is_not_a_site_s_to_say_is_refused_with_both_values(
    said: dict[str, JSON], other: list[str], found: dict[str, str], values: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        with_shared(read_source(None, [*SITE, *other]), said)
    assert dict(problems_of(caught.value)) == found
    assert all(value in str(caught.value) for value in values)


@pytest.mark.parametrize("task", [(), ("data.types=null", "task={name: lm, max_length: 64}")])
def test_a_client_computes_with_the_threads_of_the_server(tmp_path: Path, task: tuple[str, ...]) -> None:
    """Sums depend on them; the run's folder names them, so that the server goes on with as many."""
    asked = read_source(None, [*TINY, *task])
    experiment = prepare_server(asked, ["site-1"])
    engine_of = partial(RemoteEngine, names=["site-1"], cache_bytes=1, patience=0.0)
    open_served(asked, experiment, tmp_path, lambda *_: None, engine_of, resume=False)
    assert read_source(tmp_path / "config.yaml", []).values["threads"] == 1
    torch.set_num_threads(2)
    try:
        site = [item for item in (*SITE, *task) if not task or "types=[" not in item]
        own = with_shared(read_source(None, site[:-1]), shared_settings(experiment))
        client = prepare_client(own, "site-1")
        assert (torch.get_num_threads(), client.settings.threads) == (1, 1)
    finally:
        torch.set_num_threads(1)


def test_problems_of_a_site_say_where_it_has_set_them(tmp_path: Path, said: dict[str, JSON]) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("data: {format: jsonl, path: x}\npartition:\n  by: site\n  clients: 0\n")
    given = ["data.labels.keep=1", "training.cache=maybe"]
    with pytest.raises(ConfigurationError) as caught:
        with_shared(read_source(file, given), said)
    assert {problem.path: problem.origin for problem in caught.value.problems} == {
        "data.labels.keep": "the command line",
        "training.cache": "the command line",
        "partition.clients": "site.yaml, line 4",
    }


def test_a_server_of_another_version_or_one_that_answers_is_refused(said: dict[str, JSON]) -> None:
    with refused(RefusedError, "other_version", values=["9.9", version("fedstrata")]):
        with_shared(read_source(None, SITE), {**said, "fedstrata": "9.9"})
    with refused(RefusedError, "not_supported"):
        with_shared(read_source(None, SITE), {})

"""Sites in processes of their own with secure aggregation: what they refuse, and what they tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import TINY, problems_of, refused

from fedstrata.client.turn import Done, Order
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.handlers import SCORE
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Plan, Update
from fedstrata.engine.prepare import prepare_client, prepare_server
from fedstrata.engine.remote.joining import RemoteClient
from fedstrata.engine.simulated_identities import files_of, simulated_identities
from fedstrata.privacy.identity import Identity
from fedstrata.wire import frame

SECURE = "privacy.secure_aggregation=true"
SITES = ("site-1", "site-2", "site-3")


def site(folder: Path, *overrides: str, own: str = "site-1", named: bool = True) -> RemoteClient:
    """Returns a site that has an identity and a lock, if it is to have them."""
    simulated_identities(folder, SITES)
    identity, lock = files_of(folder, own)
    experiment = prepare_client(read_source(None, [*TINY, *overrides]), "site-1")
    files = {"identity": identity, "lock": lock} if named else {}
    return RemoteClient(experiment, "site-1", folder / "home", lambda event, facts: None, **files)


def test_a_site_needs_an_identity_and_a_lock_and_names_both_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        site(tmp_path, SECURE, named=False)
    assert problems_of(caught.value) == [("--identity", "missing"), ("--lock", "missing")]


@pytest.mark.claim("federation#lock-insists")
def test_a_site_that_names_them_is_asked_for_nothing_in_the_clear(tmp_path: Path) -> None:
    with refused(ConfigurationError, "no_effect", at="--lock", values=["privacy.secure_aggregation"]):
        site(tmp_path)


def test_a_lock_with_another_identity_for_the_site_is_refused_before_it_joins(tmp_path: Path) -> None:
    simulated_identities(tmp_path, SITES)
    files_of(tmp_path, "site-1")[0].unlink()
    Identity.create(files_of(tmp_path, "site-1")[0])
    with refused(
        ConfigurationError, "not_found", at="", values=[files_of(tmp_path, "site-1")[0], "'site-1'"]
    ):
        site(tmp_path, SECURE)


def test_the_identity_of_another_site_is_named_and_not_to_be_written_into_the_lock(tmp_path: Path) -> None:
    with refused(ConfigurationError, "conflict", at="", values=["'site-1' (--identity)"]) as caught:
        site(tmp_path, SECURE, own="site-2")
    told = str(caught.value)
    assert "'site-2' (--client)" in told
    assert "write" not in told


@pytest.mark.claim("security_review#no-scores")
@pytest.mark.parametrize(("scores", "told"), [("none", False), ("summed", True)])
def test_what_a_site_tells_of_its_scores_is_asked_for(tmp_path: Path, scores: str, told: bool) -> None:
    greeting = site(tmp_path, SECURE, f"privacy.scores={scores}").greeting
    documents = greeting["documents"]
    assert isinstance(documents, dict)
    assert documents["train"]
    assert bool(documents["test"]) == told


@pytest.mark.claim("security_review#no-scores")
@pytest.mark.parametrize("overrides", [(SECURE, "privacy.scores=summed"), (SECURE,), ()])
def test_in_the_clear_a_site_tells_no_scores_that_are_summed_under_masks(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    own = site(tmp_path, *overrides, named=bool(overrides))
    model = own._experiment.model
    plan = frame.encode(Plan(model.snapshot(model.names_outside([])), {"part": "test", "final": False}))
    done = own._workplace.compute(Order("site-1", 1, SCORE, 1, plan), own._site, handle=own._handler(SCORE))
    assert isinstance(done, Done)
    told = frame.decode(done.update, Update)
    assert bool(told.values["tally"]) == bool(told.weight) == (not overrides)


def test_a_server_asks_no_fewer_than_can_hide_each_other() -> None:
    with refused(
        ConfigurationError,
        "not_enough_data",
        at="privacy.secure_aggregation",
        values=["3 to 64", "2 clients"],
    ):
        prepare_server(read_source(None, [*TINY, SECURE]), SITES[:2])

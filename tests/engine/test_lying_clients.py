"""One client lies in an exchange of a masked sum: the others lose nothing, or one round and no more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

import pytest
import torch
from deaths import SECURE, SITES, sums
from support import RunTiny, refused
from torch import Tensor

from fedstrata.core.errors import ClientsLostError
from fedstrata.engine.local import LocalEngine
from fedstrata.privacy.secure_sum import client as secure_client
from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.mean import CUT, WEIGHT, SummedUpdate
from fedstrata.privacy.secure_sum.messages import Roster, SentShares
from fedstrata.privacy.secure_sum.quantization import count_elements
from fedstrata.privacy.secure_sum.refusals import UnusableSum

FEW = "data.synthetic.notes=6"


def say(**changed: Any) -> Callable[[Any], Any]:
    """Returns what changes values of a message; those that are functions are called with what it says."""
    return lambda said: said.model_copy(
        update={name: each(said) if callable(each) else each for name, each in changed.items()}
    )


def spoil(name: str, *, most: int | None = None, **changed: Any) -> Callable[[Any], Any]:
    """Returns what changes all entries of a list, of which so many stay."""
    return say(**{name: lambda said: tuple(say(**changed)(each) for each in getattr(said, name)[:most])})


ALL_OTHERS = (SITES[0], SITES[2], SITES[3])
LIES: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "forged keys": ("keys", say(signature="00" * 64)),
    "weak keys": ("keys", say(mask_key="00" * 32)),
    "too few shares": ("shares", say(shares=lambda said: said.shares[:-1])),
    "garbled shares": ("shares", spoil("shares", sealed="00" * 92)),
    "another model": ("shares", say(context="00" * 32)),
    "false accusations": ("shares", say(shares=(), distrusted=ALL_OTHERS)),
    "invented accusations": ("shares", say(shares=(), distrusted=("nobody",))),
    "unopened shares": ("receive", say(unopened=("nobody", *ALL_OTHERS))),
    "another transcript": ("sign", say(transcript="00" * 32)),
    "a forged signature": ("sign", say(signature="00" * 64)),
    "nothing signed": ("sign", say(site=SITES[0])),
    "false shares released": ("unmask", spoil("self_masks", share="00" * 32)),
    "strangers' shares released": ("unmask", spoil("self_masks", most=1, site="nobody")),
}
COUNTS_STILL = {"unopened shares", "another transcript", "a forged signature", "nothing signed"} | {
    case for case, (exchange, _) in LIES.items() if exchange == "unmask"
}
"""Lies of a client whose input is in the sum already, or may be."""


@pytest.mark.claim("secure_aggregation#lying-site")
def test_a_client_that_lies_costs_the_others_nothing(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lie a round: after each that leaves the client out comes one after which it counts still."""
    out, still = ([case for case in LIES if (case in COUNTS_STILL) == counts] for counts in (False, True))
    cases = [case for pair in zip_longest(out, still) for case in pair if case] + [""]

    def lies(exchange: str) -> Callable[..., Any]:
        answer = getattr(SumClient, exchange)

        def lying(client: SumClient, *said: Any) -> Any:
            true = answer(client, *said)
            at, change = LIES.get(cases[client._name.round - 1], ("", None))
            return change(true) if change and at == exchange and client._site == "site-2" else true

        return lying

    for exchange in {at for at, _ in LIES.values()}:
        monkeypatch.setattr(SumClient, exchange, lies(exchange))
    last = len(cases)
    run = run_tiny(
        *SECURE, FEW, f"federation={{rounds: {last}, evaluate_every: {last}, min_clients: 1, floors: false}}"
    )
    for case, found in zip(cases, sums(run.of("round")), strict=True):
        assert found["refused"] is None, case
        assert found["survivors"] == list(ALL_OTHERS if case in out else SITES), case
    assert {event["client"] for event in run.of("client_failed")} <= {"site-2"}


@pytest.mark.claim("secure_aggregation#allow-without")
@pytest.mark.slow
@pytest.mark.claim("secure_aggregation#false-shares")
def test_a_client_that_deals_false_shares_stops_the_run_and_is_in_no_more_sums(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is seen when the masks are to be removed. Shares have left then, so that an operator decides."""
    shares, split = SumClient.shares, secure_client.split

    def false(client: SumClient, roster: Roster) -> SentShares:
        with monkeypatch.context() as patched:
            if client._site == "site-2":
                patched.setattr(secure_client, "split", lambda _, *of: split(os.urandom(32), *of))
            return shares(client, roster)

    monkeypatch.setattr(SumClient, "shares", false)
    settings = (*SECURE, "federation.rounds=2")
    with refused(UnusableSum, "unusable_sum", values=["site-2"]):
        run_tiny(*settings)
    with refused(ClientsLostError, "clients_lost", values=["AlreadyReleased"]):
        run_tiny("federation.min_clients=2", resume=True)
    monkeypatch.setattr(LocalEngine, "__init__", allowing("site-2"))
    run = run_tiny("federation.min_clients=1", resume=True)
    assert [found["survivors"] for found in sums(run.of("round"))] == [list(ALL_OTHERS)] * 2


def allowing(site: str) -> Callable[..., None]:
    begin = LocalEngine.__init__

    def init(engine: LocalEngine, *arguments: Any, **more: Any) -> None:
        begin(engine, *arguments, **more)
        engine.workplace.allow_without = {site: ""}

    return init


@pytest.mark.claim("secure_aggregation#lying-site")
@pytest.mark.parametrize("false", [10**6, 12_000], ids=["impossible", "possible"])
def test_a_false_count_of_cut_values_costs_a_bounded_range_and_no_round(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch, false: int
) -> None:
    elements = SummedUpdate.elements

    def lying(own: SummedUpdate) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in elements(own):
            yield name, count_elements([false, 0]) if name == CUT and lies.pop() else tensor

    lies = [False, False, False, True] * 4
    monkeypatch.setattr(SummedUpdate, "elements", lying)
    run = run_tiny(*SECURE, FEW, "federation.rounds=4", "federation.evaluate_every=4")
    found = sums(run.of("round"))
    assert [each["refused"] for each in found] == [None] * 4
    widened = [each["range"] for each in found]
    if false == 10**6:
        assert [each["saturated"] for each in found] == [None] * 4
        assert widened == [1.0] * 4
    else:
        assert widened == [1.0, 16.0, 256.0, 256.0]


@pytest.mark.claim("secure_aggregation#false-weight")
@pytest.mark.parametrize("weight", [-(2**20), 2**20])
def test_a_false_weight_stops_the_run_with_one_message(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch, weight: int
) -> None:
    elements = SummedUpdate.elements
    lies = [False, False, False, True]

    def lying(own: SummedUpdate) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in elements(own):
            liar = name == WEIGHT and lies and lies.pop()
            yield name, torch.tensor([weight], dtype=torch.int32) if liar else tensor

    monkeypatch.setattr(SummedUpdate, "elements", lying)
    with pytest.raises(UnusableSum):
        run_tiny(*SECURE, FEW, "federation.rounds=1")
    run = run_tiny(resume=True)
    assert [found["survivors"] for found in sums(run.of("round"))] == [list(SITES)]

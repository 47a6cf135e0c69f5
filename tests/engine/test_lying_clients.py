"""One client lies in an exchange of a masked sum: the others lose nothing, or one round and no more."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support import RunTiny

from fedstrata.engine.secure_mean import SecureAggregation
from fedstrata.privacy.secure_sum import client as secure_client
from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.messages import Roster, SentShares

SECURE = (
    "privacy.secure_aggregation=true",
    "method={name: layer_skipping, top: 1}",
    "data.synthetic.sites=4",
    "data.synthetic.notes=8",
    "federation.min_clients=1",
    "threads=1",
)
SITES = ("site-1", "site-2", "site-3", "site-4")


@pytest.fixture(autouse=True)
def _no_report(no_report: None) -> None:
    """Nothing here looks at one."""


class Killed(BaseException):
    """The process ends here."""


def spoilt(entries: Any, **changed: Any) -> Any:
    return tuple(each.model_copy(update=changed) for each in entries)


LIES: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "forged keys": ("keys", lambda said: said.model_copy(update={"signature": "00" * 64})),
    "weak keys": ("keys", lambda said: said.model_copy(update={"mask_key": "00" * 32})),
    "too few shares": ("shares", lambda said: said.model_copy(update={"shares": said.shares[:-1]})),
    "garbled shares": (
        "shares",
        lambda said: said.model_copy(update={"shares": spoilt(said.shares, sealed="00" * 92)}),
    ),
    "another model": ("shares", lambda said: said.model_copy(update={"context": "00" * 32})),
    "false accusations": (
        "shares",
        lambda said: said.model_copy(update={"shares": (), "distrusted": (SITES[0], SITES[2], SITES[3])}),
    ),
    "invented accusations": (
        "shares",
        lambda said: said.model_copy(update={"shares": (), "distrusted": ("nobody",)}),
    ),
    "unopened shares": (
        "receive",
        lambda said: said.model_copy(update={"unopened": ("nobody", SITES[0], SITES[2], SITES[3])}),
    ),
    "another transcript": ("sign", lambda said: said.model_copy(update={"transcript": "00" * 32})),
    "a forged signature": ("sign", lambda said: said.model_copy(update={"signature": "00" * 64})),
    "nothing signed": ("sign", lambda said: said.model_copy(update={"site": SITES[0]})),
    "false shares released": (
        "unmask",
        lambda said: said.model_copy(update={"self_masks": spoilt(said.self_masks, share="00" * 32)}),
    ),
    "strangers' shares released": (
        "unmask",
        lambda said: said.model_copy(update={"self_masks": spoilt(said.self_masks[:1], site="nobody")}),
    ),
}
COUNTS_STILL = {"unopened shares", "another transcript", "a forged signature", "nothing signed"} | {
    case for case, (exchange, _) in LIES.items() if exchange == "unmask"
}
"""Lies of a client whose input is in the sum already, or may be."""


@pytest.mark.parametrize("case", LIES)
def test_a_client_that_lies_costs_the_others_nothing(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    exchange, change = LIES[case]
    answer = getattr(SumClient, exchange)

    def lying(client: SumClient, *said: Any) -> Any:
        true = answer(client, *said)
        return change(true) if client._site == "site-2" and client._name.round == 1 else true

    monkeypatch.setattr(SumClient, exchange, lying)
    run = run_tiny(*SECURE, "federation.rounds=2")
    first, second = (event["secure_aggregation"] for event in run.of("round"))
    others = [site for site in SITES if site != "site-2"]
    assert first["refused"] is None
    assert first["survivors"] == (list(SITES) if case in COUNTS_STILL else others)
    assert second["survivors"] == list(SITES), "it may come again"
    assert {event["client"] for event in run.of("client_failed")} <= {"site-2"}


@pytest.mark.slow
def test_a_client_that_deals_false_shares_costs_one_round_and_is_in_no_more_sums(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can see it before the masks are to be taken off; also after a crash it is known."""
    shares, split = SumClient.shares, secure_client.split

    def false(client: SumClient, roster: Roster) -> SentShares:
        with monkeypatch.context() as patched:
            if client._site == "site-2":
                patched.setattr(secure_client, "split", lambda _, count: split(os.urandom(32), count))
            return shares(client, roster)

    monkeypatch.setattr(SumClient, "shares", false)
    take, committed = SecureAggregation.save, list[int]()

    def killed_once(own: SecureAggregation, number: int) -> None:
        take(own, number)
        committed.append(number)
        if len(committed) == 2:
            raise Killed

    monkeypatch.setattr(SecureAggregation, "save", killed_once)
    settings = (*SECURE, "federation.rounds=3")
    with pytest.raises(Killed):
        run_tiny(*settings)
    run = run_tiny(*settings, resume=True)
    told = {event["round"]: event["secure_aggregation"] for event in run.of("round")}
    others = [site for site in SITES if site != "site-2"]
    assert [told[number]["refused"] for number in (1, 2, 3)] == ["SharesDoNotFit", None, None]
    assert [told[number]["survivors"] for number in (2, 3)] == [others, others]

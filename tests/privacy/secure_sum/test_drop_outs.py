"""Whoever drops out, whenever: the sum of those whose input came, to the last bit, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from secure_federation import SITES, Federation, equal
from support import refused

from fedstrata.privacy.secure_sum.refusals import OutOfOrder, TooFewSignatures, TooFewSites
from fedstrata.privacy.secure_sum.shares import threshold

EXCHANGES = ("keys", "shares", "delivery", "input", "consistency", "unmasking")
"""In each, a site may be lost before it answers."""
QUICK = {(3, "keys"), (3, "input"), *((4, each) for each in ("delivery", "input", "unmasking"))}
REFUSALS = (TooFewSites, TooFewSignatures, OutOfOrder)


def subsets(sites: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for count in range(len(sites) + 1):
        yield from combinations(sites, count)


def outcome(sites: tuple[str, ...], lost: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """Whose sum has to come out; none if too few are left anywhere."""
    left = list(sites)
    needed = threshold(len(sites))
    survivors: tuple[str, ...] = ()
    for exchange in EXCHANGES:
        left = [site for site in left if site not in lost.get(exchange, ())]
        if len(left) < max(3, needed):
            return None
        if exchange == "input":
            survivors = tuple(left)
    return survivors


def check(sites: tuple[str, ...], lost: Mapping[str, tuple[str, ...]], folder: Path) -> None:
    expected = outcome(sites, lost)
    federation = Federation(sites, folder)
    if expected is None:
        with pytest.raises(REFUSALS):
            federation.run(lost)
    else:
        assert equal(federation.run(lost), expected)


@pytest.mark.parametrize(
    ("count", "exchange"),
    [
        pytest.param(count, exchange, marks=pytest.mark.slow if (count, exchange) not in QUICK else ())
        for count, exchange in product((3, 4, 5, 6), EXCHANGES)
    ],
)
def test_every_subset_that_drops_out_in_one_exchange(count: int, exchange: str, tmp_path: Path) -> None:
    sites = SITES[:count]
    for number, lost in enumerate(subsets(sites)):
        check(sites, {exchange: lost}, tmp_path / str(number))


@given(st.data())
def test_drop_outs_in_several_exchanges(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sites = SITES[: data.draw(st.integers(3, 6))]
    moments = st.sampled_from([*EXCHANGES, "never", "never", "never"])
    moment = {site: data.draw(moments) for site in sites}
    lost = {each: tuple(site for site in sites if moment[site] == each) for each in EXCHANGES}
    check(sites, lost, tmp_path_factory.mktemp("sum"))


def test_a_sum_needs_as_many_sites_as_each_wants(tmp_path: Path) -> None:
    assert equal(Federation(SITES[:5], tmp_path / "all", minimum=5).run(), SITES[:5])
    with refused(TooFewSites, "too_few_sites", values=["5 sites", "4 sent"]):
        Federation(SITES[:5], tmp_path / "four", minimum=5).run({"input": SITES[:1]})


def test_two_sites_are_told_why_they_cannot(tmp_path: Path) -> None:
    with refused(TooFewSites, "too_few_sites", values=["3 sites", "2 answered"]):
        Federation(SITES[:2], tmp_path).run()


def test_what_the_server_gets_of_a_site_tells_nothing_of_its_input(tmp_path: Path) -> None:
    """Two sums of the same inputs share no element with each other or with the input: fresh masks."""
    seen = []
    for number in range(2):
        federation = Federation(SITES[:3], tmp_path / str(number))
        sharers = federation.delivery(federation.shares(federation.keys()))
        seen.append(torch.cat([t.view(-1) for t in federation.masked(SITES[0], sharers).values()]))
    assert not torch.equal(seen[0], seen[1])
    assert (seen[0] == seen[1]).sum() <= 1

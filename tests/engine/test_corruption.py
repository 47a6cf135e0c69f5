"""Corrupt clients in real tiny runs: what they send, and that nothing else changes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import TINY, RunTiny, assert_same_tensors, silent, watch_training

from fedstrata.client.site import Site
from fedstrata.core.client import Client
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.federation import CorruptSettings
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Plan, Update
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import prepare
from fedstrata.engine.run import Run
from fedstrata.engine.sites import corrupt_clients, sites_of

FEDAVG = "method={name: fedavg}"
CORRUPT = "site-2"
"""Who is drawn with the default seed."""
FEW = "data.synthetic.notes=6"
ONCE = ("federation.rounds=1", "federation.floors=false", FEW)
Changes = dict[str, dict[str, torch.Tensor]]


def changes_of(folder: Path, *overrides: str) -> Changes:
    """Runs one round and returns what each client sent, less what it was sent."""
    experiment = prepare(read_source(None, [*TINY, *ONCE, *overrides]))
    sent: Changes = {}

    def after(plan: Plan, client: Client, update: Update) -> None:
        sent[client.id] = {name: t - plan.tensors[name] for name, t in update.tensors.items()}

    watch_training(experiment, after)
    folder.mkdir()
    Run(experiment, folder, silent, LocalEngine).execute()
    return sent


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Changes:
    return changes_of(tmp_path_factory.mktemp("honest") / "run", FEDAVG)


@pytest.mark.parametrize(
    ("kind", "strength", "factor"),
    [
        pytest.param("sign_flip", "null", -1.0, marks=pytest.mark.slow),
        ("sign_flip", "3.0", -3.0),
        ("scale", "null", 10.0),
        pytest.param("scale", "0.5", 0.5, marks=pytest.mark.slow),
    ],
)
def test_a_corrupt_client_sends_a_multiple_of_its_change_and_the_others_theirs(
    honest: Changes, tmp_path: Path, kind: str, strength: str, factor: float
) -> None:
    corrupt = f"federation.corrupt={{share: 0.3, kind: {kind}, strength: {strength}}}"
    found = changes_of(tmp_path / "corrupt", FEDAVG, corrupt)
    assert found.keys() == honest.keys()
    for client in set(honest) - {CORRUPT}:
        assert_same_tensors(found[client], honest[client])
    for name, change in honest[CORRUPT].items():
        torch.testing.assert_close(found[CORRUPT][name], factor * change, rtol=1e-4, atol=1e-5)


def test_noise_in_place_of_a_change_is_as_long_as_it_and_has_nothing_of_it(
    honest: Changes, tmp_path: Path
) -> None:
    corrupt = "federation.corrupt={share: 0.3, kind: gaussian, strength: 2.0}"
    real = honest[CORRUPT]
    noise = changes_of(tmp_path / "corrupt", FEDAVG, corrupt)[CORRUPT]
    large = [name for name, tensor in real.items() if tensor.numel() >= 1024]
    assert len(large) > 5
    for name in large:
        size = float(noise[name].norm() / real[name].norm())
        assert size == pytest.approx(2.0, rel=5 / math.sqrt(2 * real[name].numel()))
        cosine = torch.nn.functional.cosine_similarity(noise[name].flatten(), real[name].flatten(), dim=0)
        assert abs(float(cosine)) < 5 / math.sqrt(real[name].numel())


def test_what_stays_at_a_corrupt_client_is_what_it_trained(run_once: RunTiny) -> None:
    method = "method={name: layer_skipping, top: 1, head: local}"
    corrupt = "federation.corrupt={share: 0.3, kind: scale}"
    honest, found = run_once(method, *ONCE), run_once(method, *ONCE, corrupt)
    for client in ("site-1", CORRUPT, "site-3"):
        stores = [run.folder / "clients" / client / "store-00001.safetensors" for run in (honest, found)]
        assert stores[0].read_bytes() == stores[1].read_bytes()
    assert any(not torch.equal(t, found.state.tensors[name]) for name, t in honest.state.tensors.items())


@pytest.fixture(scope="module")
def honest_sites() -> list[Site]:
    return sites_of(prepare(read_source(None, TINY)))[0]


@pytest.mark.parametrize("kind", ["shuffled_labels", "shuffled_tokens", "label_flips"])
def test_only_the_training_examples_of_corrupt_clients_change(honest_sites: list[Site], kind: str) -> None:
    overrides = [*TINY, f"federation.corrupt={{share: 0.3, kind: {kind}}}"]
    sites, trainers = sites_of(prepare(read_source(None, overrides)))
    assert sites == trainers
    for site, honest in zip(sites, honest_sites, strict=True):
        assert site.documents == honest.documents
        pairs = list(zip(site.encode(), honest.encode(), strict=True))
        same = [(one.input_ids == two.input_ids).all() and (one.tags == two.tags).all() for one, two in pairs]
        assert all(same) == (site.id != CORRUPT)
        again = zip(site.encode(), site.encode(), strict=True)
        assert all((one.input_ids == two.input_ids).all() for one, two in again)
        assert site.count == honest.count


def test_a_portion_of_the_examples_of_a_named_client_is_corrupt_and_those_of_less_are_among_them(
    honest_sites: list[Site],
) -> None:
    corrupted: list[set[int]] = [set()]
    for portion in (0.25, 0.5, 1.0):
        corrupt = f"federation.corrupt={{clients: [site-3], portion: {portion}, kind: label_flips}}"
        sites, _ = sites_of(prepare(read_source(None, [*TINY, corrupt])))
        for site, honest in zip(sites, honest_sites, strict=True):
            pairs = list(zip(site.encode(), honest.encode(), strict=True))
            changed = {index for index, (one, two) in enumerate(pairs) if (one.tags != two.tags).any()}
            if site.id == "site-3":
                assert portion == 1.0 or len(changed) == math.floor(portion * len(pairs) + 0.5)
                assert corrupted[-1] < changed
                corrupted.append(changed)
            else:
                assert not changed


def test_the_record_and_the_summary_say_who_is_corrupt(run_tiny: RunTiny) -> None:
    run = run_tiny("federation.corrupt={share: 0.5, kind: sign_flip}", *ONCE, report=True)
    expected = {"clients": ["site-1", "site-2"], "kind": "sign_flip", "strength": 1.0}
    assert run.of("run")[0]["corrupt"] == run.summary["corrupt"] == expected
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert page.count('<span class="tag">corrupt</span>') == 2


def test_a_share_of_nobody_is_the_run_without_the_setting(run_once: RunTiny) -> None:
    plain, named = run_once(*ONCE), run_once(*ONCE, "federation.corrupt.kind=gaussian")
    assert_same_tensors(plain.state.tensors, named.state.tensors)
    assert named.of("run")[0]["corrupt"] is None


def test_pooled_data_holds_the_corrupt_examples_and_no_update_is_distorted(run_once: RunTiny) -> None:
    pooled = ("method={name: centralized}", "federation={rounds: 1, floors: false}")
    plain = run_once(*pooled)
    labels, flipped = (
        run_once(*pooled, f"federation.corrupt={{share: 0.3, kind: {kind}}}")
        for kind in ("label_flips", "sign_flip")
    )
    assert_same_tensors(plain.state.tensors, flipped.state.tensors)
    assert flipped.summary["corrupt"] is None
    assert labels.summary["corrupt"]["clients"] == [CORRUPT]
    assert labels.of("round")[0]["loss"] > plain.of("round")[0]["loss"]


@given(st.integers(1, 30), st.floats(0, 0.99), st.floats(0, 0.99), st.integers(0, 9))
def test_as_many_are_drawn_as_asked_and_more_at_a_greater_share(
    clients: int, one: float, other: float, seed: int
) -> None:
    names = [f"site-{number}" for number in range(clients)]
    low, high = (
        corrupt_clients(names, CorruptSettings(share=share), Seed(seed)) for share in sorted((one, other))
    )
    assert low.keys() <= high.keys()
    assert len(high) == math.ceil(max(one, other) * clients - 1e-9)
    flipped = corrupt_clients(names, CorruptSettings(share=max(one, other), kind="scale"), Seed(seed))
    assert list(flipped) == list(high)

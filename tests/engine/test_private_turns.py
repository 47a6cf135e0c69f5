"""Private runs: what a turn spends, and what of it leaves a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from deaths import Killed
from private_client import JOINT, PRIVATE
from support import TINY, RunTiny, refused, silent

from fedstrata.client import turn
from fedstrata.client.releases import Release, ReleaseRecord
from fedstrata.client.store import ClientStore
from fedstrata.client.turn import Done, Order
from fedstrata.core.documents import Document
from fedstrata.core.errors import BudgetSpentError, ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.site_database import SITE_DATABASE
from fedstrata.core.types import Plan, Update
from fedstrata.data.split import units_of
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import prepare
from fedstrata.engine.remote.turns import TurnsBegun
from fedstrata.privacy import randomness
from fedstrata.privacy.accounting import Mechanism, epsilon_of, sigma_for
from fedstrata.privacy.clipping import UnitGradients
from fedstrata.privacy.randomness import SecureRandomness, SeededRandomness
from fedstrata.wire import frame
from fedstrata.wire.frame import Frame

METHOD = "method={name: layer_skipping, top: 1}"
TURN = (1, "train", 1)


def test_an_update_has_noised_tensors_and_declared_numbers_alone(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Update] = []
    seeds: list[Seed] = []
    encode = frame.encode

    class Told(SeededRandomness):
        def __init__(self, seed: Seed) -> None:
            seeds.append(seed)
            super().__init__(seed)

    monkeypatch.setattr(turn.frame, "encode", lambda one: (sent.append(one), encode(one))[1])
    monkeypatch.setattr(randomness, "SeededRandomness", Told)
    run = run_tiny(*PRIVATE, METHOD, "federation.floors=false")
    updates = list({id(one): one for one in sent if isinstance(one, Update)}.values())  # kept, and sent
    assert len(updates) == 6
    assert all(not one.values for one in updates)
    assert {one.weight for one in updates} == {8.0}, "what they declare, and no count"
    assert len({(seed.root, seed.path) for seed in seeds}) == 6, "no two turns draw the same"
    told = [event["privacy"]["clients"] for event in run.of("round")]
    secure = prepare(read_source(None, [*TINY, *PRIVATE, METHOD, "privacy.noise=secure"])).privacy
    for number, clients in enumerate(told, start=1):
        turns = {f"site-{site}": number for site in (1, 2, 3)}
        assert clients == {site: {"turns": number, "epsilon": None} for site in turns}, "it is seeded"
        expected = pytest.approx(epsilon_of([Mechanism(1.0, 0.25, 3 * number)], 0.01))
        assert secure.spent(turns) == {site: {"turns": number, "epsilon": expected} for site in turns}


@pytest.mark.claim("differential_privacy#seeded-epsilon")
def test_sigma_is_solved_for_all_steps_of_all_turns_and_spare_ones() -> None:
    spare, more = 3, ("privacy.sigma=null", "privacy.epsilon=5", "privacy.spare_turns=3")
    privacy = prepare(read_source(None, [*TINY, *PRIVATE, METHOD, *more])).privacy
    assert privacy.turns == 2 + spare
    assert privacy.sigma == sigma_for(5.0, 0.01, 0.25, 3 * (2 + spare))
    assert privacy.nominal_epsilon("site-1", 2 + spare) == pytest.approx(5.0, rel=1e-2)
    assert [privacy.epsilon("site-1", turns) for turns in (0, 1)] == [0.0, None], "it is seeded"


def test_sigma_is_solved_for_the_site_with_the_fewest_units() -> None:
    """It sees each of them most often."""
    more = ("privacy.sigma=null", "privacy.epsilon=5", "privacy.units={site-1: 80, site-2: 5, site-3: 10}")
    privacy = prepare(read_source(None, [*TINY, *PRIVATE, METHOD, *more])).privacy
    assert privacy.sigma == sigma_for(5.0, 0.01, 2 / 5, 3 * 4)


def engine_of(folder: Path, *overrides: str) -> tuple[LocalEngine, Frame]:
    experiment = prepare(read_source(None, [*TINY, *overrides, METHOD]))
    plan = frame.encode(Plan(experiment.method.start(experiment.model).tensors))
    return LocalEngine(experiment, folder, silent), plan


def test_a_server_is_told_of_declared_units() -> None:
    engine, _ = engine_of(Path("nowhere"), *PRIVATE)
    assert [engine.info(client).examples for client in engine.clients()] == [8, 8, 8]


def test_more_units_than_are_declared_are_refused() -> None:
    fewer = "privacy.units={site-1: 2, site-2: 2, site-3: 2}"
    with refused(ConfigurationError, "out_of_range", at="privacy.units", values=["'site-1'", 2]):
        prepare(read_source(None, [*TINY, *PRIVATE, METHOD, "data.synthetic.notes=24", fewer]))


def test_a_patient_has_all_of_her_documents() -> None:
    documents = [
        Document(str(number), "text", site=site, metadata={"patient": patient})
        for number, (site, patient) in enumerate(["ax", "aX", "ay", "bx"])
    ]
    by_patient = units_of(documents, "patient")
    assert {key: [one.id for one in own] for key, own in by_patient.items()} == {
        ("a", "x"): ["0", "1"],
        ("a", "y"): ["2"],
        ("b", "x"): ["3"],
    }
    assert len(units_of(documents, "document")) == 4


def record(folder: Path, run: str | None = None) -> ReleaseRecord:
    return ReleaseRecord(folder / "one" / SITE_DATABASE, "one", run)


def release(folder: Path, *, allowed: int = 9, plan: float = 0.0) -> Release:
    tensors = {"w": torch.tensor([plan])}
    return Release(record(folder), folder / "one", TURN, frame.encode(Plan(tensors)), allowed)


def test_a_killed_turn_has_spent_what_a_whole_one_spends(tmp_path: Path) -> None:
    for count in (1, 2, 3):
        release(tmp_path, allowed=3).begin()  # and is killed
        assert record(tmp_path).turns_begun == count
    with refused(BudgetSpentError, "budget_spent", values=["one", 3]):
        release(tmp_path, allowed=3).begin()
    assert record(tmp_path).turns_begun == 3


def test_turns_of_other_noise_are_none_of_the_run(tmp_path: Path) -> None:
    """An epsilon of all of them by the noise of now would not be theirs."""

    def begin(**noise: float) -> None:
        Release(record(tmp_path), tmp_path / "one", TURN, frame.encode(Plan()), 9, noise=noise).begin()

    begin(sigma=1.5, rate=0.1, steps=20)
    begin(sigma=1.5, rate=0.1, steps=20)
    for other in ({"sigma": 1.0}, {"rate": 0.01}, {"steps": 1}):
        with refused(BudgetSpentError, "changed", values=[2]):
            begin(**{"sigma": 1.5, "rate": 0.1, "steps": 20} | other)
    assert record(tmp_path).turns_begun == 2


def test_a_turn_without_a_run_id_counts_for_every_run(tmp_path: Path) -> None:
    """A server that leaves the id of the run out must not begin the count anew."""

    def begin(run: str | None, *, allowed: int = 9) -> None:
        place = record(tmp_path, run)
        Release(place, tmp_path / "one", TURN, frame.encode(Plan()), allowed).begin()

    begin("a" * 16)
    begin(None)
    begin("b" * 16)
    turns = {run: record(tmp_path, run).turns_begun for run in ("a" * 16, "b" * 16, "c" * 16, None)}
    assert turns == {"a" * 16: 2, "b" * 16: 2, "c" * 16: 1, None: 3}
    with pytest.raises(BudgetSpentError):
        begin(None, allowed=3)
    other = ReleaseRecord(record(tmp_path).path, "two")
    assert other.turns_begun == 0
    assert record(tmp_path).path.stat().st_mode & 0o777 == 0o600


def test_who_has_lost_what_it_kept_has_spent_it_all_the_same() -> None:
    turns = TurnsBegun({"a": 2})
    assert [turns.hear("a", said) for said in (3, 3, 1, 2)] == [False, False, True, False]
    assert (turns["a"], turns["b"]) == (5, 0)
    assert turns.hear("a", 1)
    assert turns["a"] == 6


def test_a_finished_turn_is_answered_with_what_was_sent_and_no_other_is(tmp_path: Path) -> None:
    store = ClientStore(tmp_path / "one", 1)
    own, update = release(tmp_path), Update({"w": torch.tensor([7.0])}, weight=8.0)
    assert own.finished(store) is None
    own.begin()
    assert release(tmp_path).finished(store) is None
    own.finish(update, store)
    again = release(tmp_path).finished(store)
    assert again is not None
    assert torch.equal(again.tensors["w"], update.tensors["w"])
    assert release(tmp_path, plan=1.0).finished(store) is None, "of another plan it tells something new"
    assert record(tmp_path).turns_begun == 1


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_a_repeated_order_is_one_release_and_a_killed_one_is_spent(
    noise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, plan = engine_of(tmp_path, *PRIVATE, f"privacy.noise={noise}")

    def answered(number: int) -> bytes:
        done = engine.compute(Order("site-1", number, "train", 1, plan))
        assert isinstance(done, Done)
        return b"".join(bytes(piece) for piece in done.update.buffers())

    assert answered(1) == answered(1)
    assert engine.turns_begun("site-1") == 1

    def killed(*_: Any, **__: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(UnitGradients, "gradients", killed)
        with pytest.raises(Killed):
            answered(2)
    assert engine.turns_begun("site-1") == 2
    answered(2)
    assert engine.turns_begun("site-1") == 3
    answered(3)
    with pytest.raises(BudgetSpentError):  # two rounds, two spare turns
        answered(4)


def test_a_share_of_joint_noise_is_never_kept_to_be_sent_again(tmp_path: Path) -> None:
    """It was drawn for one roster: under the masks of another it would be too small."""
    engine, plan = engine_of(tmp_path, *JOINT)
    assert all(isinstance(engine.compute(Order("site-1", 1, "train", 1, plan)), Done) for _ in range(2))
    assert engine.turns_begun("site-1") == 2
    assert not list(tmp_path.rglob("release-*"))


def test_secure_turns_have_keys_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SecureRandomness] = []
    monkeypatch.setattr(
        randomness, "SecureRandomness", lambda: (made.append(SecureRandomness()), made[-1])[1]
    )
    engine, plan = engine_of(tmp_path, *PRIVATE, "privacy.noise=secure")
    for number in (1, 2):
        assert isinstance(engine.compute(Order("site-1", number, "train", 1, plan)), Done)
    assert len(set(map(id, made))) == 2
    noise = torch.stack([own.normal(10_000) for own in made])
    assert abs(float(torch.corrcoef(noise)[0, 1])) < 0.06

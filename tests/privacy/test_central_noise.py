"""Central noise: each noised mean is recorded before it is used, and each that was drawn is charged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support import TINY, RunTiny, refused

from fedstrata.core.errors import BudgetSpentError
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import ClientInfo, Update
from fedstrata.engine.run_folder import open_run
from fedstrata.privacy.accounting import Mechanism, epsilon_of
from fedstrata.privacy.central import NoisedMeans
from fedstrata.privacy.mechanism import EVERYBODY, Privacy
from fedstrata.privacy.randomness import SecureRandomness
from fedstrata.record.log import read_events

CENTRAL = (
    "task={name: ner, types: [problem, test, treatment, drug]}",
    "method={name: fedavg}",
    "federation.rounds=3",
    "federation.evaluate_every=3",
    "privacy={mechanism: central, sigma: 1.0, delta: 0.1, clip: 0.1, spare_turns: 2}",
)


def stopped_and_damaged(folder: Path) -> None:
    """Runs until the mean of round 3 is noised, and changes one bit of the newest checkpoint."""

    def listen(event: str, facts: Mapping[str, Any]) -> None:
        if event == "noised" and facts["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_run(read_source(None, [*TINY, *CENTRAL]), folder, listen, resume=False).execute()
    damage_newest(folder)


def damage_newest(folder: Path) -> None:
    newest = max((folder / "checkpoints").iterdir())
    damaged = bytearray(newest.read_bytes())
    damaged[-1] ^= 1
    newest.write_bytes(damaged)


@pytest.mark.claim("differential_privacy#noised-means")
def test_every_mean_that_was_noised_is_charged(run_tiny: RunTiny, tmp_path: Path) -> None:
    """Rounds 2 and 3 are noised twice: three rounds, one resumption, five means. A sixth is not drawn."""
    stopped_and_damaged(tmp_path / "run")
    resumed = run_tiny(out="run", resume=True)
    assert [event["round"] for event in resumed.of("noised")] == [1, 2, 3, 2, 3]
    (last,) = resumed.of("privacy")[-1:]
    spent = epsilon_of([Mechanism(1.0, 1.0, 5)], 0.1)
    assert {own["turns"] for own in last["clients"].values()} == {5}
    assert resumed.summary["privacy"]["epsilon"] == pytest.approx(spent)
    damage_newest(resumed.folder)
    with refused(BudgetSpentError, "budget_spent", values=["5 means"]):
        run_tiny(out="run", resume=True)
    events = read_events(resumed.folder / "record.jsonl")
    assert [event["round"] for event in events if event["event"] == "noised"] == [1, 2, 3, 2, 3]


def test_a_mean_is_recorded_before_it_is_returned() -> None:
    privacy = Privacy(sigma=1.0, rates={EVERYBODY: 1.0}, turns=2)
    recorded: list[int] = []
    means = NoisedMeans(privacy, recorded.append)
    sent = {"w": torch.zeros(4)}

    def mean(number: int) -> Any:
        updates = [(ClientInfo("one", 1), Update(dict(sent), {}, weight=1.0))]
        return means.mean(number, sent, updates, expected=1.0, randomness=SecureRandomness())

    def fails(number: int) -> None:
        raise OSError

    assert mean(1).tensors.keys() == {"w"}
    broken = NoisedMeans(privacy, fails)
    with pytest.raises(OSError):
        broken.mean(1, sent, [], expected=1.0, randomness=SecureRandomness())
    mean(2)
    with pytest.raises(BudgetSpentError):
        mean(3)
    assert recorded == [1, 2]


def test_the_rounds_of_a_record_without_such_events_count() -> None:
    """An earlier version recorded rounds alone, and counted what was resumed."""
    means = NoisedMeans(Privacy(), lambda number: None)
    rounds = [{"event": "round", "round": number, "abandoned": number == 3} for number in (1, 2, 3)]
    means.load([{"event": "run"}, *rounds[:2], {"event": "resumed"}, rounds[2]])
    assert means.count == 3
    means.load([{"event": "noised", "round": 1}, rounds[0], {"event": "resumed"}])
    assert means.count == 1


def test_turns_are_recorded_if_no_epsilon_can_be_worked_out(
    run_tiny: RunTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impossible(*_: object) -> None:
        raise ArithmeticError

    heard: list[tuple[str, Mapping[str, Any]]] = []
    source = read_source(None, [*TINY, *CENTRAL, "federation.rounds=1"])
    run = open_run(source, tmp_path / "run", lambda *told: heard.append(told), resume=False)
    monkeypatch.setattr(run.experiment.privacy.__class__, "epsilon", impossible)
    with pytest.raises(ArithmeticError):  # of the round
        run.execute()
    events = read_events(tmp_path / "run" / "record.jsonl")
    (last,) = [event for event in events if event["event"] == "privacy"]
    assert last["clients"] == {f"site-{site}": {"turns": 1, "epsilon": None} for site in (1, 2, 3)}
    assert any("ArithmeticError" in facts["message"] for event, facts in heard if event == "warning")

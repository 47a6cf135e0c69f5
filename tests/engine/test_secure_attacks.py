"""What a site refuses a server that asks in its own way, and what of a sum's secrets lies on a disk."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import deaths
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from deaths import SITES, killed_at, sums
from private_client import PRIVATE
from support import TINY, RunTiny, refused

from fedstrata.client.secure_turns import CONSISTENCY, KEYS, SHARES, UNMASK
from fedstrata.client.turn import Done, Failed, Order
from fedstrata.core.errors import BudgetRefusedError, FedstrataError
from fedstrata.core.handlers import INPUT
from fedstrata.core.settings.source import read_source
from fedstrata.core.site_database import SITE_DATABASE, site_database
from fedstrata.core.types import JSON, Plan
from fedstrata.engine.prepare import prepare_client
from fedstrata.engine.remote.joining import RemoteClient
from fedstrata.engine.secure_mean import FOLDER, SecureAggregation
from fedstrata.engine.simulated_identities import files_of, simulated_identities
from fedstrata.privacy.budgets.pseudonyms import PseudonymKey
from fedstrata.privacy.ledger_verification import LEDGER, read_ledger
from fedstrata.privacy.ledger_witness import WITNESSED
from fedstrata.privacy.secure_sum import client as secure_client
from fedstrata.wire import frame

SECURE = (*deaths.SECURE, "federation.rounds=1")
RUN = "0123456789abcdef"
NAME: Mapping[str, JSON] = {"run": RUN, "round": 1, "handler": "train", "call": 1, "attempt": 0}
TENSOR: Mapping[str, JSON] = {"name": "w", "shape": [2], "bound": 1.0}


Asked = Callable[..., Done | Failed]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return asked_in(tmp_path_factory.mktemp("site"))


def asked_in(folder: Path, *overrides: str) -> Asked:
    simulated_identities(folder, SITES)
    identity, lock = files_of(folder, "site-1")
    experiment = prepare_client(read_source(None, [*TINY, *SECURE, *overrides]), "site-1")
    site = RemoteClient(
        experiment, "site-1", folder / "home", lambda event, facts: None, identity=identity, lock=lock
    )
    site._workplace.run = RUN

    def ask(turn: str, values: Mapping[str, JSON]) -> Done | Failed:
        assert site._secure is not None
        return site._secure.compute(
            Order("site-1", 1, turn, 1, frame.encode(Plan({}, dict(values)))), site._site
        )

    return ask


def terms(*tensors: Mapping[str, JSON], scale: int = 8, **name: JSON) -> dict[str, JSON]:
    return {
        "kind": "mean",
        "sum": {**NAME, **name},
        "plan": "ab" * 32,
        "tensors": [dict(each) for each in tensors or (TENSOR,)],
        "scale": scale,
        "loss": True,
    }


def refusal(found: Done | Failed) -> str:
    if not isinstance(found, Failed):
        return ""
    name = type(found.error).__name__
    return f"{name}: {found.error.code}" if isinstance(found.error, FedstrataError) else name


@pytest.mark.parametrize(
    ("hostile", "told", "value"),
    [
        (terms(TENSOR, TENSOR), "FrameError", "must have names"),
        (terms({**TENSOR, "name": "secure/weight"}), "FrameError", "must have names"),
        (terms({**TENSOR, "bound": 0.0}), "FrameError", ""),
        (terms({**TENSOR, "bound": "nan"}), "FrameError", ""),
        (terms({**TENSOR, "shape": [2**62]}), "FrameError", ""),
        (terms({**TENSOR, "shape": [-1]}), "FrameError", ""),
        (terms(scale=2**40), "FrameError", ""),
        (terms(scale=0), "FrameError", ""),
        (terms(handler="round"), "WrongSum: not_agreed", ""),
        (terms(handler="__class__"), "WrongSum: not_agreed", ""),
        (terms(handler="train/weights"), "WrongSum: not_agreed", ""),
        (terms(run="fedcba9876543210"), "WrongSum: not_agreed", ""),
        (terms(round=2), "WrongSum: not_agreed", ""),
        (terms(call=2), "WrongSum: not_agreed", ""),
    ],
)
def test_a_sum_that_is_none_of_the_method_does_not_begin(
    asked: Asked, hostile: dict[str, JSON], told: str, value: str
) -> None:
    """Under another name than that of the turn a sum that is released could be asked for again."""
    found = asked(KEYS, hostile)
    assert isinstance(found, Failed)
    assert re.match(told, refusal(found))
    assert value in str(found.error)


def test_a_site_without_room_in_its_budget_drops_out_before_a_sum_begins(tmp_path: Path) -> None:
    PseudonymKey.create(tmp_path / "budget.key")
    own = f"privacy.budget={{path: {tmp_path / 'budget.db'}, epsilon: 0.001, delta: 0.001}}"
    private = (*PRIVATE, "privacy.units.site-4=8", "privacy.noise=secure", own)
    ask = asked_in(tmp_path, *private, "privacy.secure_aggregation=true")
    with refused(BudgetRefusedError, "budget_refused"):
        ask(KEYS, terms())
    folder = tmp_path / "home" / "clients" / "site-1"
    assert [line["handler"] for line in read_ledger(folder / LEDGER)] == [""], "what it joined with"
    with site_database(tmp_path / "home" / SITE_DATABASE, ()) as database:
        made = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
    assert "sums" not in made, "no sum was begun"


COUNTS: Mapping[str, JSON] = {"name": "counts", "shape": [12, 3], "bound": 1.0}


def of_counts(part: str = "validation", **changed: JSON) -> dict[str, JSON]:
    return {**terms(COUNTS, scale=1, handler=f"scores/{part}"), "loss": False, "counts": True, **changed}


COUNTS_OF_NO_METHOD: Mapping[str, tuple[str, dict[str, JSON]]] = {
    "of training documents": ("@score/keys", of_counts("train")),
    "by a handler": ("@score/keys", of_counts(sum={**NAME, "handler": "train"})),
    "of updates": ("@score/keys", terms()),
    "in a round": (KEYS, of_counts()),
    "as a mean": (KEYS, terms(handler="scores/validation")),
}


def test_a_sum_of_counts_is_of_documents_that_are_set_aside(tmp_path: Path) -> None:
    asked = asked_in(tmp_path, "privacy.scores=summed")
    for what, (turn, hostile) in COUNTS_OF_NO_METHOD.items():
        assert refusal(asked(turn, hostile)).startswith("WrongSum: not_agreed"), what
    assert isinstance(asked("@score/keys", of_counts()), Done)


def test_a_site_that_tells_no_scores_takes_part_in_no_sum_of_them(asked: Asked) -> None:
    assert refusal(asked("@score/keys", of_counts())).startswith("WrongSum: not_agreed")


@pytest.mark.slow
def test_a_sum_that_was_begun_of_counts_has_no_update_in_it(tmp_path: Path) -> None:
    asked = asked_in(tmp_path, "privacy.scores=summed")
    assert isinstance(asked("@score/keys", of_counts()), Done)
    for turn in (SHARES, INPUT, CONSISTENCY, UNMASK):
        assert refusal(asked(turn, {"sum": {}})).startswith("SessionLost"), turn
    for none in ("@score/train", "@score/more/keys", "secure/more/input"):
        assert refusal(asked(none, of_counts())).startswith("FrameError: unknown_name"), none


@pytest.mark.slow
def test_whatever_is_asked_for_a_site_is_there_for_the_next_sum(asked: Asked) -> None:
    """Nothing is made of sizes that a server says, and no damaged message ends the process."""
    many = [{**TENSOR, "name": f"w{index}", "shape": [2**31 - 1] * 4} for index in range(5000)]
    assert isinstance(asked(KEYS, terms(*many)), Done)
    for turn in (SHARES, INPUT, CONSISTENCY, UNMASK):
        for values in ({}, {"sum": {}}, {"sum": {"kind": "roster"}}, {"sum": 5}, {"sum": {"other": {}}}):
            assert refusal(asked(turn, values)).startswith("FrameError")
    assert isinstance(asked(KEYS, terms(attempt=1)), Done)
    assert refusal(asked(KEYS, terms(attempt=1))).startswith("AttemptNotHigher")


def test_who_cannot_keep_what_others_have_signed_drops_out(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is its own: the others go on."""

    def with_disk(run: Path, clients: Sequence[str]) -> str:
        (run / "clients" / "site-2" / WITNESSED).mkdir(parents=True)
        return simulated_identities(run, clients)

    monkeypatch.setattr("fedstrata.engine.simulated_identities.simulated_identities", with_disk)
    run = run_tiny(*SECURE, "federation.min_clients=1")
    assert sums(run.of("round"))[0]["survivors"] == ["site-1", "site-3", "site-4"]
    assert [(event["client"], event["error"]) for event in run.of("client_failed")] == [
        ("site-2", "IsADirectoryError")
    ]


def test_no_secret_of_a_sum_is_ever_written(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a sum that is unmasked and not yet committed the server has shares, and those of masks alone."""
    secrets: list[bytes] = []
    urandom, split, drawn = os.urandom, secure_client.split, [0]

    def noted(size: int) -> bytes:
        found = urandom(size)
        if size == secure_client.SECRET_BYTES:
            secrets.append(found)
        return found

    class Keys:
        @staticmethod
        def generate() -> X25519PrivateKey:
            key = X25519PrivateKey.generate()
            secrets.append(key.private_bytes_raw())
            return key

    def shared(secret: bytes, *of: int) -> list[bytes]:
        shares = split(secret, *of)
        drawn[0] += 1
        if drawn[0] % 2 == 0:  # of the mask key, which nobody needs who has sent its update
            secrets.extend(shares)
        return shares

    monkeypatch.setattr(os, "urandom", noted)
    monkeypatch.setattr(secure_client, "X25519PrivateKey", Keys)
    monkeypatch.setattr(secure_client, "split", shared)
    with killed_at(SecureAggregation, "save"):
        run_tiny(*SECURE)
    assert len(secrets) >= 4 * (3 + 4)
    sums = tmp_path / "run" / FOLDER
    assert list(sums.rglob("shares-*")), "that is what would lie there"
    for path in filter(Path.is_file, (tmp_path / "run").rglob("*")):
        content = path.read_bytes()
        assert not any(secret in content or secret.hex().encode() in content for secret in secrets), path
    assert stat.S_IMODE(sums.stat().st_mode) == 0o700
    for own in (tmp_path / "run" / "clients").glob("*/identity.pem"):
        assert stat.S_IMODE(own.stat().st_mode) == 0o600

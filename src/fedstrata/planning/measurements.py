"""What a rehearsal measures: of turns, of rounds, and of what they leave on the disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstrata.planning.secure_sums import WatchedSum  # for masks alone


@dataclass(frozen=True, slots=True)
class Timed:
    """Something that took a time to process a number of padded tokens, and of passes where these differ."""

    tokens: int
    seconds: float
    passes: int = 0


@dataclass(slots=True)
class Turn:
    """One client's turn with one handler of the method in one round.

    Attributes:
        round: The round, counted from 1.
        client: The client's name.
        steps: Its optimiser steps.
        fixed_seconds: What the client half of the method took besides its steps.
    """

    round: int
    client: str = ""
    steps: list[Timed] = field(default_factory=list)
    fixed_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What one rehearsed round sent, and its time besides the client half of the method and scoring.

    Attributes:
        bytes_up: Of a client's updates, on average.
        bytes_down: Of the plans for a client, on average.
        client_seconds: The engine's own work for each client: frames, the mean, putting the model back.
        round_seconds: The engine's own work for the round: the checkpoint and the record.
        said_up: What a client says of each padded token it trains on, on average, while it does.
        said_down: What is said to it of each.
        serve_seconds: What the server works at its part of the model for each.
    """

    bytes_up: float
    bytes_down: float
    client_seconds: float
    round_seconds: float
    said_up: float = 0.0
    said_down: float = 0.0
    serve_seconds: float = 0.0


@dataclass(slots=True)
class Rehearsed:
    """What was measured.

    Attributes:
        turns: Every client's turn in every round.
        rounds: The cost of every round; the first also warms up.
        scorings: Every scoring of a split.
        up: Bytes of every tensor that a client sent in the last round, by name.
        down: Bytes of every tensor that a client was sent in the last round, by name.
        trainable: Names of the parameters that a client trained in the last round.
        save_seconds: Time to save one model.
        checkpoint_bytes: Size of a checkpoint.
        store_bytes: Size of one version of a client's private store.
        cache_bytes: What else a client that trained on the typical examples keeps in its folder.
        model_bytes: Size of one saved model.
        release_bytes: Size of a client's database and of its last private update, kept to send again.
        ledger_bytes: Size of what its ledger says of each turn, but for what it says while it trains.
        ledger_bytes_said: Size of what the ledger says of that, for each padded token.
        noise_seconds: What a step's noise takes longer where it is drawn from the operating system's secrets.
        event_bytes: Mean size of the record's events of each kind.
        sums: The means of each round, where they will be masked sums.
        peak_rss_bytes: Largest resident memory of this process so far.
        peak_gpu_bytes: Most memory torch has held on the GPU; none on a CPU.
    """

    turns: list[Turn] = field(default_factory=list)
    rounds: list[RoundCost] = field(default_factory=list)
    scorings: list[Timed] = field(default_factory=list)
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    trainable: tuple[str, ...] = ()
    save_seconds: float = 0.0
    checkpoint_bytes: int = 0
    store_bytes: int = 0
    cache_bytes: int = 0
    model_bytes: int = 0
    release_bytes: int = 0
    ledger_bytes: float = 0.0
    ledger_bytes_said: float = 0.0
    noise_seconds: float = 0.0
    event_bytes: dict[str, float] = field(default_factory=dict)
    sums: dict[int, list[WatchedSum]] = field(default_factory=dict)
    peak_rss_bytes: int = 0
    peak_gpu_bytes: int | None = None

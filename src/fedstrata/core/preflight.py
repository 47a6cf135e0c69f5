"""What is known of a run before it starts, and what a plan cannot see in a rehearsal of two clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstrata.core.settings.adapter import AdapterSettings
    from fedstrata.core.settings.devices import DeviceSettings
    from fedstrata.core.settings.federation import FederationSettings
    from fedstrata.core.settings.model import ModelSettings
    from fedstrata.core.settings.training import TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What has just become known of a run that is being checked.

    A method is asked for its problems (`Method.problems`) each time that something becomes known, so that all
    of them are found at once and none twice: what is not known yet, or was asked about before, is None.

    Attributes:
        training: How clients train; known with the settings.
        clients: The names of all clients; known with the data.
        sampled: How many clients take part in a round; known with the data, as are the next two.
        sampling: How they come to be so many, in words.
        federation: The settings of the rounds.
        server_documents: How many documents of its own the server has; known with the data.
        devices: The emulated devices, asked about with the server's documents; none without emulation.
        model: The settings of the model; known before it is loaded.
        adapter: Those of its adapter, asked about with the model's; none without one.
        task: The task's name; known with the loaded model, as is the next one.
        server_examples: How many examples the server's documents give; none if nobody asks for their loss.
    """

    training: TrainingSettings | None = None
    clients: Sequence[str] | None = None
    sampled: int | None = None
    sampling: str = ""
    federation: FederationSettings | None = None
    server_documents: int | None = None
    devices: DeviceSettings | None = None
    model: ModelSettings | None = None
    adapter: AdapterSettings | None = None
    task: str = ""
    server_examples: int | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """What a method sends and keeps that grows with the clients of a round, or with the rounds.

    Attributes:
        sent: Bytes of it that are sent to all clients in each round.
        kept: Bytes of it that the server still has at the end.
        writes: How often each client writes its store.
    """

    sent: tuple[int, ...]
    kept: int
    writes: Mapping[str, int]

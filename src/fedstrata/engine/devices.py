"""Who has which emulated device, how it works in a round, and what a round takes on the simulated clock.

Every draw has a seed of its own (client, round), so a resumed run, or one that samples other clients, draws
the same devices.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedstrata.core.seeding import Seed
from fedstrata.core.settings.devices import Device, DeviceSettings
from fedstrata.core.types import Work
from fedstrata.engine.prepare import Experiment


class Fleet:
    """The emulated devices of all clients.

    Args:
        settings: Which devices there are.
        clients: All clients that train, in order.
        seed: Seed of all draws.

    Attributes:
        profiles: The device that each client has, by name.
    """

    def __init__(self, settings: DeviceSettings, clients: Sequence[str], seed: Seed) -> None:
        self._settings, self._seed = settings, seed
        self.profiles = assign(settings.shares, clients, seed.child("profiles"))

    def device(self, client: str, number: int) -> Device:
        """Returns a client's device as it works in a round, counted from 1."""
        settings, profile = self._settings, self.profiles[client]
        rng = self._seed.child("round", number, client).numpy()
        modes = settings.modes_of(profile)
        name = list(modes)[int(rng.integers(len(modes)))]
        low, high = settings.bandwidths
        mode, bandwidth = modes[name], float(rng.uniform(low, high))
        return Device(profile, name, mode.teraflops, mode.watts, settings.utilisation, bandwidth)


def fleet_of(experiment: Experiment, clients: Sequence[str]) -> Fleet | None:
    """Returns the emulated devices of these clients; none where pooled data lies on no client's device."""
    settings = experiment.settings.devices
    if settings is None or experiment.method.pooled:
        return None
    return Fleet(settings, clients, experiment.seed.child("devices"))


def assign(shares: Mapping[str, float], clients: Sequence[str], seed: Seed) -> dict[str, str]:
    """Gives every client a profile: as many of each as its share asks for, to clients that are drawn.

    Numbers are rounded by largest remainders. The order of the profiles does not matter: a configuration is
    written with its keys sorted, and read again when the run is resumed.

    Args:
        shares: The weight of each profile.
        clients: All clients.
        seed: Seed of the draw.
    """
    total = sum(shares.values())
    exact = {name: share / total * len(clients) for name, share in sorted(shares.items())}
    counts = {name: int(count + 1e-9) for name, count in exact.items()}
    left = len(clients) - sum(counts.values())
    for name in sorted(exact, key=lambda name: counts[name] - exact[name])[:left]:
        counts[name] += 1
    profiles = [name for name, count in counts.items() for _ in range(count)]
    order = seed.numpy().permutation(len(clients))
    return {clients[int(client)]: profile for client, profile in zip(order, profiles, strict=True)}


@dataclass
class RoundClock:
    """The simulated clock of one round.

    Attributes:
        seconds: What each client has taken so far: its transfers and its computing.
        joules: What computing has cost all clients.
        batches: On how many batches all clients have trained.
        memory_bytes: The memory of training, summed over these batches.
        peak_memory_bytes: The largest of any batch.
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    joules: float = 0.0
    batches: int = 0
    memory_bytes: float = 0.0
    peak_memory_bytes: float = 0.0

    def count(self, client: str, device: Device, work: Work, size: int) -> dict[str, Any]:
        """Adds one turn of a client and returns what the record says of it.

        Args:
            client: The client.
            device: Its device.
            work: What it has computed in the turn.
            size: Bytes that travelled in the turn, both ways.
        """
        compute, transfer = device.compute_seconds(work.flops), device.transfer_seconds(size)
        joules = device.joules(work.flops)
        self.seconds[client] += compute + transfer
        self.joules += joules
        self.batches += work.batches
        self.memory_bytes += work.memory_bytes
        self.peak_memory_bytes = max(self.peak_memory_bytes, work.peak_memory_bytes)
        return {
            "device": device.profile,
            "mode": device.mode,
            "megabits_per_second": device.megabits_per_second,
            "flops": work.flops,
            "compute_seconds": compute,
            "transfer_seconds": transfer,
            "joules": joules,
            "stored_states": work.stored_states,
            "mean_memory_bytes": work.memory_bytes / work.batches if work.batches else None,
            "peak_memory_bytes": work.peak_memory_bytes if work.batches else None,
        }

    def facts(self, lost: Collection[str]) -> dict[str, Any]:
        """Returns what the record says of the round, which takes as long as its slowest client.

        Args:
            lost: The clients that are not waited for; a round without any other takes no time.
        """
        waited = [seconds for client, seconds in self.seconds.items() if client not in lost]
        memory = {
            "batches": self.batches,
            "mean_bytes": self.memory_bytes / max(1, self.batches),
            "peak_bytes": self.peak_memory_bytes,
        }
        return {
            "simulated_seconds": max(waited, default=0.0),
            "joules": self.joules,
            "device_memory": memory if self.batches else None,
        }


def last_stored_states(events: Sequence[Mapping[str, Any]], last: int) -> dict[str, str | None]:
    """Returns which output of its frozen blocks each client's device holds, as the record tells it.

    Args:
        events: The record.
        last: The last committed round; what was begun after it does not count.
    """
    turns = [event for event in events if event["event"] == "client" and event["round"] <= last]
    return {turn["client"]: turn.get("stored_states") for turn in turns}

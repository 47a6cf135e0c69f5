"""What runs cost, as columns of a comparison: where a summary holds each figure, and how people read it."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, cast

from fedstrata.record.words import duration

Summary = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a run.

    Attributes:
        title: What people read above it.
        better: Which direction is better; none is marked best where neither is.
        digits: Decimals people read.
        factor: What the figure is multiplied by for people: 100 turns a score into points.
        time: Whether the figure is a time in seconds, which people read in hours, minutes and seconds.
        travels: Whether it says what travels: who sends nothing at all is not the best at it.
    """

    title: str
    better: Literal["higher", "lower"] | None
    digits: int = 1
    factor: float = 1.0
    time: bool = False
    travels: bool = False

    def text(self, value: float) -> str:
        """Returns a figure as people read it."""
        if self.time:
            return duration(value)
        return f"{value * self.factor:.{self.digits}f}"

    def mean(self, values: Sequence[float]) -> str:
        """Returns the mean of figures and their sample standard deviation, if they are not all equal."""
        text = self.text(statistics.fmean(values))
        return text if min(values) == max(values) else f"{text} ± {self.text(statistics.stdev(values))}"


def _at(path: str) -> Callable[[Summary], float | None]:
    """Returns what finds a figure by its dotted path in a summary; none where the summary has it not."""
    return lambda summary: reduce(
        lambda section, key: section.get(key), path.split("."), cast("Any", summary)
    )


def _megabytes(path: str) -> Callable[[Summary], float | None]:
    """Returns what finds a number of bytes, as `_at` does."""
    find = _at(path)
    return lambda summary: None if (size := find(summary)) is None else size * 1e-6


def _megabytes_sent(summary: Summary) -> float | None:
    sent = summary["communication"]
    return None if sent["bytes_up"] is None else (sent["bytes_up"] + sent["bytes_down"]) / 1e6


def _epsilon(summary: Summary) -> float | None:
    """Returns the largest epsilon over clients; none without differential privacy, or a bound."""
    return (summary.get("privacy") or {}).get("epsilon")


def _per_round(key: str) -> Callable[[Summary], float | None]:
    """Returns what finds the seconds of a round that went to one purpose; none without rounds."""
    return lambda summary: summary["time"].get(key, 0.0) / summary["rounds"] if summary["rounds"] else None


COSTS: dict[str, tuple[Column, Callable[[Summary], float | None]]] = {
    "percent_of_full_model": (
        Column("update, % of model", "lower", travels=True),
        _at("communication.percent_of_full_model"),
    ),
    "megabytes_sent": (Column("sent up and down, MB", "lower", travels=True), _megabytes_sent),
    "megabytes_up": (
        Column("sent up, MB", "lower", travels=True),
        _megabytes("communication.bytes_up"),
    ),
    "megabytes_down": (
        Column("sent down, MB", "lower", travels=True),
        _megabytes("communication.bytes_down"),
    ),
    "train_seconds_per_round": (Column("training, s a round", "lower"), _per_round("train_seconds")),
    "serve_seconds_per_round": (Column("server's part, s a round", "lower"), _per_round("serve_seconds")),
    "rounds_to_90_percent": (Column("rounds to 90 %", "lower"), _at("convergence.rounds_to_90_percent")),
    "peak_memory_megabytes": (
        Column("peak memory, MB", "lower", digits=0),
        lambda summary: summary["memory"]["peak_rss_bytes"] / 1e6,
    ),
    "peak_gpu_megabytes": (
        Column("peak GPU memory, MB", "lower", digits=0),
        _megabytes("memory.peak_gpu_bytes"),
    ),
    "total_seconds": (Column("in all, s", "lower", digits=0), _at("time.total_seconds")),
    "trainable_parameters": (Column("parameters trained", None, digits=0), _at("trainable_parameters")),
    "simulated_seconds": (Column("simulated time", "lower", time=True), _at("time.simulated_seconds")),
    "energy_joules": (Column("energy, kJ", "lower", factor=1e-3), _at("energy_joules")),
    "epsilon": (Column("epsilon", None, digits=2), _epsilon),
    "device_memory_megabytes": (Column("device memory, MB", "lower"), _megabytes("memory.device_mean_bytes")),
    "device_peak_memory_megabytes": (
        Column("device peak memory, MB", "lower"),
        _megabytes("memory.device_peak_bytes"),
    ),
}
"""Figures that every run has beside its scores: how to show them, and where a summary holds them."""

EMULATED_COSTS = (
    "simulated_seconds",
    "energy_joules",
    "device_memory_megabytes",
    "device_peak_memory_megabytes",
)
"""Those of them that only runs on emulated devices have; null in others."""
SHOWN_COSTS = (
    "percent_of_full_model",
    "megabytes_up",
    "megabytes_down",
    "train_seconds_per_round",
    "rounds_to_90_percent",
    "peak_memory_megabytes",
)
PRIVATE_COSTS = ("epsilon",)
"""What only runs with differential privacy have; null in others."""

"""Where a run stands, as metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedstrata.core.errors import refused
from fedstrata.operations.local_server import Answer
from fedstrata.operations.standing import DELIVERED, LOST

if TYPE_CHECKING:
    from prometheus_client import Metric

Values = Mapping[tuple[str, ...], float]
"""A value for each combination of labels."""
_ALONE: tuple[str, ...] = ()
"""No labels."""


def require_metrics(setting: str) -> None:
    """Checks that what writes metrics is installed.

    Raises:
        ConfigurationError: It is not; the message says how to install it.
    """
    if find_spec("prometheus_client") is None:
        message = "prometheus-client is not installed; install it with: pip install 'fedstrata[operations]'"
        raise refused(setting, message, "not_installed")


def families(picture: Mapping[str, Any]) -> Iterator[Metric]:
    """Yields the metrics of a picture of a run, see `Standing`; what has no value is left out."""
    yield _family("build_info", "The version.", {(picture["fedstrata"],): 1.0}, ("version",))
    sites = picture["sites"]
    for name, told, value in (
        ("sites_expected", "Sites that may join.", len(sites)),
        ("sites_joined", "Sites that have a session.", sum(bool(site["there"]) for site in sites)),
        ("round", "The round under way, or the last one.", picture["round"] or 0),
        ("rounds_planned", "Rounds that the run is to have.", picture["rounds"]),
        ("rounds_committed", "Rounds that are committed.", picture["committed"]),
        ("last_round_seconds", "What the last committed round took.", picture["round_seconds"]),
        ("loss", "Mean training loss of the last committed round.", picture["loss"]),
    ):
        if value is not None:
            yield _family(name, told, {_ALONE: value})
    if picture["score"] is not None:
        scores: Values = {(picture["metric"],): picture["score"]}
        yield _family("score", "Last score of the validation split.", scores, ("name",))
    yield _family("rounds", "Rounds that were completed.", {_ALONE: picture["rounds_done"]}, counts=True)
    took = {_ALONE: picture["seconds_of_rounds"]}
    yield _family("rounds_seconds", "What all completed rounds took.", took, counts=True)
    yield from _of_sites({site["site"]: site for site in sites})


def _of_sites(sites: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    here: Values = {(name,): float(bool(site["there"])) for name, site in sites.items()}
    yield _family("site_joined", "Whether a site has a session.", here, ("site",))
    seen: Values = {
        (name,): datetime.fromisoformat(site["seen"]).timestamp()
        for name, site in sites.items()
        if site["seen"]
    }
    told = "When a site was last heard of."
    yield _family("site_last_seen_timestamp_seconds", told, seen, ("site",))
    sent: Values = {(name, way): own[f"bytes_{way}"] for name, own in sites.items() for way in ("up", "down")}
    yield _family("bytes", "Bytes of turns, by site.", sent, ("site", "direction"), counts=True)
    turns: Values = {(name, what): own[what] for name, own in sites.items() for what in (DELIVERED, LOST)}
    yield _family("turns", "Turns of a site by what came of them.", turns, ("site", "result"), counts=True)


def _family(
    name: str, told: str, values: Values, labels: Sequence[str] = (), *, counts: bool = False
) -> Metric:
    """Returns one metric as the client library has it.

    Args:
        name: Its name.
        told: What it is.
        values: Its values by labels.
        labels: The names of the labels.
        counts: Whether it only ever grows.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - an extra

    kind = CounterMetricFamily if counts else GaugeMetricFamily
    family = kind(f"fedstrata_{name}", told, labels=labels)
    for own, value in values.items():
        family.add_metric(own, value)
    return family


def metrics_of(picture: Mapping[str, Any], accept: str) -> Answer:
    """Returns the metrics of a picture, in the form that is asked for.

    Args:
        picture: Where the run stands.
        accept: The header of the request that says which forms are understood.
    """
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - an extra

    encode, kind = choose_encoder(accept)
    return Answer(encode(SimpleNamespace(collect=lambda: families(picture))), kind)

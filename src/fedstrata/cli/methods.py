"""`fedstrata methods`: every method, what travels, whether it may be private, and all that is plugged in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedstrata.cli.options import Debug
from fedstrata.display.tables import say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fedstrata.core.method import Method
    from fedstrata.core.plugins import Plugins


def methods(debug: Debug = False) -> None:
    """List the federated methods and what each one sends, and all that installed packages add."""
    from rich.console import Console  # noqa: PLC0415 - heavy
    from rich.table import Table  # noqa: PLC0415

    from fedstrata.core.metric import METRICS  # noqa: PLC0415
    from fedstrata.core.settings.reader import READERS  # noqa: PLC0415
    from fedstrata.methods import METHODS  # noqa: PLC0415
    from fedstrata.models.given import MODELS  # noqa: PLC0415
    from fedstrata.tasks import TASKS  # noqa: PLC0415

    console = Console()
    table = Table("method", "what travels, differential privacy, secure aggregation", "settings")
    for name, card in METHODS.items():
        told = [card.travels, *_privacy(card)]
        if not METHODS.is_own(name):
            told.append(f"from {METHODS.origin(name)}")
        table.add_row(name, "\n".join(told), "\n".join(_settings(card)) or "-")
    console.print(table)
    kinds: Mapping[str, Plugins[Any]] = {
        "method": METHODS,
        "task": TASKS,
        "reader": READERS,
        "metric": METRICS,
        "model": MODELS,
    }
    for kind, plugins in kinds.items():
        for line in _installed(kind, plugins):
            say(console, line)


def _settings(card: type[Method]) -> Iterator[str]:
    for key, field in card.model_fields.items():
        if key != "name":
            default = field.get_default(call_default_factory=True, validated_data={})
            yield f"{key}: {'to be given' if field.is_required() else default}"


def _privacy(card: type[Method]) -> list[str]:
    """Says under which mechanisms a method may run as it is, or why under none; and so of masked sums."""
    if any(field.is_required() for field in card.model_fields.values()):
        return []  # its settings may decide it
    method = card.model_validate({})
    reasons = {mechanism: method.not_private(mechanism) for mechanism in ("local", "central")}
    able = [mechanism for mechanism, reason in reasons.items() if not reason]
    reason = method.not_summed()
    able += ["joint"] if not (reasons["local"] or reason or method.not_joint()) else []
    return [
        f"private: {', '.join(able)}" if able else f"not private: {reasons['local']}",
        f"not summed under masks: {reason}" if reason else "summed under masks",
    ]


def _installed(kind: str, plugins: Plugins[Any]) -> Iterator[str]:
    """Says in a line each what installed packages add, and why it cannot be used where that is so."""
    for name in plugins.installed:
        why = plugins.why_not(name)
        if why is None and kind == "method":
            continue  # it has a row
        yield f"{kind} {name} from {plugins.origin(name)}" + (f" cannot be used: {why}" if why else "")

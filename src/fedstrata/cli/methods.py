"""`fedstrata methods`: every method, what travels, and whether it may be private."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedstrata.cli.options import Debug

if TYPE_CHECKING:
    from fedstrata.core.method import Method


def methods(debug: Debug = False) -> None:
    """List the federated methods and what each one sends."""
    from rich.console import Console  # noqa: PLC0415 - heavy
    from rich.table import Table  # noqa: PLC0415

    from fedstrata.methods import METHODS  # noqa: PLC0415

    table = Table("method", "what travels, differential privacy, secure aggregation", "settings")
    for name, card in METHODS.items():
        fields = card.model_fields.items()
        settings = [
            f"{key}: {field.get_default(call_default_factory=True, validated_data={})}"
            for key, field in fields
            if key != "name"
        ]
        table.add_row(
            name, "\n".join([card.travels, *_privacy(card.model_validate({}))]), "\n".join(settings) or "-"
        )
    Console().print(table)


def _privacy(method: Method) -> list[str]:
    """Says under which mechanisms a method may run as it is, or why under none; and so of masked sums."""
    reasons = {mechanism: method.not_private(mechanism) for mechanism in ("local", "central")}
    able = [mechanism for mechanism, reason in reasons.items() if not reason]
    reason = method.not_summed()
    able += ["joint"] if not (reasons["local"] or reason or method.not_joint()) else []
    return [
        f"private: {', '.join(able)}" if able else f"not private: {reasons['local']}",
        f"not summed under masks: {reason}" if reason else "summed under masks",
    ]

"""`fedstrata methods`: every method and what travels."""

from fedstrata.cli.options import Debug


def methods(debug: Debug = False) -> None:
    """List the federated methods and what each one sends."""
    from rich.console import Console  # noqa: PLC0415 - heavy
    from rich.table import Table  # noqa: PLC0415

    from fedstrata.methods import METHODS  # noqa: PLC0415

    table = Table("method", "what travels", "settings")
    for name, card in METHODS.items():
        fields = card.model_fields.items()
        settings = [f"{key}: {field.get_default()}" for key, field in fields if key != "name"]
        table.add_row(name, card.travels, "\n".join(settings) or "-")
    Console().print(table)

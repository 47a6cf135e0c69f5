"""Gives a verb the options of a line, or those of the kit that is named in their place."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin, get_type_hints

from fedstrata.cli.lines import Line
from fedstrata.cli.options import sort_files
from fedstrata.core.errors import Problem, refuse, refused

if TYPE_CHECKING:
    from fedstrata.transport.kit import Kit


def with_options(kind: type[Line], **usual: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a verb the options of a line in place of its parameter `line`, which is what they came to.

    Args:
        kind: The line.
        usual: Defaults that fit the verb better than the line's.
    """
    hints = get_type_hints(kind, include_extras=True)
    names = [
        name
        for each in kind.__mro__
        for name in vars(each).get("__annotations__", ())
        if get_origin(hints[name]) is Annotated
    ]
    defaults = {name: usual.get(name, getattr(kind, name, Parameter.empty)) for name in names}
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hints[name])
        for name in names
    ]

    def with_line(verb: Callable[..., None]) -> Callable[..., None]:
        @wraps(verb)
        def called(**given: Any) -> None:
            options = {name: given.pop(name) for name in names}
            kit = _take_kit(given)
            if kit is not None:
                open_ones = {name: own for name, own in kind.of_kit(kit).items() if options[name] is None}
                message = f"must be given: its file is gone from {kit.folder}"
                refuse(
                    [
                        Problem(f"--{name}", message, code="missing")
                        for name, own in open_ones.items()
                        if own is None
                    ]
                )
                options |= open_ones
            verb(line=kind(**options, kit=kit), **given)

        found: list[Parameter] = []
        for own in signature(verb, eval_str=True).parameters.values():
            found += options if own.name == "line" else [own.replace(kind=Parameter.KEYWORD_ONLY)]
        vars(called)["__signature__"] = Signature(found)  # which Typer goes by
        return called

    return with_line


def _take_kit(given: dict[str, Any]) -> Kit | None:
    """Takes the kit out of the arguments of a verb; none if none is named there.

    Raises:
        ConfigurationError: More than one kit is named, or what is named is none.
    """
    from fedstrata.transport.kit import is_kit, open_kit  # noqa: PLC0415 - heavy

    place = next((name for name in ("arguments", "overrides") if name in given), "")
    arguments = given.get(place) or []
    named = [path for path in sort_files(arguments)[0] if is_kit(path)]
    if not named:
        return None
    if len(named) > 1:
        message = f"one kit at most, not {len(named)}: {', '.join(map(str, named))}"
        raise refused("", message, "conflict")
    given[place] = [text for text in arguments if Path(text) != named[0]]
    return open_kit(named[0])

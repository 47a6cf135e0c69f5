"""Which versions either side has: said with every call, and looked at before anything else is read.

They travel in the metadata of a call, whose form is gRPC's own. So a side of another version is refused by
its version, whatever else has changed in what it says.
"""

from collections.abc import Iterable
from importlib.metadata import version

from fedstrata.core.errors import RefusedError, printable
from fedstrata.transport.header import PROTOCOL

_PACKAGE, _PROTOCOL = "fedstrata-version", "fedstrata-protocol"
"""The names of what is said."""
_LONGEST = 20
"""Characters that are shown of what another side says."""


def own_versions() -> tuple[tuple[str, str], ...]:
    """Returns what this side says of itself, as metadata of a call."""
    return (_PACKAGE, version("fedstrata")), (_PROTOCOL, str(PROTOCOL))


def require_same_versions(said: Iterable[tuple[str, str | bytes]], there: str, here: str) -> None:
    """Refuses the other side if it has other versions, or says none.

    Args:
        said: The metadata of its call, or of its answer to one.
        there: What it is, for the message.
        here: What this side is.

    Raises:
        RefusedError: It has others; the message names both.
    """
    own = dict(own_versions())
    theirs = {name: str(value) for name, value in said if name in own}
    if theirs != own:
        message = f"{there} has {_told(theirs)}, {here} has {_told(own)}: both must have the same"
        raise RefusedError(message, code="other_version")


def _told(versions: dict[str, str]) -> str:
    if len(versions) < len(dict(own_versions())):
        return "a fedstrata that does not say its version"
    shown = {name: printable(value, _LONGEST) for name, value in versions.items()}
    return f"fedstrata {shown[_PACKAGE]} (protocol {shown[_PROTOCOL]})"

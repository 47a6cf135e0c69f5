"""Addresses to listen on, and whether they are free."""

import socket

from fedstrata.core.errors import LineError


def taken(address: str) -> LineError:
    """Returns the error that says that an address cannot be listened on."""
    message = f"cannot listen on {address}: it is taken, or not an address of this machine"
    return LineError(message, code="in_use")


def place_of(address: str) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Returns the family, host and port of an address `HOST:PORT`.

    Raises:
        OSError: There is no such host.
    """
    host, _, port = address.rpartition(":")
    family, *_, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    return family, (str(place[0]), int(place[1]))


def require_free(address: str) -> None:
    """Checks that an address can be listened on, before anything is written that would be left behind.

    Raises:
        LineError: It cannot.
    """
    try:
        family, place = place_of(address)
        socket.create_server(place, family=family).close()
    except OSError:
        raise taken(address) from None

"""How a call ends with an error: with its message, and its code in the metadata behind the call."""

from typing import Any

import grpc

from fedstrata.core.errors import FedstrataError
from fedstrata.transport.codes import known

_CODE = "fedstrata-code"
"""The name of the code in the metadata."""


def end(context: grpc.ServicerContext, error: FedstrataError, *, final: bool) -> None:
    """Ends a call; never returns, as `abort` of gRPC does not.

    Args:
        context: The call.
        error: Why.
        final: Whether it would be the same if the client came again.
    """
    context.set_trailing_metadata(((_CODE, error.code),))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION if final else grpc.StatusCode.ABORTED, str(error))


def code_of(error: Any) -> str | None:
    """Returns the code of the error with which a server has ended a call; none if it does not say any.

    Args:
        error: What the call has raised.
    """
    return known(dict(error.trailing_metadata() or ()).get(_CODE))

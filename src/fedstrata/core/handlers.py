"""Names of handlers that every client has, whatever the method: of masked sums, and of scoring."""

EXCHANGE = "secure/"
"""Before the name of a handler that every client has: an exchange of a masked sum of updates."""
INPUT = EXCHANGE + "input"
"""The one of them in which a client trains."""
FIRST_EXCHANGE = "keys"
"""The name, after the slash, of the exchange that a masked sum begins with."""
SCORE = "@score"
"""The handler of a client elsewhere that scores its documents; before a slash, exchanges of a masked sum of
what it has counted."""
COUNTED = "scores/"
"""Before the part of the split, the name that a masked sum of counts has in place of a handler."""


def is_scoring(handler: str) -> bool:
    """Whether a handler has a client score its documents, or is part of that."""
    return handler.partition("/")[0] == SCORE


def counts_documents(handler: str) -> bool:
    """Whether a handler has a client score its documents, in the clear or for a masked sum."""
    return handler == SCORE or handler.startswith(COUNTED)


def is_exchange(handler: str) -> bool:
    """Whether a handler is an exchange of a masked sum."""
    return handler.startswith((EXCHANGE, f"{SCORE}/"))


def begins_sum(handler: str) -> bool:
    """Whether a handler is the exchange that a masked sum begins with."""
    return is_exchange(handler) and handler.rpartition("/")[2] == FIRST_EXCHANGE


def only_says(handler: str) -> bool:
    """Whether a handler is an exchange in which nothing is trained or kept."""
    return is_exchange(handler) and handler != INPUT

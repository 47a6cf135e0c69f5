"""Codes of errors that travel: what the other side says of an error beside the sentence."""

from fedstrata.core.error_codes import CODES


def known(code: object) -> str | None:
    """Returns the code that another machine has told; none if it is none of ours."""
    return code if isinstance(code, str) and code in CODES else None

"""ICD-9-CM diagnosis codes, in one spelling.

The spelling is that of the code book, with a dot: `401.9`, `995.91`, `V45.81`, `E888.9`, and `486` for a code
that is a category. MIMIC's tables leave the dot out.
"""

import re

_CODE = re.compile(r"([0-9]{3}|V[0-9]{2})(?:\.?([0-9]{1,2}))?|(E[0-9]{3})(?:\.?([0-9]))?")


def dotted(code: str) -> str:
    """Returns a diagnosis code with its dot; empty if it is no such code.

    >>> [dotted(code) for code in ("4019", "v4581", "E8889", "995.91", "486", "cardiology")]
    ['401.9', 'V45.81', 'E888.9', '995.91', '486', '']
    """
    match = _CODE.fullmatch(code.strip().upper())
    return ".".join(part for part in match.groups() if part) if match else ""


def without_dot(code: str) -> str:
    """Returns a diagnosis code as MIMIC's tables spell it; empty if it is no such code."""
    return dotted(code).replace(".", "")


def category(code: str) -> str:
    """Returns the category of a diagnosis code, its part before the dot; empty if it is no such code.

    >>> [category(code) for code in ("401.9", "V45.81", "E888.9", "Surgery")]
    ['401', 'V45', 'E888', '']
    """
    return dotted(code).partition(".")[0]

"""How numbers and names are written for people, on a terminal and on a page."""

import math
import re

from rich.filesize import decimal

ABSENT = "-"
"""What stands for a number there is none of."""
INFINITE = "infinite"
"""What stands for an epsilon that nothing bounds."""
COUNTED = "_left_out"
"""How the names of figures end that stand among the scores and count what could not be scored."""
ASIDE = ("lenient_precision", "lenient_recall", "untyped_f1", "untyped_lenient_f1")
"""How the names of scores end that are left out where room is short: of mentions and relations, all but the
strict scores and lenient F1."""

_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    r"""Returns a text with what no page may hold, such as control characters in a name, as Python spells it.

    >>> visible("north\x0b wing")
    'north\\x0b wing'
    """
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def score(value: float | None, name: str = "") -> str:
    """Returns a score with as many digits as the documents of a test split can tell apart; a count as it is.

    >>> score(0.88296), score(3.0, "auc_labels_left_out"), score(None)
    ('0.883', '3', '-')
    """
    if value is None:
        return ABSENT
    if name.endswith(COUNTED):
        return f"{value:.1f}".removesuffix(".0")  # a mean of counts is not whole
    return f"{value:.3f}"


def limited_to(most: int, kept: int, of: int) -> str:
    """Returns how far `data.limit` has cut a corpus down.

    >>> limited_to(20, 120, 4310)
    'limited to 20 documents by site and part (data.limit): 120 of 4,310'
    """
    return f"limited to {plural(most, 'document')} by site and part (data.limit): {kept:,} of {of:,}"


def count(value: int | None) -> str:
    """Returns how many there are; of a count that is hidden (`report.small_counts`) what is known of it.

    >>> count(1234), count(0), count(None)
    ('1,234', '0', '< 5')
    """
    return "< 5" if value is None else f"{value:,}"


def epsilon(value: float | None) -> str:
    """Returns an epsilon, rounded up, so that no more is claimed than is true; or that nothing bounds it.

    >>> epsilon(3.9811), epsilon(0.0), epsilon(0.01234), epsilon(57.31), epsilon(None)
    ('3.99', '0', '0.0124', '57.4', 'infinite')
    """
    if value is None:
        return INFINITE
    if value == 0.0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(value)))
    return f"{math.ceil(value * 10**digits) / 10**digits:.{digits}f}"


def left_of(value: float | None) -> str:
    """Returns what is left of an epsilon, rounded down, so that no more is promised than there is.

    >>> left_of(2.0051), left_of(0.0), left_of(None)
    ('2.00', '0.00', '0.00')
    """
    return f"{math.floor(100 * (value or 0.0)) / 100:.2f}"


def size(value: float | None) -> str:
    """Returns bytes in the unit that suits them: `3.2 MB`."""
    return ABSENT if value is None else decimal(round(value))


def duration(seconds: float | None) -> str:
    """Returns a time as people say it.

    >>> duration(4.26), duration(42.3), duration(90), duration(7300)
    ('4.3 s', '42 s', '1 min 30 s', '2 h 2 min')
    """
    if seconds is None:
        return ABSENT
    whole = round(seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def energy(joules: float | None) -> str:
    """Returns an energy in the unit that suits it.

    >>> energy(4.26), energy(5300.0), energy(2.5e6), energy(None)
    ('4.3 J', '5.3 kJ', '2.5 MJ', '-')
    """
    if joules is None:
        return ABSENT
    unit, factor = ("J", 1.0) if joules < 1e3 else ("kJ", 1e3) if joules < 1e6 else ("MJ", 1e6)
    return f"{joules / factor:.1f} {unit}"


def plural(count: int, noun: str) -> str:
    """Returns a number of things.

    >>> plural(1, "round"), plural(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


SCHEMES = {"": "strict", "lenient_": "lenient", "untyped_": "untyped", "untyped_lenient_": "untyped, lenient"}
"""What people read for the schemes of `fedstrata.metrics.matching`."""

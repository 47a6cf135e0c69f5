"""Tokens for the formats that annotate tokens: words, numbers and punctuation, apart, with their offsets.

Kept whole: numbers (`7.35`, `1,000`), dates, times and readings (`03/14/2101`, `12:30`, `120/80`), words
joined by hyphens, apostrophes or strokes (`x-ray`, `patient's`, `mg/dL`), abbreviations of single letters
(`b.i.d.`), and rulings (`-----`). Any other punctuation is a token of its own.
"""

import re
import unicodedata
from collections.abc import Iterable
from itertools import pairwise

from fedstrata.data.readers.files import BYTE_ORDER_MARK

# A text's shape has one ASCII character for each of its own: a for letters, 0 for digits, a blank for
# white space, the character itself for ASCII punctuation, and ! for every other sign. So the pattern stays
# readable, and combining marks, which `\w` does not match, stay with their letters.
_TOKEN = re.compile(
    r"(?<![a0])(?:a\.){2,}(?![a0])"  # b.i.d.
    r"|(?:(?<![a0])a(?:\.a)+(?![a0])|[a0]+)(?:(?:[-/'_]|(?<=0)[.,:](?=0))[a0]+)*"  # p.o, mg/dL, 1,000.5
    r"|([-._=*])\1+"  # -----
    r"|[^a0 ]"
)


class _Shapes(dict[int, str]):
    """The shape of every character met so far, for `str.translate`."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kind = unicodedata.category(character)
        if character.isspace() or character == BYTE_ORDER_MARK:  # a file that began with it would lose it
            self[code] = " "
        elif kind[0] == "N":
            self[code] = "0"
        elif kind[0] in "LM" or kind == "Cf":  # Cf: joiners and soft hyphens, which stand inside words
            self[code] = "a"
        elif character in "\u2018\u2019":
            self[code] = "'"
        else:
            self[code] = character if character.isascii() else "!"
        return self[code]


_SHAPES = _Shapes()


def trimmed(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Returns a stretch of a text without the white space at its ends; none if it holds nothing else."""
    shape = text[start:end].translate(_SHAPES)
    if not shape.strip(" "):
        return None
    return end - len(shape.lstrip(" ")), start + len(shape.rstrip(" "))


def tokenise(text: str, cuts: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Splits a text into tokens.

    Args:
        text: The text.
        cuts: Offsets at which a token must end, such as where annotations begin and end.

    Returns:
        Start and end of each token, in order; together they hold every character that is not white space.

    >>> text = "BP 120/80, metoprolol 12.5 mg b.i.d."
    >>> [text[start:end] for start, end in tokenise(text)]
    ['BP', '120/80', ',', 'metoprolol', '12.5', 'mg', 'b.i.d.']
    """
    bounds = sorted({0, len(text), *cuts})
    tokens: list[tuple[int, int]] = []
    following = 0
    for match in _TOKEN.finditer(text.translate(_SHAPES)):
        start, end = match.span()
        while bounds[following] <= start:
            following += 1
        inside = []
        while bounds[following] < end:
            inside.append(bounds[following])
            following += 1
        tokens.extend(pairwise([start, *inside, end]))
    return tokens

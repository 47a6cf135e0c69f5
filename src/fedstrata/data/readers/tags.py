"""Chunk tags (`B-x`, `I-x`, `E-x`, `S-x`, `O`): which scheme a file follows, and the chunks its tags mean.

The text of tagged tokens is made from them: single blanks between tokens, line feeds between sentences.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from fedstrata.core.documents import Document, Span
from fedstrata.data.readers.labels import label_from_file

TAG = re.compile(r"O|[BIES]-.+")
"""What a tag looks like."""


def _goes_on(before: str, tag: str) -> bool:
    """Whether `before` leaves a chunk open, of the type of `tag`."""
    return before[0] in "BI" and before[1:] == tag[1:]


def _iob2(before: str, tag: str) -> bool:
    return tag[0] in "BO" or (tag[0] == "I" and _goes_on(before, tag))


def _iob1(before: str, tag: str) -> bool:
    return tag[0] in "IO" or (tag[0] == "B" and _goes_on(before, tag))


def _bioes(before: str, tag: str) -> bool:
    if before[0] in "BI":
        return tag[0] in "IE" and _goes_on(before, tag)
    return tag[0] in "BSO"


def _first_break(
    sentences: Iterable[Sequence[str]], follows: Callable[[str, str], bool]
) -> tuple[int, int] | None:
    """Returns the sentence and tag where a scheme's rule is first broken (see `invalid_transition`)."""
    for number, sentence in enumerate(sentences):
        for position, (before, tag) in enumerate(pairwise(["O", *sentence, "O"])):
            if not follows(before, tag):
                return number, position
    return None


def invalid_transition(sentences: Sequence[Sequence[str]]) -> tuple[int, int, str] | None:
    """Finds the first tag that cannot stand where it does.

    A file with `E-` or `S-` tags must follow BIOES throughout; another one either IOB2 (every chunk begins
    with `B-`) or IOB1 (`B-` only between two adjacent chunks of a type) throughout.

    Args:
        sentences: The tags of each sentence of one file, each of them a match of `TAG`.

    Returns:
        The index of the sentence, that of the tag (the sentence's length for a chunk left open), and what is
        expected there; none if all is well.
    """
    if any(tag[0] in "ES" for sentence in sentences for tag in sentence):
        found = _first_break(sentences, _bioes)
        expected = "BIOES: a chunk is S-x, or B-x, I-x..., E-x"
    else:
        found = _first_break(sentences, _iob2)
        if found is None or _first_break(sentences, _iob1) is None:
            return None
        expected = (
            "I-x only after B-x or I-x of the same type (IOB2), or B-x only there (IOB1), throughout the file"
        )
    return None if found is None else (*found, expected)


def chunks(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Returns the chunks of one sentence whose transitions are valid.

    Args:
        tags: Its tags, in any of the three schemes.

    Returns:
        First token, last token and type of each chunk, in order.

    >>> chunks(["B-test", "I-test", "O", "S-drug"])
    [(0, 1, 'test'), (3, 3, 'drug')]
    """
    found: list[tuple[int, int, str]] = []
    for position, (before, tag) in enumerate(pairwise(["O", *tags])):
        if tag == "O":
            continue
        if tag[0] in "IE" and _goes_on(before, tag):
            first, _, kind = found.pop()
            found.append((first, position, kind))
        else:
            found.append((position, position, tag[2:]))
    return found


def tagged_document(name: str, sentences: Iterable[Sequence[tuple[str, str]]]) -> Document:
    """Makes a document of tagged tokens.

    Args:
        name: Its id.
        sentences: The tokens of each sentence with their tags; transitions are valid.

    >>> tagged_document("n", [[("chest", "O"), ("pain", "B-problem")], [("fever", "B-problem")]]).spans[1]
    Span(start=11, end=16, label='problem', fragments=())
    """
    spans: list[Span] = []
    lines = []
    begin = 0
    for sentence in sentences:
        starts, ends = [], []
        for token, _ in sentence:
            starts.append(begin)
            ends.append(begin + len(token))
            begin = ends[-1] + 1
        for first, last, kind in chunks([tag for _, tag in sentence]):
            spans.append(Span(starts[first], ends[last], label_from_file(kind)))
        lines.append(" ".join(token for token, _ in sentence))
    return Document(name, "\n".join(lines), tuple(spans))

"""What one round gives away of texts: a run is made in a scratch folder, and what leaves its clients is read.

The server is honest and curious: it sees every plan and every update of the first round, or with secure
aggregation their sum alone, and knows the model that the plan is of. It looks for texts in them
(`privacy.attacks.span`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from torch import Tensor

from fedstrata.auditing.observed_run import SUM, ObservedRound, Seen
from fedstrata.core.task import Task
from fedstrata.metrics.text import overlap_scores
from fedstrata.models.state import Model
from fedstrata.privacy.attacks.search import Text, arranged, bag_of, search_span
from fedstrata.privacy.attacks.span import FULLEST, Reader, Span, readers_of
from fedstrata.record.findings import Finding, FindingTable, Reading, what_was_attacked
from fedstrata.record.words import ABSENT, duration, plural

TOKENS = 1
"""Tokens that a text may lack at its end: nothing comes back from the last one of a language model."""
COLUMNS = ("seen", "texts", "tokens", "directions", "rank", "tokens\nread", "texts\nread", "ROUGE-L")
"""The columns of the table."""
TITLE = "texts found in the updates of one round"
"""The title of the table."""
FEW = 3
"""Texts that are shown where nothing was read of any."""
_BOTH_WAYS = (
    "what a layer reads of a token depends on the whole text, so that all texts would have to be tried"
)
_TOO_MANY = "tokens are known, and there are too many ways to put texts together of them"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was read in one update, or in a sum of them.

    Attributes:
        seen: Whose update it is, or `SUM`.
        texts: Texts that were trained on: windows, as the task makes them of documents.
        tokens: Their tokens.
        directions: How many dimensions the change of the layers that were looked at can have; 0 if there are
            none.
        rank: Dimensions of the space of what they read; none where it fills all.
        exact: Texts that were found from beginning to end.
        named: The share of their tokens that were found, at their places where places can be told.
        rouge: ROUGE-L of each text with the nearest of what was found, mean; 0 where nothing was found.
        why: In words, why texts could not be found; empty where some could.
        beyond: Texts that are longer than what was looked for, so that their ends were not.
        seconds: How long it took.
        readings: Every text with what is nearest to it of what was found.
    """

    seen: str
    texts: int
    tokens: int
    directions: int
    rank: int | None
    exact: int
    named: float
    rouge: float
    why: str
    beyond: int
    seconds: float
    readings: Sequence[Reading]


@dataclass(frozen=True, slots=True)
class _Found:
    """What was found in one change: by which layers, the space, tokens by place, and texts."""

    reader: Reader | None = None
    span: Span | None = None
    bag: Sequence[frozenset[int]] = ()
    texts: Sequence[Text] = ()
    why: str = ""


def recoveries(observed: ObservedRound, longest: int) -> Iterator[Recovery]:
    """Yields what texts are found in what a server sees of a round.

    Args:
        observed: The round.
        longest: Tokens of a text that are looked for, at most.
    """
    model = observed.experiment.model
    for seen, change in observed.changes():
        started = time.perf_counter()
        texts = texts_of(observed.experiment.task, seen)
        found = _found(model, change, sum(map(len, texts)), longest)
        yield _recovery(model, seen.name, texts, found, longest, time.perf_counter() - started)


def texts_of(task: Task, seen: Seen) -> list[Text]:
    """Returns the tokens of each row that somebody is trained on, without padding."""
    found = []
    for example in seen.examples:
        batch = task.collate([example])
        for ids, kept in zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True):
            found.append(tuple(ids[kept].tolist()))
    return found


def _found(model: Model, change: Mapping[str, Tensor], tokens: int, longest: int) -> _Found:
    """Looks for texts in a change, and says why nothing is found."""
    readers = list(readers_of(model, change))
    if not readers:
        return _Found(why="no weight of a linear layer of a block travels")
    found = _looked_for(model, change, readers, longest)
    most = max(own.directions for own in readers)
    if found.texts or any(found.bag) or tokens < FULLEST * most:
        return found
    # Whatever small space was seen in one of the layers is none of what was read.
    return _Found(
        readers[0], why=f"information: {tokens:,} tokens fill all {most} directions that a change can have"
    )


def _looked_for(
    model: Model, change: Mapping[str, Tensor], readers: Sequence[Reader], longest: int
) -> _Found:
    """Looks first for the tokens that are there, where that can be told, and then for texts."""
    spans = [(own, own.span_of(change)) for own in readers]
    known = [(reader, span) for reader, span in spans if span is not None]
    if not known:
        return _Found(readers[0], why="information: the change has no space of few directions")
    bag: Sequence[frozenset[int]] = ()
    for reader, span in known:
        if reader.alone and not any(bag):
            bag = bag_of(model, reader, span, longest=longest)
    above = [(reader, span) for reader, span in known if not reader.alone]
    reader, span = (above or known)[0]
    if model.is_causal:
        for reader, span in above:
            if found := search_span(model, reader, span, longest=longest, bag=bag if any(bag) else None):
                return _Found(reader, span, bag, found)
        return _Found(reader, span, bag, why=_nothing(bag))
    if not any(bag):
        why = _nothing(bag) if any(own.alone for own, _ in known) else f"compute: {_BOTH_WAYS}"
        return _Found(reader, span, why=why)
    texts = arranged(model, bag, *(above[0] if above else (None, None)))
    return _Found(reader, span, bag, texts or (), f"compute: {_TOO_MANY}" if texts is None else "")


def _nothing(bag: Sequence[frozenset[int]]) -> str:
    if any(bag):
        return f"compute: {_TOO_MANY}"
    return "information: no token gives what the space holds; inputs have moved, or dropout has changed them"


def _recovery(
    model: Model, seen: str, texts: Sequence[Text], found: _Found, longest: int, seconds: float
) -> Recovery:
    words, wanted = (
        [model.tokenizer.decode(text, skip_special_tokens=True) for text in each]
        for each in (found.texts, texts)
    )
    scores = [[_overlap(each, text) for each in words] for text in wanted]
    nearest = [_nearest(own, words, text) for own, text in zip(scores, wanted, strict=True)]
    best = [0.0 if at is None else own[at] for own, at in zip(scores, nearest, strict=True)]
    tokens, whole = sum(map(len, texts)), set(found.texts)
    return Recovery(
        seen,
        len(texts),
        tokens,
        0 if found.reader is None else found.reader.directions,
        None if found.span is None else found.span.rank,
        sum(_is_found(text, whole) for text in texts),
        _named(texts, found) / max(tokens, 1),
        sum(best) / max(len(best), 1),
        found.why,
        sum(len(text) > longest + TOKENS for text in texts),
        seconds,
        [
            Reading(seen, text, "" if at is None else words[at])
            for text, at in zip(wanted, nearest, strict=True)
        ],
    )


def _nearest(scores: Sequence[float], words: Sequence[str], text: str) -> int | None:
    """Returns which text has most in common with one, of equal ones that which begins most like it."""
    if not words:
        return None
    wanted = text.split()

    def beginning(words: list[str]) -> int:
        alike = (one == other for one, other in zip(words, wanted, strict=False))
        return sum(1 for _ in takewhile(bool, alike))

    return max(range(len(words)), key=lambda at: (scores[at], beginning(words[at].split())))


def _overlap(one: str, other: str) -> float:
    return overlap_scores([one], [other], rouge=("rougeL",))["rougeL"]


def _named(texts: Sequence[Text], found: _Found) -> int:
    """Returns how many tokens of texts were found, at their places where places can be told."""
    pairs = {(place, token) for own in found.texts for place, token in enumerate(own)}
    pairs |= {(place, token) for place, own in enumerate(found.bag) for token in own}
    anywhere = found.bag[0] if len(found.bag) == 1 else frozenset[int]()
    return sum(
        token in anywhere or (place, token) in pairs for own in texts for place, token in enumerate(own)
    )


def _is_found(text: Text, found: set[Text]) -> bool:
    return any(text[: len(text) - lacking] in found for lacking in range(TOKENS + 1))


def finding_of(
    found: Sequence[Recovery], observed: ObservedRound, *, longest: int, show_text: bool
) -> Finding:
    """Returns what was found in the form that all attacks have.

    Args:
        found: It, at least one.
        observed: The round it was found in.
        longest: Tokens of a text that were looked for, at most.
        show_text: Whether texts may be seen by everybody; without it none is in it, but of made-up ones.
    """
    whole = [own for own in found if own.exact == own.texts]
    alone = [own for own in found if own.seen != SUM] or found
    verdict = (
        f"{sum(own.exact for own in alone)} of {sum(own.texts for own in alone)} texts were read "
        "from beginning to end"
    )
    if len(alone) < len(found):
        verdict += f", and in the sum alone {sum(own.exact for own in found if own.seen == SUM)}"
    beyond = max(own.beyond for own in found)
    seconds = duration(sum(own.seconds for own in found))
    return Finding(
        "span",
        [FindingTable(TITLE, COLUMNS, [_cells(own) for own in found])],
        [
            "a server that follows the protocol and knows the model looked for texts in what left clients in "
            f"the first round, {seconds}",
            verdict,
            *(f"{own.seen}: {own.why}" for own in found if own.why),
            *([f"{plural(beyond, 'text')} longer than what was looked for (--longest)"] if beyond else []),
            *(() if whole else ("that this attack finds nothing proves nothing: another one may read more",)),
        ],
        {
            **what_was_attacked(observed.experiment.settings),
            "longest": longest,
            "found": facts_of(found),
            "minutes": sum(own.seconds for own in found) / 60.0,
        },
        list(_telling(found)) if show_text or observed.made_up else (),
    )


def _telling(found: Sequence[Recovery]) -> Iterator[Reading]:
    """Yields what is worth showing: texts of which something was read, or else some of which nothing was."""
    alone = [own for own in found if own.seen != SUM] or list(found)
    everything = [reading for own in alone for reading in own.readings]
    yield from [own for own in everything if own.read] or everything[:FEW]


def _cells(own: Recovery) -> tuple[str, ...]:
    rank: int | str = "all" if own.rank is None else own.rank
    numbers = (own.texts, own.tokens, own.directions, rank if own.directions else ABSENT)
    return (
        own.seen,
        *(f"{each:,}" if isinstance(each, int) else each for each in numbers),
        f"{100 * own.named:.0f} %",
        f"{own.exact:,}",
        f"{own.rouge:.2f}",
    )


def facts_of(found: Sequence[Recovery]) -> list[dict[str, Any]]:
    """Returns what was found as JSON; no text and no token of one is in it."""
    return [
        {
            "seen": own.seen,
            "texts": own.texts,
            "tokens": own.tokens,
            "directions": own.directions,
            "rank": own.rank,
            "recovered": own.exact,
            "tokens_read": own.named,
            "rouge_l": own.rouge,
            "why_not": own.why or None,
            "longer_than_looked_for": own.beyond,
            "seconds": own.seconds,
        }
        for own in found
    ]

"""What one round gives away of words and labels, by rows of an embedding and of a head that updates change.

The server is the one of `fedstrata.auditing.text_recovery`.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fedstrata.auditing.observed_run import SUM, ObservedRound, Seen
from fedstrata.auditing.text_recovery import texts_of
from fedstrata.core.task import Task
from fedstrata.privacy.attacks.row_changes import Words, labels_in, words_in
from fedstrata.record.findings import Finding, FindingTable, Reading, what_was_attacked
from fedstrata.record.words import ABSENT, duration, plural

COLUMNS = (
    "seen",
    "tokens that\nare there",
    "found",
    "of these\nthere",
    "area\nunder ROC",
    "label shares\noff by",
    "without\nan update",
)
"""The columns of the table."""
TITLE = "words and labels, by rows that the updates of one round change"
"""The title of the table."""
_IGNORED = -100
_SHOWN = 60
"""Words of a client that are shown, at most."""


@dataclass(frozen=True, slots=True)
class Inversion:
    """What was read in one update, or in a sum of them.

    Attributes:
        seen: Whose update it is, or `SUM`.
        there: How many different tokens are in the texts.
        found: How many are taken to be; none where no row tells of words.
        right: How many of these are.
        area: That under the ROC curve of telling tokens that are there from others; none where `found` is.
        labels_off: How far the shares of labels that follow are from those that are, on average over labels;
            none where no row tells of labels.
        unlearnt_off: The same of what the model expects without an update.
        seconds: How long it took.
        reading: What is there, and what was read: labels and tokens.
    """

    seen: str
    there: int
    found: int | None
    right: int
    area: float | None
    labels_off: float | None
    unlearnt_off: float | None
    seconds: float
    reading: Reading


def inversions(observed: ObservedRound) -> Iterator[Inversion]:
    """Yields what words and labels are told by what a server sees of a round."""
    experiment = observed.experiment
    model, task = experiment.model, experiment.task
    classes: Sequence[str] = getattr(task, "classes", ())
    for seen, change in observed.changes():
        started = time.perf_counter()
        true, several = _shares(task, seen, len(classes))
        seed = experiment.seed.child("inversion")
        told, labels_off, unlearnt_off = None, None, None
        if true is not None:
            told = labels_in(model, change, len(classes), seed, several=several, rate=observed.rate(seen))
        if told is not None and true is not None:
            labels_off, unlearnt_off = (
                float((own - true).abs().mean()) for own in (told.shares, told.expected)
            )
        words = words_in(model, change)
        there = Counter(token for text in texts_of(task, seen) for token in text)
        yield Inversion(
            seen.name,
            len(there),
            None if words is None else len(words.found),
            0 if words is None else len(words.found & there.keys()),
            None if words is None else _area(words, there),
            labels_off,
            unlearnt_off,
            time.perf_counter() - started,
            Reading(
                seen.name,
                _text(model.tokenizer, there, classes, true),
                _text(model.tokenizer, _likeliest(words), classes, None if told is None else told.shares),
            ),
        )


def _shares(task: Task, seen: Seen, count: int) -> tuple[Tensor | None, bool]:
    """Returns the share of each label in what somebody is trained on, and whether one may have several."""
    batches = [task.collate([example])["labels"] for example in seen.examples] if count else []
    if not batches:
        return None, False
    if batches[0].is_floating_point():
        return torch.cat(batches).double().mean(dim=0), True
    labels = torch.cat([own.flatten() for own in batches])
    counts = torch.bincount(labels[labels != _IGNORED], minlength=count).double()
    return counts / counts.sum().clamp(min=1.0), False


def _area(words: Words, there: Counter[int]) -> float | None:
    present = torch.zeros(len(words.scores), dtype=torch.bool)
    present[list(there)] = True
    if present.all() or not present.any():
        return None
    return float(roc_auc_score(present.numpy(), words.scores.cpu().numpy()))


def _likeliest(words: Words | None) -> list[int]:
    if words is None:
        return []
    return sorted(words.found, key=lambda token: (-float(words.scores[token]), token))


def _text(tokenizer: Any, tokens: Any, classes: Sequence[str], shares: Tensor | None) -> str:
    """Returns labels with their shares, and the first words, as people read them."""
    pairs = zip(classes, [] if shares is None else shares.tolist(), strict=False)
    labels = [f"{name} {100 * share:.0f} %" for name, share in pairs if share >= 0.005]
    words = [tokenizer.decode([token]).strip() for token in list(tokens)[:_SHOWN]]
    return "; ".join(filter(None, [", ".join(labels), " ".join(words)]))


def finding_of(found: Sequence[Inversion], observed: ObservedRound, *, show_text: bool) -> Finding:
    """Returns what was found in the form that all attacks have.

    Args:
        found: It, at least one.
        observed: The round it was found in.
        show_text: Whether texts may be seen by everybody; without it no word is in it, but of made-up ones.
    """
    seconds = duration(sum(own.seconds for own in found))
    says = [
        "a server that follows the protocol and knows the model looked at the rows of the word embedding and "
        f"of the head that left clients in the first round, {seconds}"
    ]
    named = [own for own in found if own.found is not None]
    if named:
        alone = [own for own in named if own.seen != SUM] or named
        there, right = sum(own.there for own in alone), sum(own.right for own in alone)
        taken = sum(own.found or 0 for own in alone)
        whose = "" if alone[0].seen == SUM else ", each client's counted for itself"
        says.append(
            f"{right:,} of {plural(there, 'token')} that are there were named, among {taken:,} that were "
            f"taken to be there{whose}"
        )
    else:
        says.append("words: neither the word embedding nor a language model's head travels")
    if all(own.labels_off is None for own in found):
        says.append("labels: no head with an output for each label travels")
    elif not observed.rate_is_known:
        says.append(
            "label shares are rough: with Adam, and with clipped gradients, the size of a change says little "
            "of how large the gradients were"
        )
    return Finding(
        "invert",
        [FindingTable(TITLE, COLUMNS, [_cells(own) for own in found])],
        says,
        {**what_was_attacked(observed.experiment.settings), "found": [_facts(own) for own in found]},
        [own.reading for own in found if own.seen != SUM or len(found) == 1]
        if show_text or observed.made_up
        else (),
    )


def _cells(own: Inversion) -> tuple[str, ...]:
    share = own.right / own.found if own.found else None
    offs = (own.labels_off, own.unlearnt_off)
    return (
        own.seen,
        f"{own.there:,}",
        ABSENT if own.found is None else f"{own.found:,}",
        ABSENT if share is None else f"{100 * share:.0f} %",
        ABSENT if own.area is None else f"{own.area:.3f}",
        *(ABSENT if each is None else f"{100 * each:.1f} points" for each in offs),
    )


def _facts(own: Inversion) -> dict[str, Any]:
    return {
        "seen": own.seen,
        "tokens": own.there,
        "found": own.found,
        "right": own.right,
        "area": own.area,
        "label_shares_off": own.labels_off,
        "label_shares_off_without": own.unlearnt_off,
        "seconds": own.seconds,
    }

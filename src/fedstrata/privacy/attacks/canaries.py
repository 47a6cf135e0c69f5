"""Canaries: made-up patients, of whom fair coins say who is trained on.

Each is one document of words drawn evenly from the vocabulary of the model's tokenizer, so that it looks like
nothing that a language has and like no other canary, with annotations drawn at random of those that the task
knows: what a model learns of it, it learns of it alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import refused
from fedstrata.core.seeding import Seed
from fedstrata.core.task import Task
from fedstrata.data.split import Split

ANNOTATIONS = frozenset({"spans", "labels"})
"""What of a document can be made up by drawing it."""
MENTIONED = 0.5
"""The share of the words that are a mention, where the task learns mentions."""
LONGEST_WORD = 16
"""Characters of a word at most: some vocabularies hold rows of blanks and dashes."""
TRIES = 1000
"""How many tokens are drawn for a word at most, until one is a word."""


@dataclass(frozen=True, slots=True)
class Canaries:
    """Made-up patients.

    Attributes:
        documents: The document of each.
        clients: Whose patient each is, or would be.
        included: Whether it is trained on, (canaries,) bool.
    """

    documents: Sequence[Document]
    clients: Sequence[str]
    included: NDArray[np.bool_]

    def of(self, client: str) -> list[int]:
        """Returns the numbers of a client's."""
        return [number for number, own in enumerate(self.clients) if own == client]

    def added_to(self, client: str, documents: Split) -> Split:
        """Returns a client's documents with those of its canaries that are trained on."""
        own = tuple(self.documents[number] for number in self.of(client) if self.included[number])
        return replace(documents, train=(*documents.train, *own))


def require_drawable(task: Task) -> None:
    """Refuses a task whose documents have what cannot be made up by drawing it.

    Raises:
        ConfigurationError: It is such a one.
    """
    if task.template_field or not ANNOTATIONS.issuperset(task.gives):
        of = "answers to questions" if task.template_field else " and ".join(task.gives)
        message = f"{task.name!r} learns {of}, which no canary has: its patients are words with random "
        message += "mentions or labels; audit the mechanism with a task of those, or with language modelling"
        raise refused("task.name", message, "not_supported")


def make_canaries(
    task: Task, tokenizer: Any, clients: Sequence[str], count: int, words: int, seed: Seed
) -> Canaries:
    """Makes up patients, and tosses a coin for each.

    Args:
        task: What is learnt; its types and labels are known.
        tokenizer: The model's.
        clients: Whose patients they are, in turn.
        count: How many there are.
        words: Words of each.
        seed: Of all that is drawn.

    Raises:
        ConfigurationError: The task's documents cannot be made up, or the vocabulary has no words.
    """
    require_drawable(task)
    owners = [clients[number % len(clients)] for number in range(count)]
    special = frozenset(tokenizer.all_special_ids)
    documents = []
    for number, owner in enumerate(owners):
        generator = seed.child("canary", number).numpy()
        text = [_word(tokenizer, special, generator) for _ in range(words)]
        documents.append(_document(task, f"canary-{number}", owner, text, generator))
    included = seed.child("coins").numpy().random(count) < 0.5
    return Canaries(documents, owners, included)


def shadow_coins(canaries: int, runs: int, seed: Seed) -> NDArray[np.bool_]:
    """Deals out who is trained on in shadow runs: each canary in half of them (of an odd number in one less).

    Which half is drawn for each canary by itself, so that these coins know nothing of any others.

    Args:
        canaries: How many there are.
        runs: How many runs.
        seed: Of what is drawn.

    Returns:
        Whether each canary is trained on, (runs, canaries).
    """
    half = np.arange(runs)[:, None] < runs // 2
    return seed.numpy().permuted(np.tile(half, (1, canaries)), axis=0)


def _word(tokenizer: Any, special: frozenset[int], generator: np.random.Generator) -> str:
    for _ in range(TRIES):
        drawn = int(generator.integers(len(tokenizer)))
        word = "" if drawn in special else str(tokenizer.decode([drawn])).strip()
        if 0 < len(word) <= LONGEST_WORD and word.isprintable() and not {" ", "\ufffd"}.intersection(word):
            return word
    message = f"of {TRIES} tokens that were drawn none is a word, of which canaries are made"
    raise refused("model.tokenizer", message, "not_supported")


def _document(
    task: Task, name: str, owner: str, words: Sequence[str], generator: np.random.Generator
) -> Document:
    """Returns a document of these words with random annotations, the only one of a patient of its name."""
    spans, start = [], 0
    for word in words:
        if "spans" in task.gives and generator.random() < MENTIONED:
            label = task.known_types[int(generator.integers(len(task.known_types)))]
            spans.append(Span(start, start + len(word), label))
        start += len(word) + 1
    drawn = task.classes[int(generator.integers(len(task.classes)))] if "labels" in task.gives else None
    return Document(
        name,
        " ".join(words),
        spans=tuple(spans),
        labels=() if drawn is None else (drawn,),
        site=owner,
        metadata={"patient": name},
    )

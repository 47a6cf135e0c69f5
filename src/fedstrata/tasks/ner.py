"""Named entity recognition: mentions as B-, I- and O tags on subword tokens.

A token has the tag of the mention it touches. Flat tags hold one mention per token, so where mentions
overlap, nest, or share a token the longest is tagged; a discontinuous one is tagged as the stretch that
encloses it, where no continuous one is in the way. Scores are taken against all annotated mentions, tagged or
not.

A tagger of subword tokens often tags a piece of a word and not the rest. Mentions begin and end within a word
so seldom that the first token of a word decides for all of it (`task.whole_words`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, ClassVar, Literal

import numpy as np
import regex
import torch
from pydantic import Field
from torch import Tensor, nn

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import Problem, refuse
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.base import Classes
from fedstrata.core.task import CardWords
from fedstrata.core.types import Tally
from fedstrata.data.select import unknown_types
from fedstrata.data.split import Split
from fedstrata.metrics.spans import match_spans, tally_of
from fedstrata.tasks.annotation_types import TypedTask
from fedstrata.tasks.corrupt import corrupted_targets
from fedstrata.tasks.floors import LOOKUP, nothing_found
from fedstrata.tasks.lookup import LookupTagger
from fedstrata.tasks.partial_labels import partial_cross_entropy, stacked, unknown_classes
from fedstrata.tasks.texts import require_single_texts
from fedstrata.tasks.windows import (
    CUT_INTO_WINDOWS,
    IGNORED,
    Window,
    WindowTask,
    encode_windows,
    pad_labelled,
    run_model,
    touched,
)

WORD = regex.compile(r"[\p{Latin}\p{Greek}\p{Cyrillic}\p{M}]+")
"""A word of the scripts that put blanks between words; in others a run of letters may be a whole sentence."""


class NamedEntityRecognition(TypedTask, WindowTask):
    """Named entity recognition, the task where none is named: the mentions of a note.

    Tags subword tokens, and scores the mentions they spell, by character offsets.
    """

    name: Literal["ner"] = "ner"
    types: Classes = Field(
        default="auto",
        description="Entity types to learn; `auto`: those of the training documents. Name them for sites "
        "on separate machines where some sites lack some types.",
    )
    whole_words: bool = Field(
        default=True,
        description="The first token of a word decides the label of the whole word (Latin, Greek and "
        "Cyrillic scripts).",
    )

    learns: ClassVar[str] = "mentions (data.types)"
    gives: ClassVar[tuple[str, ...]] = ("spans",)
    outputs: ClassVar[tuple[str, ...]] = ("brat", "i2b2", "jsonl")
    naming: ClassVar[tuple[str, ...]] = ("types",)
    class_words: ClassVar[str] = "O and B-, I- of every type"
    floor_names: ClassVar[tuple[str, ...]] = (LOOKUP,)

    def fitted(self, clients: Mapping[str, Split]) -> NamedEntityRecognition:
        """Returns the task for a corpus: its types are those that are named, or of all training documents.

        Raises:
            ConfigurationError: If no training document has a mention, another document has a type that none
                of them has or that is not named, or documents are pairs of texts.
        """
        types, problems = self._found(clients)
        refuse(problems)
        return self.of_types(types)

    def _fault_of(self, types: Sequence[str], count: int) -> Problem | None:
        if types:
            return None
        found = f"none of the {count} training documents has a mention of a type that data.types keeps"
        return Problem(
            "data",
            f"{found}; are data.path and data.format those of the annotations?",
            code="nothing_to_learn",
        )

    def _types_of(self, classes: Sequence[str]) -> list[str]:
        return [label.removeprefix("B-") for label in classes if label.startswith("B-")]

    @property
    def classes(self) -> tuple[str, ...]:
        """`O`, then `B-` and `I-` of every type: B- tags are odd and I- tags even."""
        return ("O", *(f"{prefix}-{label}" for label in self._types for prefix in "BI"))

    @property
    def _type_of_class(self) -> list[str | None]:
        """The type that each class is a tag of; none for O."""
        return [None, *(label for label in self._types for _ in "BI")]

    def encode(self, documents: Sequence[Document], tokenizer: Any) -> list[Window]:
        """Tokenizes and tags documents.

        Raises:
            ConfigurationError: If a document has a type that the task does not know, or is a pair of texts.
        """
        require_single_texts(documents, self.name)
        refuse(unknown_types(documents, "spans", self._types))
        unknown = [unknown_classes(document, self._type_of_class) for document in documents]
        windows = encode_windows(documents, tokenizer, self, self._tags)
        return [replace(window, unknown=unknown[window.document]) for window in windows]

    def corrupt(self, examples: Sequence[Window], kind: str, tokenizer: Any, rng: Seed) -> list[Window]:
        """Returns the windows of a corrupt client; see `fedstrata.tasks.corrupt.corrupted_targets`.

        Targets are the tags of owned tokens, and classes are tags: O becomes the B- of the first type.
        """
        return corrupted_targets(examples, kind, tokenizer, rng, of="tags", classes=len(self.classes))

    def collate(self, examples: Sequence[Window]) -> dict[str, Tensor]:
        """Pads windows on the right; see `windows.pad_labelled` and `partial_labels.stacked`."""
        return pad_labelled(examples, of="tags") | stacked(examples, len(self.classes))

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the sum of the cross entropies of owned tokens, float32, and their number.

        A token that is O in a document in which nobody looked for some types may as well be of one of those;
        see `fedstrata.tasks.partial_labels`.
        """
        logits, unknown = run_model(module, batch).float(), batch.get("unknown")
        flat, labels = logits.flatten(0, 1), batch["labels"].flatten()
        if unknown is not None:
            unknown = unknown.repeat_interleave(logits.shape[1], dim=0)
        return partial_cross_entropy(flat, labels, unknown).sum(), self.terms(batch).sum()

    def terms(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns how many tokens each window owns, (windows,)."""
        return (batch["labels"] != IGNORED).sum(dim=1)

    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the likeliest tag of every token of each window, (tokens,) int16."""
        with torch.no_grad():
            tags = run_model(module, batch).argmax(dim=-1).to(torch.int16).cpu().numpy()
        lengths = batch["attention_mask"].sum(dim=1).tolist()
        return [row[:length] for row, length in zip(tags, lengths, strict=True)]

    def decode(
        self, documents: Sequence[Document], examples: Sequence[Window], predictions: Sequence[np.ndarray]
    ) -> list[tuple[Span, ...]]:
        """Reads mentions off the tags of owned tokens.

        A mention begins at a B-, and at an I- that continues no mention of its type; it runs on across
        windows. Mentions of nothing but blanks are left out. With `task.whole_words` the tag of a word's
        first token stands for the word. The mentions of a document are sorted.
        """
        answers: list[tuple[Span, ...]] = [() for _ in documents]
        pairs = zip(examples, predictions, strict=True)
        for index, group in groupby(pairs, key=lambda pair: pair[0].document):
            windows, tags = zip(*group, strict=True)
            own_tags = [each[window.owned] for window, each in zip(windows, tags, strict=True)]
            offsets = [window.offsets[window.owned] for window in windows]
            answers[index] = self._spans(
                documents[index].text, np.concatenate(own_tags), np.concatenate(offsets)
            )
        return answers

    def tally(self, documents: Sequence[Document], answers: Sequence[Sequence[Span]]) -> dict[str, float]:
        """Counts the mentions of each document; see `fedstrata.metrics.spans.tally_of`."""
        found = [own.of_looked_for(answer) for own, answer in zip(documents, answers, strict=True)]
        return tally_of(match_spans([document.spans for document in documents], found), self._types)

    def floors(
        self, train: Sequence[Document], documents: Sequence[Document], tokenizer: Any
    ) -> Mapping[str, Sequence[tuple[Span, ...]]]:
        """Marks the mentions of the training documents wherever their words stand."""
        tagger = LookupTagger.fit(map(self.known, train))
        return {LOOKUP: [tagger.predict(document) for document in documents]} if tagger.lexicon else {}

    def degenerate(self, tally: Tally, documents: int) -> str:
        """Says whether no mention was predicted."""
        return nothing_found(tally, "mention was predicted", documents)

    def known(self, document: Document) -> Document:
        """Returns the document with its mentions of the task's types, and nothing else."""
        spans = tuple(span for span in document.spans if span.label in self._types)
        return replace(document, spans=spans, relations=(), labels=())

    def annotate(self, document: Document, answer: Sequence[Span]) -> Document:
        """Returns the document with these mentions, and nothing else."""
        return replace(document, spans=tuple(answer), relations=(), labels=(), annotates=None)

    def card_words(self) -> CardWords:
        """Returns what a model card says of the task."""
        beyond = "the pipeline above does not, unless it is given a `stride`"
        if self.whole_words:
            beyond += ", and finds pieces of words where `fedstrata predict` finds whole words"
        what = f"Finds mentions in text, of these types: {', '.join(self.known_types)}."
        return CardWords(what, CUT_INTO_WINDOWS, beyond)

    def _tags(self, document: Document, offsets: np.ndarray) -> np.ndarray:
        """Returns the tag of each token of a document, (tokens,) int16, from their offsets, (tokens, 2)."""
        tags = np.zeros(len(offsets), dtype=np.int16)
        spans = sorted(document.spans, key=_precedence)
        for span, begin, end in zip(spans, *touched(spans, offsets), strict=True):
            if begin < end and not tags[begin:end].any():
                tags[begin:end] = 2 * self._types.index(span.label) + 2
                tags[begin] -= 1
        return tags

    def _spans(self, text: str, tags: np.ndarray, offsets: np.ndarray) -> tuple[Span, ...]:
        """Returns the mentions that the tags of a document's tokens spell, (tokens,) and (tokens, 2)."""
        if self.whole_words:
            begins = _begins(text, offsets)
            first_tags = tags[np.maximum.accumulate(np.where(begins, np.arange(len(tags)), 0))]
            tags = np.where(begins, tags, (first_tags + 1) // 2 * 2)  # what goes on with a word: I-
        types = (tags.astype(np.int64) + 1) // 2  # 0 for O, else the number of the type from 1
        continues = (tags % 2 == 0) & (types == np.concatenate([[0], types[:-1]]))
        mentions = np.cumsum(~continues)  # the number of the run of tokens that each one belongs to
        counted = (types > 0) & (offsets[:, 1] > offsets[:, 0])
        if not counted.any():
            return ()
        _, first = np.unique(mentions[counted], return_index=True)
        starts = np.minimum.reduceat(offsets[counted, 0], first).tolist()
        ends = np.maximum.reduceat(offsets[counted, 1], first).tolist()
        labels = [self._types[number - 1] for number in types[counted][first].tolist()]
        return tuple(sorted(map(Span, starts, ends, labels)))


def _begins(text: str, offsets: np.ndarray) -> np.ndarray:
    """Returns which tokens begin a word, (tokens,) bool, from their offsets, (tokens, 2).

    A token that is not wholly within a word, such as a number or a comma, is taken for one of its own.
    """
    words = np.array([match.span() for match in WORD.finditer(text)] or [(0, 0)])
    starts, ends = offsets.T
    number = np.searchsorted(words[:, 0], starts, side="right") - 1
    within = (number >= 0) & (starts < ends) & (ends <= words[number, 1])
    number = np.where(within, number, -1 - np.arange(len(offsets)))
    begins: np.ndarray = number != np.concatenate([[len(words)], number[:-1]])
    return begins


def _precedence(span: Span) -> tuple[bool, int, int, str]:
    """Sorts continuous spans first, since no other can be decoded, and then the longest."""
    return bool(span.fragments), span.start - span.end, span.start, span.label

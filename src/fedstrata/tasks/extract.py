"""Extraction by instruction: a causal language model repeats a sentence and marks mentions or modifiers.

Source: Fed-MedLoRA (Li et al.), section 5.1: NER and modifier relations as instruction and marked-up
    answer, loss on the answer, greedy decoding.

An example is one instruction about one sentence with its answer and the end token. Modifiers are asked for
one mention at a time; while a run is scored the mentions are the annotated ones, as in the paper, and
`fedstrata predict` asks for mentions first and then for the modifiers of those it found. Mentions and
modifiers are scored by character offsets in their document: what markup cannot hold, or lies in another
sentence than its mention, can never be found and counts as missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import Problem, refuse
from fedstrata.core.surveyed import Truncation
from fedstrata.core.task import CardWords, Task
from fedstrata.core.types import Tally
from fedstrata.data.sentences import lines, sentences
from fedstrata.data.split import Split, every
from fedstrata.metrics.relations import Triple, match_relations, triples_of
from fedstrata.metrics.spans import OVERALL, match_spans, score_names, scores_from, tally_of
from fedstrata.tasks.floors import LOOKUP, nothing_found
from fedstrata.tasks.instruction.examples import Example, Kind, answer_text
from fedstrata.tasks.instruction.extraction_types import types_in
from fedstrata.tasks.instruction.instructions import AskingTask, InstructionTokenizer, TemplateFiles
from fedstrata.tasks.instruction.markup import Faults, read
from fedstrata.tasks.lookup import LookupTagger
from fedstrata.tasks.texts import require_single_texts

FAULTS: Mapping[str, str] = {
    "broken_tags_left_out": "broken",
    "unknown_types_left_out": "unknown",
    "unaligned_left_out": "unaligned",
    "unfinished_left_out": "unfinished",
    "annotated_out_of_reach": "unreachable",
}
"""What the counts of what could not be used are called among the scores, and in `Faults`."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """What was found in a document.

    Attributes:
        spans: Its mentions, sorted: those that were found, or were given.
        relations: The modifiers that were found, each with its mention.
        faults: What of the answers could not be used.
    """

    spans: tuple[Span, ...] = ()
    relations: tuple[Triple, ...] = ()
    faults: Faults = field(default_factory=Faults)


class Extraction(AskingTask):
    """Extraction by instruction: a causal language model writes mentions and modifiers into a sentence.

    They are scored by character offsets.
    """

    learns: ClassVar[str] = "mentions and their modifiers"
    lower_is_better: ClassVar[frozenset[str]] = frozenset(FAULTS)
    gives: ClassVar[tuple[str, ...]] = ("spans", "relations")
    naming: ClassVar[tuple[str, ...]] = ("mentions", "modifiers")
    reads_spans: ClassVar[bool] = True
    knows_partial_annotation: ClassVar[bool] = True
    floor_names: ClassVar[tuple[str, ...]] = (LOOKUP,)

    @property
    def without_relations(self) -> Sequence[str]:
        """Sites whose training documents serve for mentions only."""
        return self.mentions_only

    def fitted(self, clients: Mapping[str, Split]) -> Extraction:
        """Returns the task for a corpus: its types are those of all clients' training documents.

        Raises:
            ConfigurationError: See `fedstrata.tasks.instruction.extraction_types.types_in`; or a template
                cannot be used, or documents are pairs of texts.
        """
        require_single_texts(every(clients), self.name)
        mentions, modifiers = types_in(self, clients)
        templates = self.templates
        if isinstance(templates, TemplateFiles):  # so that a saved model does not need the files again
            templates = templates.model_copy(update=dict[str, str](self.template_texts.items()))
        return self.changed(mentions=mentions, modifiers=modifiers, templates=templates)

    def as_named(self) -> Extraction:
        """Returns the task with the types that are named.

        Raises:
            ConfigurationError: Those of something that is asked for are not.
        """
        wanted = {"mentions": "ner" in self.tasks, "modifiers": "re" in self.tasks}
        left_open = [name for name in wanted if getattr(self, name) == "auto"]
        message = "must be named, not 'auto': no documents are read here in which they could be found"
        refuse([Problem(f"task.{name}", message, code="missing") for name in left_open if wanted[name]])
        return self.restored(())

    def restored(self, classes: Sequence[str]) -> Extraction:
        """Returns the task again for a saved model; its settings say what it was trained for.

        Raises:
            ConfigurationError: A template cannot be used.
        """
        _ = self.template_texts  # refuses those that cannot be used
        return self

    def check_room(self, tokenizer: Any) -> None:
        """Refuses a tokenizer that does not give tags back, and too little room for a sentence."""
        self.encode((), tokenizer)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The micro scores of what is asked for, strict and lenient; `f1` is the mean of both strict F1."""
        own = (f"{task}_{name}" for task in self.tasks for name in OVERALL)
        return (*(("f1",) if len(self.tasks) > 1 else ()), *own, *FAULTS)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Those of `metrics`, then those of single types."""
        named = (score_names(self._types[task], f"{task}_") for task in self.tasks)
        return tuple(dict.fromkeys([*self.metrics, *chain.from_iterable(named)]))

    @property
    def _types(self) -> dict[str, tuple[str, ...]]:
        """The types that each kind of instruction asks for."""
        return {
            "ner": tuple(self.asked_mentions),
            "re": tuple(sorted(set(chain.from_iterable(self.asked_modifiers.values())))),
        }

    def encode(self, documents: Sequence[Document], tokenizer: Any, *, learnt: bool = False) -> list[Example]:
        """Makes the instructions of documents, and sees to the length of right answers if they are learnt.

        Raises:
            ConfigurationError: The tokenizer has no token that ends a text or does not give tags back, the
                instruction alone is too long, or a document is a pair of texts.
        """
        require_single_texts(documents, self.name)
        types = [label for task in self.tasks for label in self._types[task]]
        return InstructionTokenizer(tokenizer, self, types).examples(documents, learnt=learnt)

    def training_examples(self, documents: Sequence[Document], tokenizer: Any) -> list[Example]:
        """Makes the instructions of documents; a sentence is also cut where a right answer is too long."""
        return self.encode(documents, tokenizer, learnt=True)

    def truncation(self, documents: Sequence[Document], tokenizer: Any) -> Truncation:
        """Returns which documents have sentences that are asked about in pieces; all of them is read."""
        types = [label for task in self.tasks for label in self._types[task]]
        return InstructionTokenizer(tokenizer, self, types).truncation(documents)

    def decode(
        self, documents: Sequence[Document], examples: Sequence[Example], predictions: Sequence[np.ndarray]
    ) -> list[Extracted]:
        """Reads what was found off the answers.

        Where mentions were not asked for they are the document's own.
        """
        spans: list[set[Span]] = [set() for _ in documents]
        relations: list[set[Triple]] = [set() for _ in documents]
        faults = [Faults() for _ in documents]
        for example, ids in zip(examples, predictions, strict=True):
            question, index = example.question, example.document
            if question is None:
                raise ValueError("an example of another task: it has no question")
            text, finished = answer_text(example, ids)
            sentence = documents[index].text[question.start : question.end]
            found, own = read(sentence, text, self.asked_types(question), finished=finished)
            faults[index] += own + Faults(unfinished=int(not finished))
            if example.source is not None:
                right = map(question.within, self.right_mentions(question, documents[index]))
                faults[index]["unreachable"] += example.source.unreachable(right)
            if question.main is None:
                spans[index].update(map(question.outside, found))
            else:
                relations[index].update(
                    Triple(question.main, question.outside(each), each.label) for each in found
                )
        if "ner" not in self.tasks:
            spans = [set(self.known(document).spans) for document in documents]
        return [
            Extracted(tuple(sorted(own)), tuple(sorted(pairs)), fault)
            for own, pairs, fault in zip(spans, relations, faults, strict=True)
        ]

    def tally(self, documents: Sequence[Document], answers: Sequence[Extracted]) -> dict[str, float]:
        """Counts mentions and modifiers; see `fedstrata.metrics.spans` and `fedstrata.metrics.relations`.

        Documents in which nobody looked for relations do not count in the scores of modifiers.
        """
        counts: dict[str, float] = {}
        if "ner" in self.tasks:
            gold = [[span for span in each.spans if span.label in self._types["ner"]] for each in documents]
            spans = [own.of_looked_for(each.spans) for own, each in zip(documents, answers, strict=True)]
            mentions = match_spans(gold, spans)
            counts |= tally_of(mentions, self._types["ner"], "ner_")
        if "re" in self.tasks:
            pairs = [
                (triples_of(self.known(document)), document.of_looked_for(answer.relations))
                for document, answer in zip(documents, answers, strict=True)
                if not document.lacks_relations
            ]
            counts["re_documents"] = len(pairs)
            expected, found = zip(*pairs, strict=True) if pairs else ((), ())
            counts |= tally_of(match_relations(expected, found), self._types["re"], "re_")
        faults = sum((answer.faults for answer in answers), Faults())
        return counts | {name: faults[key] for name, key in FAULTS.items()}

    def scores(self, tally: Tally, apart: Mapping[str, float]) -> dict[str, float]:
        """Scores mentions and modifiers; see `fedstrata.metrics.spans.scores_from`.

        Where nobody looked for relations in any document there are no scores of modifiers, and `f1` is that
        of mentions.
        """
        there = [task for task in self.tasks if task == "ner" or tally["re_documents"]]
        scores: dict[str, float] = {}
        for task in there:
            scores |= scores_from(tally, self._types[task], f"{task}_")
        if len(self.tasks) > 1:
            scores = {"f1": fmean(scores[f"{task}_f1"] for task in there), **scores}
        return scores | {name: float(tally[name]) for name in FAULTS}

    def floors(
        self, train: Sequence[Document], documents: Sequence[Document], tokenizer: Any
    ) -> Mapping[str, Sequence[Extracted]]:
        """Marks the mentions of the training documents wherever their words stand; so with modifiers.

        A modifier goes with every annotated mention of its sentence that may have one of its type.
        """
        known = [self.known(document) for document in train]
        main, modifiers = (
            LookupTagger.fit(replace(own, spans=spans_of(own), relations=()) for own in known)
            for spans_of in (
                lambda own: tuple(span for span in own.spans if span.label in self._types["ner"]),
                lambda own: tuple(replace(each.modifier, label=each.label) for each in triples_of(own)),
            )
        )

        def found(document: Document) -> Extracted:
            spans = main.predict(document) if "ner" in self.tasks else self.known(document).spans
            asked = "re" in self.tasks and modifiers.lexicon
            return Extracted(spans, self._beside(document, modifiers.predict(document)) if asked else ())

        there = main.lexicon if "ner" in self.tasks else modifiers.lexicon
        return {LOOKUP: list(map(found, documents))} if there else {}

    def _beside(self, document: Document, modifiers: Sequence[Span]) -> tuple[Triple, ...]:
        """Returns each modifier with each annotated mention of its sentence that may have such a one."""
        cut = sentences if self.unit == "sentence" else lines
        return tuple(
            Triple(span, modifier, modifier.label)
            for start, end in cut(document.text)
            for span in self.known(document).spans
            if start <= span.start and span.end <= end
            for modifier in modifiers
            if start <= modifier.start and modifier.end <= end
            if modifier.label in self.asked_modifiers.get(span.label, ())
        )

    def degenerate(self, tally: Tally, documents: int) -> str:
        """Says whether no mention was predicted, or no modifier."""
        whats = {"ner": "mention was predicted", "re": "modifier was predicted"}
        counts = {"ner": documents, "re": int(tally.get("re_documents", 0))}
        said = (nothing_found(tally, whats[task], counts[task], f"{task}_") for task in self.tasks)
        return ", and ".join(filter(None, said))

    def known(self, document: Document) -> Document:
        """Returns the document with its mentions and modifiers of the task's types, and nothing else."""
        kept = {
            index
            for index, span in enumerate(document.spans)
            if span.label in self._types["ner"] or span.label in self.asked_modifiers
        }
        relations = [each for each in document.relations if self._asked(document, each)]
        kept |= {index for each in relations for index in (each.head, each.tail)}
        places = {index: place for place, index in enumerate(sorted(kept))}
        return replace(
            document,
            spans=tuple(document.spans[index] for index in sorted(kept)),
            relations=tuple(Relation(places[r.head], places[r.tail], r.label) for r in relations),
            labels=(),
        )

    def annotate(self, document: Document, answer: Extracted) -> Document:
        """Returns the document with these mentions, modifiers and relations, and nothing else."""
        modifiers = {replace(each.modifier, label=each.label) for each in answer.relations}
        spans = sorted({*answer.spans, *modifiers, *(each.main for each in answer.relations)})
        places = {span: index for index, span in enumerate(spans)}
        relations = {
            Relation(places[each.main], places[replace(each.modifier, label=each.label)], each.label)
            for each in answer.relations
        }
        found = replace(document, spans=tuple(spans), relations=tuple(sorted(relations)), labels=())
        return replace(found, lacks_relations="re" not in self.tasks, annotates=None)

    @property
    def known_types(self) -> tuple[str, ...]:
        """The names of all mentions and modifiers that are asked for."""
        return tuple(sorted({*self._types["ner"], *self._types["re"]}))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The formats that can hold its answers; i2b2's holds no relations."""
        return ("brat", "i2b2", "jsonl") if self.tasks == ["ner"] else ("brat", "jsonl")

    @property
    def finds(self) -> tuple[str, ...]:
        """Relations alone where mentions are not asked for."""
        return self.gives if "ner" in self.tasks else ("relations",)

    @property
    def beyond_texts(self) -> tuple[str, str]:
        """Mentions, where they are not asked for."""
        if "ner" in self.tasks:
            return "", ""
        why = "task extract looks for modifiers of mentions that are marked already"
        return "mentions (brat, i2b2, jsonl ...)", why

    @property
    def main_mentions(self) -> tuple[str, ...]:
        """The types of mentions that are asked for as such."""
        return self._types["ner"]

    def only(self, kind: Kind) -> Extraction:
        """Returns the task that asks for mentions alone, or for the modifiers of given mentions alone."""
        return self.changed(tasks=[kind], mentions_only=[])

    def keeping_mentions(self) -> Extraction | None:
        """Returns the task that asks for the modifiers of given mentions alone; none if it asks for none."""
        return self.only("re") if "re" in self.tasks else None

    def answers_to(
        self, ask: Callable[[Task, Sequence[Document]], list[Extracted]], documents: Sequence[Document]
    ) -> list[Extracted]:
        """Answers texts without annotations: first for mentions, then for the modifiers of those.

        Args:
            ask: Returns the answers of a task to documents.
            documents: The documents; where only modifiers are asked for, with their mentions.
        """
        found = [Extracted() for _ in documents]
        texts = [replace(document, lacks_relations=False) for document in documents]
        for kind in sorted(self.tasks):  # mentions come first
            stage = self.only(kind)
            answers = ask(stage, texts)
            texts = [
                replace(stage.annotate(*pair), lacks_relations=False)
                for pair in zip(texts, answers, strict=True)
            ]
            found = [
                replace(answer, faults=answer.faults + before.faults)
                for answer, before in zip(answers, found, strict=True)
            ]
        return found

    def card_words(self) -> CardWords:
        """Returns what a model card says of the task."""
        return CardWords(
            "Marks mentions and their modifiers in a sentence, as it is told to: a language model.",
            "asks it about one sentence at a time",
            "the pipeline above goes on with any text, and knows nothing of these instructions",
        )

    def _asked(self, document: Document, relation: Relation) -> bool:
        """Whether a relation's type is asked for of its main mention."""
        return relation.label in self.asked_modifiers.get(document.spans[relation.head].label, ())

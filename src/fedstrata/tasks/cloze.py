"""Cloze questions: the answer that a causal language model finds likeliest to follow a question.

Source: FL-LLaMA, section 4.1.2: RTE, BoolQ, WiC, CB and MultiRC by the normalised probability of a word,
    ReCoRD, COPA and WSC by the summed log-probability of a candidate's tokens.

An example is one question with all its answers (`fedstrata.tasks.questions`). The loss is taken on the
right answer's tokens alone, over the whole vocabulary; a question whose right answer is not known, or is none
of its answers, is not trained on. The probability of a word of several tokens is the product of theirs.

Scores are SuperGLUE's (Wang et al., 2019): accuracy, with macro F1 for CB; F1 over all answers (`f1a`) and
exact match of questions for MultiRC; token F1 and exact match for ReCoRD; the share of the nouns that are
told rightly for WSC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from scipy.special import softmax
from torch import Tensor, nn

from fedstrata.core.documents import Document
from fedstrata.core.errors import Problem, refuse, refused
from fedstrata.core.seeding import Seed
from fedstrata.core.surveyed import LABELS, Truncation
from fedstrata.core.task import CardWords
from fedstrata.core.types import Tally
from fedstrata.data.choices import NONE_RIGHT, TASK, choices_of
from fedstrata.data.split import Split, every
from fedstrata.metrics.counts import mean
from fedstrata.metrics.labels import (
    SINGLE_LABEL,
    areas,
    choice_scores_from,
    choice_tally,
    names_of,
    scores_from,
    tally_of,
)
from fedstrata.metrics.text import answer_tally, answers_from
from fedstrata.tasks.continuations import log_likelihoods
from fedstrata.tasks.corrupt import shuffled_windows
from fedstrata.tasks.floors import QuestionFloors
from fedstrata.tasks.instruction.prompts import FIELDS_OF_TEMPLATE
from fedstrata.tasks.questions import (
    ANSWER,
    FORMS,
    OWN,
    TRUTH,
    ClozeAnswer,
    ClozeExample,
    Questions,
    question_examples,
    template_faults,
    template_of,
    truncation_of,
    words_of,
)
from fedstrata.tasks.windows import IGNORED, pad_labelled, padded

_METRICS: Mapping[str, tuple[str, ...]] = {"multirc": ("f1a", "exact_match"), "record": ("f1", "exact_match")}
"""The scores of questions that are not scored by accuracy; the first one is what a run is judged by."""


class ClozeQuestions(QuestionFloors):
    """Cloze questions: a causal language model says which of the answers is the likeliest to follow."""

    name: Literal["cloze"] = "cloze"
    max_length: Annotated[int, Field(ge=32)] = Field(
        default=512,
        description="Maximum length of a prompt with an answer in tokens; longer texts are truncated at "
        "the end.",
    )
    question: Literal[
        "auto", "rte", "boolq", "wic", "cb", "multirc", "copa", "record", "wsc", "labels", "choices"
    ] = Field(
        default="auto",
        description="One of SuperGLUE's tasks; for other documents, with a template, `labels` or "
        "`choices`. `auto`: what the documents state (format superglue).",
    )
    template: str | None = Field(
        default=None,
        description="Custom template: the path of a text file, or the text itself if it contains "
        "{answer}; the built-in template if null.",
    )
    words: dict[str, str] = Field(
        default={},
        description="Word that stands for each label; for labels not listed, the built-in word (yes, no, "
        "maybe) or the label itself.",
    )

    learns: ClassVar[str] = "which answer follows a question (labels of documents)"
    gives: ClassVar[tuple[str, ...]] = ("labels",)
    template_field: ClassVar[str] = ANSWER

    def fitted(self, clients: Mapping[str, Split]) -> ClozeQuestions:
        """Returns the task for a corpus; its labels are those of all documents, as with task `classify`.

        Raises:
            ConfigurationError: It is not clear what is asked, a template does not fit the documents, words
                are missing or equal, or a client has no question whose right answer is known.
        """
        documents = every(clients)
        question = self._question_of(documents)
        template, form = template_of(question, self.template), FORMS[question]
        problems = list(template_faults(template, form, documents))
        words: dict[str, str] = {}
        if form in ("label", "each"):
            words, wrong = words_of(question, self.words, documents)
            problems += wrong
        elif self.words:
            message = f"have no meaning with question {question}, whose answers the documents have"
            problems.append(Problem("task.words", message, code="no_effect"))
        refuse(problems)
        task = self.changed(question=question, words=words)
        if self.template is not None:  # so that a saved model does not need the file again
            task = task.changed(template=template)
        lacking = []
        for client, own in clients.items():
            asked = [task._questions.of(0, document) for document in own.all]
            if own.train and all(each.right < 0 for some in asked[: len(own.train)] for each in some):
                lacking.append(client)
        if lacking:
            message = f"no training document of {', '.join(lacking)} has a right answer in its labels"
            raise refused("data.path", message, "nothing_to_learn")
        return task

    def restored(self, classes: Sequence[str]) -> ClozeQuestions:
        """Returns the task again for a saved model; its settings say what it was trained for.

        Raises:
            ConfigurationError: They do not.
        """
        if self.question == "auto":
            message = "must be named for a model that is trained already, not 'auto'"
            raise refused("task.question", message, "missing")
        template_of(self.question, self.template)  # refuses one that cannot be read
        return self

    @property
    def metrics(self) -> tuple[str, ...]:
        """The scores that are always present."""
        usual = SINGLE_LABEL if self._questions.form == "label" else ("accuracy",)
        return _METRICS.get(self.question, usual)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """`metrics`, and with labels those that may be undefined, as with task `classify`."""
        labels = self._questions.form == "label"
        return (*self.metrics, *(names_of(tuple(self.words)) if labels else ()))

    @property
    def beyond_texts(self) -> tuple[str, str]:
        """What a question needs of a document beyond its text."""
        alone = self._questions.form == "label" and self._questions.fields <= {"text"}
        return ("", "") if alone else FIELDS_OF_TEMPLATE

    @cached_property
    def _questions(self) -> Questions:
        if self.question == "auto":
            raise ValueError("question must be resolved; `fitted` does that")
        return Questions(self.question, self.words, self.template)

    def added_texts(self) -> Iterator[str]:
        """Yields the template and the words that stand for labels, if they are known."""
        if self.question != "auto":
            yield template_of(self.question, self.template)
            yield from self.words.values()

    def encode(self, documents: Sequence[Document], tokenizer: Any) -> list[ClozeExample]:
        """Makes the questions of documents.

        Raises:
            ConfigurationError: A document has not what is asked for, or the questions do not go with the
                tokenizer: see `fedstrata.tasks.questions.question_examples`.
        """
        asked = [each for index, own in enumerate(documents) for each in self._questions.of(index, own)]
        return question_examples(documents, asked, tokenizer, self._questions, self.max_length)

    def training_examples(self, documents: Sequence[Document], tokenizer: Any) -> list[ClozeExample]:
        """Makes the questions of documents whose right answers are known."""
        return [each for each in self.encode(documents, tokenizer) if each.right >= 0]

    def decisions(self, document: Document) -> Mapping[str, Sequence[str]]:
        """Returns the labels that are right where labels are asked for; choices are each document's own."""
        asked = self._questions.of(0, document) if self._questions.form in ("label", "each") else ()
        return {LABELS: [each.names[each.right] for each in asked if each.right >= 0]} if asked else {}

    def truncation(self, documents: Sequence[Document], tokenizer: Any) -> Truncation:
        """Returns what of questions with their answers there is no room for."""
        return truncation_of(documents, tokenizer, self._questions, self.max_length)

    def corrupt(
        self, examples: Sequence[ClozeExample], kind: str, tokenizer: Any, rng: Seed
    ) -> list[ClozeExample]:
        """Returns the questions of a corrupt client; see `core.task.Task.corrupt`.

        The target of a question is which of its answers is right, and the answers are its classes.
        """
        if kind == "shuffled_tokens":
            prompts = shuffled_windows([each.prompt for each in examples], tokenizer, rng)
            return [replace(each, prompt=prompt) for each, prompt in zip(examples, prompts, strict=True)]
        rights = np.array([each.right for each in examples])
        rights = rng.numpy().permutation(rights) if kind == "shuffled_labels" else rights + 1
        return [
            replace(each, right=right % len(each.answers))
            for each, right in zip(examples, rights.tolist(), strict=True)
        ]

    def collate(self, examples: Sequence[ClozeExample]) -> dict[str, Tensor]:
        """Pads questions on the right to the longest one.

        Returns:
            Those of `fedstrata.tasks.windows.pad_labelled`, for questions with their right answers; and what
            `fedstrata.tasks.continuations.log_likelihoods` takes.
        """
        answers = list(chain.from_iterable(each.answers for each in examples))
        owner = np.repeat(np.arange(len(examples)), [len(each.answers) for each in examples])
        return {
            **pad_labelled(examples),
            "prompt": torch.tensor([len(each.prompt) for each in examples]),
            "pad_id": torch.tensor([each.pad_id for each in examples]),
            "answers": padded(answers, IGNORED),
            "owner": torch.from_numpy(owner),
        }

    def predict(self, module: nn.Module, batch: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Returns the log-likelihoods of the answers to each question, (answers,) float32."""
        found = log_likelihoods(module, batch).cpu().numpy()
        counts = np.bincount(batch["owner"].cpu().numpy(), minlength=len(batch["prompt"]))
        return np.split(found, np.cumsum(counts)[:-1])

    def decode(
        self,
        documents: Sequence[Document],
        examples: Sequence[ClozeExample],
        predictions: Sequence[np.ndarray],
    ) -> list[ClozeAnswer]:
        """Reads the answers off their log-likelihoods."""
        single = self._questions.form == "each"
        labels: list[list[str]] = [[] for _ in documents]
        probabilities: list[dict[str, float]] = [{} for _ in documents]
        for example, own in zip(examples, predictions, strict=True):
            shares = softmax(own.astype(np.float64))
            best = example.names[int(own.argmax())]
            if single:
                probabilities[example.document][example.choice] = float(shares[TRUTH.index("true")])
                best = example.choice if best == "true" else ""
            else:
                named = zip(example.names, shares.tolist(), strict=True)
                probabilities[example.document] |= {name: share for name, share in named if name}
            labels[example.document] += [best] if best else []
        return [
            ClozeAnswer(tuple(own) or (NONE_RIGHT,), shares)
            for own, shares in zip(labels, probabilities, strict=True)
        ]

    def tally(self, documents: Sequence[Document], answers: Sequence[ClozeAnswer]) -> dict[str, float]:
        """Counts what is right."""
        pairs = list(zip(documents, answers, strict=True))
        if self._questions.form == "label":
            gold, shares = self._gold_and_shares(documents, answers)
            chosen = self._indicators([answer.labels for answer in answers])
            return tally_of(gold, chosen, shares, list(self.words))
        if self._questions.form == "each":
            right = [set(document.labels) - {NONE_RIGHT} for document in documents]
            return choice_tally(right, [set(answer.labels) - {NONE_RIGHT} for answer in answers])
        if self.question == "record":
            texts = [choices_of(document) for document in documents]
            given = [own[answer.labels[0]] for own, answer in zip(texts, answers, strict=True)]
            right_texts = [
                [own[label] for label in document.labels if label in own]
                for own, document in zip(texts, documents, strict=True)
            ]
            return answer_tally(given, right_texts)
        if self._questions.form == "choice":
            hits = [answer.labels[0] in document.labels for document, answer in pairs]
        else:  # every noun is asked about on its own: it is what the pronoun means, or is not
            hits = [
                (name in document.labels) == (name in answer.labels)
                for document, answer in pairs
                for name in choices_of(document)
            ]
        return {"right": sum(hits), "documents": len(hits)}

    def apart(self, documents: Sequence[Document], answers: Sequence[ClozeAnswer]) -> dict[str, float]:
        """Returns the areas under the curves of labels, where labels are asked for."""
        label = self._questions.form == "label"
        return areas(*self._gold_and_shares(documents, answers)) if label else {}

    def scores(self, tally: Tally, apart: Mapping[str, float]) -> dict[str, float]:
        """Scores documents together, as SuperGLUE does."""
        if self._questions.form == "label":
            return scores_from(tally, apart, list(self.words), one_each=True)
        if self._questions.form == "each":
            return choice_scores_from(tally)
        if self.question == "record":
            return {name: answers_from(tally)[name] for name in self.metrics}
        return {"accuracy": mean(tally, "right")}

    def known(self, document: Document) -> Document:
        """Returns the document with those of its labels that an answer can stand for, and nothing else."""
        labels = {*self.words} if self._questions.form == "label" else {*choices_of(document), NONE_RIGHT}
        known = tuple(label for label in document.labels if label in labels)
        return replace(document, spans=(), relations=(), labels=known)

    def scorable(self, document: Document) -> bool:
        """Whether it is known which answer is right; where one must be, whether one is."""
        if self._questions.form == "label":
            return len(set(document.labels)) == 1
        return bool(set(document.labels) - ({NONE_RIGHT} if self._questions.form == "choice" else set()))

    def annotate(self, document: Document, answer: ClozeAnswer) -> Document:
        """Returns the document with this answer; the metadata say each label's probability."""
        shares = {f"probability/{label}": f"{value:.4f}" for label, value in answer.probabilities.items()}
        metadata = {**document.metadata, **shares}
        return replace(document, spans=(), relations=(), labels=answer.labels, metadata=metadata)

    def card_words(self) -> CardWords:
        """Returns what a model card says of the task."""
        return CardWords(
            "Answers questions with the likeliest of given answers: a language model.",
            "cuts longer texts at their end",
            "the pipeline above goes on with any text, and compares no answers",
        )

    def _gold_and_shares(
        self, documents: Sequence[Document], answers: Sequence[ClozeAnswer]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns which labels documents have, and the share of each, (documents, labels)."""
        shares = [[answer.probabilities[label] for label in self.words] for answer in answers]
        gold = self._indicators([document.labels for document in documents])
        return gold, np.array(shares).reshape(gold.shape)

    def _indicators(self, labels: Sequence[Sequence[str]]) -> np.ndarray:
        """Returns which labels documents have, (documents, labels)."""
        found = [[label in own for label in self.words] for own in labels]
        return np.array(found, dtype=bool).reshape(-1, len(self.words))

    def left_to_documents(self) -> Iterator[Problem]:
        """Yields what is read from documents: what is asked, and which labels there are."""
        yield from super().left_to_documents()
        if self.question == "auto":
            message = "'auto' goes by the documents that are to be protected; name it, one of "
            yield Problem("task.question", message + ", ".join(FORMS), code="not_private")
        elif FORMS[self.question] == "label":
            message = (
                f"the labels of {self.question!r} are read from the documents that are to be protected; use "
                "task classify with task.labels named"
            )
            yield Problem("task.question", message, code="not_private")

    def _question_of(self, documents: Sequence[Document]) -> str:
        """Returns the kind of question that is named, or that the documents are for."""
        if self.question != "auto":
            return self.question
        found = sorted({document.metadata.get(TASK, "") for document in documents})
        allowed = [name for name in FORMS if name not in OWN]
        if len(found) == 1 and found[0] in allowed:
            return found[0]
        named = ", ".join(filter(None, found))
        message = f"'auto' finds no documents that say what is asked; name it, one of {', '.join(FORMS)}"
        if len(found) > 1 and named:
            message = (
                f"'auto' finds documents of {named}, and a run asks one kind of question: choose by data.path"
            )
        raise refused("task.question", message, "conflict" if len(found) > 1 and named else "missing")

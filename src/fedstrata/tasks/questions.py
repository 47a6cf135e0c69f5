"""Cloze questions: what a model is asked of a document, and the answers that it has to choose from.

Source: FL-LLaMA, Table 1 and section 4.1.2, after GLM (Du et al., ACL 2022). Table 1 has the blank within
    some questions; a causal model sees nothing of what follows, so here it is always at the end.

| form | a question | its answers |
|---|---|---|
| `label` | a document | the words of the labels |
| `choice` | a document | its choices |
| `each` | a choice of a document | the words of `true` and `false` |
| `referent` | a document | its choices and their rivals |

In the forms `label` and `each` the probabilities of the words are normalised over the words. What choices
and rivals are is said in `fedstrata.data.choices`. A document of form `referent` with a single choice and no
rival has as rivals the other stretches of its text of as many words: PET (Schick and Schütze, NAACL 2021) has
a model write as many words and looks whether they are the noun.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from fedstrata.core.documents import Document
from fedstrata.core.errors import Problem, refused
from fedstrata.core.surveyed import Truncation
from fedstrata.data.choices import PRONOUN, choices_of, rivals_of
from fedstrata.tasks.instruction.prompts import PromptTokenizer, builtin, faults, fields_of, read_template
from fedstrata.tasks.windows import IGNORED, Row

Form = Literal["label", "choice", "each", "referent"]
_KINDS: Mapping[Form, tuple[str, ...]] = {
    "label": ("rte", "boolq", "wic", "cb", "labels"),
    "each": ("multirc",),
    "choice": ("copa", "record", "choices"),
    "referent": ("wsc",),
}
FORMS: Mapping[str, Form] = {kind: form for form, kinds in _KINDS.items() for kind in kinds}
"""The form of each kind of question (`task.question`)."""
OWN = ("labels", "choices")
"""Those of documents of one's own, for which there is no built-in template."""
TRUTH = ("true", "false")
"""The labels of a single choice."""
WORDS: Mapping[str, str] = {
    "entailment": "yes",
    "not_entailment": "no",
    "contradiction": "no",
    "neutral": "maybe",
    "true": "yes",
    "false": "no",
}
"""The words that stand for SuperGLUE's labels (Table 1)."""

ANSWER = "answer"
"""The field that every template names."""
_MARKED = re.compile(r"[*]([^*]+)[*]")


@dataclass(frozen=True, slots=True)
class Asked:
    """One question.

    Attributes:
        document: Index of the document.
        choice: The name of the choice that is asked about; empty if all of the document is.
        names: The label that each answer stands for; empty for a rival.
        answers: The answers.
        right: Index of the right one; -1 if none is, or none is known to be.
    """

    document: int
    choice: str
    names: tuple[str, ...]
    answers: tuple[str, ...]
    right: int


@dataclass(frozen=True, slots=True)
class ClozeAnswer:
    """What the model answers to a document.

    Attributes:
        labels: The labels that its answer stands for.
        probabilities: Of every label that it might stand for; they sum to one, but where each choice is asked
            about.
    """

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]


class Questions:
    """Words the questions of a task.

    Args:
        kind: What is asked (`task.question`).
        words: The word of every label.
        template: The user's own template, or the path of one; none for the built-in one.

    Attributes:
        form: The form of the questions.
    """

    def __init__(self, kind: str, words: Mapping[str, str], template: str | None) -> None:
        self.form = FORMS[kind]
        self._kind, self._words = kind, words
        self._template = template_of(kind, template)
        before = self._template.partition(f"{{{ANSWER}}}")[0]
        self._before = before.rstrip()
        self._blank = before[len(self._before) :]
        self.fields = frozenset(fields_of(self._template)) - {ANSWER}

    def of(self, index: int, document: Document) -> list[Asked]:
        """Returns what is asked of a document.

        Args:
            index: The document's index.
            document: The document.

        Raises:
            ConfigurationError: It has not what is asked for.
        """
        if self.form == "label":
            names = tuple(self._words)
            known = [label for label in dict.fromkeys(document.labels) if label in self._words]
            right = names.index(known[0]) if len(known) == 1 else -1
            return [Asked(index, "", names, tuple(self._words.values()), right)]
        choices = self._choices(document)
        if self.form == "each":
            # Of a document without labels it is not known which of its choices are right.
            rights = [-1 if not document.labels else int(name not in document.labels) for name in choices]
            words = tuple(self._words[label] for label in TRUTH)
            return [
                Asked(index, name, TRUTH, words, right) for name, right in zip(choices, rights, strict=True)
            ]
        rivals = rivals_of(document) if self.form == "referent" else []
        if self.form == "referent" and not rivals and len(choices) == 1:
            (only,) = choices.values()
            rivals = stretches(document.text, only, document.metadata.get(PRONOUN, ""))
        names = tuple(choices)
        right = next((names.index(label) for label in document.labels if label in choices), -1)
        answers = (*choices.values(), *rivals)
        return [Asked(index, "", (*names, *[""] * len(rivals)), answers, right)]

    def prompt(self, document: Document, asked: Asked, text: str | None = None) -> str:
        """Returns a question up to the blank before its answer.

        Args:
            document: The document.
            asked: What is asked of it.
            text: What stands for its text, if that is shortened.

        Raises:
            ConfigurationError: The template names a field that the document has not.
        """
        values = fields(document)
        if asked.choice:
            values["choice"] = values[asked.choice]
        if text is not None:
            values["text"] = text
        if missing := sorted(self.fields - values.keys()):
            there = ", ".join(f"{{{name}}}" for name in values)
            message = f"names {{{missing[0]}}}, which document {document.id!r} lacks; it has {there}"
            raise refused("task.template", message, "unknown_name")
        return self._before.format_map(values)

    def answers(self, asked: Asked) -> list[str]:
        """Returns the answers as they stand behind the question, with the blank before each."""
        return [f"{self._blank}{answer}" for answer in asked.answers]

    def _choices(self, document: Document) -> dict[str, str]:
        choices, least = choices_of(document), 2 if self.form == "choice" else 1
        blank = sum(not text.strip() for text in choices.values())
        # A blank choice can be asked about; MultiRC has some. It cannot be an answer, which has tokens.
        if len(choices) < least or (blank and self.form != "each"):
            message = (
                f"{self._kind!r} asks about {least} or more choices of a document (metadata choice1, choice2 "
                f"...); document {document.id!r} has {len(choices)}, {blank} of them blank"
            )
            raise refused("task.question", message, "conflict")
        return choices


def stretches(text: str, choice: str, pronoun: str) -> list[str]:
    """Returns the other stretches of a text of as many words as a choice, without what is around the words.

    Args:
        text: The text; its pronoun may stand between asterisks.
        choice: The choice. Stretches that share a word with the first place where the text has it are no
            others.
        pronoun: The pronoun, which is in no stretch.

    >>> stretches("Bob saw Carl come to help. *He* was glad.", "Carl", "He")
    ['Bob', 'saw', 'come', 'to', 'help', 'was', 'glad']
    """
    marked = [bool(_MARKED.search(word)) or word == pronoun for word in text.split()]
    words = [word.strip(".,;:!?\"'()*") for word in text.split()]
    folded, wanted = [word.casefold() for word in words], choice.casefold().split()
    size = len(wanted)
    starts = range(len(words) - size + 1)
    own = next((start for start in starts if folded[start : start + size] == wanted), -size)
    found = [
        " ".join(words[start : start + size])
        for start in starts
        if abs(start - own) >= size and not any(marked[start : start + size])
    ]
    return [each for each in dict.fromkeys(found) if each.strip() and each.casefold() != choice.casefold()]


def fields(document: Document) -> dict[str, str]:
    """Returns what a template may name of a document: its texts, and its metadata."""
    second = {} if document.text_pair is None else {"text_pair": document.text_pair}
    return {**document.metadata, "text": document.text, **second}


def template_of(kind: str, given: str | None) -> str:
    """Returns the template of a kind of question: a given one, or the built-in one.

    Raises:
        ConfigurationError: There is none, or its file cannot be read.
    """
    if given is not None:
        return read_template(given, ANSWER, "task.template")
    if kind in OWN:
        message = f"must be set with task.question {kind}, for which there is no built-in one"
        raise refused("task.template", message, "missing")
    return builtin(f"cloze_{kind}")


def template_faults(template: str, form: Form, documents: Sequence[Document]) -> Iterator[Problem]:
    """Yields what is wrong with a template for these documents.

    Args:
        template: The template.
        form: The form of the questions.
        documents: All documents, at least one.
    """
    common = set.intersection(*(set(fields(document)) for document in documents))
    known = [*sorted(common), *(["choice"] if form == "each" else []), ANSWER]
    path = "task.template"
    found = faults(path, template, ANSWER, known)
    if not found and template.partition(f"{{{ANSWER}}}")[2].strip():
        message = f"goes on behind {{{ANSWER}}}, and a causal language model sees nothing of what follows"
        found = [Problem(path, message, code="no_effect")]
    yield from found


def words_of(
    question: str, given: Mapping[str, str], documents: Sequence[Document]
) -> tuple[dict[str, str], list[Problem]]:
    """Returns the word of each label, one that is given or the built-in one, and what is wrong with them."""
    found = {label for document in documents for label in document.labels}
    labels = TRUTH if FORMS[question] == "each" else tuple(sorted(found))
    words = {label: given.get(label, WORDS.get(label, label)) for label in labels}
    problems = [
        Problem(
            "task.words",
            f"{label!r} is none of the labels: {', '.join(labels) or '(none)'}",
            code="unknown_name",
        )
        for label in given
        if label not in labels
    ]
    if len(labels) < 2:
        message = f"the {len(documents)} documents have {len(labels)} different labels; at least 2 are needed"
        problems.append(Problem("data.labels", message, code="not_enough_data"))
    first: dict[str, str] = {}
    for label, word in words.items():
        if first.setdefault(word.strip(), label) != label:
            message = f"{word!r} stands for {first[word.strip()]!r} and for {label!r}"
            problems.append(Problem("task.words", message, code="duplicate"))
        if not word.strip():
            problems.append(Problem("task.words", f"the word for {label!r} is blank", code="missing"))
    return words, problems


@dataclass(frozen=True, slots=True)
class ClozeExample(Row):
    """One question with its answers.

    Attributes:
        document: Index of the document.
        choice: The name of the choice that is asked about; empty if all of the document is.
        names: The label that each answer stands for; empty for one that stands for none.
        prompt: The tokens of the question, (tokens,) int32.
        answers: Those of each answer, at least one, (tokens,) int32.
        right: Index of the right answer; -1 if there is none.
        pad_id: The id with which it is padded.
    """

    document: int
    choice: str
    names: tuple[str, ...]
    prompt: np.ndarray
    answers: tuple[np.ndarray, ...]
    right: int
    pad_id: int

    @property
    def input_ids(self) -> np.ndarray:
        """The question, and the right answer as far as it is read; (tokens,) int32."""
        if self.right < 0:
            return self.prompt
        return np.concatenate([self.prompt, self.answers[self.right][:-1]])

    @property
    def targets(self) -> np.ndarray:
        """What follows each of them where it is the right answer, else -100; (tokens,) int32."""
        targets = np.full(len(self), IGNORED, dtype=np.int32)
        if self.right >= 0:
            targets[len(self.prompt) - 1 :] = self.answers[self.right]
        return targets


def question_examples(
    documents: Sequence[Document],
    asked: Sequence[Asked],
    tokenizer: Any,
    questions: Questions,
    max_length: int,
) -> list[ClozeExample]:
    """Makes the examples of questions.

    Args:
        documents: The documents.
        asked: What is asked of them.
        tokenizer: A transformers tokenizer.
        questions: Words the questions.
        max_length: Tokens of a question with its longest answer. Where a text is too long for that, its end
            is cut off.

    Raises:
        ConfigurationError: Two words are the same tokens, an answer has none, a question is too long
            without its text, or the template does not fit a document.
    """
    words = PromptTokenizer(tokenizer, chats=False)
    texts = [questions.prompt(documents[each.document], each) for each in asked]
    rows = zip(asked, words.prompts(texts), _answers(asked, texts, questions, words), strict=True)
    examples = []
    for own, prompt, answers in rows:
        document = documents[own.document]
        fill = partial(questions.prompt, document, own)
        spared = max(map(len, answers)) - 1  # the last token of an answer is not read
        ids = words.shortened(prompt, document, fill, max_length=max_length, spared=spared)
        facts = (np.array(ids, dtype=np.int32), answers, own.right, words.pad_id)
        examples.append(ClozeExample(own.document, own.choice, own.names, *facts))
    return examples


def truncation_of(
    documents: Sequence[Document], tokenizer: Any, questions: Questions, max_length: int
) -> Truncation:
    """Returns what of documents `question_examples` has no room for, and their questions with answers.

    Of a document of several questions it is the one that loses most.
    """
    words = PromptTokenizer(tokenizer, chats=False)
    asked = [each for index, own in enumerate(documents) for each in questions.of(index, own)]
    texts = [questions.prompt(documents[each.document], each) for each in asked]
    sizes = [(0, 0)] * len(documents)
    for own, prompt, answers in zip(
        asked, words.prompts(texts), _answers(asked, texts, questions, words), strict=True
    ):
        whole = len(prompt) + max(map(len, answers)) - 1
        sizes[own.document] = max(sizes[own.document], (whole, max(0, whole - max_length)))
    return Truncation.of(sizes)


def _answers(
    asked: Sequence[Asked], texts: Sequence[str], questions: Questions, words: PromptTokenizer
) -> list[tuple[np.ndarray, ...]]:
    """Returns the tokens of the answers to each question."""
    ends = [text[-1:] for text in texts]
    behind = [questions.answers(each) for each in asked]
    pairs = list(dict.fromkeys((end, one) for end, own in zip(ends, behind, strict=True) for one in own))
    rows = words.continuations([end for end, _ in pairs], [text for _, text in pairs])
    ids = {pair: np.array(row, dtype=np.int32) for pair, row in zip(pairs, rows, strict=True)}
    if not all(map(len, rows)):
        raise refused("model.tokenizer", "has no token for one of the answers", "lacks_tokens")
    if questions.form in ("label", "each") and behind:
        _require_distinct([(one, ids[ends[0], one]) for one in behind[0]])
    return [tuple(ids[end, one] for one in own) for end, own in zip(ends, behind, strict=True)]


def _require_distinct(words: Sequence[tuple[str, np.ndarray]]) -> None:
    """Refuses words that a tokenizer does not tell from each other."""
    seen: dict[tuple[int, ...], str] = {}
    for word, ids in words:
        other = seen.setdefault(tuple(ids.tolist()), word)
        if other != word:
            message = f"{other.strip()!r} and {word.strip()!r} are the same tokens for this model's tokenizer"
            raise refused("task.words", message, "conflict")

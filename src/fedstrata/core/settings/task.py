"""The settings of every task."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from fedstrata.core.settings.base import Count, Fraction, Positive, Settings


def _distinct(names: list[str]) -> list[str]:
    """Returns names in their order in the alphabet: those of classes have no other."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"names {twice[0]!r} twice")
    return sorted(names)


Classes = Annotated[list[str], Field(min_length=1), AfterValidator(_distinct)] | Literal["auto"]
"""All types or labels that are learnt; or those that documents have."""


class TaskSettings(Settings):
    """Base of every task's settings: how much is read at a time."""

    max_length: Annotated[int, Field(ge=8)] = Field(default=256, description="Tokens in a window.")


class WindowSettings(TaskSettings):
    """Base of the tasks that read a long note as overlapping windows."""

    stride: Annotated[int, Field(ge=0)] = Field(
        default=32, description="Tokens that neighbouring windows share."
    )

    @model_validator(mode="after")
    def _stride_below_length(self) -> WindowSettings:
        if self.stride > self.max_length // 2:
            raise ValueError(
                f"stride must be at most half of max_length ({self.max_length}), not {self.stride}"
            )
        return self


class NerSettings(WindowSettings):
    """Named entity recognition, the task where none is named: the mentions of a note."""

    name: Literal["ner"] = "ner"
    types: Classes = Field(
        default="auto",
        description="Types of mentions that are learnt; auto: those of the training documents. Sites apart, "
        "of which some lack some, name them.",
    )
    whole_words: bool = Field(
        default=True,
        description="The first token of a word decides for all of it (Latin, Greek and Cyrillic script).",
    )


class ClassifySettings(WindowSettings):
    """Document classification: the labels of a note."""

    name: Literal["classify"] = "classify"
    labels: Classes = Field(
        default="auto",
        description="Labels that are learnt; auto: those of the documents. Sites apart, of which some lack "
        "some, name them.",
    )
    problem_type: Literal["auto", "single_label", "multi_label"] = Field(
        default="auto",
        description="One label a document, or any number; auto: single_label if every document has one.",
    )
    pooling: Literal["mean", "max"] = Field(
        default="mean", description="How the logits of a document's windows become those of the document."
    )
    max_windows: Count | None = Field(
        default=None, description="Windows of a document that are read, from its beginning; all if null."
    )
    threshold: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        default=0.5, description="Probability from which a label is given (multi_label)."
    )
    positive_weight: Positive = Field(
        default=1.0,
        description="Weight in the loss of a label that a document has; of one it lacks: 1 (multi_label).",
    )

    @model_validator(mode="after")
    def _only_what_is_used(self) -> ClassifySettings:
        if self.problem_type == "single_label":
            if self.labels != "auto" and len(self.labels) < 2:
                raise ValueError(f"labels: {self.labels} leaves no choice; single_label needs two or more")
            for name in ("threshold", "positive_weight"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{name}={getattr(self, name):g} has no meaning with one label a document: the "
                        f"likeliest is taken; use problem_type multi_label"
                    )
        return self


NO_RELATION = "none"
"""What pairs of mentions without a relation are called."""


class RelationSettings(TaskSettings):
    """Relations between mentions that are known: a main mention and its modifiers."""

    name: Literal["relations"] = "relations"
    types: Classes = Field(
        default="auto",
        description="Types of relations that are learnt; auto: those of the training documents. Sites apart, "
        "of which some lack some, name them.",
    )
    max_length: Annotated[int, Field(ge=32)] = Field(
        default=128, description="Tokens of a marked pair of mentions and the text around it."
    )
    modifiers: dict[str, list[str]] | Literal["auto"] = Field(
        default="auto",
        description="Types of modifiers by type of main mention: the pairs a model is asked about; auto: "
        "those that are related in the training documents.",
    )
    typed: bool = Field(
        default=True,
        description="Whether a model is shown the types of the two mentions; where a relation is called by "
        "the type of its modifier, that would be the answer.",
    )
    most_words: Annotated[int, Field(ge=0)] = Field(
        default=20, description="Words between the two mentions of a pair, at most."
    )
    negatives: Fraction = Field(
        default=1.0, description="Share of the pairs without a relation that is trained on."
    )

    @model_validator(mode="after")
    def _no_type_is_none(self) -> RelationSettings:
        if NO_RELATION in self.types:
            raise ValueError(f"types: {NO_RELATION!r} is the class of pairs without a relation; rename it")
        return self


class LmSettings(TaskSettings):
    """Language modelling: the next token of a text."""

    name: Literal["lm"] = "lm"
    max_length: Annotated[int, Field(ge=8)] = Field(
        default=128, description="Tokens that a window predicts, each from those before it in the window."
    )


class TemplateFiles(Settings):
    """Instructions of one's own: each a path to a text file, or the text itself if it holds {input}."""

    ner: str | None = Field(default=None, description="For mentions; with {input}, {types}, {definitions}.")
    re: str | None = Field(
        default=None, description="For modifiers; with {input}, {main}, {types}, {definitions}."
    )


class InstructionSettings(TaskSettings):
    """Base of the tasks in which a causal language model writes an answer to an instruction."""

    chat: Literal["auto", "never"] = Field(
        default="auto", description="Whether the tokenizer's chat template is used where it has one."
    )
    loss_on: Literal["response", "full"] = Field(
        default="response", description="Which tokens the loss is taken on: the answer's, or all."
    )


class ExtractSettings(InstructionSettings):
    """Extraction by instruction: a causal language model writes mentions and modifiers into a sentence."""

    name: Literal["extract"] = "extract"
    max_length: Annotated[int, Field(ge=64)] = Field(
        default=800, description="Tokens of an instruction with its answer; longer sentences are cut."
    )
    tasks: Annotated[list[Literal["ner", "re"]], Field(min_length=1)] = Field(
        default=["ner", "re"], description="What is asked for: mentions (ner), modifiers of a mention (re)."
    )
    unit: Literal["sentence", "line"] = Field(default="sentence", description="What an instruction is about.")
    templates: Literal["full", "short"] | TemplateFiles = Field(
        default="full",
        description="How it is asked: with task, markup guide and definitions; in a line, which suits small "
        "models that are fine-tuned; or templates of one's own: {ner: PATH, re: PATH}.",
    )
    mentions: Annotated[list[str], Field(min_length=1)] | Literal["auto"] = Field(
        default="auto",
        description="Mention types that are asked for; auto: those of the training documents that are not "
        "only modifiers.",
    )
    modifiers: dict[str, list[str]] | Literal["auto"] = Field(
        default="auto",
        description="Modifier types that are asked for, by the mention type they modify; auto: those that "
        "relations of the training documents have.",
    )
    definitions: dict[str, str] = Field(
        default={}, description="What a type means, by its name; those of the paper's types are built in."
    )
    mentions_only: list[str] = Field(
        default=[], description="Sites whose training documents serve for mentions only (uneven tasks)."
    )

    @model_validator(mode="after")
    def _tasks_fit(self) -> ExtractSettings:
        if len(set(self.tasks)) < len(self.tasks):
            raise ValueError(f"tasks names one twice: {', '.join(self.tasks)}")
        if self.mentions_only and len(self.tasks) == 1:
            raise ValueError(
                f"mentions_only has no meaning with tasks {self.tasks}: it leaves out the modifiers of some "
                "sites, where mentions and modifiers are learnt"
            )
        return self


class SummarizeSettings(InstructionSettings):
    """Summaries, or other texts, by instruction: a causal language model writes a document's second text."""

    name: Literal["summarize"] = "summarize"
    max_length: Annotated[int, Field(ge=64)] = Field(
        default=800, description="Tokens of an instruction with its answer; a longer text is cut at its end."
    )
    answer_length: Count = Field(
        default=200, description="Tokens that an answer may have; a longer one is cut where it is trained on."
    )
    template: str | None = Field(
        default=None,
        description="An instruction of one's own: a path to a text file, or the text itself if it holds "
        "{text}; the built-in one if null.",
    )

    @model_validator(mode="after")
    def _room_for_a_text(self) -> SummarizeSettings:
        if self.answer_length > self.max_length // 2:
            raise ValueError(
                f"answer_length must be at most half of max_length ({self.max_length}), not "
                f"{self.answer_length}"
            )
        return self


class ClozeSettings(TaskSettings):
    """Cloze questions: a causal language model says which of the answers is the likeliest to follow."""

    name: Literal["cloze"] = "cloze"
    max_length: Annotated[int, Field(ge=32)] = Field(
        default=512, description="Tokens of a question with an answer; a longer text is cut at its end."
    )
    question: Literal[
        "auto", "rte", "boolq", "wic", "cb", "multirc", "copa", "record", "wsc", "labels", "choices"
    ] = Field(
        default="auto",
        description="What is asked, one of SuperGLUE's tasks; of documents of one's own, with a template: "
        "`labels` or `choices`. auto: what the documents say that they are for (format superglue).",
    )
    template: str | None = Field(
        default=None,
        description="A template of one's own: a path to a text file, or the text itself if it holds "
        "{answer}; the built-in one if null.",
    )
    words: dict[str, str] = Field(
        default={},
        description="The word that stands for a label; of others the built-in one (yes, no, maybe), or the "
        "label itself.",
    )

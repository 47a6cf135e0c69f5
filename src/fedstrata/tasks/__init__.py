"""Tasks: how documents become tensors, losses and scores."""

from collections.abc import Mapping
from typing import Any

from fedstrata.core.plugins import Plugins
from fedstrata.core.task import Task
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.cloze import ClozeQuestions
from fedstrata.tasks.extract import Extraction
from fedstrata.tasks.lm import LanguageModelling
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.tasks.relations import RelationClassification
from fedstrata.tasks.summarize import Summarization

__all__ = [
    "TASKS",
    "ClozeQuestions",
    "DocumentClassification",
    "Extraction",
    "LanguageModelling",
    "NamedEntityRecognition",
    "RelationClassification",
    "Summarization",
    "task_of",
]

_OWN: dict[str, type[Task]] = {
    "ner": NamedEntityRecognition,
    "classify": DocumentClassification,
    "lm": LanguageModelling,
    "extract": Extraction,
    "relations": RelationClassification,
    "cloze": ClozeQuestions,
    "summarize": Summarization,
}
TASKS = Plugins[type[Task]](
    "fedstrata.tasks",
    _OWN,
    kind="task: no class that derives from fedstrata.Task",
    is_one=lambda found: isinstance(found, type) and issubclass(found, Task),
)
"""Every task by its name in a configuration."""


def task_of(section: Mapping[str, Any]) -> Task:
    """Returns the task that a checked section `task` describes."""
    task: Task = TASKS.make(section, "task")
    return task

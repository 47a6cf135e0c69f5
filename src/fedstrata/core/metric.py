"""A score beside those of the task: it is its settings, as a method and a task are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from fedstrata.core.errors import ConfigurationError, SettingError
from fedstrata.core.plugins import Plugins
from fedstrata.core.settings.base import Settings

if TYPE_CHECKING:
    from fedstrata.core.documents import Document
    from fedstrata.core.types import Tally


class Metric(Settings):
    """One score of one's own, named in `task.extra_metrics`; `federation.metric` may name it then.

    It is computed from numbers that add up over documents, so that the score of all clients together is that
    of all their documents, wherever these are.
    """

    if TYPE_CHECKING:  # a field of every metric

        @property
        def name(self) -> str:
            """What records, tables and `federation.metric` call the score; no score of the task has it."""

    lower_is_better: ClassVar[bool] = False
    """Whether less is better; the score is then no fraction."""

    @abstractmethod
    def tally(self, documents: Sequence[Document], answers: Sequence[Any]) -> dict[str, float]:
        """Returns the numbers that the score is made of.

        They add up, none is negative, and their names are the same whatever the documents.

        Args:
            documents: Any number, as the task's `known` gives them; of none all numbers are 0.
            answers: One a document, as the task's `decode` gives them.
        """

    @abstractmethod
    def score(self, tally: Tally) -> float:
        """Returns the score.

        Args:
            tally: The sum of what `tally` gave for one or several groups of documents.
        """

    def counted(self, documents: Sequence[Document], answers: Sequence[Any]) -> dict[str, float]:
        """Returns the numbers under names that no other metric has."""
        return {f"{self.name}:{key}": value for key, value in self.tally(documents, answers).items()}

    def scored(self, counted: Tally) -> float:
        """Returns the score of what `counted` gave, or the sum of it, among other numbers."""
        begins = f"{self.name}:"
        own = {key.removeprefix(begins): value for key, value in counted.items() if key.startswith(begins)}
        return float(self.score(own))


METRICS = Plugins[type[Metric]](
    "fedstrata.metrics",
    {},
    kind="metric: no class that derives from fedstrata.Metric",
    is_one=lambda found: isinstance(found, type) and issubclass(found, Metric),
)
"""Every metric by its name in a configuration."""


class ExtraMetrics(Settings):
    """What a task has of them."""

    extra_metrics: list[dict[str, Any]] = Field(
        default_factory=list,
        description="Scores of one's own beside the task's: `{name: package.module:Class}` with its "
        "settings, or the name of an installed package's.",
    )

    @field_validator("extra_metrics", mode="before")
    @classmethod
    def _as_sections(cls, given: Any) -> Any:
        """Takes objects and bare names too."""
        if not isinstance(given, list):
            return given
        named = [{"name": each} if isinstance(each, str) else each for each in given]
        return [METRICS.section_of(each) if isinstance(each, Metric) else each for each in named]

    @field_validator("extra_metrics")
    @classmethod
    def _known_metrics(cls, sections: list[dict[str, Any]]) -> list[dict[str, Any]]:
        try:
            names = [metric.name for metric in _made(sections)]
        except ConfigurationError as error:
            raise SettingError("; ".join(problem.message for problem in error.problems), error.code) from None
        own = getattr(cls, "metrics", ())
        taken = [*names, *(own if isinstance(own, tuple) else ())]
        if twice := [name for name in names if taken.count(name) > 1]:
            raise SettingError(f"two scores would have the name {twice[0]!r}", "duplicate")
        return sections

    @property
    def extra(self) -> list[Metric]:
        """The metrics of `extra_metrics`."""
        return _made(self.extra_metrics)


def _made(sections: Sequence[Mapping[str, Any]]) -> list[Metric]:
    return [METRICS.make(section, "task.extra_metrics") for section in sections]

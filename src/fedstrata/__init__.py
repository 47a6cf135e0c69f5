"""Federated fine-tuning of language models, one layer at a time.

Five lines from files to a federated model:

    import fedstrata as fs

    result = fs.run("site.yaml", method=fs.methods.LayerSkipping(top=2), rounds=3)
    print(result.metrics["f1"])
    result.report()

Nothing heavy is imported before it is asked for: `import fedstrata` loads neither torch nor transformers nor
pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedstrata import methods, tasks, testing
    from fedstrata.api import settings
    from fedstrata.api.comparison import Comparison, compare
    from fedstrata.api.corpora import read, synth
    from fedstrata.api.options import Options
    from fedstrata.api.result import Result, load
    from fedstrata.api.running import plan, resume, run
    from fedstrata.api.scoring import Scores, score
    from fedstrata.core.client import Client
    from fedstrata.core.cohort import Cohort
    from fedstrata.core.documents import Document, Relation, Span
    from fedstrata.core.errors import ConfigurationError, DataError, FedstrataError, Problem, TrainedOnWarning
    from fedstrata.core.method import Method
    from fedstrata.core.metric import Metric
    from fedstrata.core.model import Layout, Model
    from fedstrata.core.seeding import Seed
    from fedstrata.core.settings.reader import Reader
    from fedstrata.core.task import Task
    from fedstrata.core.types import ClientInfo, Plan, State, Update
    from fedstrata.methods.averaging import Averaging

__version__ = "0.1.0"

_MODULES = {"methods": "methods", "settings": "api.settings", "tasks": "tasks", "testing": "testing"}
_FOUND_IN = {
    "Averaging": "methods.averaging",
    "Client": "core.client",
    "ClientInfo": "core.types",
    "Cohort": "core.cohort",
    "Comparison": "api.comparison",
    "ConfigurationError": "core.errors",
    "DataError": "core.errors",
    "Document": "core.documents",
    "FedstrataError": "core.errors",
    "Layout": "core.model",
    "Method": "core.method",
    "Metric": "core.metric",
    "Model": "core.model",
    "Options": "api.options",
    "Plan": "core.types",
    "Problem": "core.errors",
    "Reader": "core.settings.reader",
    "Relation": "core.documents",
    "Result": "api.result",
    "Scores": "api.scoring",
    "Seed": "core.seeding",
    "Span": "core.documents",
    "State": "core.types",
    "Task": "core.task",
    "TrainedOnWarning": "core.errors",
    "Update": "core.types",
    "compare": "api.comparison",
    "load": "api.result",
    "plan": "api.running",
    "read": "api.corpora",
    "resume": "api.running",
    "run": "api.running",
    "score": "api.scoring",
    "synth": "api.corpora",
}
"""The module of every other public name."""

__all__ = [
    "Averaging",
    "Client",
    "ClientInfo",
    "Cohort",
    "Comparison",
    "ConfigurationError",
    "DataError",
    "Document",
    "FedstrataError",
    "Layout",
    "Method",
    "Metric",
    "Model",
    "Options",
    "Plan",
    "Problem",
    "Reader",
    "Relation",
    "Result",
    "Scores",
    "Seed",
    "Span",
    "State",
    "Task",
    "TrainedOnWarning",
    "Update",
    "compare",
    "load",
    "methods",
    "plan",
    "read",
    "resume",
    "run",
    "score",
    "settings",
    "synth",
    "tasks",
    "testing",
]


def __getattr__(name: str) -> Any:
    """Imports what is asked for, once."""
    if name in _MODULES:
        found: Any = import_module(f"fedstrata.{_MODULES[name]}")
    elif name in _FOUND_IN:
        found = getattr(import_module(f"fedstrata.{_FOUND_IN[name]}"), name)
    else:
        raise AttributeError(f"module 'fedstrata' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

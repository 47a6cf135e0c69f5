"""Tasks: how documents become tensors, losses and scores."""

from __future__ import annotations

from fedstrata.tasks.ner import NamedEntityRecognition

TASKS = {"ner": NamedEntityRecognition}
"""Every task by its name in a configuration."""

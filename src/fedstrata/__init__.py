"""Federated fine-tuning of language models, one layer at a time."""

__version__ = "0.1.0"

"""One client with random weights and random text, for measuring what a step of training costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.client.store import ClientStore
from fedstrata.core.client import Client, PrefixCache
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.models.load import load
from fedstrata.models.state import Model
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.tasks.windows import Window


def random_windows(count: int, tokens: int, vocabulary: int, seed: Seed) -> list[Window]:
    """Windows of random tokens and tags, all of one length."""
    generator = seed.numpy()
    offsets = np.stack([np.arange(tokens), np.arange(tokens) + 1], axis=1).astype(np.int32)
    return [
        Window(
            index,
            generator.integers(vocabulary, size=tokens, dtype=np.int32),
            generator.integers(9, size=tokens).astype(np.int16),
            offsets,
            np.ones(tokens, dtype=bool),
            0,
        )
        for index in range(count)
    ]


def llama_like(task: NamedEntityRecognition, blocks: int, hidden: int) -> Model:
    """A LLaMA-like token classifier with random weights."""
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": blocks,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "tie_word_embeddings": True,
    }
    settings = ModelSettings(init="random", tokenizer="mini", config=config)
    return load(settings, kind=task.kind, labels=task.classes, seed=Seed(0))


def client_of(
    model: Model,
    task: NamedEntityRecognition,
    windows: list[Window],
    training: TrainingSettings,
    folder: Path,
    cache: PrefixCache | None = None,
) -> Client:
    """The client, which reports to nobody."""
    store = ClientStore(folder, 1)
    return Client("client", model, task, windows, training, store, lambda progress: None, cache)

"""What all sites of a run must agree on, as one hash that masks, shares and signatures are bound to.

A server could give some sites other settings, so that their updates vanish from a masked sum, or with which
their share of the noise can be removed. So everything here goes into the context of each masked sum: sites
that have other values have masks that do not cancel, and sign another transcript.
"""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from fedstrata.core.errors import FrameError
from fedstrata.core.settings.source import flatten
from fedstrata.core.types import JSON
from fedstrata.engine.prepare import Experiment
from fedstrata.transport.header import PROTOCOL

SHARED = (
    *("name", "seed", "threads", "model", "adapter", "task", "method", "training", "federation", "privacy"),
)
"""The sections of settings that a server sets for all sites; sums depend on how many threads a client has."""
OWN = (
    *("training.cache", "training.cache_gigabytes", "model.name", "model.revision", "model.tokenizer"),
    *("model.vocabulary", "model.weights", "privacy.budget"),
)
"""Settings in these sections that are a site's own: places, memory, and what a site lets be spent. That the
weights are the same follows from their hashes."""
SESSION = ("federation.min_clients", "federation.rounds", "name")
"""What of it a server may change when it resumes a run that sites still take part in. Its values are those of
the session under way; sites compute the same whatever they are."""


def agreed(experiment: Experiment, session: Mapping[str, JSON] | None = None) -> dict[str, JSON]:
    """Returns all that the sites of a run must agree on, by dotted path.

    Args:
        experiment: What is run, as this side has it.
        session: The values of `SESSION` that the server states for this session; this side's own if None.

    Raises:
        FrameError: It states others, or not all of them.
    """
    settings = experiment.settings
    if experiment.task.kind == "causal-lm":  # what else a task is, is found in documents, and some have none
        settings = settings.model_copy(update={"task": experiment.asked or settings.task})
    found: dict[str, Any] = {
        path: value
        for path, value in flatten(settings.model_dump(mode="json"))
        if path.partition(".")[0] in SHARED and not path.startswith(OWN)
    }
    found |= {
        "labels": list(experiment.task.classes),
        "tokenizer": hash_of_tokenizer(experiment.model.tokenizer),
        "fedstrata": version("fedstrata"),
        "protocol": PROTOCOL,
    }
    if session is not None:
        if session.keys() != set(SESSION):
            raise FrameError("the server does not state the settings of its session", code="missing")
        found |= session
    return found


def agreed_hash(agreed: Mapping[str, JSON]) -> str:
    """Returns the SHA-256 of what is agreed on, hexadecimal."""
    text = json.dumps(agreed, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_of_tokenizer(tokenizer: Any) -> str:
    """Returns a short hash of what a tokenizer makes of texts; not of how batches are padded or cut."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = {name: part for name, part in parts.items() if name not in {"padding", "truncation"}}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]

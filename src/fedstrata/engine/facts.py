"""What the record of a run says of its software, its method and its model, wherever the clients are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedstrata.core.files import hash_of
from fedstrata.core.model import Layout
from fedstrata.core.settings.privacy import LEAST_SITES
from fedstrata.core.settings.report import shown
from fedstrata.core.types import Message
from fedstrata.engine.prepare import Experiment
from fedstrata.metrics.cost import peak_memory
from fedstrata.models.state import Model
from fedstrata.models.vocabulary import digest_of, kept_tokens
from fedstrata.privacy.mechanism import ADJACENCY, Privacy
from fedstrata.wire import frame

if TYPE_CHECKING:
    from fedstrata.privacy.joint import JointNoise  # for masks alone

OTHER = "other"
"""Tensor group of what travels and is no parameter of the model."""


def model_facts(experiment: Experiment, model: Model) -> dict[str, Any]:
    """Returns what the record's `run` event says of the software, the method, the task and the model.

    Args:
        experiment: The experiment.
        model: The whole model, or its outline where this side has a part of it.
    """
    layout = model.layout
    trainable = model.parameters(experiment.method.trainable(layout))
    return {
        "name": experiment.settings.name,
        "device": str(experiment.model.device),
        "threads": torch.get_num_threads(),
        "workers": experiment.workers,
        "versions": {name: version(name) for name in ("fedstrata", "torch", "transformers")},
        "method": experiment.method.name,
        "pooled": experiment.method.pooled,
        "personal": experiment.method.personal,
        "task": experiment.task.name,
        "metric": experiment.metric,
        "lower_is_better": sorted(experiment.task.falling),
        "seed": experiment.settings.seed,
        "rounds": experiment.settings.federation.rounds,
        "limit": limit_facts(experiment),
        "model": size_facts(experiment, model),
        "groups": by_group({name: model.bytes_of([name]) for name in layout.all}, layout),
        "trainable_parameters": sum(parameter.numel() for parameter in trainable),
    }


def limit_facts(experiment: Experiment) -> dict[str, int] | None:
    """Returns how far `data.limit` has cut down the documents that are here; none without."""
    return None if experiment.limited is None else asdict(experiment.limited)


def privacy_facts(privacy: Privacy) -> dict[str, Any] | None:
    """Returns what the record's `run` event says of differential privacy; none without."""
    if privacy.mechanism == "none":
        return None
    settings, local, joint = privacy.settings, privacy.settings.by_unit, privacy.joint
    return {
        "mechanism": privacy.mechanism,
        "unit": settings.unit if local else "client",
        "adjacency": ADJACENCY,
        "delta": settings.delta,
        "sigma": privacy.sigma,
        "clip": settings.clip,
        "noise": settings.noise,
        "asked": settings.epsilon,
        "units": settings.units,
        "rates": dict(privacy.rates or {}),
        "windows": settings.windows if local else None,
        "expected_batch": settings.expected_batch,
        "steps": privacy.steps if local else None,
        "turns": privacy.turns,
        "spare_turns": settings.spare_turns,
        "scores": settings.scores if local else None,
        "joint": joint_facts(joint) if joint else None,
    }


def joint_facts(noise: JointNoise) -> dict[str, Any]:
    """Returns what the record, and a plan, say of joint noise beside its sigma.

    Returns:
        `sites` of a round, `threshold`, `colluders`, `carriers` (t - c), `cost` (how many times the noise of
        a trusted server), `scale` (integers in one unit of a gradient), `l2` and `l1` (of a rounded gradient,
        in integers), `share` (deviation of a share, in integers).
    """
    sharing, rounding = noise.sharing, noise.rounding
    return {
        "sites": sharing.sites,
        "threshold": sharing.carriers + sharing.colluders,
        "colluders": sharing.colluders,
        "carriers": sharing.carriers,
        "cost": sharing.cost,
        "scale": rounding.scale,
        "l2": rounding.sensitivity.l2,
        "l1": rounding.sensitivity.l1,
        "share": math.sqrt(noise.share_variance),
    }


def sum_facts(privacy: Privacy, clients: int) -> dict[str, Any] | None:
    """Returns what the record's `run` event states about secure aggregation; None without.

    Args:
        privacy: The run's.
        clients: How many clients the run has.
    """
    settings = privacy.settings
    if not settings.secure_aggregation:
        return None
    reach = None if privacy.joint else settings.range  # clipping bounds what is summed with joint noise
    return {
        "range": reach,
        "ring": settings.ring,
        "survivors": settings.survivors,
        "clients": clients,
        "least": least_survivors(privacy, clients),
        "scores": settings.scores,
    }


def least_survivors(privacy: Privacy, clients: int) -> int:
    """Returns among how many clients at least each update is hidden.

    Args:
        privacy: The run's.
        clients: How many clients know each other.
    """
    from fedstrata.privacy.secure_sum.shares import threshold  # noqa: PLC0415 - for masks alone

    return max(threshold(clients), privacy.settings.survivors or LEAST_SITES)


def peaks(device: torch.device, others: Sequence[Mapping[str, int | None]]) -> dict[str, int | None]:
    """Returns the most memory that this process and those beside it have had.

    Args:
        device: Where this one's model is.
        others: What each of the others says.
    """
    every = [peak_memory(device), *others]
    columns = {name: [each[name] for each in every] for name in every[0]}
    return {name: sum(map(int, filter(None, column))) or None for name, column in columns.items()}


def saved_weights(folder: Path) -> dict[str, str]:
    """Returns a hash of every file of weights that lies in a run's folder, by its place there."""
    paths = (*folder.glob("model/*.safetensors"), *folder.glob("clients/*/model/*.safetensors"))
    return {path.relative_to(folder).as_posix(): hash_of(path) for path in sorted(paths)}


def size_facts(experiment: Experiment, model: Model) -> dict[str, Any]:
    """Returns what a record, and a plan, say of the model: its name and how large it is, as a frame too."""
    return {
        "name": experiment.settings.model.title,
        "parameters": model.parameter_count,
        "blocks": len(model.layout.blocks),
        "bytes": frame.size(Message(model.tensors(model.whole))),
        **_vocabulary_facts(model.tokenizer),
    }


def _vocabulary_facts(tokenizer: Any) -> dict[str, Any]:
    """Returns how many tokens a cut vocabulary has kept, and the hash of the list of their original ids."""
    kept = kept_tokens(tokenizer)
    if kept is None:
        return {}
    return {"vocabulary": {"kept": len(kept), "sha256": digest_of(kept)}}


def document_counts(
    counts: Mapping[str, int], experiment: Experiment, *, served: bool
) -> dict[str, int | None]:
    """Returns how many documents a client has of each part, as a record may say it; none of a hidden count.

    Args:
        counts: The counts.
        experiment: The experiment.
        served: Whether clients are processes of their own.
    """
    hide = experiment.settings.report.hides(served=served)
    return {part: shown(count, hide=hide) for part, count in counts.items()}


def by_group(sizes: Mapping[str, int], layout: Layout) -> dict[str, int]:
    """Returns the bytes of each tensor group; what is no parameter of the model is `other`."""
    parameters = set(layout.all)
    groups: Counter[str] = Counter()
    for name, size in sizes.items():
        groups[layout.group_of(name) if name in parameters else OTHER] += size
    return dict(groups)

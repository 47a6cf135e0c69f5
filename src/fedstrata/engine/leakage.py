"""What a server could read back of clients' texts, by the depth of the cut and the noise: a leakage table.

The first client colludes with the server; the others' texts are read. What leaves a client is made as in
training: the run's own task and examples, through its own A, in evaluation mode.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedstrata.core.cut import Cut
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.core.files import write_atomically
from fedstrata.engine.rounds import sites_of
from fedstrata.split.attack import AttackSettings, Leakage, Observed, attack
from fedstrata.split.ends import Ends
from fedstrata.split.noise import Kind, Noise
from fedstrata.split.partition import ends_of
from fedstrata.train.evaluate import batches_by_length
from fedstrata.train.local import to_device

if TYPE_CHECKING:
    from fedstrata.core.seeding import Seed
    from fedstrata.engine.setup import Experiment

SCORES = {"tokens": "tokens", "nearest": "nearest embedding", "rouge2": "ROUGE-2", "bleu4": "BLEU-4"}
"""The scores of a leakage table and their titles; shares are shown in hundredths."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One cell of the table.

    Attributes:
        front: Blocks of the client below the server's, p.
        noise: Scale of the noise.
        leakage: What was read back.
    """

    front: int
    noise: float
    leakage: Leakage


@dataclass(frozen=True, slots=True)
class Target:
    """What is attacked.

    Attributes:
        fronts: Values of p.
        noises: Scales of noise.
        kind: What a scale is.
        relative: Whether in units of the hidden states.
        texts: How many examples the attacker learns from, and how many it reads, at most.
        epochs: How often it goes through what it learns from.
    """

    fronts: Sequence[int]
    noises: Sequence[float]
    kind: Kind = "mean_abs"
    relative: bool = False
    texts: int = 500
    epochs: int = 20


def leakage_table(experiment: Experiment, target: Target) -> Iterator[Attempt]:
    """Yields what can be read back for each p and each scale of noise.

    Args:
        experiment: Whose clients, texts and model are attacked.
        target: How they are divided and noised.

    Raises:
        ConfigurationError: There is one client only, or a p leaves no block for the server.
    """
    _, sites = sites_of(experiment)
    if len(sites) < 2:
        message = f"an attack needs a client that colludes and another one; there is {len(sites)}"
        raise ConfigurationError([Problem("partition", message)])
    task, model, seed = experiment.task, experiment.model, experiment.seed.child("attack")
    known = _drawn(sites[0].encode(), target.texts, seed.child("known"))
    others = [example for site in sites[1:] for example in site.encode()]
    unseen = _drawn(others, target.texts, seed.child("unseen"))
    for front in target.fronts:
        cut = Cut(front, 0)
        ends = Ends(ends_of(model, cut), cut)
        size = experiment.settings.training.eval_batch_size
        for scale in target.noises:
            # Equal names draw equal noise, and what one client adds must not be what another adds.
            seen, sent = (
                _observed(ends, task, part, Noise(scale, own, target.kind, target.relative), size)
                for part, own in ((known, seed.child("known", front)), (unseen, seed.child("unseen", front)))
            )
            settings = AttackSettings(front, epochs=target.epochs)
            found = attack(seen, sent, model, model.tokenizer, settings, seed.child(front))
            yield Attempt(front, scale, found)


@torch.inference_mode()
def _observed(ends: Ends, task: Any, examples: Sequence[Any], noise: Noise, size: int) -> list[Observed]:
    """Returns what leaves a client of these examples, and what it was made from."""
    ends.module.train(False)
    device = next(ends.module.parameters()).device
    found = []
    for number, chosen in enumerate(batches_by_length(examples, size)):
        batch = to_device(task.collate([examples[index] for index in chosen]), device)
        front = ends.front(partial(task.loss, ends.module, batch))
        states = noise.add(front.states, front.rows, number)
        for row, padding in enumerate(front.rows.padding):
            length = front.rows.length - padding
            own = states[row, :length].float().clone()
            found.append(Observed(own, batch["input_ids"][row, :length].clone()))
    return found


def _drawn(examples: Sequence[Any], count: int, seed: Seed) -> list[Any]:
    chosen = seed.numpy().permutation(len(examples))[:count]
    return [examples[index] for index in chosen.tolist()]


def write_leakage(attempts: Sequence[Attempt], target: Target, facts: dict[str, Any], folder: Path) -> None:
    """Writes `leakage.json` and `leakage.md`; each appears complete or not at all."""
    rows = [{"front": each.front, "noise": each.noise, **asdict(each.leakage)} for each in attempts]
    text = json.dumps({**facts, "target": asdict(target), "rows": rows}, indent=2) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "leakage.json", [text.encode()])
    write_atomically(folder / "leakage.md", [markdown(attempts).encode()])


def markdown(attempts: Sequence[Attempt]) -> str:
    """Returns the table for people, in hundredths."""
    lines = [
        "| p | noise | " + " | ".join(SCORES.values()) + " |",
        "|---:|---:|" + "---:|" * len(SCORES),
    ]
    return "\n".join([*lines, *("| " + " | ".join(cells(each)) + " |" for each in attempts)]) + "\n"


def cells(attempt: Attempt) -> list[str]:
    """Returns one row of the table as people read it."""
    scores = [f"{100 * getattr(attempt.leakage, name):.1f}" for name in SCORES]
    return [str(attempt.front), f"{attempt.noise:g}", *scores]

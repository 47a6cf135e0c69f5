"""What a server could read back of clients' texts, by the depth of the cut and the noise: a leakage table.

The first client colludes with the server; the others' texts are read. What leaves a client is made as in
training: the run's own task and examples, through its own A, in evaluation mode.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedstrata.core.cut import Cut
from fedstrata.core.errors import refused
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.task import Task
from fedstrata.models.state import Model
from fedstrata.privacy.attacks.inversion import Leakage, Names, Observed, attack
from fedstrata.record.findings import Finding, FindingTable
from fedstrata.record.words import plural
from fedstrata.split.divide import ends_of
from fedstrata.split.ends import Ends, Front
from fedstrata.split.noise import Kind, Noise, NoiseSettings
from fedstrata.train.evaluate import batches_by_length
from fedstrata.train.local import to_device

SCORES = {
    "tokens": "tokens",
    "nearest": "nearest embedding",
    "searched": "search",
    "rouge2": "ROUGE-2",
    "bleu4": "BLEU-4",
}
"""The scores of a leakage table and their titles; shares are shown in hundredths."""
COLUMNS = ("p", "noise", "mean size", *SCORES.values())
"""The columns of the table."""
TITLE = "texts read back from hidden states, in hundredths"
"""The title of the table."""

AS_RELEASED = (
    "the decoder learnt to name the token after the one that gave a state, as in the code of FL-LLaMA's "
    "authors; what it names was compared place by place with the texts, so that its share of tokens says "
    "nothing of what could be read"
)
"""What is said of a decoder that learns the next token."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One cell of the table.

    Attributes:
        front: Blocks of the client below the server's, p.
        noise: Scale of the noise.
        size: Mean absolute value of the hidden states that are sent, without noise.
        leakage: What was read back.
    """

    front: int
    noise: float
    size: float
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
        sent: How often each text was sent, with other noise each time; as often as in the run if none.
        searched: Tokens of a text that are searched for, from its beginning; 0 for no search.
        names: Which token behind a state the decoder learns to name.
    """

    fronts: Sequence[int]
    noises: Sequence[float]
    kind: Kind = "mean_abs"
    relative: bool = False
    texts: int = 500
    epochs: int = 20
    sent: int | None = None
    searched: int = 16
    names: Names = "same"

    def times(self, settings: RunSettings) -> int:
        """Returns how often each text was sent in a run with these settings."""
        return self.sent or max(settings.federation.rounds * settings.training.epochs, 1)


def leakage_table(
    settings: RunSettings, task: Task, model: Model, clients: Sequence[Sequence[Any]], target: Target
) -> Iterator[Attempt]:
    """Yields what can be read back for each p and each scale of noise.

    Args:
        settings: The run's settings.
        task: What it learns.
        model: The model that is divided.
        clients: Each client's encoded examples; the first one colludes.
        target: How they are divided and noised.

    Raises:
        ConfigurationError: There is one client only, or a p leaves no block for the server.
    """
    if len(clients) < 2:
        message = f"an attack needs a client that colludes and another one; there is {len(clients)}"
        raise refused("partition", message, "not_enough_data")
    blocks = len(model.layout.blocks)
    if wrong := [front for front in target.fronts if not 0 <= front < blocks]:
        message = f"must leave one of the {blocks} blocks of {model.name} to the server, not {wrong[0]}"
        raise refused("--front", message, "out_of_range")
    seed = Seed(settings.seed).child("attack")
    known = _drawn(clients[0], target.texts, seed.child("known"))
    others = [example for own in clients[1:] for example in own]
    unseen = _drawn(others, target.texts, seed.child("unseen"))
    for front in target.fronts:
        cut = Cut(front, 0)
        ends = Ends(ends_of(model, cut), cut)
        size = settings.training.eval_batch_size
        fronts = [_fronts(ends, task, part, size) for part in (known, unseen)]
        for scale in target.noises:
            noise = NoiseSettings(scale=scale, kind=target.kind, relative=target.relative)
            seen, clean = (_observed(part, Noise(noise, seed)) for part in fronts)
            own, times = seed.child(front), target.times(settings)
            sent = [each.sent(own.child("sent", index), times) for index, each in enumerate(clean)]
            found = attack(seen, sent, ends, model, target.epochs, target.searched, own, target.names)
            numbers = [each.states.abs() for each in clean]
            mean = sum(float(each.sum()) for each in numbers) / sum(each.numel() for each in numbers)
            yield Attempt(front, scale, mean, found)


@torch.inference_mode()
def _fronts(ends: Ends, task: Any, examples: Sequence[Any], size: int) -> list[tuple[Front, Tensor]]:
    """Returns what A makes of these examples, by batches, each with its token ids (rows, length)."""
    ends.module.train(False)
    device = next(ends.module.parameters()).device
    found = []
    for chosen in batches_by_length(examples, size):
        batch = to_device(task.collate([examples[index] for index in chosen]), device)
        found.append((ends.front(partial(task.loss, ends.module, batch)), batch["input_ids"]))
    return found


def _observed(fronts: Sequence[tuple[Front, Tensor]], noise: Noise) -> list[Observed]:
    """Returns each text's states and tokens, and how much noise goes with them."""
    found = []
    for front, ids in fronts:
        deviation = float(noise.deviation(front.states, front.rows))
        for row, padding in enumerate(front.rows.padding):
            length = front.rows.length - padding
            found.append(Observed(front.states[row, :length].float(), ids[row, :length], deviation))
    return found


def _drawn(examples: Sequence[Any], count: int, seed: Seed) -> list[Any]:
    chosen = seed.numpy().permutation(len(examples))[:count]
    return [examples[index] for index in chosen.tolist()]


def finding_of(
    attempts: Sequence[Attempt], target: Target, facts: Mapping[str, Any], own: str = "", what_if: str = ""
) -> Finding:
    """Returns what was found in the form that all attacks have.

    Args:
        attempts: It, at least one.
        target: What was attacked.
        facts: What else is to be known of it.
        own: Where the run itself divides its model, and its noise; empty where it does not divide it.
        what_if: Why the run sends no hidden states; empty where it does.
    """
    rows = [
        {"front": each.front, "noise": each.noise, "size": each.size, **asdict(each.leakage)}
        for each in attempts
    ]
    most, how, share = max(
        ((each, how, share) for each in attempts for how, share in _shares(each)), key=lambda own: own[2]
    )
    left = len(target.fronts) * len(target.noises) - len(attempts)
    says = [
        *([f"what if, and no finding on this run: {what_if}"] if what_if else []),
        *([f"not finished: {plural(left, 'row')} of the table are missing"] if left else []),
        "a server that colludes with one client learnt to read hidden states from its texts; one that knows "
        "the model compared them with what each token gives, and tried all tokens one after the other; both "
        f"read the other clients' texts, each sent {plural(facts['sent'], 'time')}",
        f"most is read at p {most.front} with noise {most.noise:g}, by {how}: {100 * share:.1f} % of the "
        "tokens",
        *([f"{own}; other rows of the table are not of this run"] if own else []),
        *([AS_RELEASED] if target.names == "next" else []),
        "what is not read here another attack may read",
    ]
    return Finding(
        "hidden",
        [FindingTable(f"what if: {TITLE}" if what_if else TITLE, COLUMNS, [*map(cells, attempts)])],
        says,
        {**facts, "target": asdict(target), "rows": rows},
        what_if=what_if,
    )


def _shares(attempt: Attempt) -> Iterator[tuple[str, float]]:
    """Yields by what tokens were read, and the share of them."""
    found = attempt.leakage
    for how, share in (
        ("the decoder", found.tokens),
        ("the nearest embedding", found.nearest),
        ("the search", found.searched),
    ):
        if share is not None:
            yield how, share


def cells(attempt: Attempt) -> list[str]:
    """Returns one row of the table as people read it."""
    values = [getattr(attempt.leakage, name) for name in SCORES]
    scores = ["-" if value is None else f"{100 * value:.1f}" for value in values]
    return [str(attempt.front), f"{attempt.noise:g}", f"{attempt.size:.2g}", *scores]

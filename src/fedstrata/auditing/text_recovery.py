"""What one round gives away of texts: a run is made in a scratch folder, and what leaves its clients is read.

The server is honest and curious: it sees every plan and every update of the first round, or with secure
aggregation their sum alone, and knows the model that the plan is of. It looks for texts in them
(`privacy.attacks.span`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from fedstrata.auditing.observed_run import WatchedRun, divided, run_to_its_end
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import Source
from fedstrata.core.types import Plan, Tensors
from fedstrata.engine.prepare import Experiment, prepare
from fedstrata.engine.sites import sites_of
from fedstrata.metrics.text import overlap_scores
from fedstrata.models.state import Model
from fedstrata.privacy.attacks.span import reader_of, search
from fedstrata.record.log import Listener

SUM = "all clients, summed"
"""What the server sees of a round with secure aggregation."""
TOKENS = 1
"""Tokens that a text may lack at its end: nothing comes back from the last one of a language model."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was read in one update, or in a sum of them.

    Attributes:
        seen: Whose update it is, or `SUM`.
        texts: Texts that were trained on: windows, as the task makes them of documents.
        tokens: Their tokens.
        width: Numbers that the layers which were looked at read of a token; 0 if there are none.
        rank: Dimensions of the space of what they read; none where they fill all.
        exact: Texts that were found from beginning to end.
        rouge: ROUGE-L of each text with the nearest of what was found, mean; 0 where nothing was found.
        why: In words, why no text could be looked for; empty where one could.
        seconds: How long it took.
        found: The texts that were found.
    """

    seen: str
    texts: int
    tokens: int
    width: int
    rank: int | None
    exact: int
    rouge: float
    why: str
    seconds: float
    found: Sequence[str]


def audit_recovery(source: Source, longest: int, listen: Listener) -> Iterator[Recovery]:
    """Makes the first round of a run, and looks for texts in what leaves its clients.

    Args:
        source: The run's configuration.
        longest: Tokens of a text that are looked for, at most.
        listen: Told of the run's events.

    Yields:
        What was read of each client's update, and of their sum; with secure aggregation of the sum alone.

    Raises:
        ConfigurationError: The configuration is wrong, or cannot be attacked in this way.
        FedstrataError: The run failed.
    """
    experiment = prepare(source)
    if problems := divided(experiment):
        raise ConfigurationError(source.located(problems))
    one_round = experiment.settings.federation.model_copy(update={"rounds": 1})
    settings = experiment.settings.model_copy(update={"federation": one_round})
    experiment = replace(experiment, settings=settings, workers=1)
    texts = {site.id: texts_of(experiment, site.encode()) for site in sites_of(experiment)[1]}
    plans: dict[str, Tensors] = {}
    updates: dict[str, Tensors] = {}

    def watch(client: str, plan: Plan, update: Tensors) -> None:
        plans.setdefault(client, {name: tensor.clone() for name, tensor in plan.tensors.items()})
        updates.setdefault(client, update)

    with TemporaryDirectory(prefix="fedstrata-attack-") as folder:
        run = WatchedRun(experiment, Path(folder), listen, watch)
        run_to_its_end(run)
    model = experiment.model
    if not experiment.settings.privacy.secure_aggregation:
        for client, update in updates.items():
            yield _read(model, client, plans[client], update, texts[client], longest)
    if len(updates) > 1 or experiment.settings.privacy.secure_aggregation:
        every = [text for client in updates for text in texts[client]]
        yield _read(model, SUM, next(iter(plans.values())), run.last.tensors, every, longest)


def texts_of(experiment: Experiment, examples: Sequence[Any]) -> list[tuple[int, ...]]:
    """Returns the tokens of each row that examples are trained on as, without padding."""
    found = []
    for example in examples:
        batch = experiment.task.collate([example])
        for ids, kept in zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True):
            found.append(tuple(ids[kept].tolist()))
    return found


def _read(
    model: Model, seen: str, plan: Tensors, update: Tensors, texts: Sequence[tuple[int, ...]], longest: int
) -> Recovery:
    """Looks for texts in what an update changes of a plan."""
    started = time.perf_counter()
    model.restore()
    model.load_known(plan)
    model.module.train(False)
    change = _change(model, update)
    reader = reader_of(model, change)
    tokens = sum(map(len, texts))
    width, rank, why, found = 0, None, "no weight of a linear layer of a block travels", []
    if reader is not None:
        width, span = reader.width, reader.span_of(change)
        rank = None if span is None else span.rank
        if span is None:
            full = f"{tokens:,} tokens fill all {width} directions of what the layers read"
            why = f"information: {full if tokens >= width else 'the change has no space of few directions'}"
        elif not model.is_causal:
            why = (
                "compute: what a layer reads of a token depends on the whole text, so that all would be tried"
            )
        else:
            why, found = "", search(model, reader, span, longest=longest)
    model.restore()
    exact = sum(_is_found(text, set(found), longest) for text in texts)
    words, wanted = ([model.tokenizer.decode(text) for text in each] for each in (found, texts))
    rouge = _nearest(wanted, words) if words else 0.0
    seconds = time.perf_counter() - started
    return Recovery(seen, len(texts), tokens, width, rank, exact, rouge, why, seconds, words)


def _change(model: Model, update: Tensors) -> dict[str, Tensor]:
    known = model.tensors(model.layout.all)
    return {
        name: tensor.float() - known[name].float()
        for name, tensor in update.items()
        if name in known and tensor.is_floating_point() and tensor.shape == known[name].shape
    }


def _is_found(text: tuple[int, ...], found: set[tuple[int, ...]], longest: int) -> bool:
    return any(text[: len(text) - lacking][:longest] in found for lacking in range(TOKENS + 1))


def _nearest(wanted: Sequence[str], found: Sequence[str]) -> float:
    """Returns ROUGE-L of each text with the nearest of those found, mean over texts."""
    best = [
        max(overlap_scores([each], [text], rouge=("rougeL",))["rougeL"] for each in found) for text in wanted
    ]
    return sum(best) / len(best)


def facts_of(found: Sequence[Recovery]) -> list[dict[str, Any]]:
    """Returns what was found as JSON; no text and no token of one is in it."""
    return [
        {
            "seen": own.seen,
            "texts": own.texts,
            "tokens": own.tokens,
            "width": own.width,
            "rank": own.rank,
            "recovered": own.exact,
            "rouge_l": own.rouge,
            "why_not": own.why or None,
            "seconds": own.seconds,
        }
        for own in found
    ]


COLUMNS: Mapping[str, str] = {
    "seen": "seen",
    "texts": "texts",
    "tokens": "tokens",
    "width": "width",
    "rank": "rank",
    "recovered": "recovered",
    "rouge_l": "ROUGE-L",
}
"""The columns of the table, by the facts that they show."""

"""Which texts a configuration gives away, said by name before the run starts.

Whoever trains without differential privacy is warned of three leaks that can be seen beforehand. Each of them
a command shows (docs/text_recovery.md, docs/fl_llama.md).

**Few tokens.** What a weight changes by under SGD is a sum over tokens, and its rows lie in the span of what
the layer has read of them (`fedstrata.privacy.attacks.span`). Of fewer tokens than the layer is wide that
span leaves directions out, and a token that was there can be told from those that were not; of nearly as
many (`FULLEST`) it can no longer be told from chance. Tokens of a round
are counted once, whatever the epochs: as long as what lies below is frozen the same tokens are read alike
every time. Where it trains they are read a little differently, and the warning is a bound. Tokens that are
read alike, as the first of every window, count as often as they are there, so that a little more than is
warned of can be read. A change has as many rows as the layers that read the same have outputs: of a low-rank
adapter these are the ranks of its A together, fewer than A reads. Of a span of more dimensions than rows only
a part is seen, in which nothing that was read lies, so that tokens must be fewer than the rows as well.
Adam leaves no span.

**Words.** The embedding of a word gets a gradient of its own only where the word is. With any optimizer the
rows that have changed name the words; of an embedding that is the output layer too all rows change, and those
of words that are there most.

**Hidden states.** A divided model sends them of every token. Without blocks in front of the cut they are the
embeddings; behind some the server, which has these blocks or the model that they began as, runs them itself.

Without secure aggregation the server sees each update, and how many clients a round has changes nothing. With
it the server sees sums, and sums of fewer than three clients are refused (`engine.privacy`): none is of one
client alone.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import nn

from fedstrata.core.settings.privacy import LEAST_SITES
from fedstrata.data.degenerate import named
from fedstrata.models.state import Model
from fedstrata.planning.estimate import Estimate
from fedstrata.planning.privacy import threshold_of
from fedstrata.policies.select import tied_head
from fedstrata.privacy.attacks.span import FULLEST, readers_of
from fedstrata.record.words import plural

_NOISE = "differential privacy (privacy.mechanism)"


class SmallestSum(NamedTuple):
    """The secure sum of a run that is made of fewest tokens; of equal ones the first."""

    tokens: int
    round: int
    clients: int


def leak_warnings(estimate: Estimate) -> Iterator[str]:
    """Yields by which updates or hidden states of a run its server could read texts.

    Nothing of a run with differential privacy, and of one that pools all notes: there they travel themselves.
    """
    method = estimate.experiment.method
    if estimate.experiment.privacy.mechanism != "none" or method.pooled:
        return
    if any(method.divides(client) is not None for client in estimate.turns):
        yield from _hidden_states(estimate)  # by which more can be read than by updates
    else:
        yield from _few_tokens(estimate)
        yield from _words(estimate)


def _few_tokens(estimate: Estimate) -> Iterator[str]:
    experiment = estimate.experiment
    if estimate.training.optimizer != "sgd":
        return
    experiment.model.module.train(False)
    reader = next(readers_of(experiment.model, estimate.measured.up), None)
    if reader is None:
        return
    directions = reader.directions
    # Of nearly all directions the space of what was read cannot be told from chance.
    most = int(FULLEST * directions) + 1
    bound = f"the {directions:,} numbers that the lowest trained layers read of each"
    if directions < reader.width:
        bound = f"{directions:,}, the rank of what the lowest trained layers send"
    # In an encoder what is read of a token depends on the whole text, but in its first block.
    read, command = "tell if a text that it guesses is there", "of this there is no command that shows it"
    if experiment.model.is_causal or reader.alone:
        read, command = "read texts token by token", "fedstrata attack span CONFIG shows it"
    begin = f"{experiment.method.name} trains by SGD"
    if experiment.privacy.settings.secure_aggregation:
        found = smallest_sum(estimate)
        if found is not None and found.tokens < most:
            yield (
                f"{begin}, and the secure sum of {found.clients} clients in round {found.round} is made of "
                f"{found.tokens:,} tokens, fewer than {bound}: the server can {read}, if not whose. What "
                f"helps: more clients a round, more documents, or {_NOISE}; {command}"
            )
        return
    few = {name: own.tokens for name, own in estimate.workloads.items() if estimate.turns[name]}
    few = {name: tokens for name, tokens in few.items() if tokens < most}
    if few:
        told = named([f"{name} {tokens:,}" for name, tokens in few.items()])
        yield (
            f"{begin}, and updates are made of few tokens a round ({told}), fewer than {bound}: the server, "
            f"which sees each update, can {read}. What helps: more documents, {_NOISE}, or "
            f"privacy.secure_aggregation over more tokens together; {command}"
        )


def smallest_sum(estimate: Estimate) -> SmallestSum | None:
    """Returns the secure sum that is made of fewest tokens; none if no round has clients enough for one."""
    least = estimate.experiment.privacy.settings.survivors or LEAST_SITES
    sums = (
        SmallestSum(sum(estimate.workloads[client].tokens for client in left), number, len(left))
        for number, (asked, left) in enumerate(zip(estimate.sampled, estimate.delivered, strict=True), 1)
        if len(left) >= max(least, threshold_of(len(asked)))
    )
    return min(sums, default=None)


def _words(estimate: Estimate) -> Iterator[str]:
    experiment = estimate.experiment
    name, count = word_embedding(experiment.model)
    if name not in estimate.measured.up or not estimate.turns:
        return
    changed = "change most" if name in tied_head(experiment.model) else "alone change"
    whose, seen = f"those of {named(list(estimate.turns))}", "each client's"
    if experiment.privacy.settings.secure_aggregation:
        whose, seen = "those of its clients together, if not whose they are", "all clients' summed"
    yield (
        f"{experiment.method.name} sends {seen} changes of the word embedding, in which the rows of "
        f"words that were read {changed}: of {count:,} tokens the server can name {whose}, with any "
        f"optimizer. What helps: a frozen embedding (layer_skipping, or an adapter), or {_NOISE}; "
        "fedstrata attack invert CONFIG shows it"
    )


def word_embedding(model: Model) -> tuple[str, int]:
    """Returns the name of the parameter that has a row for every token, and its rows; empty if there is none.

    Tables of positions and of types of tokens come after it, or have fewer rows.
    """
    parameters = {id(own): name for name, own in model.module.named_parameters()}
    return next(
        (
            (parameters[id(module.weight)], module.num_embeddings)
            for module in model.module.modules()
            if isinstance(module, nn.Embedding) and module.num_embeddings >= len(model.tokenizer)
        ),
        ("", 0),
    )


def _hidden_states(estimate: Estimate) -> Iterator[str]:
    method = estimate.experiment.method
    noise = getattr(method, "noise", None)  # of methods that divide the model
    if noise is not None and noise.scale > 0:
        return
    fronts: dict[int, list[str]] = {}
    for client in estimate.workloads:
        if estimate.turns[client] and (cut := method.divides(client)) is not None:
            fronts.setdefault(cut.front, []).append(client)
    for front, clients in sorted(fronts.items()):
        yield _of_front(method.name, front, clients)


def _of_front(method: str, front: int, clients: Sequence[str]) -> str:
    if front:
        how = "the server has these blocks and can try all tokens"
    else:
        how = "they are the embeddings of its tokens, and the nearest embedding names each"
    return (
        f"{method} sends hidden states without noise, of {named(clients)} behind {plural(front, 'block')} "
        f"(method.front): {how}, so that texts are read back. What helps: a server that may see them, or a "
        "method that sends none; more blocks do not (docs/fl_llama.md); "
        "fedstrata attack hidden CONFIG shows it"
    )

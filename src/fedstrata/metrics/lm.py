"""Scores of a language model: how well it predicts the tokens of a text."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fedstrata.core.types import Tally
from fedstrata.metrics.counts import added

LARGEST_LOSS = 700.0
"""Nats a token from which on perplexity no longer grows: its exponential would leave the range of a float."""


@dataclass(frozen=True, slots=True)
class TextLikelihood:
    """How well a document was predicted.

    Attributes:
        nats: Negative log likelihood of its tokens, summed.
        tokens: Tokens that were predicted, its end included.
        bytes: Bytes of its text in UTF-8.
    """

    nats: float
    tokens: int
    bytes: int

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Exp of the nats a token."""
        return math.exp(min(self.loss, LARGEST_LOSS))


def tally_of(answers: Sequence[TextLikelihood]) -> dict[str, float]:
    """Returns the nats, the tokens and the bytes of documents."""
    return added(asdict(answer) for answer in [TextLikelihood(0, 0, 0), *answers])


def scores_from(tally: Tally) -> dict[str, float]:
    """Scores documents together, every token with the same weight.

    Args:
        tally: What `tally_of` gave, added up or not.

    Returns:
        `perplexity`, exp of the mean nats a token; `loss`, that mean; `bits_per_byte`, which tokenizers do
        not bear on, where there are bytes. Lower is better for all of them. None of them without a token.

    Example:
        >>> scores = scores_from({"nats": math.log(4.0), "tokens": 2, "bytes": 2})
        >>> [f"{name} {value:.3f}" for name, value in scores.items()]
        ['perplexity 2.000', 'loss 0.693', 'bits_per_byte 1.000']
    """
    total = TextLikelihood(tally["nats"], int(tally["tokens"]), int(tally["bytes"]))
    if not total.tokens:
        return {}
    scores = {"perplexity": total.perplexity, "loss": total.loss}
    return scores | ({"bits_per_byte": total.nats / math.log(2.0) / total.bytes} if total.bytes else {})

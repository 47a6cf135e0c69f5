"""Which blocks run in a batch: stochastic layer dropout (DropPEFT, section 3.2, equations 2 to 4)."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from fedstrata.core.seeding import Seed

Distribution: TypeAlias = Literal["incremental", "uniform", "decremental"]
Draw: TypeAlias = Literal["independent", "exact"]

CAP = 0.95
"""The largest chance of a block to be skipped; a block that never ran would never learn."""
USUAL_CAP = 0.8
"""The largest that a slope gives to a block by default."""


def block_rates(
    mean: float, blocks: int, distribution: Distribution = "incremental", slope: float | None = None
) -> tuple[float, ...]:
    """Returns P_l, each block's chance to be skipped, lowest block first.

    The paper recommends rates that grow with the depth and gives no formula. Here they are linear, with the
    mean in the middle, and as steep as they may be: no rate is below 0, and none above .8 (above .95 where
    a slope is asked for). So a mean above .8 has no slope by default.

    Args:
        mean: p, the mean of the rates, in [0, 0.95].
        blocks: L, the number of blocks.
        distribution: `incremental` grows with the depth, `decremental` falls, `uniform` does neither.
        slope: How far the last block's rate is from the first's, at most; as far as it may be if none.

    Raises:
        ValueError: The mean is out of range.

    Example:
        >>> block_rates(0.25, 3)
        (0.0, 0.25, 0.5)
        >>> [round(rate, 2) for rate in block_rates(0.5, 4)]
        [0.2, 0.4, 0.6, 0.8]
        >>> block_rates(0.5, 2, "uniform")
        (0.5, 0.5)
    """
    if not 0.0 <= mean <= CAP:
        raise ValueError(f"the mean rate must be between 0 and {CAP}, not {mean}")
    if distribution == "uniform" or blocks == 1:
        return (mean,) * blocks
    room = max(0.0, min(mean, (USUAL_CAP if slope is None else CAP) - mean))
    reach = room if slope is None else min(room, slope / 2.0)
    rates = np.linspace(mean - reach, mean + reach, blocks)
    return tuple(float(rate) for rate in (rates if distribution == "incremental" else rates[::-1]))


class LayerDropout:
    """Draws the blocks of each batch, and remembers how large the gradients of those that ran were.

    Args:
        rates: Each block's chance to be skipped, lowest block first.
        rng: Seed of the draws: of one client in one round.
        how: `independent` draws each block by itself. `exact` skips the same number of blocks in every batch,
            the sum of the rates rounded down or up, each with its rate.

    Attributes:
        batches: For each block, in how many steps it had a gradient.
    """

    def __init__(self, rates: Sequence[float], rng: Seed, how: Draw = "independent") -> None:
        self._rates, self._how = np.asarray(rates, dtype=np.float64), how
        self._generator = rng.numpy()
        self._sums = np.zeros(len(rates))
        self._drawn = self._ran = 0
        self.batches = np.zeros(len(rates), dtype=np.int64)

    def draw(self) -> tuple[int, ...]:
        """Returns the blocks that are skipped in the next batch; at least one is not.

        Where all would be, the block that came nearest to running runs. So of few blocks with high rates
        fewer are skipped than the rates say: of six with .9 each .81.
        """
        if self._how == "exact":
            skipped = self._exact()
        else:
            draws = self._generator.random(len(self._rates))
            skipped = draws < self._rates
            if skipped.all():
                skipped[int(np.argmax(draws - self._rates))] = False
        self._drawn += len(skipped)
        self._ran += int((~skipped).sum())
        return tuple(np.flatnonzero(skipped).tolist())

    def _exact(self) -> np.ndarray:
        """Draws as many blocks every time, each with its rate: a systematic sample in a random order.

        Source: Madow 1949, "On the theory of systematic sampling, II".
        """
        order = self._generator.permutation(len(self._rates))
        bounds = np.concatenate([[0.0], np.cumsum(self._rates[order])]) + self._generator.random()
        skipped = np.zeros(len(self._rates), dtype=bool)
        skipped[order] = np.diff(np.floor(bounds)) > 0
        if skipped.all():
            skipped[int(order[0])] = False
        return skipped

    @property
    def share_run(self) -> float:
        """The share of the blocks that ran, over all batches; 1 before the first."""
        return self._ran / self._drawn if self._drawn else 1.0

    def observe(self, norms: Sequence[float | None]) -> None:
        """Is told the L2 norm of every block's gradient in a step; none of a block that did not run."""
        for block, norm in enumerate(norms):
            if norm is not None:
                self._sums[block] += norm
                self.batches[block] += 1

    def importance(self, before: Sequence[float | None] | None = None) -> list[float | None]:
        """Returns each block's mean gradient norm over the steps in which it ran (equation 6).

        Args:
            before: What a block that never ran keeps; if none it has no importance.
        """
        known = before or [None] * len(self._rates)
        return [
            float(total / count) if count else old
            for total, count, old in zip(self._sums, self.batches, known, strict=True)
        ]

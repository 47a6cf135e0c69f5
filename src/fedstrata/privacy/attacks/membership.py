"""Who was trained on, judged by a server that sees plans and updates: a score of every canary.

**By updates.** At the plan's model the server computes each canary's gradient, clipped as its client clips,
and the product y of each with what the update has changed. If c_j is how often canary j was drawn, G the
gradients, (canaries, parameters), and K = G G' their products with each other, then y = K c + G n with the
noise n, as far as gradients stay what they are within a turn and other patients' are noise too. The best
linear guess of c (a Wiener filter, or ridge regression) is

    c = m + (K + r I)^-1 (y - K m),   r = variance of a coordinate of n / variance of a canary's draws,

with m the same for all canaries, by least squares. Where noise is large r is, and a score is the product y
but for what all canaries have in common; without noise it is the solution of y = K c. The products alone are
a much weaker attack: gradients of canaries point in similar directions (docs/membership.md). What the
claim says of r may be false, which is what an audit is for: it is the largest r that is taken, and of smaller
ones the likeliest, as if draws and noise were Gaussian. Along an eigenvector of K, of eigenvalue l, y - K m
then has the variance l (l + r), but for a factor.

**By losses.** How much the loss of a canary has fallen from the first model to the last (`losses`); how low
it is with the last (`threshold`: Yeom, Giacomelli, Fredrikson and Jha, "Privacy Risk in Machine Learning:
Analyzing the Connection to Overfitting", CSF 2018); or how much likelier it is if the canary was in than if
not, as shadow runs tell (`lira`, see that module).

None looks at who was in.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from fedstrata.core.seeding import Seed
from fedstrata.core.task import Task
from fedstrata.core.types import Tensors
from fedstrata.models.state import Model
from fedstrata.privacy.attacks.changes import change_of
from fedstrata.privacy.row_gradients import SHORTEST, RowGradients, hookable, row_hooks, rows_at_a_time
from fedstrata.train.local import to_device

NUMBERS_KEPT = 2**28
"""Numbers of gradients that are kept for their products with each other: 1 GiB."""
ROWS = 64
"""Canaries that go through the model at a time, at most."""
LEAST_RIDGE = 0.1
"""r as a share of the mean squared length of a gradient, at least: for what the equation leaves out."""
RIDGES = 64
"""Values of r that are tried, in equal ratios."""
FLAT = 1e-6
"""Eigenvalues of K below this share of the largest are what float32 has left of 0."""


@dataclass
class UpdateScores:
    """What the updates of one client tell of its canaries, update by update.

    Attributes:
        model: The model, which holds the plan's values whenever an update is seen.
        task: What encodes and learns canaries.
        units: The examples of each canary.
        clip: The most that a canary's gradient is long in training; infinite where none is clipped.
        ridge: r by the claim; see `ridge_of`.
        seed: Of the coordinates by which products of gradients are estimated, where there are too many.
        sends_changes: Whether updates are changes already, and not values.
        scores: How often each canary was drawn, as it seems, (canaries,); over all updates seen.
        seen: How many updates that is.
        share: The share of the coordinates that products of gradients were made of.
    """

    model: Model
    task: Task
    units: Sequence[Sequence[Any]]
    clip: float
    ridge: float
    seed: Seed
    sends_changes: bool = False
    scores: NDArray[np.float64] = field(init=False)
    seen: int = 0
    share: float = 1.0

    def __post_init__(self) -> None:
        self.scores = np.zeros(len(self.units))

    def see(self, update: Tensors) -> None:
        """Takes an update into account; what of it is no parameter of the model says nothing.

        Args:
            update: What the client has sent.
        """
        change = change_of(self.model, update, changes=self.sends_changes)
        if not change or not self.units:
            return
        # Against the direction in which the client has moved.
        products, gradients = self._products(list(change), [-own for own in change.values()])
        gram = (gradients @ gradients.T).double().cpu().numpy() / self.share
        self.scores += draws(products, gram, self.ridge)
        self.seen += 1

    def _products(
        self, names: Sequence[str], changes: Sequence[Tensor]
    ) -> tuple[NDArray[np.float64], Tensor]:
        """Returns each canary's product with a change, and the kept coordinates of its gradient."""
        self.model.train_only(names)
        parameters = self.model.parameters(names)
        self.model.module.train(False)
        chosen = self._chosen(parameters)
        products, kept = [], []
        for gradients, lengths in _gradients(self.model, self.task, self.units, parameters):
            factors = (self.clip / lengths.clamp(min=SHORTEST)).clamp(max=1.0)
            factors = torch.where(lengths.isfinite(), factors, 0.0)[:, None]  # it counts as zero in training
            flat = [torch.nan_to_num(own.flatten(1).float()) * factors for own in gradients]
            own = zip(flat, changes, strict=True)
            products.append(sum((one @ change.flatten() for one, change in own), torch.zeros(())))
            pieces = zip(flat, chosen, strict=True)
            kept.append(torch.cat([one if index is None else one[:, index] for one, index in pieces], dim=1))
        return torch.cat(products).double().cpu().numpy(), torch.cat(kept)

    def _chosen(self, parameters: Sequence[Parameter]) -> list[Tensor | None]:
        """Draws the coordinates of each parameter that are kept; none where all are."""
        count = sum(own.numel() for own in parameters)
        self.share = min(1.0, NUMBERS_KEPT / (len(self.units) * count))
        if self.share == 1.0:
            return [None] * len(parameters)
        generator = self.seed.numpy()
        drawn = [generator.binomial(own.numel(), self.share) for own in parameters]
        self.share = max(1, sum(drawn)) / count
        pairs = zip(parameters, drawn, strict=True)
        return [torch.from_numpy(generator.integers(own.numel(), size=size)) for own, size in pairs]


def _gradients(
    model: Model, task: Task, units: Sequence[Sequence[Any]], parameters: Sequence[Parameter]
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yields gradients of the mean losses of some units, (units, ...) for each parameter, and their lengths.

    Those of units of one row come by hooks, several at a time, where the model lets them; others come one
    after the other.
    """
    single = all(sum(len(example.windows) for example in unit) == 1 for unit in units)
    together = max(1, min(ROWS, rows_at_a_time(parameters)))
    hooked = single and together > 1 and hookable(model, parameters)
    start = 0
    while start < len(units):
        found = None
        if hooked:
            found = _by_hooks(model, task, units[start : start + together], parameters)
            hooked = found is not None
        found = found or _by_unit(model, task, units[start], parameters)
        start += len(found[0])
        norms = [torch.linalg.vector_norm(own.flatten(1), dim=1, dtype=torch.float64) for own in found]
        yield found, torch.stack(norms).norm(dim=0).float()


def _by_hooks(
    model: Model, task: Task, units: Sequence[Sequence[Any]], parameters: Sequence[Parameter]
) -> list[Tensor] | None:
    batch = to_device(task.collate([example for unit in units for example in unit]), model.device)
    with row_hooks(model.module, parameters) as hooks:
        hooks.rows = len(units)
        loss, _ = task.loss(model.module, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        taken = hooks.take()
    if taken is None:
        return None
    scales = 1.0 / task.terms(batch).clamp(min=1.0).to(model.device)
    whole = [_whole(own, parameter, len(units)) for own, parameter in zip(taken, parameters, strict=True)]
    return [own * scales.view(-1, *[1] * (own.ndim - 1)) for own in whole]


def _whole(own: RowGradients | None, parameter: Parameter, units: int) -> Tensor:
    if own is None:
        return torch.zeros((units, *parameter.shape), device=parameter.device)
    return own if isinstance(own, Tensor) else own.dense(parameter)


def _by_unit(model: Model, task: Task, unit: Sequence[Any], parameters: Sequence[Parameter]) -> list[Tensor]:
    loss, count = task.loss(model.module, to_device(task.collate(unit), model.device))
    mean = loss / count.clamp(min=1.0)
    found = torch.autograd.grad(mean, parameters, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return [(torch.zeros_like(own) if one is None else one)[None] for one, own in pairs]


def draws(products: NDArray[np.float64], gram: NDArray[np.float64], ridge: float) -> NDArray[np.float64]:
    """Returns how often each canary was drawn, as it seems, but for a factor.

    Args:
        products: Of each canary's gradient with the change, (canaries,).
        gram: Of gradients with each other, K, (canaries, canaries).
        ridge: r by the claim.
    """
    sums = gram.sum(axis=1)
    mean = float(sums @ products) / max(float(sums @ sums), SHORTEST)
    least = max(LEAST_RIDGE * float(np.diag(gram).mean()), SHORTEST)
    eigenvalues, vectors = np.linalg.eigh(gram)
    rotated = vectors.T @ (products - mean * sums)
    own = _likeliest_ridge(rotated, eigenvalues, least, max(ridge, least))
    solved: NDArray[np.float64] = vectors @ (rotated / (np.maximum(eigenvalues, 0.0) + own))
    return mean + solved


def _likeliest_ridge(
    rotated: NDArray[np.float64], eigenvalues: NDArray[np.float64], least: float, most: float
) -> float:
    """Returns r, by the likelihood of products in the directions in which there are gradients.

    Args:
        rotated: y - K m along each eigenvector of K, (canaries,).
        eigenvalues: Those of K, (canaries,).
        least: The least r.
        most: The largest.
    """
    known = eigenvalues > FLAT * eigenvalues.max()
    if not rotated[known].any():
        return most
    candidates = np.geomspace(least, most, RIDGES)
    variances = eigenvalues[known] * (eigenvalues[known] + candidates[:, None])  # (ridges, directions)
    factors = (rotated[known] ** 2 / variances).mean(axis=1)
    surprises = np.log(variances).mean(axis=1) + np.log(factors)
    return float(candidates[np.argmin(surprises)])


def ridge_of(deviation: float, steps: int, rate: float) -> float:
    """Returns r of a turn: the variance of its noise by that of how often a canary is drawn.

    A coin decides whether a canary is there, and Poisson sampling in which steps it is.

    Args:
        deviation: Of the noise that a step adds to a sum of gradients.
        steps: Of a turn.
        rate: The chance of a step to see a unit.
    """
    expected = steps * rate
    return steps * deviation**2 / (expected * (1.0 - rate) / 2.0 + expected**2 / 4.0)


@torch.inference_mode()
def losses(model: Model, task: Task, units: Sequence[Sequence[Any]]) -> NDArray[np.float64]:
    """Returns the mean loss of each canary with the model as it is, (canaries,).

    One that is no finite number counts as the largest that is.
    """
    model.module.train(False)
    found = []
    for unit in units:
        batch: Mapping[str, Tensor] = to_device(task.collate(unit), model.device)
        loss, count = task.loss(model.module, batch)
        found.append(float(loss) / max(float(count), 1.0))
    largest = max(filter(math.isfinite, found), default=0.0)
    return np.array([each if math.isfinite(each) else largest for each in found])

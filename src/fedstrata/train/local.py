"""The only client training loop.

Every method trains through `fit`, so optimisers, schedules, clipping, accumulation, precision and
determinism are decided in one place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Parameter

from fedstrata.core.client import Client, Feed
from fedstrata.core.errors import TrainingError
from fedstrata.core.model import Model
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.core.types import JSON, Tensors, Update
from fedstrata.models.blocks import head_modules, transformers_model
from fedstrata.models.prefix import frozen_blocks, skippable_blocks
from fedstrata.policies.dropout import LayerDropout
from fedstrata.train.batches import training_steps
from fedstrata.train.corrupt import distort
from fedstrata.train.work import Tally, counted_states, counting

Gradients: TypeAlias = "Callable[[Client, Sequence[Any], Sequence[Parameter]], tuple[float, float]]"
"""How the gradient of a step comes about: of these batches, by these parameters; see `accumulate`."""


def update_of(client: Client, tensors: Tensors, values: Mapping[str, JSON] | None = None) -> Update:
    """Returns what a client sends; it weighs n_k, the client's number of training examples."""
    return Update(tensors, values or {}, weight=float(client.size))


def fit(
    client: Client,
    trainable: Collection[str],
    rng: Seed,
    *,
    private: Collection[str] | Callable[[], Collection[str]] = (),
    proximal: float = 0.0,
    decoupled: bool = False,
    penalty: Callable[[], None] | None = None,
    dropout: LayerDropout | None = None,
    gradients: Gradients | None = None,
    segments: Sequence[Collection[str]] = (),
) -> float:
    """Trains the named parameters of a client's model on its examples.

    The gradient of a step is that of the mean loss over all terms of its batches, however they are divided by
    `training.accumulation`. Bias and norm parameters (fewer than two dimensions) have no weight decay.

    Args:
        client: The client; its model is changed in place.
        trainable: Names of the parameters that train; all others are frozen.
        rng: Seed of the order of the examples and of dropout.
        private: Those of the parameters that stay at the client, which a corrupt client has no reason to
            distort; or what says so once the training is over.
        proximal: FedProx's mu: (mu/2) ||w - w_0||^2 is added to the loss (Li et al. 2020, equation 2).
        decoupled: Whether each step takes lr mu (w - w_0) off the weights in its place, as AdamW does with
            weight decay: Adam divides what is added to a gradient by its size, and clipping shrinks it.
        penalty: Adds the gradient of a term of its own to that of each step's loss.
        dropout: Draws the blocks that are left out of each batch, and hears of the gradients of the others.
        gradients: What takes the place of `accumulate`, where the model is not all here (`fedstrata.split`).
        segments: The parts of the trainable names whose gradients are clipped each by its own norm; none: all
            by that of all.

    Returns:
        The mean loss over all terms (for token tasks: tokens) of the last epoch.

    Raises:
        TrainingError: The loss, the gradient (where it is clipped) or, at the end, a weight is not finite.
    """
    model, corrupt = client.model, client.corruption
    copied = trainable if proximal or corrupt else ()
    anchors = {name: tensor.clone() for name, tensor in model.tensors(copied).items()}
    parameters = model.parameters(trainable)

    def more(rate: float) -> None:
        if proximal:  # the gradient of FedProx's proximal term, mu (w - w_0)
            for name, parameter in zip(trainable, parameters, strict=True):
                if parameter.grad is None:  # what no batch reaches has not moved from its anchor either
                    continue
                weight = parameter.detach()
                if decoupled:
                    weight.add_(weight - anchors[name], alpha=-rate * proximal)
                else:
                    parameter.grad.add_(weight - anchors[name], alpha=proximal)
        if penalty is not None:
            penalty()

    loss = _descend(client, trainable, rng, more, dropout, gradients, segments)
    if corrupt:
        own = set(private() if callable(private) else private)
        sent = [name for name in trainable if name not in own]
        distort(model.tensors(sent), anchors, corrupt, rng.child("corrupt"))
    return loss


def _descend(
    client: Client,
    trainable: Collection[str],
    rng: Seed,
    more: Callable[[float], None],
    dropout: LayerDropout | None,
    gradients: Gradients | None,
    segments: Sequence[Collection[str]],
) -> float:
    """Takes all steps of a local training; see `fit`."""
    settings, model = client.training, client.model
    model.train_only(trainable)
    parameters = model.parameters(trainable)
    clipped = [model.parameters(names) for names in segments] or [parameters]
    # Unclipped, a gradient that is not finite shows in the next loss, or in the weights.
    if settings.clip_norm is None or client.privacy is not None:
        clipped = []
    blocks = [model.parameters(names) for names in model.layout.blocks]
    steps, taken = training_steps(client, rng)
    optimizer = optimizer_of(parameters, settings)
    schedule = schedule_of(optimizer, settings, steps)
    step, loss, last_epoch = 0, math.nan, -1
    tally = counting(client, trainable)
    # Gradients of another kind have no noise, so that what they lead to is not released.
    private = client.privacy if gradients is None else None
    if private is not None:
        private.enter(model.tensors(trainable))
    masks = rng.child("dropout") if client.privacy is None else Seed(client.privacy.secret())
    with (
        masks.everywhere(),
        _frozen_part(client, trainable) as feed,
        _left_out(client, dropout) as leave_out,
    ):
        train_mode(model, frozen=settings.frozen_dropout == "on")
        if gradients is None:
            usual = accumulate if client.privacy is None else client.privacy.gradients
            gradients = partial(usual, feed=feed, leave_out=leave_out, tally=tally)
        for epoch, batches in taken:
            if epoch != last_epoch:
                loss_sum, term_count, last_epoch = 0.0, 0.0, epoch
            step += 1
            step_loss, terms = gradients(client, batches, parameters)
            if dropout:
                dropout.observe(block_gradient_norms(blocks))
            more(optimizer.param_groups[0]["lr"])
            norm = math.hypot(*(clip(own, settings) for own in clipped))
            if not (math.isfinite(step_loss) and math.isfinite(norm)):
                of_gradient = f" and the norm of its gradient {norm}" if clipped else ""
                raise _diverged(client, f"loss became {step_loss}{of_gradient}", step, steps)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            loss_sum, term_count = loss_sum + step_loss * terms, term_count + terms
            loss = loss_sum / max(term_count, 1.0)
            client.report({"step": step, "steps": steps, "loss": loss})
        if not all_finite(parameters):
            raise _diverged(client, "weights are no longer finite", step, steps)
        if private is not None:
            private.leave(model.tensors(trainable))
    return loss


@torch.no_grad()
def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Returns whether every number is finite.

    A sum that is finite had nothing but finite terms; only one that is not, which may merely be too large,
    has the numbers looked at one by one: that takes 18 times as long.
    """
    if bool(torch.stack([tensor.sum() for tensor in tensors]).isfinite().all()):
        return True
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def autocast(settings: TrainingSettings, device: torch.device) -> torch.autocast:
    """Returns the context in which forward passes run (`training.precision`)."""
    low = settings.precision == "bfloat16" or (settings.precision == "auto" and device.type == "cuda")
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=low)


def to_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Returns the batch on the device."""
    return {key: value.to(device, non_blocking=True) for key, value in batch.items()}


def train_mode(model: Model, *, frozen: bool = False) -> None:
    """Switches on dropout in what trains; frozen blocks, and a frozen embedding, run as in evaluation.

    What is frozen is then a fixed function of the text, which is what a cache of its output relies on.

    Args:
        model: The model.
        frozen: Whether there is dropout in what is frozen, too (`training.frozen_dropout`).
    """
    inner = transformers_model(model.module)
    body = inner.base_model
    model.module.train()
    if frozen:
        return
    body.train(any(parameter.requires_grad for parameter in model.parameters(model.layout.embedding)))
    for head in head_modules(inner):
        head.train()
    for block in model.module.get_submodule(model.layout.blocks_path).children():
        block.train(any(parameter.requires_grad for parameter in block.parameters()))


def _frozen_part(client: Client, trainable: Collection[str]) -> AbstractContextManager[Feed]:
    """Returns the context in which the output of the frozen blocks comes from the client's cache, if it can.

    The texts are gone through by length, whatever the order of training, so that a cache that is made again
    holds the same numbers.
    """
    model, settings, task = client.model, client.training, client.task
    cut = frozen_blocks(model.layout, trainable)
    if client.cache is None or cut == 0:
        return nullcontext(lambda batch: 0)
    device = model.parameters(trainable)[0].device
    by_length = sorted(client.examples, key=len)

    def batches() -> Iterator[Mapping[str, Tensor]]:
        # The first batch is one text: the cache tries the model on it.
        yield task.collate(by_length[:1])
        for group in _windows_together(by_length[1:], settings.eval_batch_size):
            yield task.collate(group)

    def run(batch: Mapping[str, Tensor]) -> Tensor:
        with autocast(settings, device):
            return task.loss(model.module, to_device(batch, device))[0]

    with autocast(settings, device):
        low = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    arithmetic = f"{device.type}, {low or 'full precision'}"
    served = client.cache.serve(model, cut, batches, run, arithmetic)
    return counted_states(client, cut, batches, served)


@contextmanager
def _left_out(client: Client, dropout: LayerDropout | None) -> Iterator[Callable[[], Collection[int] | None]]:
    """Returns what draws the blocks that the next batch does without, and says which ones run."""
    if dropout is None:
        yield lambda: None
        return
    model, task = client.model, client.task
    device = model.parameters(model.layout.all)[0].device
    shortest = task.collate([min(client.examples, key=len)])

    def call() -> Tensor:
        with torch.no_grad(), autocast(client.training, device):
            return task.loss(model.module, to_device(shortest, device))[0]

    model.module.train(False)  # the call must draw nothing
    with skippable_blocks(model.module, model.layout, call) as skip:

        def leave_out() -> Collection[int]:
            chosen = dropout.draw()
            skip(chosen)
            return set(range(len(model.layout.blocks))).difference(chosen)

        yield leave_out


def _windows_together(examples: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Yields examples in order, as many at a time as have `size` windows, at least one."""
    group: list[Any] = []
    count = 0
    for example in examples:
        if group and count + len(example.windows) > size:
            yield group
            group, count = [], 0
        group.append(example)
        count += len(example.windows)
    if group:
        yield group


def optimizer_of(parameters: Sequence[Parameter], settings: TrainingSettings) -> torch.optim.Optimizer:
    """Returns the optimiser of a local training; biases and norms have no weight decay."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.momentum, fused=True)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


def schedule_of(
    optimizer: torch.optim.Optimizer, settings: TrainingSettings, steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """Returns the learning rate's schedule over so many steps, that of transformers.

    Its own `get_scheduler` imports what can train in any way, compilers included: a second in every process.
    """
    factor = partial(rate_factor, settings, steps=steps)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def rate_factor(settings: TrainingSettings, step: int, steps: int) -> float:
    """Returns what the learning rate of a step, counted from 0, is multiplied with."""
    warmup = round(settings.warmup * steps)
    rest = max(1, steps - warmup)
    if step < warmup:
        return step / max(1, warmup)
    if settings.schedule == "linear":
        return max(0.0, (steps - step) / rest)
    if settings.schedule == "cosine":
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((step - warmup) / rest))))
    return 1.0


def clip(parameters: Sequence[Parameter], settings: TrainingSettings) -> float:
    """Scales the gradient down to `training.clip_norm`; returns the norm it had."""
    limit = math.inf if settings.clip_norm is None else settings.clip_norm
    return float(torch.nn.utils.clip_grad_norm_(parameters, limit))


def accumulate(
    client: Client,
    batches: Sequence[Mapping[str, Tensor]],
    parameters: Sequence[Parameter],
    feed: Feed | None = None,
    leave_out: Callable[[], Collection[int] | None] = lambda: None,
    tally: Tally | None = None,
) -> tuple[float, float]:
    """Leaves the gradient of all batches' mean loss behind; returns that loss and its number of terms.

    Args:
        client: The client.
        batches: What to take the gradient on.
        parameters: What it is the gradient of.
        feed: Told each batch before the model sees it.
        leave_out: Draws the blocks that a batch does without, before it runs; returns the others.
        tally: Counts the batches.
    """
    found = [go_through(client, batch, parameters[0].device, feed, leave_out, tally) for batch in batches]
    terms = max(float(torch.stack([count for _, count in found]).sum()), 1.0)
    torch._foreach_mul_(
        [parameter.grad for parameter in parameters if parameter.grad is not None], 1.0 / terms
    )
    return float(torch.stack([loss for loss, _ in found]).sum()) / terms, terms


def go_through(
    client: Client,
    batch: Mapping[str, Tensor],
    device: torch.device,
    feed: Feed | None = None,
    leave_out: Callable[[], Collection[int] | None] = lambda: None,
    tally: Tally | None = None,
) -> tuple[Tensor, Tensor]:
    """Adds the gradient of a batch's summed loss; returns that loss and its number of terms, both scalars.

    Args:
        client: The client.
        batch: The batch, on the CPU.
        device: Where the model is.
        feed: Told the batch before the model sees it.
        leave_out: Draws the blocks that it does without, before it runs; returns the others.
        tally: Counts it.
    """
    stored = feed(batch) if feed is not None else 0
    active = leave_out()
    with autocast(client.training, device), tally.watching() if tally else nullcontext():
        loss, count = client.task.loss(client.model.module, to_device(batch, device))
    loss.backward()  # type: ignore[no-untyped-call]
    if tally is not None:
        tally.add(batch, stored=stored, active_blocks=active)
    return loss.detach(), count


def block_gradient_norms(blocks: Sequence[Sequence[Parameter]]) -> list[float | None]:
    """Returns the L2 norm of the gradient of each block's parameters; none for a block that has none."""
    gradients = [[parameter.grad for parameter in block if parameter.grad is not None] for block in blocks]
    norms = [torch.nn.utils.get_total_norm(own) for own in gradients if own]
    values = iter(torch.stack(norms).tolist() if norms else ())  # read back once, not block by block
    return [next(values) if own else None for own in gradients]


def _diverged(client: Client, what: str, step: int, steps: int) -> TrainingError:
    settings = client.training
    return TrainingError(
        f"client {client.id}: the {what} at step {step} of {steps} of its local training. "
        f"training.learning_rate is {settings.learning_rate:g} and training.clip_norm is "
        f"{settings.clip_norm}: lower the first, or check this client's data",
        code="diverged",
    )

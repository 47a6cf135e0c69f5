"""Whether a module that a factory gave is what a task needs; seen by calling it once."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstrata.core.errors import Problem, refuse, refused
from fedstrata.models.plain import logits_of, without_fast_path

_TAKES = ("input_ids", "attention_mask")
_FORMS = {
    "token-classification": "(rows, tokens, labels)",
    "sequence-classification": "(rows, labels)",
    "causal-lm": "(rows, tokens, vocabulary)",
}


def require_forward(module: nn.Module, name: str) -> None:
    """Refuses a module whose `forward` does not take what it will be called with.

    Args:
        module: What the factory gave.
        name: The factory's name.

    Raises:
        ConfigurationError: It does not.
    """
    taken = inspect.signature(module.forward).parameters
    if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        return
    if lacking := [each for each in _TAKES if each not in taken]:
        raise refused(
            "model.name",
            f"{name!r} gives a {type(module).__name__} whose forward takes no {' and no '.join(lacking)}; it "
            "is called with input_ids and attention_mask, (rows, tokens) each, and returns logits",
            "not_callable",
        )


@torch.no_grad()
def require_logits(module: nn.Module, name: str, kind: str, *, labels: int, rows: int, tokens: int) -> None:
    """Calls a module in evaluation mode and refuses logits that are not what its kind of model gives.

    Args:
        module: What the factory gave.
        name: The factory's name.
        kind: As for `fedstrata.models.load.load`.
        labels: Number of the labels.
        rows: How many tokens the tokenizer knows.
        tokens: Length of the texts that it is called with.

    Raises:
        ConfigurationError: They are not, the call fails, or a language model sees the tokens to come.
    """
    ids = torch.arange(2 * tokens).view(2, tokens) % rows
    ids[:, -1] = rows - 1
    logits = _called(module, ids, name)
    last = labels if kind != "causal-lm" else rows
    leading = (2,) if kind == "sequence-classification" else (2, tokens)
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else None
    fits = shape is not None and shape[:-1] == leading and len(shape) == len(leading) + 1
    if shape is None or not fits or (shape[-1] < last if kind == "causal-lm" else shape[-1] != last):
        got = type(logits).__name__ if shape is None else f"logits of shape {shape}"
        at_least = "at least " if kind == "causal-lm" else ""
        raise refused(
            "model.name",
            f"{name!r} gives a {type(module).__name__} that returns {got} of {tuple(ids.shape)} tokens; a "
            f"{kind} model returns {_FORMS[kind]}, here {at_least}{(*leading, last)}",
            "wrong_shape",
        )
    if kind == "causal-lm":
        others = ids.clone()
        others[:, -1] = 0
        if not torch.allclose(logits[:, :-1], _called(module, others, name)[:, :-1], rtol=1e-3, atol=1e-4):
            message = f"{name!r} gives a {type(module).__name__} that sees the tokens it is to predict"
            raise refused("model.name", message, "sees_ahead")


def _called(module: nn.Module, ids: Tensor, name: str) -> Any:
    training = module.training
    try:
        with without_fast_path():
            return logits_of(module.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)))
    except Exception as error:  # whatever a stranger's module raises
        reason = (str(error).splitlines() or [""])[0]
        raise refused(
            "model.name",
            f"{name!r} gives a {type(module).__name__} that cannot be called with {tuple(ids.shape)} "
            f"tokens numbered up to {int(ids.max())}: {type(error).__name__}: {reason}",
            "not_callable",
        ) from error
    finally:
        module.train(training)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a call showed of a module's blocks.

    Attributes:
        hidden: Width of the hidden states.
        after: Paths of the modules that ran after the last block and not before, outermost only.
    """

    hidden: int
    after: tuple[str, ...]


@torch.no_grad()
def watch_blocks(module: nn.Module, path: str, name: str) -> Seen:
    """Calls a module and looks at its blocks.

    Args:
        module: What the factory gave.
        path: Where its list of blocks is.
        name: The factory's name.

    Raises:
        ConfigurationError: They do not run one after the other, once each, on hidden states that they return.
    """
    calls: list[str] = []
    wrong: list[str] = []
    widths: list[int] = []
    blocks = {id(block): index for index, block in enumerate(module.get_submodule(path).children())}

    def begins(part: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        calls.append(paths[id(part)])
        if id(part) in blocks:
            _check_states(inputs[0] if inputs else named.get("hidden_states"), "takes", wrong)

    def ends(part: nn.Module, inputs: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple | list) else output
        if _check_states(states, "returns", wrong):
            widths.append(states.shape[-1])

    paths = {id(part): own for own, part in module.named_modules()}
    handles = [part.register_forward_pre_hook(begins, with_kwargs=True) for part in module.modules()]
    handles += [part.register_forward_hook(ends) for part in module.get_submodule(path).children()]
    ids = torch.zeros((2, 3), dtype=torch.long)
    try:
        _called(module, ids, name)
    finally:
        for handle in handles:
            handle.remove()
    ran = [each for each in calls if each in {f"{path}.{index}" for index in blocks.values()}]
    if ran != [f"{path}.{index}" for index in blocks.values()]:
        wrong.append(f"they run as {', '.join(ran) or 'none'}, not one after the other, once each")
    refuse(
        [
            Problem("model.blocks", f"{path!r} of {name!r}: {what}", code="not_supported")
            for what in dict.fromkeys(wrong)
        ]
    )
    return Seen(widths[0], _outermost_after(calls, ran[-1]))


def _check_states(states: Any, does: str, wrong: list[str]) -> bool:
    """Whether something is hidden states; what else it is goes to what is wrong."""
    tensor = isinstance(states, Tensor) and not states.is_nested
    if tensor and states.ndim == 3 and states.shape[:2] == (2, 3):
        return True
    found = f"a tensor of shape {tuple(states.shape)}" if tensor else type(states).__name__
    place = "first, or as hidden_states," if does == "takes" else "alone, or first of a tuple,"
    wrong.append(f"a block {does} {found}; it {does} {place} hidden states, (rows, tokens, width)")
    return False


def _outermost_after(calls: list[str], last: str) -> tuple[str, ...]:
    """Returns the modules that were called for the first time when the last block was over."""
    first = {path: number for number, path in reversed(list(enumerate(calls)))}
    after: list[str] = []
    for path, number in sorted(first.items(), key=lambda each: each[1]):
        late = number > first[last] and not path.startswith(f"{last}.")
        if late and not any(path.startswith(f"{outer}.") for outer in after):
            after.append(path)
    return tuple(after)

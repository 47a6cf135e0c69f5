"""Causal language models: what the tasks share that are learnt by saying which token follows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedstrata.core.errors import refused
from fedstrata.core.seeding import Seed
from fedstrata.core.task import Task
from fedstrata.tasks.corrupt import corrupted_targets
from fedstrata.tasks.texts import separator_id
from fedstrata.tasks.windows import IGNORED, pad_labelled, run_model

LOGITS_AT_A_TIME = 2**24
"""Logits that are in float32 at a time: 64 MiB."""


class CausalTask(Task):
    """Base of the tasks of causal language models, which have no classes.

    Their examples have `input_ids`, what is read, and `targets`, what follows each of these tokens; (tokens,)
    int32 each, -100 where it counts in no loss. `pad_id` is what an example is padded with.
    """

    kind: ClassVar[str] = "causal-lm"
    needs_documents: ClassVar[bool] = False

    def restored(self, classes: Sequence[str]) -> Self:
        """Returns the task again for a saved model; its settings say what it was trained for."""
        return self

    def corrupt(self, examples: Sequence[Any], kind: str, tokenizer: Any, rng: Seed) -> list[Any]:
        """Returns the examples of a corrupt client; see `fedstrata.tasks.corrupt.corrupted_targets`."""
        return corrupted_targets(examples, kind, tokenizer, rng)

    def collate(self, examples: Sequence[Any]) -> dict[str, Tensor]:
        """Pads examples on the right to the longest one; see `pad_labelled`."""
        return pad_labelled(examples)

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the sum of the cross entropies of all tokens that count, float32, and their number.

        No logits are made of the tokens that count in no row: most of them, where an answer is learnt.
        """
        labels = batch["labels"]
        counted = labels != IGNORED
        columns = counted.any(dim=0).nonzero().flatten()
        logits = run_model(module, batch, columns=columns)
        return total_of(cross_entropies(logits, labels[:, columns])), self.terms(batch).sum()

    def terms(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns how many tokens of each example count, (examples,)."""
        return (batch["labels"] != IGNORED).sum(dim=1)


def end_id(tokenizer: Any, task: str) -> int:
    """Returns the id of the token that ends a text: the end-of-sequence token or, as in BERT, the separator.

    Args:
        tokenizer: The tokenizer.
        task: The name of the task that needs it.

    Raises:
        ConfigurationError: The tokenizer has neither.
    """
    end = separator_id(tokenizer)
    if end is None:
        message = f"task {task} needs a tokenizer with an end-of-sequence token, which ends a text"
        raise refused("model.tokenizer", message, "lacks_tokens")
    return end


def total_of(parts: Iterable[Tensor]) -> Tensor:
    """Returns the sum of cross entropies that came piece by piece, a scalar."""
    return torch.stack([part.sum() for part in parts]).sum()


def cross_entropies(logits: Tensor, labels: Tensor) -> Iterator[Tensor]:
    """Yields the cross entropies of a batch piece by piece, (tokens,) float32; 0 where a label is ignored.

    The logits of a large vocabulary are the largest tensor of a training step. They stay in the dtype in
    which the model gave them; a piece of them at a time is in float32, and again in the backward pass, so
    that neither copies nor probabilities of all of them are kept for it.

    Args:
        logits: (windows, tokens, vocabulary).
        labels: (windows, tokens) int64.
    """
    size = max(1, LOGITS_AT_A_TIME // logits.shape[-1])
    again = torch.is_grad_enabled() and labels.numel() > size
    pieces = torch.split(logits.flatten(0, 1), size), torch.split(labels.flatten(), size)
    for own_logits, own_labels in zip(*pieces, strict=True):
        if again:
            yield checkpoint(
                _float_cross_entropy, own_logits, own_labels, use_reentrant=False, preserve_rng_state=False
            )
        else:
            yield _float_cross_entropy(own_logits, own_labels)


def _float_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="none")

"""Counts the floating-point operations of training, batch by batch, from shapes alone.

Counted are the products of matrices, of which a transformer's time consists: 2 x in x out a token for every
linear layer (PEFT's adapters too), and for attention 2 x T^2 x width for the scores and as much for the
values, for a row of T tokens. Not counted are element-wise operations (softmax, norms, activations, dropout),
lookups, the loss and the optimiser's step. Padding is counted: it is computed.

A backward pass takes a product for the gradient of each weight that trains, and one for the gradient of each
layer's input wherever something below it trains; attention, both of whose factors are inputs, takes twice its
forward pass. The gradient stops at the lowest block that trains and ran. Of that block the gradients of all
layers' inputs are counted, also of its first ones, which nobody needs: 3 h^2 of about 36 h^2 where that block
has the weights of BERT and all of them train. But for that, `tests/metrics/test_flops.py` holds the counts
equal to those of `torch.utils.flop_counter`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

if TYPE_CHECKING:
    from fedstrata.core.method import Layout

_POOLED = ("pooler", "pre_classifier", "classifier", "head")
"""What a sequence classifier applies to one vector a row; decoders have a `score`, applied to every token."""
_UNUSED = "original_module"
"""In the path of what PEFT keeps beside the copy that it trains and runs (`modules_to_save`)."""


@dataclass(slots=True)
class Part:
    """What a part of the model costs; operations of a forward pass.

    Attributes:
        trains: Whether anything of it trains.
        linear: Of its linear layers, a token.
        trained: Of those of them whose weights train, a token.
        attention: Of attention's two products, a pair of tokens of a row.
        relative: Of DeBERTa's products of tokens and relative positions, a token.
        positions: Of DeBERTa's projections of relative positions, a batch.
    """

    trains: bool = False
    linear: float = 0.0
    trained: float = 0.0
    attention: float = 0.0
    relative: float = 0.0
    positions: float = 0.0

    def forward(self, rows: int, tokens: int) -> float:
        """Returns the operations of a forward pass."""
        return rows * tokens * (self.linear + self.relative + tokens * self.attention) + self.positions

    def backward(self, rows: int, tokens: int, *, embedding_trains: bool) -> float:
        """Returns the operations of a backward pass that hands the gradient on to what lies below."""
        products = 2 * (self.relative + tokens * self.attention)
        # Positions are projected by layers that tokens go through too; they are themselves an embedding.
        projected = self.positions * ((self.trained > 0) + embedding_trains)
        return rows * tokens * (self.linear + products + self.trained) + projected


@dataclass(slots=True)
class Head:
    """What the layers above the blocks cost, one after the other.

    Attributes:
        forward: Operations a token, or a row, of a forward pass.
        trained: Operations a token, or a row, of a backward pass that ends in the head.
        passed: What a backward pass takes besides where something below trains.
    """

    forward: float = 0.0
    trained: float = 0.0
    passed: float = 0.0


class FlopCounter:
    """Counts the operations of a model's training steps: coefficients once, then arithmetic a batch.

    Args:
        module: The transformers model, or a wrapper such as PEFT's around one.
        layout: Its parameters by part.
        trainable: Names of the parameters that train.

    Example:
        `FlopCounter(model.module, model.layout, names).batch(rows=8, tokens=128)`
    """

    def __init__(self, module: nn.Module, layout: Layout, trainable: Collection[str]) -> None:
        inner = next(part for part in module.modules() if isinstance(part, PreTrainedModel))
        names = set(trainable)
        self._checkpoints = bool(inner.is_activation_checkpointing)
        self._embedding = Part(not names.isdisjoint(layout.embedding))
        self._blocks = [Part(not names.isdisjoint(block)) for block in layout.blocks]
        self._norm_trains = not names.isdisjoint(layout.final_norm)
        self._head, self._pooled = Head(), Head()  # of every token; of one vector a row
        training = {id(parameter) for name, parameter in module.named_parameters() if name in names}
        self._add_layers(module, layout, inner, training)
        self._add_attention(inner.config.get_text_config())

    def batch(
        self, rows: int, tokens: int, active_blocks: Collection[int] | None = None, *, stored: int = 0
    ) -> float:
        """Returns the operations of one batch, forward and backward.

        Args:
            rows: Rows of the batch.
            tokens: Tokens of each row, padding included.
            active_blocks: The blocks that ran, counted from 0; all when none.
            stored: How many of the lowest blocks did not run because stored states stood in for them.
        """
        ran = range(len(self._blocks)) if active_blocks is None else sorted(active_blocks)
        ran = [index for index in ran if index >= stored]
        lowest = self._lowest(ran)
        total = self._embedding.forward(rows, tokens)
        if lowest < 0:
            total += self._embedding.backward(rows, tokens, embedding_trains=True)
        for index in ran:
            block = self._blocks[index]
            forward = block.forward(rows, tokens)
            total += forward
            if index >= lowest:
                total += block.backward(rows, tokens, embedding_trains=lowest < 0)
                total += forward * self._checkpoints
        below_trains = lowest < len(self._blocks) or self._norm_trains
        for head, vectors in ((self._head, rows * tokens), (self._pooled, rows)):
            total += vectors * (head.forward + head.trained + head.passed * below_trains)
        return total

    def prefix(self, rows: int, tokens: int, cut: int) -> float:
        """Returns the operations of a forward pass through the embedding and the lowest blocks alone.

        Args:
            rows: Rows of the batch.
            tokens: Tokens of each row, padding included.
            cut: How many blocks.
        """
        return sum(part.forward(rows, tokens) for part in (self._embedding, *self._blocks[:cut]))

    def _lowest(self, ran: Collection[int]) -> int:
        """Returns the lowest block that hands a gradient on: -1 for the embedding, their number for none."""
        if self._embedding.trains:
            return -1
        return next((index for index in ran if self._blocks[index].trains), len(self._blocks))

    def _add_layers(
        self, module: nn.Module, layout: Layout, inner: PreTrainedModel, training: set[int]
    ) -> None:
        """Adds every layer to its part.

        Args:
            module: The model.
            layout: Its parameters by part.
            inner: The transformers model in it.
            training: The identities of the parameters that train.
        """
        base = next(path for path, part in module.named_modules() if part is inner.base_model)
        once = "SequenceClassification" in type(inner).__name__
        below = False  # whether anything of the head trains below the layer at hand
        experts = getattr(inner.config.get_text_config(), "num_experts_per_tok", 1)
        for path, layer in module.named_modules():
            cost = _cost(layer, experts)
            if not cost or _UNUSED in path:
                continue
            own = [id(parameter) for parameter in layer.parameters(recurse=False)]
            trained = cost * (own[0] in training)
            inside = path.startswith(f"{base}.") or inner.base_model is inner
            if not inside or path.startswith(f"{base}.pooler."):
                head = self._pooled if once and _once_a_row(path) else self._head
                head.forward += cost
                head.trained += trained + cost * below
                head.passed += cost * (not below)
                below = below or not training.isdisjoint(own)
                continue
            part = self._embedding
            if path.startswith(f"{layout.blocks_path}."):
                part = self._blocks[int(path.removeprefix(f"{layout.blocks_path}.").split(".")[0])]
            part.linear += cost
            part.trained += trained

    def _add_attention(self, config: Any) -> None:
        """Adds attention's products, whose shapes are in the model's configuration alone."""
        hidden = getattr(config, "true_hidden_size", config.hidden_size)  # MobileBERT's blocks are narrower
        heads = config.num_attention_heads
        width = heads * (getattr(config, "head_dim", None) or hidden // heads)
        for block in self._blocks:
            block.attention = 4.0 * width
        if config.model_type == "deberta-v2" and config.relative_attention:
            buckets = getattr(config, "position_buckets", -1)
            limit = config.max_relative_positions
            span = buckets if buckets > 0 else limit if limit > 0 else config.max_position_embeddings
            for block in self._blocks:
                block.relative = 2.0 * 2 * span * width * len(config.pos_att_type)
                block.positions = 2.0 * 2 * span * width * hidden * len(config.pos_att_type)


def _cost(layer: nn.Module, experts: int) -> float:
    """Returns the operations of a layer a token; 0 of a module that multiplies by no matrix of its own.

    Args:
        layer: A module.
        experts: To how many of the experts of a mixture a token goes.
    """
    if isinstance(layer, nn.Linear):
        return 2.0 * layer.in_features * layer.out_features  # a quantised weight has another shape
    if isinstance(layer, Conv1D | nn.Conv1d):
        return 2.0 * layer.weight.numel()
    stacked = [parameter for parameter in layer.parameters(recurse=False) if parameter.ndim == 3]
    return sum(2.0 * parameter.numel() / len(parameter) * experts for parameter in stacked)


def _once_a_row(path: str) -> bool:
    return not set(_POOLED).isdisjoint(path.split("."))

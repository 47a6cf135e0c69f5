"""Counts the floating-point operations of training, batch by batch, from shapes alone.

Counted are the products of matrices, of which a transformer's time consists: 2 x in x out a token for every
linear layer (PEFT's adapters too), and for attention 2 x T^2 x width for the scores and as much for the
values, for a row of T tokens. Not counted are element-wise operations (softmax, norms, activations, dropout),
lookups, the loss and the optimiser's step. Padding is counted: it is computed.

A backward pass takes a product for the gradient of each weight that trains, and one for the gradient of each
layer's input, and of each factor of attention's products, wherever something below it trains. The gradient
stops at the lowest block that trains and ran; what of that block's own it passes is looked up in the model
(`fedstrata.metrics.gradients`). `tests/metrics/test_flops.py` holds the counts equal to those of
`torch.utils.flop_counter`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fedstrata.core.model import Layout
from fedstrata.metrics.gradients import Passed, passed_by_lowest

_POOLED = frozenset({"pooler", "pre_classifier", "classifier", "head"})
"""What a sequence classifier applies to one vector a row; decoders have a `score`, applied to every token."""
_SHARED_PROJECTIONS = ("key_proj", "query_proj")
_OWN_PROJECTIONS = ("pos_key_proj", "pos_query_proj")
"""What DeBERTa projects relative positions by: the layers that tokens go through too (`share_att_key`), or
others."""
_UNUSED = "original_module"
"""In the path of what PEFT keeps beside the copy that it trains and runs (`modules_to_save`)."""


@dataclass(slots=True)
class Part:
    """What a part of the model costs; operations of a forward pass.

    Attributes:
        trains: Whether anything of it trains.
        linear: Of its linear layers, a token.
        trained: Of those of them whose weights train, a token.
        passed: Of those of them whose inputs have a gradient when nothing below the part trains, a token.
        attention: Of attention's two products, a pair of tokens of a row.
        relative: Of DeBERTa's products of tokens and relative positions, a token.
        positions: Of DeBERTa's projections of relative positions, a batch.
        positions_back: Of the backward pass through these, a batch.
        prefix: Keys and values of a trained prefix, which the tokens of a row attend to besides each other.
        attention_passed: Gradients of attention's factors when nothing below the part trains, of the two of
            each product.
        relative_passed: Gradients of the tokens' factor of products with relative positions, likewise.
        relative_learnt: Gradients of the other factor, whatever is below.
    """

    trains: bool = False
    linear: float = 0.0
    trained: float = 0.0
    passed: float = 0.0
    attention: float = 0.0
    relative: float = 0.0
    positions: float = 0.0
    positions_back: float = 0.0
    prefix: int = 0
    attention_passed: float = 2.0
    relative_passed: float = 1.0
    relative_learnt: float = 1.0

    def forward(self, rows: int, tokens: int) -> float:
        """Returns the operations of a forward pass."""
        products = self.relative + (tokens + self.prefix) * self.attention
        return rows * tokens * (self.linear + products) + self.positions

    def backward(self, rows: int, tokens: int, *, lowest: bool = False) -> float:
        """Returns the operations of a backward pass.

        Args:
            rows: Rows of the batch.
            tokens: Tokens of each row.
            lowest: Whether nothing below trains, so that no gradient is handed on.
        """
        attended, related = (self.attention_passed, self.relative_passed) if lowest else (2.0, 1.0)
        pairs = (tokens + self.prefix) * self.attention
        products = (related + self.relative_learnt) * self.relative + attended * pairs
        linear = self.passed if lowest else self.linear
        return rows * tokens * (linear + products + self.trained) + self.positions_back


class FlopCounter:
    """Counts the operations of a model's training steps: coefficients once, then arithmetic a batch.

    Args:
        module: The transformers model, or a wrapper such as PEFT's around one.
        layout: Its parameters by part.
        trainable: Names of the parameters that train.
        share_of: Returns, of a parameter's name and values, the share of it that the device has; all of it if
            none. Of an adapter that is narrower than the model's a layer costs so much less.

    Example:
        `FlopCounter(model.module, model.layout, names).batch(rows=8, tokens=128)`
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        trainable: Collection[str],
        share_of: Callable[[str, Tensor], float] | None = None,
    ) -> None:
        inner = next(part for part in module.modules() if isinstance(part, PreTrainedModel))
        names = set(trainable)
        self._checkpoints = bool(inner.is_activation_checkpointing)
        self._embedding = Part(not names.isdisjoint(layout.embedding))
        self._blocks = [Part(not names.isdisjoint(block)) for block in layout.blocks]
        self._norm_trains = not names.isdisjoint(layout.final_norm)
        self._head, self._pooled = Part(), Part()  # above the blocks, of every token; of one vector a row
        training = {id(parameter) for name, parameter in module.named_parameters() if name in names}
        passed = passed_by_lowest(module, layout, names)
        self._share_of = share_of or (lambda name, tensor: 1.0)
        self._add_layers(module, layout, inner, training, passed)
        self._add_attention(inner.config.get_text_config(), passed, _prefix_length(module))

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
        # The lowest block that hands a gradient on: -1 for the embedding, their number for none.
        lowest = next((index for index in ran if self._blocks[index].trains), len(self._blocks))
        lowest = -1 if self._embedding.trains else lowest
        total = self._embedding.forward(rows, tokens)
        if lowest < 0:
            total += self._embedding.backward(rows, tokens)
        for index in ran:
            block = self._blocks[index]
            forward = block.forward(rows, tokens)
            total += forward
            if index >= lowest:
                total += block.backward(rows, tokens, lowest=index == lowest)
                total += forward * self._checkpoints
        ends = lowest == len(self._blocks) and not self._norm_trains  # nothing below the head trains
        for head, vectors in ((self._head, tokens), (self._pooled, 1)):
            total += head.forward(rows, vectors) + head.backward(rows, vectors, lowest=ends)
        return total

    def prefix(self, rows: int, tokens: int, cut: int) -> float:
        """Returns the operations of a forward pass through the embedding and the lowest blocks alone.

        Args:
            rows: Rows of the batch.
            tokens: Tokens of each row, padding included.
            cut: How many blocks.
        """
        return sum(part.forward(rows, tokens) for part in (self._embedding, *self._blocks[:cut]))

    def _add_layers(
        self, module: nn.Module, layout: Layout, inner: PreTrainedModel, training: set[int], passed: Passed
    ) -> None:
        """Adds every layer to its part, given the identities of the parameters that train."""
        base = next(path for path, part in module.named_modules() if part is inner.base_model)
        once = "SequenceClassification" in type(inner).__name__
        below = False  # whether anything of the head trains below the layer at hand
        after = [inner.get_submodule(each) for each in getattr(inner, "after_blocks", ())]
        above = {part for head in after for part in head.modules()}
        experts = getattr(inner.config.get_text_config(), "num_experts_per_tok", 1)
        span, shared = _relative_span(inner.config), getattr(inner.config, "share_att_key", False)
        projections = set(_SHARED_PROJECTIONS if shared else _OWN_PROJECTIONS)
        for path, layer in module.named_modules():
            cost = _cost(layer, experts)
            if not cost or _UNUSED in path:
                continue
            own = [id(parameter) for parameter in layer.parameters(recurse=False)]
            name, weight = next(layer.named_parameters(recurse=False))
            cost *= self._share_of(f"{path}.{name}", weight)
            trained = cost * (own[0] in training)
            inside = path.startswith(f"{base}.") or inner.base_model is inner
            if not inside or layer in above or path.startswith(f"{base}.pooler."):
                part = self._pooled if once and not _POOLED.isdisjoint(path.split(".")) else self._head
                passes = below
                below = below or not training.isdisjoint(own)
            else:
                blocks = f"{layout.blocks_path}."
                block = int(path.removeprefix(blocks).split(".")[0]) if path.startswith(blocks) else None
                part = self._embedding if block is None else self._blocks[block]
                passes = id(layer) in passed.layers
                if positions := span * (not projections.isdisjoint(path.split("."))):
                    part.positions += positions * cost
                    part.positions_back += positions * (trained + cost * (id(layer) in passed.positions))
                    if not shared:
                        continue
            part.linear += cost
            part.trained += trained
            part.passed += cost * passes

    def _add_attention(self, config: Any, passed: Passed, prefix: int) -> None:
        """Adds attention's products, whose shapes are in the model's configuration alone."""
        hidden = getattr(config, "true_hidden_size", config.hidden_size)  # MobileBERT's blocks are narrower
        heads = config.num_attention_heads
        width = heads * (getattr(config, "head_dim", None) or hidden // heads)
        # A prefix is put together of all blocks' parts, so that one of them that trains is looked for in all.
        prefix_trains = bool(prefix) and any(block.trains for block in self._blocks)
        for block, (attended, tokens, positions) in zip(self._blocks, passed.products, strict=True):
            block.attention, block.prefix = 4.0 * width, prefix
            block.trains = block.trains or prefix_trains
            block.attention_passed = attended
            block.relative_passed, block.relative_learnt = tokens, positions
            block.relative = 2.0 * _relative_span(config) * width * len(getattr(config, "pos_att_type", ()))


def _cost(layer: nn.Module, experts: int) -> float:
    """Returns the operations of a layer a token, which goes to so many of the experts of a mixture.

    They are 0 of a module that multiplies by no matrix of its own.
    """
    if isinstance(layer, nn.Linear):
        return 2.0 * layer.in_features * layer.out_features  # a quantised weight has another shape
    if isinstance(layer, Conv1D | nn.Conv1d):
        return 2.0 * layer.weight.numel()
    stacked = [parameter for parameter in layer.parameters(recurse=False) if parameter.ndim == 3]
    return sum(2.0 * parameter.numel() / len(parameter) * experts for parameter in stacked)


def _relative_span(config: Any) -> int:
    """Returns how many relative positions DeBERTa has; 0 of other models."""
    if config.model_type != "deberta-v2" or not config.relative_attention:
        return 0
    buckets = getattr(config, "position_buckets", -1)
    limit = config.max_relative_positions
    return 2 * (buckets if buckets > 0 else limit if limit > 0 else config.max_position_embeddings)


def _prefix_length(module: nn.Module) -> int:
    """Returns how many keys and values PEFT puts before those of the tokens."""
    adapter: Any = getattr(module, "peft_config", {}).get("default")
    kind = getattr(adapter, "peft_type", "")
    return int(adapter.num_virtual_tokens) if str(getattr(kind, "value", kind)) == "PREFIX_TUNING" else 0

"""Which parameters of a transformer belong to its embedding, its blocks, its final norm and its head.

Everything fedstrata freezes, trains, skips, sends or merges is named by these groups. The families people
use most are listed in `families.json`; any other architecture works if it has one list of blocks of one
class.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from pydantic import TypeAdapter
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from fedstrata.core.errors import ConfigurationError, refused
from fedstrata.core.model import EMBEDDING, FINAL_NORM, HEAD, Layout


@dataclass(frozen=True, slots=True)
class Family:
    """Where an architecture keeps its parts, as paths inside its base model.

    The base model is `bert` in `BertForTokenClassification`. What else it holds is embedding, apart from a
    pooler; what lies outside it is head.

    Attributes:
        blocks: The list of blocks.
        final_norm: The norm after the last block, if there is one.
        shared: Modules beside the embedding that blocks of any depth, or what stands between two of them,
            compute with: relative positions, DeBERTa-v2's convolution. A model may lack some of them.
        returns: Length of the tuple that a block returns, hidden states first; 0 for a plain tensor.
        sublayer_ends: The last linear layers of a block's attention and feed-forward part.
    """

    blocks: str
    final_norm: str | None = None
    shared: tuple[str, ...] = ()
    returns: int = 0
    sublayer_ends: tuple[str, ...] = ()


FAMILIES: Mapping[str, Family] = TypeAdapter(dict[str, Family]).validate_json(
    (files("fedstrata.models") / "families.json").read_bytes()
)
"""The known families by `model_type`; DeBERTa-v3 is a `deberta-v2`. Others are found by their shape."""

_POSITIONS_AFTER_PADDING = frozenset(
    {
        *("camembert", "data2vec-text", "ibert", "lilt", "longformer", "luke", "markuplm", "mpnet"),
        *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    }
)
"""Types of models whose positions begin behind the number of their padding token."""


def find_layout(model: nn.Module, learnable: Collection[str] | None = None) -> Layout:
    """Finds the parts of a transformers model, also inside a wrapper such as PEFT's.

    Args:
        model: A transformers model, or a module around one.
        learnable: Names of the parameters that can train; all if none.

    Returns:
        Its layout; every parameter of `model` is in exactly one group or frozen.

    Raises:
        ConfigurationError: There is no single list of blocks, or the blocks share their weights.
    """
    inner = transformers_model(model)
    base = inner.base_model
    blocks, final_norm = _parts(inner)
    groups = _groups_of_blocks(inner, blocks)
    for parameter in final_norm.parameters() if final_norm is not None else ():
        groups.setdefault(id(parameter), FINAL_NORM)
    above = {part for head in head_modules(inner) for part in head.modules()}
    below = (part for part in base.modules() if part not in above)
    for parameter in (each for part in below for each in part.parameters(recurse=False)):
        groups.setdefault(id(parameter), EMBEDDING)
    for parameter in inner.parameters():
        groups.setdefault(id(parameter), HEAD)
    names: dict[str, list[str]] = {}
    frozen = []
    for name, parameter in model.named_parameters():
        if learnable is not None and name not in learnable:
            frozen.append(name)
            continue
        names.setdefault(groups.get(id(parameter)) or _group_of_prompt(name), []).append(name)
    return Layout(
        blocks_path=next(path for path, module in model.named_modules() if module is blocks),
        blocks=tuple(tuple(names.get(f"block {index}", ())) for index in range(len(blocks))),
        embedding=tuple(names.get(EMBEDDING, ())),
        final_norm=tuple(names.get(FINAL_NORM, ())),
        head=tuple(names.get(HEAD, ())),
        sizes={name: numbers_in(parameter) for name, parameter in model.named_parameters()},
        frozen=tuple(frozen),
    )


def head_modules(inner: PreTrainedModel) -> list[nn.Module]:
    """Returns the modules of a base model that belong to the head: a pooler.

    In a module of one's own (`fedstrata.models.plain`) it is all that runs after the blocks.
    """
    after = [inner.get_submodule(path) for path in getattr(inner, "after_blocks", ())]
    pooler = getattr(inner.base_model, "pooler", None)
    return [*after, *([pooler] if isinstance(pooler, nn.Module) else [])]


def block_modules(model: nn.Module, layout: Layout) -> nn.ModuleList:
    """Returns the live list of blocks of the model in which a layout was found."""
    blocks = model.get_submodule(layout.blocks_path)
    assert isinstance(blocks, nn.ModuleList)  # noqa: S101 - find_layout saw one at this path
    return blocks


def block_count(config: Any) -> int:
    """Returns the number of blocks a transformers configuration asks for; no weights are needed.

    Args:
        config: A `PretrainedConfig`; for a composite model the text part counts.

    Raises:
        ConfigurationError: The configuration does not say.
    """
    count = getattr(config.get_text_config(), "num_hidden_layers", None)
    if not isinstance(count, int):
        raise refused(
            "model.name", f"{config.model_type!r}: its configuration has no num_hidden_layers", "no_blocks"
        )
    return count


def is_empty(block: nn.Module) -> bool:
    """Whether a block has no weights: it lies on another side of a cut (`fedstrata.split`)."""
    return next(block.parameters(), None) is None


def is_divided(model: nn.Module) -> bool:
    """Whether some blocks of a model lie on another side of a cut."""
    inner = transformers_model(model)
    blocks, _ = _parts(inner)
    return any(map(is_empty, blocks))


def is_listed(model: PreTrainedModel) -> bool:
    """Whether the model's family is one of `FAMILIES`."""
    return model.config.model_type in FAMILIES


def family_of(model: PreTrainedModel) -> Family:
    """Returns what is known of a model's family; of one that is not listed, what is usual."""
    return FAMILIES.get(model.config.model_type, Family(blocks=""))


def numbers_in(parameter: Tensor) -> int:
    """Returns how many numbers a parameter stands for: a quantised one holds several in a byte."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else int(state.shape.numel())


def transformers_model(model: nn.Module) -> PreTrainedModel:
    """Returns the transformers model inside any wrapper.

    Raises:
        ConfigurationError: There is none.
    """
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise refused("model.name", f"{type(model).__name__} holds no transformers model", "not_supported")


def choose_blocks(inner: PreTrainedModel, path: str) -> None:
    """Makes a list of modules the blocks of a transformers model in which they are not found.

    Args:
        inner: The model.
        path: Where the list is.

    Raises:
        ConfigurationError: There is no such list, or the blocks are found without being told.
    """
    try:
        found, _ = _known_parts(inner) or _generic_parts(inner)
    except ConfigurationError:
        found = None
    lists = _outermost_lists(inner)
    if found is not None and (is_listed(inner) or lists.get(path) is found):
        own = next(place for place, module in inner.named_modules() if module is found)
        message = f"has no effect: the blocks of a {type(inner).__name__} are found, {own}; leave it out"
        raise refused("model.blocks", message, "no_effect")
    _require_list(lists, path, type(inner).__name__)
    inner.given_blocks = path


def single_list(module: nn.Module, path: str | None, name: str) -> str:
    """Returns where the blocks of a module are that is no transformers model.

    Args:
        module: The module.
        path: Where they are said to be; the one list of modules of one class if none.
        name: The factory that gave the module.

    Raises:
        ConfigurationError: There is no such list, or it need not be said.
    """
    lists = _outermost_lists(module)
    fitting = [own for own, blocks in lists.items() if len(_classes(blocks)) == 1]
    what = f"the {type(module).__name__} of {name!r}"
    if path is not None:
        _require_list(lists, path, what)
        if fitting == [path]:
            message = f"has no effect: the blocks of {what} are found, {path}; leave it out"
            raise refused("model.blocks", message, "no_effect")
        return path
    if not fitting:
        message = f"{what} has no torch.nn.ModuleList of blocks of one class, by which methods train and send"
        raise refused("model.name", f"{message}; it has {_listed(lists) or 'no list'}", "no_blocks")
    if len(fitting) > 1:
        raise refused("model.blocks", f"must say which are the blocks of {what}: {_listed(lists)}", "missing")
    return fitting[0]


def _require_list(lists: Mapping[str, nn.ModuleList], path: str, what: str) -> None:
    if path not in lists or len(_classes(lists[path])) != 1:
        message = f"{path!r} is no torch.nn.ModuleList of modules of one class in {what}"
        raise refused("model.blocks", f"{message}, which has {_listed(lists) or 'no list'}", "unknown_name")


def _listed(lists: Mapping[str, nn.ModuleList]) -> str:
    return "; ".join(
        f"{path}: {len(blocks)} x {' and '.join(_classes(blocks)) or 'nothing'}"
        for path, blocks in lists.items()
    )


def _parts(inner: PreTrainedModel) -> tuple[nn.ModuleList, nn.Module | None]:
    """Returns the blocks of a model and the norm after them, if there is one."""
    if not (path := getattr(inner, "given_blocks", "")):
        return _known_parts(inner) or _generic_parts(inner)
    blocks = inner.get_submodule(path)
    assert isinstance(blocks, nn.ModuleList)  # noqa: S101 - seen when the path was set
    norm = _norm_beside(inner, path)
    above = head_modules(inner)
    return blocks, norm if not above or norm in above else None


def _known_parts(inner: PreTrainedModel) -> tuple[nn.ModuleList, nn.Module | None] | None:
    family = FAMILIES.get(inner.config.model_type)
    if family is None:
        return None
    try:
        blocks = inner.base_model.get_submodule(family.blocks)
        final_norm = inner.base_model.get_submodule(family.final_norm) if family.final_norm else None
    except AttributeError:  # a later transformers moved it, or one of its rarer classes differs
        return None
    return (blocks, final_norm) if isinstance(blocks, nn.ModuleList) else None


def _generic_parts(inner: PreTrainedModel) -> tuple[nn.ModuleList, nn.Module | None]:
    """Returns the one list of blocks and the norm beside it."""
    lists = _outermost_lists(inner)
    expected = block_count(inner.config)
    found = [path for path, blocks in lists.items() if len(blocks) == expected and len(_classes(blocks)) == 1]
    if len(found) != 1 or inner.config.is_encoder_decoder:
        raise refused(
            "model.name",
            f"{type(inner).__name__} has no single stack of blocks. Looked for one torch.nn.ModuleList of "
            f"num_hidden_layers = {expected} modules of one class, in a model that is no encoder-decoder; "
            f"found {_listed(lists) or 'no list'}. `model.blocks` says which it is, where it is one of them. "
            f"Known families: {', '.join(FAMILIES)}",
            "no_blocks",
        )
    return lists[found[0]], _norm_beside(inner, found[0])


def _norm_beside(inner: PreTrainedModel, path: str) -> nn.Module | None:
    """Returns the last norm beside a list of blocks; one in front of the blocks is none of them."""
    parent = inner.get_submodule(path.rpartition(".")[0])
    # A norm whose name speaks of embeddings stands in front of the blocks (BLOOM, BART).
    norms = [
        child
        for name, child in parent.named_children()
        if "norm" in type(child).__name__.lower() and "emb" not in name.lower()
    ]
    return norms[-1] if norms else None


def _outermost_lists(inner: nn.Module) -> dict[str, nn.ModuleList]:
    """Lists by path, without those inside a block (experts, T5's sublayers)."""
    lists: dict[str, nn.ModuleList] = {}
    for path, module in inner.named_modules():
        if isinstance(module, nn.ModuleList) and not any(path.startswith(f"{outer}.") for outer in lists):
            lists[path] = module
    return lists


def _classes(blocks: nn.ModuleList) -> list[str]:
    return sorted({type(block).__name__ for block in blocks})


def _groups_of_blocks(inner: PreTrainedModel, blocks: nn.ModuleList) -> dict[int, str]:
    """Returns group by parameter identity; what several blocks share counts as embedding."""
    groups: dict[int, str] = {}
    for index, block in enumerate(blocks):
        for parameter in block.parameters():
            group = EMBEDDING if id(parameter) in groups else f"block {index}"
            groups[id(parameter)] = group
    own: Collection[str] = set(groups.values())
    there = [index for index, block in enumerate(blocks) if not is_empty(block)]
    if any(f"block {index}" not in own for index in there):
        raise refused(
            "model.name",
            f"the blocks of {type(inner).__name__} share their weights, so no block can be told apart",
            "not_supported",
        )
    return groups


def _group_of_prompt(name: str) -> str:
    """Returns the group of what a wrapper adds outside the transformers model: soft prompts.

    They feed the first block, but for prefixes that are divided by block (`fedstrata.adapters.prefix`).
    """
    found = re.search(r"prompt_encoder\..*\.original(\d+)$", name)
    return f"block {found[1]}" if found else EMBEDDING


def positions_of(config: PretrainedConfig) -> int | None:
    """Returns how many tokens of a text a model has positions for; none if it says nothing of them.

    RoBERTa and its kin count from behind the number of the padding token, so that of 514 positions 512 are
    for tokens.

    Args:
        config: As the model was made with; loading may have given it another padding token.
    """
    config = config.get_text_config()
    positions: int | None = getattr(config, "max_position_embeddings", None)
    if positions is None or config.model_type not in _POSITIONS_AFTER_PADDING:
        return positions
    return positions - (config.pad_token_id or 0) - 1

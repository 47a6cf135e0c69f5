"""Adding an adapter to a model: LoRA and prefix tuning of PEFT, bottleneck adapters of ours built on PEFT.

With an adapter the model's own weights are frozen. What can train is the adapter and the task head: every
method then freezes, sends, skips and merges those as it would the parameters of a whole model, since they
are the `Layout` of the new model.
"""

import warnings
from collections.abc import Collection, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedstrata.adapters.prefix import PLACE, SAVED, divide
from fedstrata.adapters.stack import adapted_layers, with_product
from fedstrata.adapters.targets import NONE, inside_blocks, linear_layers
from fedstrata.core.errors import ConfigurationError, DataError, Problem, refused
from fedstrata.core.model import Layout
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.adapter import AdapterSettings, BottleneckSettings, LoraSettings, PrefixSettings
from fedstrata.models.blocks import find_layout, transformers_model
from fedstrata.models.caching import cache_name
from fedstrata.models.plain import PlainModel
from fedstrata.models.state import FIRST_VALUES, Model, is_of_adapter

_ADAPTER = "default"
"""What PEFT calls an adapter that is given no name."""
TASK_TYPES = {
    "token-classification": "TOKEN_CLS",
    "sequence-classification": "SEQ_CLS",
    "causal-lm": "CAUSAL_LM",
}
"""What PEFT calls the kinds of models."""


def attach(
    model: Model, settings: AdapterSettings, *, kind: str, seed: Seed, full: Collection[str] = ()
) -> Model:
    """Adds an adapter to a model, which changes nothing of what it computes until the adapter is trained.

    Prefix tuning is the exception: its keys and values are drawn at random and are attended to at once.

    What the adapter of a layer begins with depends on the seed and on the layer's name alone. So each side of
    a divided model begins with what the whole model would begin with.

    Args:
        model: The model, or a side of one; its module becomes part of the new one.
        settings: Which adapter.
        kind: Of the model, as for `fedstrata.models.load.load`.
        seed: Where the adapter's first values come from.
        full: Parameters of the model that can train as they are. Their blocks get no adapter.

    Returns:
        A new handle: the adapter, the task head and `full` can train, everything else is frozen for good.

    Raises:
        ConfigurationError: The adapter does not fit the model.
    """
    with seed.everywhere():
        module, learnable = wrap(model.module, settings, kind=kind, new=model.new_parameters, full=full)
    _draw_by_name(module, seed)
    return Model(
        module,
        model.tokenizer,
        name=model.name,
        new_parameters=tuple(name for name, _ in module.named_parameters() if name in learnable),
        learnable=learnable,
    )


def wrap(
    module: nn.Module,
    settings: AdapterSettings,
    *,
    kind: str,
    new: Sequence[str] = (),
    full: Collection[str] = (),
) -> tuple[nn.Module, frozenset[str]]:
    """Adds an adapter to a module, which may be without weights (torch's `meta` device).

    Args:
        module: A transformers model; changed in place.
        settings: Which adapter.
        kind: Of the model.
        new: Its parameters that no file held.
        full: As for `attach`.

    Returns:
        PEFT's wrapper, and the names of its parameters that can train.

    Raises:
        ConfigurationError: The adapter does not fit the model.
    """
    from peft import get_peft_model  # noqa: PLC0415 - seconds to import, and not every run has an adapter

    layout = find_layout(module)
    plain = isinstance(module, PlainModel)
    heads = _head_modules(layout, new, plain=plain) if kind != "causal-lm" else _new_heads(layout, new)
    if isinstance(settings, PrefixSettings):
        if plain:
            message = "prefix needs past keys and values, which a module of one's own does not take"
            raise refused("adapter.kind", f"{message}; use lora or bottleneck", "not_supported")
        _check_prefix(module, layout, settings, heads, kind)
    config = _configuration(module, layout, settings, heads, full)
    config.task_type = TASK_TYPES[kind]
    module.requires_grad_(False)
    parameters = dict(module.named_parameters())
    as_they_are = {id(parameters[name]) for name in full}
    with warnings.catch_warnings():
        # GPT-2's layers are transposed, which PEFT notices and sets right by itself.
        warnings.filterwarnings("ignore", message=".*fan_in_fan_out.*")
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
        try:
            wrapped: nn.Module = get_peft_model(module, config)
            if isinstance(settings, PrefixSettings):
                divide(wrapped, len(layout.blocks))
                _try(wrapped)
        except (ValueError, TypeError, NotImplementedError, AttributeError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            message = f"{settings.kind} does not fit this model: {reason}"
            raise refused("adapter.kind", message, "not_supported") from error
    # Of a head that trains with the adapter PEFT keeps the first values, which are nobody's to train.
    live = [(name, own) for name, own in wrapped.named_parameters() if FIRST_VALUES not in name]
    for _, own in live:
        if id(own) in as_they_are:
            own.requires_grad_(True)
    return wrapped, frozenset(name for name, own in live if own.requires_grad)


def _draw_by_name(module: nn.Module, seed: Seed) -> None:
    """Draws each layer's adapter anew, from a seed of its own, in the way in which it was drawn before."""
    for path, layer in module.named_modules():
        if hasattr(layer, "reset_lora_parameters"):
            with seed.child(path).everywhere():
                layer.reset_lora_parameters(_ADAPTER, init_lora_weights=True)
        elif hasattr(layer, "reset_bottleneck_parameters"):
            with seed.child(path).everywhere():
                layer.reset_bottleneck_parameters(_ADAPTER)


def saved_adapter(model: Model, folder: Path) -> dict[str, Tensor]:
    """Returns the values that a folder of PEFT holds, by the names of the model's parameters.

    Args:
        model: A model with such an adapter.
        folder: What `Model.save` wrote.

    Raises:
        DataError: The folder holds none, or they are not this adapter's.
    """
    from peft import load_peft_weights  # noqa: PLC0415 - see `wrap`

    try:
        values: dict[str, Tensor] = load_peft_weights(str(folder), device="cpu")
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(folder, f"no readable adapter ({type(error).__name__})", code="unreadable") from error
    names = {_saved_name(name): name for name in model.layout.all}
    if SAVED in values:
        parts = torch.chunk(values.pop(SAVED), len(model.layout.blocks), dim=1)
        values |= {f"{PLACE}{block}": part for block, part in enumerate(parts)}
    if names.keys() != values.keys():
        other = sorted(names.keys() ^ values.keys())
        what = f"its tensors are not those of the run's adapter; {other[0]} is only in one of them"
        raise DataError(folder, what, code="wrong_weights")
    return {names[name]: value for name, value in values.items()}


def _saved_name(name: str) -> str:
    """Returns the name under which PEFT saves a parameter; of a prefix only the whole is saved."""
    if name.startswith(PLACE):
        return name
    return name.replace(".modules_to_save.default.", ".").replace(".default.", ".")


def merge(model: Model) -> nn.Module:
    """Returns the plain transformers model that computes what the one with its LoRA does.

    Args:
        model: A model with an adapter; its module must not be used afterwards.

    Raises:
        ConfigurationError: The adapter is no LoRA: what it adds is no matrix.
    """
    module: Any = model.module
    kind = module.peft_config[_ADAPTER].peft_type
    if str(getattr(kind, "value", kind)) != "LORA":
        message = f"only LoRA can be merged into the weights of a model; this one has {kind.lower()}"
        raise refused("adapter.kind", message, "not_supported")
    merged: nn.Module = module.merge_and_unload()
    return merged


def plain_tensors(model: Model) -> dict[str, Tensor]:
    """Returns the values of the plain transformers model that computes what the one with its LoRA does.

    Unlike `merge` it leaves the model as it is, and copies only the weights to which a LoRA adds something.

    Args:
        model: A model with a LoRA.
    """
    values = dict(model.module.named_parameters())
    products = {
        id(values[layer.weight]): with_product(values[layer.weight].detach(), values, layer)
        for layer in adapted_layers(model.module)
        if values[layer.second].any()
    }
    plain = {}
    for name, tensor in transformers_model(model.module).state_dict(keep_vars=True).items():
        if not is_of_adapter(name):
            own = name.replace(".base_layer.", ".").replace(".modules_to_save.default.", ".")
            plain[own] = products.get(id(tensor), tensor.detach())
    return plain


def plain_where_needed(model: Model) -> dict[str, Tensor] | None:
    """Returns what `Model.save` has to write where an adapter's folder would not hold all that was learnt.

    That is `plain_tensors` where something was merged into the model below the adapter, or where some of its
    weights train as they are; none where an adapter and a task head is all.
    """
    below = [name for name in model.whole if ".modules_to_save." not in name]
    if not model.layout.frozen or not (model.is_changed(below) or set(below) & set(model.layout.all)):
        return None
    return plain_tensors(model)


def _configuration(
    module: nn.Module, layout: Layout, settings: AdapterSettings, heads: Sequence[str], full: Collection[str]
) -> Any:
    """Returns PEFT's configuration of an adapter."""
    from peft import LoraConfig, PrefixTuningConfig  # noqa: PLC0415 - see `wrap`

    saved = list(heads) or None
    here = [index for index, names in enumerate(layout.blocks) if names]  # a side of a divided model has few
    excluded = [index for index in here if not set(full).isdisjoint(layout.blocks[index])]
    adapted = excluded != here
    if isinstance(settings, LoraSettings):
        return LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha_used,
            lora_dropout=settings.dropout,
            target_modules=linear_layers(module, layout, settings.targets) if adapted else NONE,
            exclude_modules=inside_blocks(layout, excluded) if adapted and excluded else None,
            modules_to_save=saved,
        )
    if isinstance(settings, BottleneckSettings):
        from fedstrata.adapters.bottleneck import BottleneckConfig  # noqa: PLC0415

        return BottleneckConfig(
            width=settings.width,
            activation=settings.activation,
            target_modules=linear_layers(module, layout, settings.targets) if adapted else NONE,
            modules_to_save=saved,
        )
    return PrefixTuningConfig(num_virtual_tokens=settings.tokens)


def _check_prefix(
    module: nn.Module, layout: Layout, settings: PrefixSettings, heads: Sequence[str], kind: str
) -> None:
    """Refuses more tokens than the model has room for, and a head of which PEFT would leave a part behind.

    And a side of a divided model: PEFT gives every block its keys and values, whether it is there or not.
    """
    problems = []
    if not all(layout.blocks):
        message = "prefix cannot be divided between client and server; lora and bottleneck can"
        problems.append(Problem("adapter.kind", message, code="not_divisible"))
    elif kind != "causal-lm" and cache_name(transformers_model(module).base_model) == "cache":
        # PEFT looks for the argument's older name.
        message = (
            f"prefix needs transformers below 5.24 where the model is a classifier: with the installed "
            f"{version('transformers')} PEFT {version('peft')} finds no place for it; use lora or bottleneck"
        )
        problems.append(Problem("adapter.kind", message, code="dependency_too_new"))
    config = transformers_model(module).config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and settings.tokens >= positions:
        message = f"must be less than {positions}, the positions the model knows, not {settings.tokens}"
        problems.append(Problem("adapter.tokens", message, code="out_of_range"))
    untrained = [name for name in heads if name not in ("classifier", "score")]
    if untrained:
        message = f"prefix trains only the last layer of a task head, and here {untrained[0]!r} is new too"
        problems.append(Problem("adapter.kind", message, code="not_supported"))
    if problems:
        raise ConfigurationError(problems)


@torch.no_grad()
def _try(module: nn.Module) -> None:
    """Calls a model once with two tokens: whether it takes a prefix shows only then.

    One without weights is not called: some models look at numbers on their way (BERT's masks).
    """
    device = next(module.parameters()).device
    if device.type == "meta":
        return
    ids = torch.zeros((1, 2), dtype=torch.long, device=device)
    module(input_ids=ids, attention_mask=torch.ones_like(ids))


def _head_modules(layout: Layout, new: Collection[str], *, plain: bool = False) -> list[str]:
    """Returns the names of the modules of a classifier's head, which trains with any adapter.

    A pooler that came with the pretrained weights stays as it is, as in the literature; one that was drawn at
    random has to be learnt.
    """
    if plain:  # whose heads may lie at any depth
        return list(dict.fromkeys(name.rpartition(".")[0] for name in layout.head))
    modules = []
    for name in layout.head:
        path = name.split(".")
        inside = len(path) > 2 and path[1] == "pooler"  # of the base model: bert.pooler.dense.weight
        module = path[1] if inside else path[0]
        if (not inside or name in set(new)) and module not in modules:
            modules.append(module)
    return modules


def _new_heads(layout: Layout, new: Collection[str]) -> list[str]:
    """Returns the output layer of a language model if it was drawn at random while the rest was not."""
    own = [name for name in layout.head if name in set(new)]
    everything = len(new) >= len(layout.all)
    return [] if everything else list(dict.fromkeys(name.split(".")[0] for name in own))

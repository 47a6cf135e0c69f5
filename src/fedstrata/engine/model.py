"""Whether a model, its tokenizer, its adapter, the task and the method go together; and loading the model."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import nn
from transformers import PreTrainedModel

from fedstrata.adapters.attach import attach, wrap
from fedstrata.core.errors import ConfigurationError, Problem, refuse, refused
from fedstrata.core.method import Method
from fedstrata.core.model import Layout
from fedstrata.core.preflight import Facts
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.adapter import AdapterSettings
from fedstrata.core.settings.model import ModelSettings, TrainedTokenizer
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.task import Task
from fedstrata.engine.vocabulary import cut_to_public_texts, vocabulary_problems
from fedstrata.models.blocks import find_layout, positions_of, transformers_model
from fedstrata.models.given import make, misplaced, names_factory
from fedstrata.models.load import early_tokenizer, load, read_config, read_tokenizer, skeleton
from fedstrata.models.plain import PlainConfig, PlainModel
from fedstrata.models.prefix import frozen_blocks
from fedstrata.models.quantize import quantization
from fedstrata.models.state import Model
from fedstrata.models.vocabulary import bpe_parts, kept_tokens
from fedstrata.train.emulated_model import EmulatedModel

_STAND_IN = ("O",)
"""Classes of a model that is looked at before its own are known."""


def refusals(*checks: Callable[[], object]) -> list[Problem]:
    """Returns what these checks refuse, all together."""
    problems: list[Problem] = []
    for check in checks:
        try:
            check()
        except ConfigurationError as error:
            problems += error.problems
    return problems


def with_adapter(settings: RunSettings, method: Method) -> RunSettings:
    """Returns the settings with the method's usual adapter where it needs one and none is named."""
    if settings.adapter is not None or not method.adapters:
        return settings
    named = {"kind": method.adapters[0], **method.usual_adapter}
    usual = TypeAdapter[Any](AdapterSettings).validate_python(named)
    return settings.model_copy(update={"adapter": usual})


def load_model(
    settings: RunSettings,
    task: Task,
    method: Method,
    tokenizer: Any,
    *,
    without: Callable[[PreTrainedModel], None] | None = None,
) -> Model:
    """Loads the model that a run begins with, with its adapter.

    Args:
        settings: The run's settings.
        task: The task, which knows its labels.
        method: The federated method.
        tokenizer: The tokenizer that `check_model` has read, or that was built from the training texts; it is
            read if None.
        without: Takes parts out of the model before its weights are read.

    Raises:
        ConfigurationError: See `fedstrata.models.load.load` and `fedstrata.adapters.attach.attach`; or what
            was found in documents cannot be asked for with this tokenizer.
    """
    seed = Seed(settings.seed)
    if settings.model.vocabulary is not None:
        tokenizer = tokenizer or read_tokenizer(settings.model)
        if kept_tokens(tokenizer) is None:
            tokenizer = cut_to_public_texts(settings, task, tokenizer)
    model = load(
        settings.model,
        kind=task.kind,
        labels=task.classes,
        problem_type=task.head_type,
        seed=seed.child("model"),
        tokenizer=tokenizer,
        without=without,
    )
    task.check_room(model.tokenizer)
    if settings.adapter is not None:
        own = seed.child("adapter")
        full = method.full_parts(model.layout)
        model = attach(model, settings.adapter, kind=task.kind, seed=own, full=full)
    if settings.training.checkpointing:
        inner = transformers_model(model.module)
        inner.activation_checkpointing_enable({"use_reentrant": False})
        inner.disable_input_require_grads()  # as an older way of checkpointing needs
    if settings.devices is not None and settings.devices.shape is not None:
        model.emulated = EmulatedModel(partial(_emulated, settings, task, method, model.tokenizer))
    return model


def _emulated(settings: RunSettings, task: Task, method: Method, tokenizer: Any) -> Model:
    """Returns the model that emulated devices count, without weights and with the run's kind of adapter."""
    found = outline(_enlarged(settings), task, method, tokenizer, new_head=True)
    if settings.training.checkpointing:
        transformers_model(found.module).activation_checkpointing_enable({"use_reentrant": False})
    return found


def _enlarged(settings: RunSettings) -> RunSettings:
    """Returns the settings with the model that emulated devices count."""
    assert settings.devices is not None  # noqa: S101 - whoever calls has looked
    shape = settings.devices.shape or {}
    named = settings.devices.as_model
    larger = ModelSettings(
        name=named if isinstance(named, str) else str(shape["model_type"]),
        init="random",
        tokenizer=settings.model.tokenizer or settings.model.name,
        config=shape,
    )
    return settings.model_copy(update={"model": larger})


def _check_emulated(
    settings: RunSettings, task: Task, method: Method | None, tokenizer: Any, layout: Layout
) -> None:
    """Refuses a model to count that there is not, that the adapter does not fit, or of too few blocks."""
    if settings.devices is None or settings.devices.shape is None:
        return
    larger = _enlarged(settings)
    try:
        blocks = len(_layout(larger, task, method, tokenizer, None).blocks)
        positions = positions_of(read_config(larger.model, tokenizer))
    except ConfigurationError as error:
        told = ((f"{each.path.removeprefix('model.')}: {each.message}", each.code) for each in error.problems)
        raise ConfigurationError(
            [Problem("devices.as_model", message, code=code) for message, code in told]
        ) from None
    own = len(layout.blocks)
    if blocks < own:
        message = (
            f"has {blocks} blocks, and the run's own model {own}: no block of it stands for some of these"
        )
        raise refused("devices.as_model", message, "out_of_range")
    if positions is not None and task.max_length > positions:
        message = f"knows {positions} positions, and task.max_length is {task.max_length}"
        raise refused("devices.as_model", message, "conflict")


def outline(
    settings: RunSettings, task: Task, method: Method, tokenizer: Any, *, new_head: bool = False
) -> Model:
    """Returns the whole model that `load_model` gives, without weights: its names, shapes and sizes.

    Args:
        settings: The run's settings.
        task: The task, which knows its labels.
        method: The federated method.
        tokenizer: The model's.
        new_head: Whether no file holds the task head, by which it goes what of it trains with an adapter.

    Raises:
        ConfigurationError: As for `load_model`, as far as weights are not concerned.
    """
    module: nn.Module = skeleton(settings.model, kind=task.kind, labels=task.classes, tokenizer=tokenizer)
    learnable = None
    if settings.adapter is not None:
        layout = find_layout(module)
        new, full = layout.head if new_head else (), method.full_parts(layout)
        module, learnable = wrap(module, settings.adapter, kind=task.kind, new=new, full=full)
    return Model(module, tokenizer, name=settings.model.name, learnable=learnable)


def check_model(settings: RunSettings, task: Task, method: Method | None) -> Any:
    """Checks the model against the task and the method; no weights are loaded.

    Returns:
        The tokenizer, as it was read; None if it is yet to be built, or comes with the model.

    Raises:
        ConfigurationError: With every problem that was found.
    """
    problems = []
    full = None if method is None else method.full_setting
    # The weights of an adapter are float32 whatever its model's, but not those of a head that trains with it.
    frozen = settings.adapter is not None and not full and task.kind == "causal-lm"
    if settings.model.quantization is not None:
        problems += refusals(lambda: quantization(settings.model))
        if settings.adapter is None:
            message = f"{settings.model.quantization!r} weights cannot train; set an adapter, which can"
            problems.append(Problem("model.quantization", message, code="missing"))
        elif full:
            message = f"{settings.model.quantization!r} weights cannot train; leave {full} empty"
            problems.append(Problem("model.quantization", message, code="conflict"))
    if settings.model.dtype != "float32" and not frozen:
        message = "weights that train must be float32; for bfloat16 arithmetic set training.precision"
        problems.append(
            Problem("model.dtype", f"{message}, not {settings.model.dtype!r} here", code="conflict")
        )
    refuse(misplaced(settings.model))
    problems += refusals(lambda: refuse([*vocabulary_problems(settings)]))
    sample, tokenizer = None, None
    if names_factory(settings.model.name):
        sample, tokenizer = make(settings.model, kind=task.kind, labels=_STAND_IN, tokens=task.max_length)
        problems += _unfit_sample(sample, settings, task, method, frozen=frozen)
    else:
        tokenizer = early_tokenizer(settings.model)
    config = sample.config if sample else read_config(settings.model, tokenizer)
    positions = positions_of(config)
    if positions is not None and (length := task.max_length) > positions:
        message = f"must be at most {positions}, the positions the model knows, not {length}"
        problems.append(Problem("task.max_length", message, code="out_of_range"))

    def check_layouts() -> None:
        layout = _layout(settings, task, method, tokenizer, sample)
        _check_method(settings, method, layout, config)
        _check_emulated(settings, task, method, tokenizer, layout)

    def check_tokenizer() -> None:
        nonlocal tokenizer
        if isinstance(settings.model.tokenizer, TrainedTokenizer):
            return
        tokenizer = tokenizer or read_tokenizer(settings.model)
        task.check_tokenizer(tokenizer)
        if settings.model.vocabulary is not None:
            bpe_parts(tokenizer)

    refuse([*problems, *refusals(check_layouts, check_tokenizer)])
    return None if sample else tokenizer


def _unfit_sample(
    sample: PreTrainedModel, settings: RunSettings, task: Task, method: Method | None, *, frozen: bool
) -> list[Problem]:
    """Returns what a model that a factory gives cannot be used for here."""
    name, problems = settings.model.name, []
    types = {parameter.dtype for parameter in sample.parameters() if parameter.is_floating_point()}
    if not frozen and (other := types - {torch.float32}):
        message = f"weights that train must be float32; {name!r} gives {', '.join(map(str, other))}"
        problems.append(Problem("model.name", message, code="wrong_type"))
    if not isinstance(sample, PlainModel):
        return problems
    what = f"{name!r} gives a module of one's own, which"
    if task.generates:
        message = f"{what} generates no text, as task {task.name} does; a transformers model can"
        problems.append(Problem("model.name", message, code="not_supported"))
    if method is not None and method.divides("") is not None:
        message = f"{what} cannot be divided, as {method.name} does; a transformers model can"
        problems.append(Problem("model.name", message, code="not_supported"))
    return problems


def _layout(
    settings: RunSettings,
    task: Task,
    method: Method | None,
    tokenizer: Any,
    sample: PreTrainedModel | None,
) -> Layout:
    """Returns the layout of the model with its adapter, without loading any weights.

    Args:
        settings: The run's settings.
        task: The task.
        method: The method, if it is known.
        tokenizer: The model's, where already its configuration needs it.
        sample: What a factory has given; used up.

    Raises:
        ConfigurationError: The adapter is not one the method works with, or does not fit the model.
    """
    module = sample or skeleton(settings.model, kind=task.kind, labels=_STAND_IN, tokenizer=tokenizer)
    adapter = settings.adapter
    if settings.training.checkpointing:
        _check_checkpointing(module, adapter)
    if adapter is None:
        return find_layout(module)
    if task.generates and adapter.kind == "prefix":
        message = f"is not there while an answer is generated, as task {task.name} does"
        raise refused("adapter.kind", f"{message}; use lora or bottleneck", "not_supported")
    if method is not None and method.adapters and adapter.kind not in method.adapters:
        allowed = " or ".join(method.adapters)
        message = f"must be {allowed} with method {method.name}, not {adapter.kind!r}"
        raise refused("adapter.kind", message, "conflict")
    full = method.full_parts(find_layout(module)) if method is not None else ()
    return find_layout(*wrap(module, adapter, kind=task.kind, full=full))


def _check_checkpointing(module: PreTrainedModel, adapter: AdapterSettings | None) -> None:
    if not module.supports_gradient_checkpointing:
        message = f"transformers has none for {type(module).__name__}; leave it false"
        raise refused("training.checkpointing", message, "not_supported")
    if adapter is not None and adapter.kind == "prefix":
        message = "keeps no keys and values, to which a prefix adds; leave it false with adapter.kind prefix"
        raise refused("training.checkpointing", message, "conflict")


def _check_method(settings: RunSettings, method: Method | None, layout: Layout, config: Any) -> None:
    """Refuses a method that does not fit the model, and a cache asked for where there is nothing to keep."""
    if method is None:
        return
    if problems := method.problems(Facts(model=settings.model, adapter=settings.adapter)):
        raise ConfigurationError(problems)
    method.private(layout)  # refuses what does not fit, as the next does
    trained = method.trainable(layout)
    if settings.training.frozen_dropout == "on" and not _has_frozen_part(layout, trained):
        message = f"'on' has no meaning with {method.name}, with which the embedding and every block train"
        raise refused("training.frozen_dropout", message, "no_effect")
    if settings.training.frozen_dropout == "on" and _has_no_dropout(config):
        message = f"'on' has no meaning with {settings.model.name}, whose blocks have no dropout"
        raise refused("training.frozen_dropout", message, "not_supported")
    cut = frozen_blocks(layout, trained)
    if settings.training.cache == "on" and cut == 0:
        message = (
            "'on' needs a frozen embedding and frozen lower blocks, and with this method they train; use auto"
        )
        raise refused("training.cache", message, "conflict")


def _has_frozen_part(layout: Layout, trained: Collection[str]) -> bool:
    """Whether nothing of the embedding, or of a block, trains."""
    return any(not {*trained}.intersection(part) for part in (layout.embedding, *layout.blocks))


def _has_no_dropout(config: Any) -> bool:
    """Whether a configuration says that only the task head has dropout; one's own modules say nothing."""
    if isinstance(config, PlainConfig):
        return False
    values = config.get_text_config().to_dict()
    rates = (value for name, value in values.items() if "drop" in name and "classifier" not in name)
    return not any(isinstance(rate, int | float) and rate > 0 for rate in rates)

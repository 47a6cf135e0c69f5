"""Models that a factory gives: `(kind, labels) -> (module, tokenizer)`, named as methods and tasks are.

The factory is code of whoever runs this process. It is called wherever the model is loaded, with the random
state drawn from the run's seed, so that new weights are the same everywhere; what it gives counts as
pretrained. A module that is no transformers model is wrapped (`fedstrata.models.plain`).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedModel

from fedstrata.core.errors import ConfigurationError, Problem, refused
from fedstrata.core.files import new_folder
from fedstrata.core.plugins import Plugins, is_reference
from fedstrata.core.settings.model import ModelSettings
from fedstrata.models.blocks import choose_blocks, single_list
from fedstrata.models.locate import PACKAGE_PREFIX, WEIGHTS, check_weights
from fedstrata.models.plain import BODY, PlainConfig, PlainModel, read_weights
from fedstrata.models.trial import require_forward, require_logits, watch_blocks

Factory = Callable[[str, tuple[str, ...]], tuple[nn.Module, Any]]
MODELS = Plugins[Factory](
    "fedstrata.models",
    {},
    kind="model: no function (kind, labels) -> (module, tokenizer)",
    is_one=callable,
)
"""Every factory by its name in a configuration."""
_SHORT = 3
"""Tokens of a text that a module is called with where nothing is known of the task."""


def names_factory(name: str) -> bool:
    """Whether `model.name` names a factory: a reference, or what an installed package calls one."""
    if name.startswith(PACKAGE_PREFIX) or name == "mini":
        return False
    return is_reference(name) or name in MODELS.installed or MODELS.why_only_here(name) != ""


def misplaced(settings: ModelSettings) -> list[Problem]:
    """Returns the problems with settings that say nothing of a model that a factory gives, or only of one."""
    if not names_factory(settings.name):
        message = "belongs to a model that a factory gives (model.name: package.module:factory)"
        return [Problem("model.weights", message, code="no_effect")] if settings.weights is not None else []
    idle = ("init", "config", "tokenizer", "vocabulary", "dtype", "attention", "quantization", "revision")
    usual = ModelSettings()
    message = f"has no effect on what the factory {settings.name!r} gives; leave it out"
    return [
        Problem(f"model.{key}", message, code="no_effect")
        for key in idle
        if getattr(settings, key) != getattr(usual, key)
    ]


def make(
    settings: ModelSettings, *, kind: str, labels: Sequence[str] = (), tokens: int = _SHORT
) -> tuple[PreTrainedModel, Any]:
    """Calls the factory, and checks what it gives by calling that once.

    Args:
        settings: Which factory, and what is read into what it gives.
        kind: As for `fedstrata.models.load.load`.
        labels: The output classes in order; a causal language model has none.
        tokens: Length of the texts that the model must take.

    Returns:
        The model on the CPU, in evaluation mode, and its tokenizer.

    Raises:
        ConfigurationError: A setting has no effect, the name is none, the factory fails, or what it gives is
            no such model.
    """
    if problems := misplaced(settings):
        raise ConfigurationError(problems)
    name = settings.name
    module, tokenizer = _called(MODELS.find(name, "model.name"), name, kind, tuple(labels))
    if settings.weights is not None:
        _read(module, Path(settings.weights).expanduser(), name)
    require_forward(module, name)
    rows = int(max(tokenizer.get_vocab().values())) + 1
    model = module if isinstance(module, PreTrainedModel) else _wrapped(module, settings, kind)
    if settings.blocks is not None and model is module:
        choose_blocks(model, settings.blocks)
    require_logits(model, name, kind, labels=len(labels), rows=rows, tokens=tokens)
    return model, tokenizer


def _called(factory: Factory, name: str, kind: str, labels: tuple[str, ...]) -> tuple[nn.Module, Any]:
    try:
        made: Any = factory(kind, labels)
    except Exception as error:  # whatever a stranger's code raises
        reason = (str(error).splitlines() or [""])[0]
        message = f"the factory {name!r} has failed for a {kind} model: {type(error).__name__}: {reason}"
        raise refused("model.name", message, "failed") from error
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        message = f"the factory {name!r} must return (module, tokenizer), not {_described(made)}"
        raise refused("model.name", message, "wrong_type")
    module, tokenizer = made
    _require_no_adapter(module, f"the factory {name!r} gives")
    _check_tokenizer(tokenizer, f"the factory {name!r} gives")
    return module.cpu().eval(), tokenizer


def _described(made: Any) -> str:
    if isinstance(made, tuple):
        return f"({', '.join(type(each).__name__ for each in made)})"
    return f"a {type(made).__name__}"


def _require_no_adapter(module: nn.Module, what: str) -> None:
    if hasattr(module, "peft_config"):
        raise refused(
            "model.name",
            f"{what} a model with a PEFT adapter: give the model alone, and the adapter as `adapter`; or "
            "merge it before (merge_and_unload)",
            "holds_adapter",
        )


def _check_tokenizer(tokenizer: Any, what: str) -> None:
    """Refuses a tokenizer that gives no offsets, or nothing to pad with; sets the token that pads."""
    if not getattr(tokenizer, "is_fast", False):
        raise refused(
            "model.name",
            f"{what} a {type(tokenizer).__name__}, which gives no character offsets; a fast tokenizer of "
            "transformers is needed (PreTrainedTokenizerFast)",
            "no_offsets",
        )
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise refused(
                "model.name", f"{what} a tokenizer without padding and end-of-sequence token", "lacks_tokens"
            )
        tokenizer.pad_token = tokenizer.eos_token


def _read(module: nn.Module, folder: Path, name: str) -> None:
    if not (folder / WEIGHTS).is_file():
        raise refused("model.weights", f"{str(folder)!r} holds no {WEIGHTS}", "not_found")
    try:
        read_weights(module, folder)
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        message = f"the weights in {str(folder)!r} are not those of the model that {name!r} gives: {reason}"
        raise refused("model.weights", message, "wrong_weights") from error


def _wrapped(module: nn.Module, settings: ModelSettings, kind: str) -> PlainModel:
    """Returns a module of one's own as a transformers model."""
    path = single_list(module, settings.blocks, settings.name)
    seen = watch_blocks(module, path, settings.name)
    count = len(list(module.get_submodule(path).children()))
    config = PlainConfig(
        factory=settings.name,
        hidden_size=seen.hidden,
        num_hidden_layers=count,
        is_causal=kind == "causal-lm",
    )
    model = PlainModel(config, module)
    model.given_blocks = f"{BODY}.{path}"
    model.after_blocks = tuple(f"{BODY}.{each}" for each in seen.after)
    return model


def keep_model(
    model: nn.Module, tokenizer: Any, folder: Path, *, factory: Factory | str | None = None
) -> dict[str, Any]:
    """Saves a model that was given as an object, so that a run needs nothing but its own directory.

    Args:
        model: A transformers model with its own class of configuration; or, with a factory, any module that
            the factory gives, whose weights are kept.
        tokenizer: Its fast tokenizer.
        folder: Where to; written whole or not at all, and must not exist or be empty.
        factory: What gives a module that is no transformers model, or its name.

    Returns:
        The section `model` of a configuration.

    Raises:
        ConfigurationError: The model cannot be kept in a file that runs no code; it names the way out.
        OSError: It cannot be written.
    """
    named = {"name": MODELS.name_of(factory) if callable(factory) else factory} if factory else {}
    _require_no_adapter(model, "model= is")
    _check_tokenizer(tokenizer, "tokenizer= is")
    if named:
        with new_folder(folder, private=True) as unfinished:
            save_model(model, str(unfinished / WEIGHTS), metadata={"format": "pt"})
        return {**named, "weights": str(folder.absolute())}
    _require_savable(model)
    with new_folder(folder, private=True) as unfinished:
        model.save_pretrained(unfinished)  # type: ignore[operator]  # checked: a model of transformers
        tokenizer.save_pretrained(unfinished)
    check_weights(folder, str(folder), type(model).__name__)
    return {"name": str(folder.absolute())}


def _require_savable(model: nn.Module) -> None:
    """Refuses what transformers could not load again without code of a stranger's."""
    what = f"model= is a {type(model).__name__}"
    way = "give a factory that can be imported, `def make(kind, labels): return module, tokenizer`"
    if not isinstance(model, PreTrainedModel):
        raise refused(
            "model",
            f"{what}, which no file can hold but a pickle, and that may run code; {way}",
            "not_supported",
        )
    if getattr(model, "is_quantized", False):
        message = f"{what} with quantized weights; give it in float32 and set model.quantization"
        raise refused("model.quantization", message, "not_supported")
    kind = model.config.model_type
    own = kind == PlainConfig.model_type or kind not in CONFIG_MAPPING
    if own or type(model.config) is not CONFIG_MAPPING[kind]:
        message = f"{what}, whose configuration ({type(model.config).__name__}) is none of transformers' own"
        raise refused("model", f"{message}; {way}", "not_supported")

"""Loading any Hugging Face causal language model, token classifier or sequence classifier.

Weights come from safetensors files only; nothing is unpickled and no code of a repository runs. What no file
holds (usually the task head) is drawn from a seed, so that all sites start from the same numbers.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    modeling_layers,
)
from transformers.models.auto.auto_factory import _get_model_class

from fedstrata.core.errors import Problem, did_you_mean, refuse, refused
from fedstrata.core.model import HEAD
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings, TrainedTokenizer
from fedstrata.models.blocks import block_count, choose_blocks, find_layout
from fedstrata.models.given import make, names_factory
from fedstrata.models.locate import check_weights, locate, refuse_adapter
from fedstrata.models.quantize import check_quantized, quantization
from fedstrata.models.state import Model
from fedstrata.models.transformers_calls import explained, quiet
from fedstrata.models.vocabulary import cut_config, cut_module, kept_tokens

AUTO_CLASSES: dict[str, Any] = {
    "token-classification": AutoModelForTokenClassification,
    "sequence-classification": AutoModelForSequenceClassification,
    "causal-lm": AutoModelForCausalLM,
}

_VOCABULARY_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tekken.json", "*.model")


def load(
    settings: ModelSettings,
    *,
    kind: str,
    labels: Sequence[str] = (),
    problem_type: str | None = None,
    seed: Seed,
    tokenizer: Any = None,
    without: Callable[[PreTrainedModel], None] | None = None,
) -> Model:
    """Loads or creates a model and its tokenizer on the CPU, in evaluation mode, every parameter frozen.

    Args:
        settings: Which model.
        kind: `token-classification`, `sequence-classification` or `causal-lm`.
        labels: The output classes in order; a causal language model has none.
        problem_type: What a sequence classifier's configuration is to say of its labels, since its users
            apply a softmax or a sigmoid accordingly: `single_label_classification` or
            `multi_label_classification`; what it said before if none.
        seed: Where new parameters come from. The global random state is left as it was.
        tokenizer: The tokenizer that was built from the training texts, or cut to public texts, where the
            settings ask for one.
        without: Takes parts out of the module before its weights are read: those of the parts are not. With
            `init: random` all are drawn first, so that what stays has the numbers it has in the whole model.

    Returns:
        The model; `new_parameters` names what no file held.

    Raises:
        ConfigurationError: There is no such model here or on the hub, it is broken, it has no head of this
            kind or no single stack of blocks, or its tokenizer cannot give offsets.
    """
    if names_factory(settings.name):
        with seed.everywhere():
            module, tokenizer = make(settings, kind=kind, labels=labels)
        _label(module.config, labels, problem_type)
        new: tuple[str, ...] = ()
        if without is not None:
            without(module)
    else:
        tokenizer = tokenizer or early_tokenizer(settings)
        config = _for_kind(_whole_config(settings, tokenizer), settings, kind, labels, problem_type)
        tokenizer = tokenizer or read_tokenizer(settings)
        _check_vocabulary(config, tokenizer, settings)
        with seed.everywhere():
            module, new = _named(config, settings, kind, without)
        if settings.vocabulary is not None:
            cut_module(module, _kept(tokenizer))
            cut_config(module.config, _kept(tokenizer))
    model = Model(module.train(False), tokenizer, name=settings.name, new_parameters=new)
    # After the model is built: an embedding made with a padding index keeps that row at zero.
    config = module.config.get_text_config()
    config.pad_token_id = tokenizer.pad_token_id
    config.use_cache = False
    if module.can_generate():
        module.generation_config.pad_token_id = tokenizer.pad_token_id
        if settings.init == "random":  # its family's defaults are tokens of other tokenizers
            for key in {"bos_token_id", "eos_token_id"} - settings.config.keys():
                setattr(config, key, getattr(tokenizer, key))
                setattr(module.generation_config, key, getattr(tokenizer, key))
    return model


def _named(
    config: Any, settings: ModelSettings, kind: str, without: Callable[[PreTrainedModel], None] | None
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """Returns the model of a folder or an architecture, and its parameters that no file held."""
    if settings.init != "random":
        return _load_weights(config, settings, kind, without)
    module = _create(config, settings, kind)
    if without is not None:
        without(module)
    return module, tuple(name for name, _ in module.named_parameters())


def skeleton(
    settings: ModelSettings, *, kind: str, labels: Sequence[str] = (), tokenizer: Any = None
) -> PreTrainedModel:
    """Builds the model `load` would give, without weights: names, shapes and layout at no cost in memory.

    The arguments are those of `load`. Where the tokenizer is yet to be built the vocabulary is as large as it
    may become.

    Returns:
        The model on torch's `meta` device; what a factory gives as it is.

    Raises:
        ConfigurationError: As for `load`, as far as weights and tokenizer are not concerned.
    """
    if names_factory(settings.name):
        return make(settings, kind=kind, labels=labels)[0]
    with torch.device("meta"):
        config = _for_kind(read_config(settings, tokenizer), settings, kind, labels)
        module = _create(config, settings, kind)
    find_layout(module)
    return module


def read_config(settings: ModelSettings, tokenizer: Any = None) -> PretrainedConfig:
    """Reads a model's configuration with the settings' overrides; no weights are touched.

    Args:
        settings: Which model. With `init: random` and a `model_type` the configuration is made from the
            settings alone, with the vocabulary of the tokenizer unless `vocab_size` is given. The vocabulary
            is also that of a tokenizer that is built from the training texts.
        tokenizer: As for `load`. Where it is yet to be built the vocabulary is as large as it may become, and
            where it is yet to be cut it is whole.

    Raises:
        ConfigurationError: It cannot be found or read, or an override is unknown or of the wrong type.
    """
    config = _whole_config(settings, tokenizer)
    if settings.vocabulary is not None and tokenizer is not None:
        cut_config(config, _kept(tokenizer))
    return config


def _whole_config(settings: ModelSettings, tokenizer: Any) -> PretrainedConfig:
    """Reads the configuration of the model as it is before its vocabulary is cut."""
    overrides = dict(settings.config)
    with quiet():
        if "model_type" not in overrides:
            folder = locate(settings.name, revision=settings.revision, weights=False)
            if isinstance(settings.tokenizer, TrainedTokenizer):
                overrides.setdefault("vocab_size", _vocabulary(settings, tokenizer))
            return _config_of_folder(folder, settings.name, overrides)
        if settings.init != "random":
            raise refused("model.config.model_type", "can be given only with `init: random`", "conflict")
        return _config_from_scratch(settings, overrides, tokenizer)


def read_tokenizer(settings: ModelSettings) -> Any:
    """Reads the model's tokenizer; one without a padding token pads with its end-of-sequence token.

    Raises:
        ConfigurationError: There is none, it cannot give character offsets, or it has neither token.
    """
    if isinstance(settings.tokenizer, TrainedTokenizer):
        raise ValueError("a tokenizer that is yet to be built cannot be read")
    name = settings.tokenizer or settings.name
    setting = "model.tokenizer" if settings.tokenizer else "model.name"
    revision = settings.revision if name == settings.name else None
    folder = locate(name, revision=revision, weights=False, setting=setting)
    with quiet(), explained(setting, f"{name!r} has no readable tokenizer", "unreadable"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if not tokenizer.is_fast:
        raise refused(
            setting,
            f"{name!r} has a {type(tokenizer).__name__}, which gives no character offsets; "
            "a tokenizer with a tokenizer.json (a 'fast' one) is needed",
            "no_offsets",
        )
    if not any(path for pattern in _VOCABULARY_FILES for path in folder.glob(pattern)):
        raise refused(
            setting, f"{name!r} holds no vocabulary: none of {', '.join(_VOCABULARY_FILES)}", "not_found"
        )
    for key in ("is_local", "local_files_only"):  # how it was read here, nothing to save with it
        tokenizer.init_kwargs.pop(key, None)
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise refused(
                setting,
                f"the tokenizer of {name!r} has no padding and no end-of-sequence token",
                "lacks_tokens",
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _kept(tokenizer: Any) -> list[int]:
    kept = kept_tokens(tokenizer)
    if kept is None:
        raise ValueError("settings with model.vocabulary need a tokenizer that was cut")
    return kept


def early_tokenizer(settings: ModelSettings) -> Any:
    """Returns the tokenizer where already the model's configuration needs it, so that it is read once."""
    from_scratch = settings.init == "random" and "model_type" in settings.config
    built = isinstance(settings.tokenizer, TrainedTokenizer)
    return read_tokenizer(settings) if from_scratch and not built else None


def _config_of_folder(folder: Path, name: str, overrides: dict[str, Any]) -> PretrainedConfig:
    if not (folder / "config.json").is_file():
        refuse_adapter(folder, name)
        run = (folder / "record.jsonl").is_file()
        found = "; it is a run: name what `fedstrata export RUN --out FOLDER` writes" if run else ""
        raise refused("model.name", f"{name!r} has no config.json{found}", "not_found")
    with explained("model.name", f"the config.json of {name!r} is not usable", "unreadable"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    _refuse_strays(config, [key for key in overrides if not hasattr(config, key)])
    for key, value in overrides.items():
        with explained(f"model.config.{key}", f"{value!r} does not fit", "invalid"):
            setattr(config, key, value)
    with explained("model.config", "the values do not fit together", "conflict"):
        config.validate()
    config.transformers_weights = None  # would name another file of weights, maybe a pickled one
    return config


def _config_from_scratch(
    settings: ModelSettings, overrides: dict[str, Any], tokenizer: Any
) -> PretrainedConfig:
    model_type = overrides.pop("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        close = difflib.get_close_matches(str(model_type), CONFIG_MAPPING, n=3)
        hint = f", for example {', '.join(close)}" if close else ", for example llama, gpt2 or bert"
        raise refused(
            "model.config.model_type",
            f"{model_type!r} is no model_type of transformers{hint}",
            "unknown_name",
        )
    config_class = CONFIG_MAPPING[model_type]
    if "vocab_size" not in overrides and hasattr(config_class, "vocab_size"):
        overrides["vocab_size"] = _vocabulary(settings, tokenizer)
    with explained("model.config", f"no {model_type} can be made with these values", "invalid"):
        config = AutoConfig.for_model(model_type, **overrides)
    # A configuration takes any key; what it does not know it keeps as an attribute that nobody reads.
    _refuse_strays(config, [key for key in overrides if key in vars(config)])
    return config


def _refuse_strays(config: PretrainedConfig, keys: Sequence[str]) -> None:
    """Refuses the keys among these that nothing would ever read, all at once."""
    known = {field.name for field in dataclasses.fields(config)} | set(config.attribute_map) | {"is_causal"}
    problems = []
    for key in keys:
        if key not in known and not _is_read_by_family(config, key):
            hint = did_you_mean(key, known, before="; ")
            message = f"{type(config).__name__} has no such setting{hint}"
            problems.append(Problem(f"model.config.{key}", message, code="unknown_key"))
    refuse(problems)


def _is_read_by_family(config: PretrainedConfig, key: str) -> bool:
    """Whether the family's source, or the heads all families share, name an undeclared key.

    `getattr(config, "classifier_dropout", None)`, for one, decides the dropout of Llama's token classifier.
    """
    sources = [*Path(inspect.getfile(type(config))).parent.glob("*.py"), Path(modeling_layers.__file__)]
    return any(f'"{key}"' in source.read_text(encoding="utf-8") for source in sources)


def _for_kind(
    config: Any, settings: ModelSettings, kind: str, labels: Sequence[str], problem_type: str | None = None
) -> Any:
    """Checks that transformers has such a head for this architecture, and sets its labels."""
    if kind not in AUTO_CLASSES:
        raise ValueError(f"kind must be one of {', '.join(AUTO_CLASSES)}, not {kind!r}")
    if type(config) not in AUTO_CLASSES[kind]._model_mapping:
        having = [other for other, auto in AUTO_CLASSES.items() if type(config) in auto._model_mapping]
        raise refused(
            "model.name",
            f"{settings.name!r} is a {config.model_type}, for which transformers has no {kind} model "
            f"(it has: {', '.join(having) or 'none of the three kinds'})",
            "not_supported",
        )
    if settings.blocks is None:
        block_count(config)
    if kind == "causal-lm":
        if getattr(config, "is_decoder", None) is False:
            config.is_decoder = True  # BERT and its kin would otherwise see the tokens they are to predict
        if getattr(config.get_text_config(), "is_causal", None) is False:
            raise refused(
                "model.config.is_causal",
                "false lets a model see the tokens that it is to predict",
                "sees_ahead",
            )
        return config
    if not labels:
        raise ValueError(f"a {kind} model needs labels")
    _label(config, labels, problem_type)
    return config


def _label(config: Any, labels: Sequence[str], problem_type: str | None) -> None:
    """Writes into a configuration what its classes are; a language model has none."""
    for part in (config, config.get_text_config()) if labels else ():  # some models are built from the latter
        part.id2label = dict(enumerate(labels))
        part.label2id = {label: index for index, label in enumerate(labels)}
        part.problem_type = problem_type or part.problem_type


def _check_vocabulary(config: Any, tokenizer: Any, settings: ModelSettings) -> None:
    rows, needed = config.get_text_config().vocab_size, _rows_needed(tokenizer)
    if needed > rows:
        built = isinstance(settings.tokenizer, TrainedTokenizer)
        whose = "built from the texts" if built else f"of {settings.tokenizer or settings.name!r}"
        raise refused(
            "model.tokenizer" if settings.tokenizer else "model.name",
            f"the tokenizer {whose} has {needed} tokens, but the model's vocabulary has {rows}",
            "conflict",
        )


def _vocabulary(settings: ModelSettings, tokenizer: Any) -> int:
    """Returns the tokens of the model's tokenizer; the most it may have where it is yet to be built."""
    if tokenizer is None and isinstance(settings.tokenizer, TrainedTokenizer):
        return settings.tokenizer.vocabulary
    return _rows_needed(tokenizer or read_tokenizer(settings))


def _rows_needed(tokenizer: Any) -> int:
    return int(max(tokenizer.get_vocab().values())) + 1


def _create(config: Any, settings: ModelSettings, kind: str) -> PreTrainedModel:
    dtype = torch.float32 if settings.dtype == "auto" else getattr(torch, settings.dtype)
    with quiet(), explained("model", f"no {kind} model can be made", "failed"):
        module = AUTO_CLASSES[kind].from_config(
            config, dtype=dtype, trust_remote_code=False, **_attention_arguments(settings)
        )
    if settings.blocks is not None:
        choose_blocks(module, settings.blocks)
    return module


def _load_weights(
    config: Any, settings: ModelSettings, kind: str, without: Callable[[PreTrainedModel], None] | None
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    folder = locate(settings.name, revision=settings.revision, weights=True)  # a download shows its progress
    check_weights(folder, settings.name, AUTO_CLASSES[kind].__name__)
    quantized = quantization(settings)
    loader = AUTO_CLASSES[kind] if without is None else _class_without(kind, config, without)
    with quiet(), explained("model", f"{settings.name!r} cannot be loaded", "unreadable"):
        module, report = loader.from_pretrained(
            folder,
            config=config,
            dtype=settings.dtype if settings.dtype == "auto" else getattr(torch, settings.dtype),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **_attention_arguments(settings),
            **quantized,
        )
    if without is not None:
        module.__class__ = type(module).__base__
    if settings.blocks is not None:
        choose_blocks(module, settings.blocks)
    if quantized:
        check_quantized(module, settings)
    return module, _new_parameters(module, report, settings.name)


def _class_without(kind: str, config: Any, without: Callable[[PreTrainedModel], None]) -> Any:
    """Returns a class whose models lack some parts from the beginning, while they are still without weights.

    transformers reads of a file what the model has a place for, and passes over the rest unread.
    """
    whole: Any = _get_model_class(config, AUTO_CLASSES[kind]._model_mapping)

    class Part(whole):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            without(self)

    return Part


def _new_parameters(module: PreTrainedModel, report: dict[str, Any], name: str) -> tuple[str, ...]:
    """Returns the parameters that no file held, in model order; only the task head may lack any."""
    layout = find_layout(module)
    shapes = {key: (tuple(stored), tuple(wanted)) for key, stored, wanted in report["mismatched_keys"]}
    absent = set(report["missing_keys"]) | set(shapes)
    new = tuple(key for key, _ in module.named_parameters() if key in absent)
    lacking = [key for key in new if layout.group_of(key) != HEAD]
    if lacking:
        held, wanted = shapes.get(lacking[0], ((), ()))
        detail = f"is {held} in the file, not {wanted}" if wanted else "is not there"
        raise refused(
            "model.name",
            f"the weights of {name!r} do not fit its configuration: {len(lacking)} tensors outside the task "
            f"head are missing or of another shape; the first, {lacking[0]}, {detail}",
            "wrong_weights",
        )
    return new


def _attention_arguments(settings: ModelSettings) -> dict[str, str]:
    return {} if settings.attention == "auto" else {"attn_implementation": settings.attention}

"""A configuration object of PEFT's as the section `adapter` of ours."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedstrata.core.errors import ConfigurationError, Problem, refused

_SETTINGS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "LORA": (
        "lora",
        {"r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout", "target_modules": "targets"},
    ),
    "BOTTLENECK": (
        "bottleneck",
        {"width": "width", "activation": "activation", "target_modules": "targets"},
    ),
    "PREFIX_TUNING": ("prefix", {"num_virtual_tokens": "tokens"}),
}
"""What of PEFT's configurations is a setting of ours, and which, by PEFT's kinds."""
_SAYS_NOTHING = frozenset({"peft_type", "task_type", "auto_mapping", "peft_version", "fan_in_fan_out"})
"""What changes nothing: the task says the kind of model, and PEFT itself sees how a layer's weights lie."""
_HINTS = {
    "modules_to_save": "the task head trains with every adapter",
    "use_rslora": "the same is alpha = lora_alpha * sqrt(r)",
    "inference_mode": "an adapter that is trained already is merged into its model first",
}


def section_of(config: Any) -> dict[str, Any]:
    """Returns the section `adapter` of a configuration that says what an object of PEFT's says.

    Names of layers mean those inside the blocks.

    Args:
        config: A `LoraConfig`, a `PrefixTuningConfig`, or a `BottleneckConfig` of `fedstrata.adapters`.

    Raises:
        ConfigurationError: It says something that the adapters here do not do; all of it at once, by name.
    """
    peft_type = getattr(config, "peft_type", None)
    own = _SETTINGS.get(str(getattr(peft_type, "value", peft_type)))
    if own is None or not dataclasses.is_dataclass(config):
        allowed = "a LoraConfig, a PrefixTuningConfig or a fedstrata.adapters.bottleneck.BottleneckConfig"
        raise refused("adapter", f"must be {allowed}, not a {type(config).__name__}", "wrong_type")
    kind, taken = own
    made: Any = type(config)
    usual = made(**{name: getattr(config, name) for name in taken if kind == "prefix"})
    problems = [
        _refused(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in {*taken, *_SAYS_NOTHING}
        and getattr(config, field.name) != getattr(usual, field.name)
    ]
    section = {"kind": kind, **{ours: getattr(config, theirs) for theirs, ours in taken.items()}}
    if "targets" in section:
        problems += _unnamed(config, kind)
        targets = section["targets"]
        section["targets"] = targets if targets is None or isinstance(targets, str) else sorted(targets)
    if problems:
        raise ConfigurationError(problems)
    return section


def _refused(config: Any, name: str) -> Problem:
    hint = f"; {_HINTS[name]}" if name in _HINTS else ""
    value = f"{name}={getattr(config, name)!r} of the {type(config).__name__}"
    return Problem(
        "adapter",
        f"{value} is nothing that adapters here do; leave it as PEFT has it{hint}",
        code="not_supported",
    )


def _unnamed(config: Any, kind: str) -> list[Problem]:
    """Returns the problem that layers are not named in a way that means the same here."""
    targets, several = config.target_modules, not isinstance(config.target_modules, str)
    if (
        (several and targets)
        or (targets is None and kind != "lora")
        or (targets == "all-linear" and kind == "lora")
    ):
        return []
    allowed = "the ends of names of layers, [query, value]"
    allowed += ", or 'all-linear'; PEFT's own choice for a family is none of ours" if kind == "lora" else ""
    given = f"target_modules={targets!r} of the {type(config).__name__}"
    return [Problem("adapter", f"{given} must be {allowed}", code="wrong_form")]

"""Bottleneck adapters as a method of PEFT: h + up(activation(down(h))) behind chosen linear layers.

Source: Houlsby et al. 2019, "Parameter-Efficient Transfer Learning for NLP", section 2 and figure 2. PEFT has
none, so this adds one, built from PEFT's own parts: injection, saving and loading are PEFT's. After

    import fedstrata.adapters.bottleneck

`peft.PeftModel.from_pretrained` loads a folder with such an adapter.
"""

from dataclasses import dataclass, field
from typing import Any

from aenum import extend_enum
from peft import PeftConfig, PeftType
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils import register_peft_method
from torch import Tensor, nn
from transformers.activations import ACT2FN

NAME = "bottleneck"


@dataclass
class BottleneckConfig(PeftConfig):  # type: ignore[misc]  # PEFT has no types
    """PEFT's configuration of bottleneck adapters.

    Attributes:
        width: Numbers between down and up.
        activation: Its name in transformers.
        target_modules: The linear layers that adapters follow: ends of names, or a regular expression.
        exclude_modules: Those of them that are left out.
        modules_to_save: Modules that train as a whole and are saved with the adapter.
        layers_to_transform: Numbers of the blocks that get adapters; all if none.
        layers_pattern: The name of the list of blocks, where PEFT does not know it.
    """

    width: int = field(default=32)
    activation: str = field(default="gelu")
    target_modules: list[str] | str | None = field(default=None)
    exclude_modules: list[str] | str | None = field(default=None)
    modules_to_save: list[str] | None = field(default=None)
    layers_to_transform: list[int] | int | None = field(default=None)
    layers_pattern: list[str] | str | None = field(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType[NAME.upper()]
        if isinstance(self.target_modules, list):
            self.target_modules = set(self.target_modules)  # type: ignore[assignment]  # as PEFT wants them


class BottleneckLayer(nn.Module, BaseTunerLayer):  # type: ignore[misc]
    """A linear layer with adapters behind it.

    At first `up` is zero, so that the model computes what it did. Rows of `down` and columns of `up` that are
    zero stay zero when training, so an adapter is equal to a wider one that is padded with zeros.

    Args:
        base_layer: The linear layer.
        adapter_name: The name of its first adapter.
        config: The configuration of that.
    """

    # What PEFT's parent class provides, which has no types.
    get_base_layer: Any
    set_adapter: Any
    disable_adapters: Any
    active_adapters: Any
    _move_adapter_to_device_of_base_layer: Any
    _cast_input_dtype: Any
    adapter_layer_names = ("bottleneck_down", "bottleneck_up")
    other_param_names = ("width", "activation")

    def __init__(self, base_layer: nn.Module, adapter_name: str, config: BottleneckConfig) -> None:
        super().__init__()
        self.base_layer: Any = base_layer
        self.width: dict[str, int] = {}
        self.activation: dict[str, Any] = {}
        self.bottleneck_down: Any = nn.ModuleDict({})
        self.bottleneck_up: Any = nn.ModuleDict({})
        self._disable_adapters = False
        self.merged_adapters: list[str] = []
        self._active_adapter = adapter_name
        self.update_layer(adapter_name, config)

    def update_layer(self, adapter_name: str, config: BottleneckConfig) -> None:
        """Adds an adapter of a name."""
        base: Any = self.get_base_layer()
        features = base.out_features if isinstance(base, nn.Linear) else base.nf  # GPT-2's Conv1D
        self.width[adapter_name] = config.width
        self.activation[adapter_name] = ACT2FN[config.activation]
        self.bottleneck_down[adapter_name] = nn.Linear(features, config.width)
        self.bottleneck_up[adapter_name] = nn.Linear(config.width, features)
        self.reset_bottleneck_parameters(adapter_name)
        self._move_adapter_to_device_of_base_layer(adapter_name)
        self.set_adapter(self.active_adapters, inference_mode=config.inference_mode)

    def reset_bottleneck_parameters(self, adapter_name: str) -> None:
        """Draws the first values of an adapter: `down` as torch draws a layer's weight, all else zero."""
        down, up = self.bottleneck_down[adapter_name], self.bottleneck_up[adapter_name]
        down.reset_parameters()
        for zero in (down.bias, up.weight, up.bias):
            nn.init.zeros_(zero)

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Runs the layer and its active adapters: (..., in) to (..., out)."""
        output: Tensor = self.base_layer(hidden, *args, **kwargs)
        if self.disable_adapters:
            return output
        for name in self.active_adapters:
            if name in self.bottleneck_down:
                down, up = self.bottleneck_down[name], self.bottleneck_up[name]
                inner = self.activation[name](down(self._cast_input_dtype(output, down.weight.dtype)))
                output = output + up(inner).to(output.dtype)
        return output

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Raises: what is not linear cannot become part of a matrix."""
        raise ValueError("a bottleneck adapter is not linear and cannot be merged into the layer before it")

    def unmerge(self) -> None:
        """Does nothing: nothing is ever merged."""


class BottleneckModel(BaseTuner):  # type: ignore[misc]
    """What adds the adapters of a configuration to a model; see PEFT's `BaseTuner`."""

    prefix: str = f"{NAME}_"
    tuner_layer_cls = BottleneckLayer
    target_module_mapping: dict[str, list[str]] = {}  # noqa: RUF012 - PEFT reads it off the class

    def _create_and_replace(
        self,
        peft_config: BottleneckConfig,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        **_: Any,
    ) -> None:
        if isinstance(target, BottleneckLayer):
            target.update_layer(adapter_name, peft_config)
            return
        layer = BottleneckLayer(target, adapter_name, peft_config)
        if adapter_name not in self.active_adapters:
            layer.requires_grad_(False)
        self._replace_module(parent, target_name, layer, target)


if NAME.upper() not in PeftType.__members__:
    extend_enum(PeftType, NAME.upper(), NAME.upper())  # PEFT looks its methods up by members of this enum
    register_peft_method(name=NAME, config_cls=BottleneckConfig, model_cls=BottleneckModel)

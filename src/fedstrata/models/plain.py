"""A module of one's own as a transformers model, which is what all else here works with.

The wrapper adds no weights and changes no number. What a module must be is checked by calling it once.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_file
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import TokenClassifierOutput

from fedstrata.models.locate import WEIGHTS

BODY = "body"
"""Where the wrapper has the module; the names of all parameters begin with it."""


class PlainConfig(PretrainedConfig):  # type: ignore[misc]
    """What is known of a module of one's own: the factory that gives it, and what calling it has shown.

    Attributes:
        factory: The name or reference of the factory.
        hidden_size: Width of the blocks' hidden states.
        num_hidden_layers: Number of blocks.
        num_attention_heads: One as wide as the hidden states, as costs are counted: nothing says more.
        is_causal: Whether a token sees only the tokens before it.
    """

    model_type = "plain_module"
    factory: str = ""
    hidden_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 1
    is_causal: bool = False


AutoConfig.register(PlainConfig.model_type, PlainConfig)


class PlainModel(PreTrainedModel):  # type: ignore[misc]
    """The wrapper.

    Args:
        config: What is known of the module.
        body: The module; its `forward` takes `input_ids` and `attention_mask`, (rows, tokens) int64 each, and
            returns logits, or something that has them as `logits`.

    Attributes:
        given_blocks: Path of the list of blocks, within the wrapper.
        after_blocks: Paths of the modules that run after the last block.
    """

    config_class = PlainConfig
    base_model_prefix = BODY

    def __init__(self, config: PlainConfig, body: nn.Module) -> None:
        super().__init__(config)
        self.body = body
        self.prepare_inputs_for_generation = None  # PEFT asks a language model for it
        self.given_blocks = ""
        self.after_blocks: tuple[str, ...] = ()

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **unused: Any
    ) -> TokenClassifierOutput:
        """Returns the module's logits as transformers' models do."""
        with without_fast_path():
            output = self.body(input_ids=input_ids, attention_mask=attention_mask)
        return TokenClassifierOutput(logits=logits_of(output))

    def save_pretrained(
        self, save_directory: str | Path, state_dict: Mapping[str, Tensor] | None = None, **unused: Any
    ) -> None:
        """Writes the configuration, and the weights under the module's own names.

        `safetensors.torch.load_model` reads them into what the factory gives.

        Args:
            save_directory: The folder.
            state_dict: Values by the names of the wrapper, in place of those of the module.
            unused: What transformers' own models take besides.
        """
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(folder)
        values = self.state_dict() if state_dict is None else state_dict
        kept: dict[tuple[int, torch.Size], str] = {}  # of tied weights the first name
        for name, tensor in values.items():
            kept.setdefault((tensor.data_ptr(), tensor.shape), name)
        written = {name.removeprefix(f"{BODY}."): values[name].contiguous() for name in kept.values()}
        save_file(written, folder / WEIGHTS, metadata={"format": "pt"})


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Keeps torch's own encoder from its fast path, which reads weights past adapters and hooks."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def logits_of(output: Any) -> Any:
    """Returns the logits in what a module returned, or the output itself."""
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


def read_weights(module: nn.Module, folder: Path) -> None:
    """Reads weights that `save_pretrained` or `safetensors.torch.save_model` wrote into a module.

    Raises:
        OSError, RuntimeError, SafetensorError: They cannot be read, or do not fit.
    """
    load_model(module, folder / WEIGHTS)

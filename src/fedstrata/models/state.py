"""A model whose parameters are read, set, trained and put back by name.

One backbone serves hundreds of simulated clients: a client's tensors are loaded into it, some of them train,
and `Model.restore` brings back the model as it was. Only what was touched is ever copied.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from fedstrata.core.errors import FedstrataError, FrameError, did_you_mean
from fedstrata.core.files import close_to_others, errors_naming, private_folder
from fedstrata.core.model import Layout
from fedstrata.models.blocks import block_modules, find_layout, numbers_in, transformers_model
from fedstrata.models.plain import PlainConfig
from fedstrata.models.transformers_calls import quiet
from fedstrata.wire import frame

FIRST_VALUES = ".original_module."
"""What is in the names of the first values that PEFT keeps of a task head which trains with an adapter."""
_ADAPTERS = re.compile(r"\.(lora|bottleneck)_\w+\.|(^|\.)prompt_encoder\.")
"""What the names of an adapter's parameters have in them, and those of no model."""
QUANTISED_BYTES = 2
"""Bytes that a number of a quantised weight counts for where models are sent."""

_HASH_DIGITS = 16


def is_of_adapter(name: str) -> bool:
    """Whether PEFT added a parameter: one of an adapter, or a task head's first values."""
    return FIRST_VALUES in name or _ADAPTERS.search(name) is not None


class Model:
    """A handle around a transformers model, or around a PEFT wrapper of one.

    Every parameter starts frozen; `train_only` unfreezes. Parameters must change through `load` or by
    training what `train_only` was given, since `restore` undoes nothing else. After wrapping the module make
    a new handle: wrapping renames the parameters. Values
    under a name that no parameter has are a `FrameError`, whoever asks for them.

    Args:
        module: The model; frozen in place.
        tokenizer: Its tokenizer.
        name: What the user calls it.
        new_parameters: Parameters that no file held and that were drawn at random.
        learnable: Parameters that can train; all if none.

    Attributes:
        module, tokenizer, name, new_parameters: As given.
        layout: Its parameter names by part.
        is_causal: Whether a token sees only the tokens before it.
        emulated: What emulated devices count in its place (`train.emulated_model`); itself if none.
    """

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any,
        *,
        name: str,
        new_parameters: Iterable[str] = (),
        learnable: Collection[str] | None = None,
    ) -> None:
        self.module = module.requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        self.new_parameters = tuple(new_parameters)
        self.layout: Layout = find_layout(module, learnable)
        self.is_causal = _is_causal(module, self.layout)
        self.emulated: Any = None
        self._parameters = dict(module.named_parameters())
        self._base: dict[str, Tensor] = {}  # copies of parameters as they were, made when first touched
        self._trainable: set[str] = set()
        self._dirty: set[str] = set()  # may differ from its base value
        self._digests: dict[str, bytes] = {}  # hashes of base values, made when first asked for

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(iter(self._parameters.values())).device

    @property
    def parameter_count(self) -> int:
        """Numbers in all parameters; tied ones count once."""
        return sum(map(numbers_in, self._parameters.values()))

    @property
    def whole(self) -> tuple[str, ...]:
        """The parameters that make up the model without its adapter; all of them where it has none.

        Of a task head that trains with an adapter PEFT keeps the first values too, which are left out.
        """
        if not self.layout.frozen:
            return self.layout.all
        return tuple(name for name in (*self.layout.frozen, *self.layout.all) if not is_of_adapter(name))

    @property
    def trainable(self) -> tuple[str, ...]:
        """What trains at present, in model order."""
        return tuple(name for name in self._parameters if name in self._trainable)

    @property
    def remembered(self) -> tuple[str, ...]:
        """Parameters whose base value is kept as a copy: all that was ever loaded or trained."""
        return tuple(self._base)

    def bytes_of(self, names: Iterable[str]) -> int:
        """Returns the bytes of these parameters in the model's own dtype.

        A quantised one counts as bfloat16, two bytes a number: what a site would send that could train it.
        """
        return sum(
            numbers_in(one) * (one.element_size() if one.is_floating_point() else QUANTISED_BYTES)
            for one in self.parameters(names)
        )

    def parameters(self, names: Iterable[str]) -> list[nn.Parameter]:
        """Returns the live parameters of these names, in the order given."""
        return [self._parameter(name) for name in names]

    def tensors(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Returns detached views by name, on the model's device.

        They share the parameters' memory: nothing is copied, and they change when the model does.
        """
        return {name: self._parameter(name).detach() for name in names}

    def snapshot(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Returns contiguous copies by name, on the CPU, in the model's dtype."""
        return {
            name: tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in self.tensors(names).items()
        }

    def is_changed(self, names: Iterable[str]) -> bool:
        """Whether any of these parameters differs from its base value at present."""
        return any(self._differs(name) for name in names)

    def hashes(self, names: Iterable[str]) -> dict[str, str]:
        """Returns a hash of each of these parameters at its present value, by name.

        It is short: enough to tell weights apart that differ by mistake.
        """
        return {name: self.fingerprint([name])[:_HASH_DIGITS] for name in names}

    def names_outside(self, blocks: Iterable[int]) -> list[str]:
        """Returns the names of all parameters but those in some blocks, which are counted from 0."""
        inside = tuple(f"{self.layout.blocks_path}.{index}." for index in blocks)
        return [name for name in self._parameters if not name.startswith(inside)]

    def fingerprint(self, names: Iterable[str]) -> str:
        """Returns a hash of the names, shapes and present values of parameters.

        Base values never change and are read once in the life of the handle; others every time.
        """
        whole = hashlib.sha256()
        for name, parameter in self.tensors(names).items():
            if self._differs(name):
                digest = _digest(parameter)
            else:
                digest = self._digests.get(name) or _digest(parameter)
                self._digests[name] = digest
            whole.update(name.encode())
            whole.update(digest)
        return whole.hexdigest()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies values into the parameters of the same names; all of them, or none when one does not fit.

        Args:
            tensors: Values by parameter name, on any device; rounded to the parameter's dtype.

        Raises:
            FrameError: A name is unknown, a shape differs, or numbers would land in a quantised weight.
        """
        for name, value in tensors.items():
            self._check(name, value)
        self._remember(tensors)
        self._dirty.update(tensors)
        self._copy(tensors)

    def load_known(self, tensors: Mapping[str, Tensor]) -> None:
        """Loads those of some tensors that are parameters of the model; a state or a store may hold others.

        Raises:
            FrameError: As `load` does.
        """
        self.load({name: value for name, value in tensors.items() if name in self._parameters})

    def train_only(self, names: Collection[str]) -> None:
        """Makes exactly these parameters trainable and drops every other gradient.

        A tied weight has one name (that of the input embedding in most models): training it trains both ends.

        Args:
            names: Parameter names.
        """
        wanted = set(names)
        self.parameters(wanted)  # all names are known before anything changes
        self._remember(wanted)
        for name in self._trainable - wanted:
            parameter = self._parameters[name].requires_grad_(False)
            parameter.grad = None
        for name in wanted:
            self._parameters[name].requires_grad_(True)
        self._trainable = wanted
        self._dirty |= wanted

    def restore(self, keep: Collection[str] = ()) -> None:
        """Puts back the base value of what was loaded or trained since the last restore; drops gradients.

        Afterwards the model is bit-equal to the one this handle was made with, except in `keep`. What trains
        stays the same.

        Args:
            keep: Names that keep their present value; a later restore without them puts them back.
        """
        kept = set(keep)
        self._copy({name: self._base[name] for name in self._dirty - kept})
        for name in self._trainable:
            self._parameters[name].grad = None
        self._dirty = (self._dirty & kept) | self._trainable

    @contextmanager
    def holding(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Makes the model its base values with these in their place, within the block; then it is as before.

        Args:
            tensors: Values by parameter name; they may alias live parameters, whose values are back at the
                end.

        Raises:
            FrameError: As `load` does.
        """
        dirty = set(self._dirty)
        before = {name: self._parameters[name].detach().clone() for name in {*dirty, *tensors}}
        try:
            self.restore(keep=tensors)
            self.load(tensors)
            yield
        finally:
            self._copy(before)
            self._dirty = dirty

    def to(self, device: torch.device | str) -> Model:
        """Moves the model and its remembered base values; returns the same handle."""
        self.module.to(device)
        self._base = {name: tensor.to(device) for name, tensor in self._base.items()}
        return self

    def save(self, folder: Path, *, plain: Mapping[str, Tensor] | None = None) -> None:
        """Writes model and tokenizer as a folder that transformers (or PEFT) loads; safetensors only.

        The folder appears complete or not at all; an earlier model in its place is replaced.

        Args:
            folder: Where to; its parents are created.
            plain: The values of the model without its adapter, to be written in place of the adapter.

        Raises:
            FedstrataError: The place is taken by something that is no saved model.
            OSError: It cannot be written, for want of room for example.
        """
        folder = Path(folder)
        saved_before = any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))
        if folder.exists() and not saved_before and (not folder.is_dir() or any(folder.iterdir())):
            raise FedstrataError(
                f"{folder} exists and holds no saved model; it is left as it is", code="exists"
            )
        private_folder(folder.parent)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".saving-") as work:
            complete, replaced = Path(work, "new"), Path(work, "old")
            with errors_naming(folder, complete):
                self._write(complete, plain)
                close_to_others(complete)
            if folder.exists():
                folder.rename(replaced)
            complete.rename(folder)

    def _write(self, folder: Path, plain: Mapping[str, Tensor] | None) -> None:
        inner: Any = transformers_model(self.module)
        config = inner.config.get_text_config()
        # Training runs without a cache; whoever loads the folder to generate wants one.
        config.use_cache, before = self.is_causal, config.use_cache
        module: Any = self.module  # transformers' and PEFT's models share this method
        try:
            with quiet():
                if plain is not None:
                    inner.save_pretrained(folder, state_dict=dict(plain))
                elif self.layout.frozen:
                    # "auto" would save embeddings of another size than the base's, and ask the hub for that.
                    module.save_pretrained(folder, save_embedding_layers=False)
                    config.save_pretrained(folder)  # an adapter's folder says nothing of labels otherwise
                else:
                    module.save_pretrained(folder)
        finally:
            config.use_cache = before
        self.tokenizer.backend_tokenizer.no_truncation()  # how windows were last cut is no part of it
        self.tokenizer.backend_tokenizer.no_padding()
        self.tokenizer.save_pretrained(folder)

    def _differs(self, name: str) -> bool:
        return name in self._dirty and not torch.equal(self._parameters[name], self._base[name])

    def _parameter(self, name: str) -> nn.Parameter:
        try:
            return self._parameters[name]
        except KeyError:
            raise self._unknown(name) from None

    def _unknown(self, name: str) -> FrameError:
        aliases = dict(self.module.named_parameters(remove_duplicate=False))
        if name in aliases:
            own = next(known for known, parameter in self._parameters.items() if parameter is aliases[name])
            return FrameError(f"{name} is tied to {own} in model {self.name}; use that name", code="tied")
        hint = did_you_mean(name, self._parameters, before="; ")
        return FrameError(f"model {self.name} has no parameter {name}{hint}", code="unknown_name")

    def _check(self, name: str, value: Tensor) -> None:
        parameter = self._parameter(name)
        if value.shape != parameter.shape:
            raise FrameError(
                f"{name} has shape {tuple(value.shape)}, but {tuple(parameter.shape)} in model {self.name}",
                code="wrong_shape",
            )
        if value.is_floating_point() != parameter.is_floating_point():
            raise FrameError(
                f"{name} is {value.dtype}, but {parameter.dtype} in model {self.name}", code="wrong_type"
            )

    def _remember(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._base:
                self._base[name] = self._parameters[name].detach().clone()

    @torch.no_grad()
    def _copy(self, tensors: Mapping[str, Tensor]) -> None:
        if tensors:
            torch._foreach_copy_([self._parameters[name] for name in tensors], list(tensors.values()))


def _digest(tensor: Tensor) -> bytes:
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(frame.bytes_of(tensor))
    return digest.digest()


def _is_causal(module: nn.Module, layout: Layout) -> bool:
    config = transformers_model(module).config.get_text_config()
    if isinstance(config, PlainConfig):
        return bool(config.is_causal)
    if getattr(config, "is_causal", None) is False:  # how a decoder is made to look both ways
        return False
    flags = [getattr(part, "is_causal", None) for part in block_modules(module, layout).modules()]
    told = [flag for flag in flags if isinstance(flag, bool)]
    if told:
        return any(told)
    return type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and getattr(config, "is_decoder", True) is not False

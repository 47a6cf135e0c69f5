"""The output of a model's frozen lower blocks, computed once per text and kept in a file.

While the embedding and the first `cut` blocks are frozen and run in evaluation mode, their output is a fixed
function of the token ids. It is computed once, in batches of texts of like length, written without padding to
one file in the client's folder, and every later pass over the data starts from there. In multiplications a
training step of the top k of L blocks then costs 3k, instead of L + 2k with the lower blocks frozen and 3L
with everything trained.

The file is a safetensors file of `offsets`, (texts + 1) int64, `states`, (tokens, hidden), and `sha256`, the
hash of all before it: row `offsets[i]` is the first of the i-th text. Its header holds a key, a hash of all
that the states depend on: the values of the frozen parameters, the model's configuration, attention and
arithmetic, the cut, and the ids of every text, which stand for tokenizer, data and length at once. A file
with another key, or one that is cut short or damaged, is not used; each process looks once through what
another has written. It is read by position and not mapped: a batch is a few large reads, the memory of the
process does not grow with the file, and a file that vanishes is an error and no crash.

Texts are found by a hash of their ids, so a task may batch, window and repeat them as it likes; a batch with
a text that is not there runs through the blocks as usual.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedstrata.core.client import Feed
from fedstrata.core.errors import FedstrataError
from fedstrata.core.files import HASH_BYTES, ends_with_its_hash, private_folder, with_hash, write_atomically
from fedstrata.core.model import Model
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.core.types import JSON
from fedstrata.models.blocks import transformers_model
from fedstrata.models.prefix import BlockOutput, prefix_names, replaced_prefix, run_prefix
from fedstrata.wire import frame

Batch = Mapping[str, Tensor]
Run = Callable[[Batch], Tensor]
"""Runs the model on a batch in evaluation mode, as training will; returns the loss."""

Identity = tuple[Path, int, int]
"""A file as it was at some time: its place, size and last change."""

FILE = "prefix.safetensors"

_VERSION = 2
_INPUTS = ("input_ids", "token_type_ids", "position_ids")  # what blocks may see of a token besides the mask


def estimate_bytes(lengths: Iterable[int], hidden_size: int, dtype: torch.dtype) -> int:
    """Returns the bytes that the stored states of these texts take; the header's few hundred are left out.

    Args:
        lengths: Tokens of each text.
        hidden_size: Width of the model.
        dtype: What the states are stored in; by default what a block gives, float32 for float32 weights.

    Example:
        >>> estimate_bytes([100, 28], hidden_size=384, dtype=torch.float32)
        196632
    """
    each = list(lengths)
    return sum(each) * hidden_size * dtype.itemsize + (len(each) + 1) * torch.int64.itemsize


@dataclass
class PrefixCache:
    """One client's stored states; implements `core.client.PrefixCache`.

    Attributes:
        folder: The client's folder; made when needed.
        training: How the client trains, which says whether and how states are kept.
        reserve: Given the place of a new file and its bytes, makes room for it where the old one was, which
            nobody else then takes (see `core.files.reserve`); returns the reason if there is not so much.
        report: Told when states were stored (`used` true, `bytes`, `seconds`), or why not (`reason`).
        whole: Files that this process has written, or found to be what was written; takes up this one.
        serving: A fingerprint of what is, or was last, served.
    """

    folder: Path
    training: TrainingSettings
    reserve: Callable[[Path, int], str | None]
    report: Callable[[Mapping[str, Any]], None]
    whole: set[Identity] = field(default_factory=set)
    serving: str | None = field(default=None, init=False)

    @contextmanager
    def serve(
        self, model: Model, cut: int, batches: Callable[[], Iterable[Batch]], run: Run, arithmetic: str
    ) -> Iterator[Feed]:
        """Lets stored states stand in for the first `cut` blocks; they are stored first where need be.

        Args:
            model: The model; left in evaluation mode.
            cut: Number of frozen blocks, at least 1; everything below them is frozen too.
            batches: Returns all texts, in batches that depend on nothing but them; called more than once. The
                first batch is also run through the whole model, and is best a small one.
            run: Runs the model on a batch.
            arithmetic: What decides how numbers are rounded: device and precision.

        Yields:
            What must be told each batch, on the CPU, before the model is called with it; a batch's states
            are valid until the next is told. It returns how many blocks they stand in for.
        """
        self.serving = None
        prefix = _Prefix(model, cut, batches, run)
        # It pays where each text is used more than once: in this training, or again in later rounds.
        often = self.training.cache == "on" or self.training.epochs > 1
        pays = often or not model.is_changed(prefix.names)
        stored = self._stored(prefix, arithmetic) if pays else None
        if stored is None:
            yield lambda batch: 0
            return
        device = next(model.module.parameters()).device
        with stored.file, replaced_prefix(model.module, model.layout, cut, stored.size) as use:

            def feed(batch: Batch) -> int:
                use(states := stored.padded(batch, device))
                return 0 if states is None else cut

            yield feed

    @property
    def _path(self) -> Path:
        return self.folder / FILE

    def _stored(self, prefix: _Prefix, arithmetic: str) -> _Stored | None:
        """Returns the states of these texts, from the file if it holds them; none if they cannot be kept."""
        lengths = prefix.lengths
        if not lengths:
            self.report({"used": False, "reason": "its batches are not ids padded on the right"})
            return None
        key = self._key(prefix, arithmetic)
        stored = _open(self._path, key, lengths, self.whole)
        if stored is None:
            reason = self._fill(prefix, key)
            stored = _open(self._path, key, lengths, self.whole) if reason is None else None
            if stored is None:
                self.report({"used": False, "reason": reason or "the file just written cannot be read back"})
        self.serving = key if stored is not None else None
        return stored

    def _key(self, prefix: _Prefix, arithmetic: str) -> str:
        config: Any = transformers_model(prefix.model.module).config
        facts = [
            _VERSION,
            prefix.cut,
            self.training.cache_dtype,
            arithmetic,
            config._attn_implementation,
            config.to_json_string(use_diff=False),
            torch.__version__,
            transformers.__version__,
            prefix.model.fingerprint(prefix.names),
        ]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for text in prefix.lengths:
            digest.update(text)
        return digest.hexdigest()

    def _fill(self, prefix: _Prefix, key: str) -> str | None:
        """Writes the file; returns the reason if that cannot be."""
        started = time.perf_counter()
        reason = prefix.check()
        if reason is not None:
            return reason
        dtype = prefix.output.states.dtype
        if self.training.cache_dtype != "auto":
            dtype = getattr(torch, self.training.cache_dtype)
        needed = estimate_bytes(prefix.lengths.values(), prefix.output.states.shape[-1], dtype)
        try:
            private_folder(self._path.parent)
            if (reason := self.reserve(self._path, needed)) is not None:
                return reason
            write_atomically(self._path, with_hash(prefix.pieces(key, dtype)))
            self.whole.add(_identity(self._path))
        except OSError as error:
            return f"writing {needed / 1e9:.3g} GB failed: {error.strerror}"
        seconds = time.perf_counter() - started
        self.report({"used": True, "bytes": self._path.stat().st_size, "seconds": seconds, "reason": None})
        return None


@dataclass
class _Prefix:
    """The frozen blocks of a model, and the texts that they run over; see `PrefixCache.serve`."""

    model: Model
    cut: int
    batches: Callable[[], Iterable[Batch]]
    run: Run
    output: BlockOutput = field(init=False)  # of no text: what `check` learnt of dtype, width and form

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters on which the output depends."""
        return prefix_names(self.model.layout, self.cut)

    @cached_property
    def lengths(self) -> dict[bytes, int]:
        """The length of each distinct text, in order; empty if a batch is of another kind."""
        all_texts = [_texts(batch) for batch in self.batches()]
        known = [texts for texts in all_texts if texts is not None]
        return dict(chain.from_iterable(known)) if len(known) == len(all_texts) else {}

    @torch.no_grad()
    def check(self) -> str | None:
        """Runs the first batch; returns why this model cannot go on from stored states, if it cannot.

        The loss must be the same with the states in place of the blocks, here without a new padding: an
        architecture whose upper blocks read more of the lower ones than their last output gives another one.
        """
        module, layout = self.model.module.train(False), self.model.layout
        batch = next(iter(self.batches()))
        losses: list[float] = []
        output = run_prefix(
            module, layout, self.cut, lambda: losses.append(float(self.run(batch))), stop=False
        )
        if output is None or output.states.shape[:2] != batch["input_ids"].shape:
            return "the blocks of this model do not give one vector a token"
        self.output = BlockOutput(output.states.new_empty(0, output.states.shape[-1]), output.size)
        expected = losses[0]
        with replaced_prefix(module, layout, self.cut, output.size) as use:
            use(output.states)
            found = float(self.run(batch))
        if not math.isclose(found, expected, rel_tol=1e-5, abs_tol=1e-7):
            return f"from stored states the loss of this model is {found:.6g} instead of {expected:.6g}"
        return None

    def pieces(self, key: str, dtype: torch.dtype) -> Iterator[bytes | memoryview]:
        """Yields the file's bytes but for the hash, computing as it goes."""
        offsets = torch.tensor([0, *accumulate(self.lengths.values())])
        width = self.output.states.shape[-1]
        values: dict[str, JSON] = {
            "key": key,
            "size": self.output.size,
            "given": str(self.output.states.dtype).removeprefix("torch."),
        }
        shapes = {
            "offsets": (offsets.dtype, tuple(offsets.shape)),
            "states": (dtype, (int(offsets[-1]), width)),
            "sha256": (torch.uint8, (HASH_BYTES,)),
        }
        yield frame.head(shapes, values)
        yield frame.bytes_of(offsets)
        seen: set[bytes] = set()
        for batch in self.batches():
            texts = [text for text, _ in _texts(batch) or ()]
            fresh = [row for row, text in enumerate(texts) if text not in seen and text not in texts[:row]]
            seen.update(texts)
            if fresh:
                yield frame.bytes_of(self._unpadded(batch, fresh).to(dtype))

    @torch.no_grad()
    def _unpadded(self, batch: Batch, rows: Sequence[int]) -> Tensor:
        """Returns the states of some rows of a batch one after the other, (tokens, hidden)."""
        output = run_prefix(self.model.module, self.model.layout, self.cut, lambda: self.run(batch))
        assert output is not None  # noqa: S101 - the first batch came there, and all take one way
        mask = batch["attention_mask"][list(rows)].to(output.states.device).bool()
        return output.states[list(rows)][mask]


@dataclass
class _Stored:
    """An open file of states.

    Attributes:
        path: The file.
        rows: Number of each text in the file.
        offsets: As in the file.
        dtype: Of its states.
        width: Of its states.
        size: As in `BlockOutput`.
        given: The dtype in which the model gave the states and gets them back.
    """

    path: Path
    rows: Mapping[bytes, int]
    offsets: Sequence[int]
    dtype: torch.dtype
    width: int
    size: int
    given: torch.dtype

    def __post_init__(self) -> None:
        self._bytes_per_token = self.width * self.dtype.itemsize
        states = self.offsets[-1] * self._bytes_per_token
        self._start = self.path.stat().st_size - HASH_BYTES - states  # the states come last but one
        self.file = self.path.open("rb", buffering=0)
        self._buffer = np.empty(0, dtype=np.uint8)

    def padded(self, batch: Batch, device: torch.device) -> Tensor | None:
        """Returns the states of a batch, (rows, tokens, hidden), zero where it is padded.

        They share one buffer: the next call overwrites them. None if a text of the batch is not stored.
        """
        texts = _texts(batch)
        if texts is None or not all(text in self.rows for text, _ in texts):
            return None
        shape = (*batch["input_ids"].shape, self.width)
        self._reserve(math.prod(shape) * self.dtype.itemsize, device)
        stride = shape[1] * self._bytes_per_token
        for row, (text, length) in enumerate(texts):
            begin, size = row * stride, length * self._bytes_per_token
            self.file.seek(self._start + self.offsets[self.rows[text]] * self._bytes_per_token)
            self._read(memoryview(self._buffer)[begin : begin + size])  # type: ignore[arg-type]
            self._buffer[begin + size : begin + stride] = 0
        states = torch.from_numpy(self._buffer[: len(texts) * stride]).view(self.dtype).view(shape)
        return states.to(device).to(self.given)

    def _reserve(self, size: int, device: torch.device) -> None:
        """Makes the buffer large enough; for a GPU in memory that it can copy from directly."""
        if self._buffer.size < size:
            pinned = device.type == "cuda"
            self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).numpy()

    def _read(self, target: memoryview) -> None:
        while target:
            count = self.file.readinto(target)
            if not count:
                raise FedstrataError(f"{self.file.name} was cut short while it was in use", code="cut_short")
            target = target[count:]


def _identity(path: Path) -> Identity:
    found = path.stat()
    return path, found.st_size, found.st_mtime_ns


def _open(path: Path, key: str, lengths: Mapping[bytes, int], whole: set[Identity]) -> _Stored | None:
    """Opens a file of states; none if there is none, or it is damaged or of something else."""
    try:
        with safe_open(path, framework="pt") as file:
            values = json.loads(file.metadata()["values"])
            tokens, width = file.get_slice("states").get_shape()
            dtype = file.get_slice("states").get_dtype()
            offsets: list[int] = file.get_tensor("offsets").tolist()
        given, size = getattr(torch, values["given"]), int(values["size"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if values["key"] != key or offsets != [0, *accumulate(lengths.values())] or tokens != offsets[-1]:
        return None
    if _identity(path) not in whole and not ends_with_its_hash(path):
        return None
    whole.add(_identity(path))
    rows = {text: number for number, text in enumerate(lengths)}
    return _Stored(path, rows, offsets, frame.dtype_of(dtype), width, size, given)


def _texts(batch: Batch) -> list[tuple[bytes, int]] | None:
    """Returns hash and length of each row of a batch; none if it does not hold ids padded on the right."""
    ids, attention = batch.get("input_ids"), batch.get("attention_mask")
    if ids is None or attention is None or ids.ndim != 2 or ids.shape != attention.shape:
        return None
    mask = attention.numpy()
    lengths = mask.sum(axis=1)
    if not np.array_equal(mask, np.arange(mask.shape[1]) < lengths[:, None]):
        return None
    inputs = [batch[name].numpy() for name in _INPUTS if name in batch and batch[name].shape == ids.shape]
    rows = (
        (b"".join(each[row, :length].tobytes() for each in inputs), length)
        for row, length in enumerate(lengths.tolist())
    )
    return [(hashlib.blake2b(text, digest_size=16).digest(), length) for text, length in rows]

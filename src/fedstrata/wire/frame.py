"""Frames: one message as one valid safetensors file.

Layout (https://huggingface.co/docs/safetensors): 8 bytes with the header's length, little-endian; the
header, a JSON object of `{name: {dtype, shape, data_offsets}}` padded with blanks to 8 bytes; then the
tensors' bytes. The message's values are JSON text in the header's `__metadata__` under `values`.

A frame is a list of buffers that alias the tensors, so making one costs the header only; `safetensors.save`
would cost twice the payload in memory. Reading aliases the buffers in the same way. bf16 stays bf16.

In a file `__metadata__` also holds, under `sha256`, a hash of all the rest: bytes that a disk has changed are
found by whoever reads the file, a client too that knows nothing of the run's record. On the way no frame has
one, since connections have their own.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from fedstrata.core.errors import FedstrataError, FrameError
from fedstrata.core.files import write_atomically
from fedstrata.core.types import JSON, Message, Update

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 8
_TENSOR_ALIGNMENT = 64  # of torch's allocator
_METADATA = "__metadata__"
_HASH = "sha256"
_HEADER_LIMIT = 100 * 2**20  # safetensors' own bound
_MOST_DIMENSIONS = 64  # as in NumPy
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux has it
_NAME_OF = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
_DTYPE_OF = {name: dtype for dtype, name in _NAME_OF.items()}

MessageType = TypeVar("MessageType", bound=Message)
Shape: TypeAlias = tuple[torch.dtype, tuple[int, ...]]
"""Dtype and shape of a tensor."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One encoded message.

    Attributes:
        head: Length field and header.
        bodies: The bytes of each tensor, in header order; they alias the tensors they were made from.
    """

    head: bytes
    bodies: tuple[memoryview, ...]

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return len(self.head) + sum(body.nbytes for body in self.bodies)

    def tensor_bytes(self) -> dict[str, int]:
        """Returns the bytes of each tensor by name; header and values are not in it."""
        header, _ = _parse_header(self.head)
        return {name: body.nbytes for name, body in zip(header, self.bodies, strict=True)}

    def shapes(self) -> dict[str, Shape]:
        """Returns dtype and shape of each tensor by name; no tensor is made."""
        header, _ = _parse_header(self.head)
        return {name: (_DTYPE_OF[entry["dtype"]], tuple(entry["shape"])) for name, entry in header.items()}

    def buffers(self) -> Iterator[bytes | memoryview]:
        """Yields what to write, in order."""
        yield self.head
        yield from self.bodies

    def sha256(self) -> str:
        """Returns the hash of the frame as it travels, as hexadecimal digits; nothing is copied."""
        digest = hashlib.sha256()
        for piece in self.buffers():
            digest.update(piece)
        return digest.hexdigest()

    def tobytes(self) -> bytes:
        """Returns the frame as one piece; copies the payload."""
        return b"".join(self.buffers())

    def aligned(self) -> Frame:
        """Returns a copy whose tensors begin where torch's own do; the last bits of sums may depend on it."""
        return SharedFrame.of(self, shared=False).frame()

    def __reduce__(self) -> tuple[Callable[[SharedFrame], Frame], tuple[SharedFrame]]:
        """Lets processes of one machine hand it over in shared memory (`torch.multiprocessing`)."""
        return SharedFrame.frame, (SharedFrame.of(self),)

    def write(self, path: Path) -> None:
        """Writes the frame durably, with a hash of it; it appears complete or not at all."""
        header = json.loads(self.head[_LENGTH.size :])
        _, digest = _hashes(header, self.bodies)
        header.setdefault(_METADATA, {})[_HASH] = digest
        write_atomically(path, Frame(_packed(header), self.bodies).buffers())


@dataclass(frozen=True, slots=True)
class SharedFrame:
    """A frame in memory that processes of one machine share.

    Tensors begin where torch's own do, at multiples of 64 bytes: on that the last bits of sums may depend.

    Attributes:
        head: Length field and header.
        sizes: The bytes of each tensor.
        memory: All tensors, (bytes,) uint8.
    """

    head: bytes
    sizes: tuple[int, ...]
    memory: Tensor

    @classmethod
    def of(cls, frame: Frame, *, shared: bool = True) -> SharedFrame:
        """Copies a frame.

        Args:
            frame: The frame.
            shared: Whether other processes are to see it; else it has memory of its own here.

        Raises:
            FedstrataError: There is no room for it to be shared.
        """
        sizes = tuple(body.nbytes for body in frame.bodies)
        memory = torch.empty(sum(map(_aligned, sizes)), dtype=torch.uint8)
        if shared:
            _share(memory)
        target, start = bytes_of(memory), 0
        for body, size in zip(frame.bodies, sizes, strict=True):
            target[start : start + size] = body.cast("B")
            start += _aligned(size)
        return cls(frame.head, sizes, memory)

    def frame(self) -> Frame:
        """Returns the frame, whose tensors alias the memory."""
        starts = accumulate(map(_aligned, self.sizes), initial=0)
        view = bytes_of(self.memory)
        bodies = (view[start : start + size] for start, size in zip(starts, self.sizes, strict=False))
        return Frame(self.head, tuple(bodies))


def free_shared_memory() -> int | None:
    """Returns the bytes of memory that are free to be shared; none where nothing else limits them."""
    return shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None


def _share(memory: Tensor) -> None:
    try:
        memory.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        free, reason = free_shared_memory(), str(error).rpartition(": ")[2]
        found = "" if free is None else f", of which {SHARED_MEMORY} has {free / 1e6:,.1f} MB free"
        raise FedstrataError(
            f"a frame needs {memory.nbytes / 1e6:,.1f} MB of shared memory{found}: {reason}. Give it more "
            "(containers: `docker run --shm-size`), three frames for each of the workers; or set workers=1",
            code="too_large",
        ) from None


def _aligned(size: int) -> int:
    return -(-size // _TENSOR_ALIGNMENT) * _TENSOR_ALIGNMENT


def encode(message: Message) -> Frame:
    """Encodes a message without copying its tensors.

    Args:
        message: Contiguous CPU tensors are aliased; others are copied to the CPU first.

    Raises:
        FrameError: A dtype that safetensors does not know, or values that are not JSON (NaN included).
    """
    return Frame(_head_of(message), tuple(bytes_of(tensor) for tensor in message.tensors.values()))


def size(message: Message) -> int:
    """Returns the bytes of a message's frame without making it: no tensor is copied from a GPU.

    Raises:
        FrameError: As `encode` does.
    """
    return len(_head_of(message)) + sum(tensor.nbytes for tensor in message.tensors.values())


def head(shapes: Mapping[str, Shape], values: Mapping[str, JSON]) -> bytes:
    """Returns the length field and header of a frame, before there is anything to put behind it.

    Args:
        shapes: Dtype and shape of each tensor by name, in the order in which their bytes will follow.
        values: The message's values.

    Raises:
        FrameError: A dtype that safetensors does not know, or values that are not JSON (NaN included).
    """
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape) in shapes.items():
        if name == _METADATA:
            message = f"a tensor cannot be called {name}: safetensors keeps that name for itself"
            raise FrameError(message, code="reserved")
        if dtype not in _NAME_OF:
            message = f"tensor {name}: dtype {dtype} cannot travel; allowed: {', '.join(_DTYPE_OF)}"
            raise FrameError(message, code="not_supported")
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAME_OF[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    try:
        header[_METADATA] = {"values": json.dumps(values, allow_nan=False, separators=(",", ":"))}
    except (TypeError, ValueError) as error:
        raise FrameError(f"the values of a message must be JSON: {error}", code="not_json") from None
    return _packed(header)


def _packed(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return _LENGTH.pack(len(text)) + text


def dtype_of(name: str) -> torch.dtype:
    """Returns the dtype that safetensors calls by this name."""
    return _DTYPE_OF[name]


def name_of(dtype: torch.dtype) -> str:
    """Returns what safetensors calls a dtype."""
    return _NAME_OF[dtype]


def decode(frame: Frame, kind: type[MessageType]) -> MessageType:
    """Returns the message in a frame; its tensors alias the frame's buffers.

    Raises:
        FrameError: The frame is cut short or malformed.
    """
    header, values = _parse_header(frame.head)
    tensors = {
        name: _tensor(name, entry, body)
        for (name, entry), body in zip(header.items(), frame.bodies, strict=True)
    }
    if issubclass(kind, Update):
        weight = values.pop("weight", None)
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise FrameError("an update must carry its weight", code="missing")
        if not abs(weight) <= sys.float_info.max:
            raise FrameError("an update's weight is no number that fits 64 bits", code="out_of_range")
        return kind(tensors, values, weight=float(weight))
    return kind(tensors, values)


def split(data: bytes | bytearray | memoryview, header_limit: int = _HEADER_LIMIT) -> Frame:
    """Returns the frame in one piece of bytes, without copying its tensors.

    Args:
        data: The bytes.
        header_limit: Bytes that its header may have; one that has more is not read.

    Raises:
        FrameError: The bytes are cut short, too long, or not a frame.
    """
    view = memoryview(data)
    if view.nbytes < _LENGTH.size:
        raise FrameError(
            f"a frame has at least {_LENGTH.size} bytes, this one has {view.nbytes}", code="cut_short"
        )
    (length,) = _LENGTH.unpack(view[: _LENGTH.size])
    start = _LENGTH.size + length
    if start > view.nbytes:
        raise FrameError(
            f"a frame of {view.nbytes} bytes cannot have a header of {length}; it is cut short or damaged",
            code="cut_short",
        )
    if start > header_limit:
        raise FrameError(f"a header of {start} bytes, where {header_limit} are allowed", code="too_large")
    head = bytes(view[:start])
    header, _ = _parse_header(head)
    ends = [entry["data_offsets"][1] for entry in header.values()]
    expected = start + (ends[-1] if ends else 0)
    if view.nbytes != expected:
        short = view.nbytes < expected
        state, code = ("cut short", "cut_short") if short else ("too long", "too_long")
        message = f"a frame is {state}: its header announces {expected} bytes, it has {view.nbytes}"
        raise FrameError(message, code=code)
    bodies = (view[start + a : start + b] for a, b in (entry["data_offsets"] for entry in header.values()))
    return Frame(head, tuple(bodies))


def read(path: Path) -> Frame:
    """Reads a frame from a file.

    Raises:
        FrameError: The file is missing, cut short, malformed, or not what was written; the message names it.
    """
    try:
        with path.open("rb") as file:  # into one buffer, which tensors alias
            data = bytearray(os.fstat(file.fileno()).st_size)
            del data[file.readinto(data) :]
        found = split(data)
        written, digest = _hashes(json.loads(found.head[_LENGTH.size :]), found.bodies)
        if written not in (None, digest):  # none in files of before there were any
            message = f"damaged: its hash is {digest:.8}, and was {written!s:.8} when it was written"
            raise FrameError(message, code="damaged")
        return found
    except OSError as error:
        raise FrameError(f"cannot read {path}: {error.strerror}", code="unreadable") from None
    except FrameError as error:
        raise FrameError(f"{path}: {error}", code=error.code) from None


def _head_of(message: Message) -> bytes:
    values = dict(message.values)
    if isinstance(message, Update):
        if "weight" in values:
            told = "an update's values cannot hold `weight`: its weight travels under that name"
            raise FrameError(told, code="reserved")
        values["weight"] = message.weight
    return head({name: (each.dtype, tuple(each.shape)) for name, each in message.tensors.items()}, values)


def bytes_of(tensor: Tensor) -> memoryview:
    """Returns the bytes of a tensor; they alias it where it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    array: Any = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return memoryview(array)


def _parse_header(head: bytes) -> tuple[dict[str, dict[str, Any]], dict[str, JSON]]:
    """Returns the tensor entries, checked to be contiguous and in order, and the values."""
    try:
        header = json.loads(head[_LENGTH.size :])
        metadata = header.pop(_METADATA, {})
        values = json.loads(metadata.get("values", "{}"), parse_float=_number, parse_constant=_number)
        position = 0
        for name, entry in header.items():
            begin, end = map(operator.index, entry["data_offsets"])
            if not _is_shape(entry["shape"]):
                raise FrameError(f"tensor {name}: {entry['shape']!r:.60} is no shape", code="wrong_shape")
            size = _DTYPE_OF[entry["dtype"]].itemsize * math.prod(entry["shape"])
            if begin != position or end - begin != size:
                raise FrameError(
                    f"tensor {name}: {size} bytes expected at {position}, the header says {begin} to {end}"
                )
            position = end
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FrameError(f"a frame's header is damaged ({type(error).__name__})") from None
    if not isinstance(values, dict):
        raise FrameError("a frame's values must be a JSON object", code="wrong_type")
    return header, values


def _hashes(header: dict[str, Any], bodies: Iterable[memoryview]) -> tuple[object, str]:
    """Returns the hash that a file's header holds, if any, and that of all else in it."""
    written = header.get(_METADATA, {}).pop(_HASH, None)
    digest = hashlib.sha256(json.dumps(header).encode())
    for body in bodies:
        digest.update(body)
    return written, digest.hexdigest()


def _is_shape(shape: object) -> bool:
    """Whether a tensor can have this shape; the strides of an empty one, too, are numbers of 64 bits."""
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        return False
    return all(type(extent) is int and extent >= 0 for extent in shape) and (
        math.prod(max(extent, 1) for extent in shape) < 2**63
    )


def _number(text: str) -> float:
    """Returns a number of a frame's values; what is not finite is no JSON, and could not be sent on."""
    if not math.isfinite(value := float(text)):
        raise ValueError("a number is not finite")
    return value


def _tensor(name: str, entry: Mapping[str, Any], body: memoryview) -> Tensor:
    dtype, shape = _DTYPE_OF[entry["dtype"]], entry["shape"]
    if body.nbytes != entry["data_offsets"][1] - entry["data_offsets"][0]:
        raise FrameError(f"tensor {name} is cut short: {body.nbytes} bytes", code="cut_short")
    if body.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    if body.readonly:  # torch wants to be able to write; a received frame is a bytearray and is aliased
        body = memoryview(bytearray(body))
    return torch.frombuffer(body, dtype=dtype).reshape(shape)

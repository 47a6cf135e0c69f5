from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from support import refused

from fedstrata.core.errors import FrameError
from fedstrata.core.types import Message, Plan, Update
from fedstrata.wire import frame
from fedstrata.wire.meter import Meter

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
json_values = st.dictionaries(
    st.text(max_size=8),
    st.one_of(
        st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
    ),
    max_size=4,
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    tensors = {}
    for name in draw(st.lists(names, unique=True, max_size=5)):
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
        tensors[name] = (torch.randn(shape, generator=generator) * 3).to(draw(st.sampled_from(DTYPES)))
    return Message(tensors, draw(json_values))


@given(messages())
def test_a_message_survives_the_wire(message: Message) -> None:
    data = frame.encode(message).tobytes()
    received = frame.decode(frame.split(data), Plan)
    assert received.values == message.values
    assert list(received.tensors) == list(message.tensors)
    for name, tensor in message.tensors.items():
        assert received.tensors[name].dtype == tensor.dtype
        assert torch.equal(received.tensors[name], tensor)


@given(messages())
def test_a_frame_is_a_valid_safetensors_file_of_the_counted_size(message: Message) -> None:
    encoded = frame.encode(message)
    data = encoded.tobytes()
    loaded = safetensors_load(data)
    assert len(data) == encoded.nbytes == frame.size(message)
    assert loaded.keys() == message.tensors.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in message.tensors.items())


@given(messages(), st.data())
def test_a_frame_cut_anywhere_is_refused(message: Message, data: st.DataObject) -> None:
    whole = frame.encode(message).tobytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FrameError):
        frame.split(whole[:cut])


def test_a_frame_with_bytes_to_spare_is_refused() -> None:
    data = frame.encode(Message({"a": torch.ones(3)})).tobytes()
    with refused(FrameError, "too_long", values=[len(data), len(data) + 1]):
        frame.split(data + b"\0")


def test_reads_what_safetensors_writes() -> None:
    data = safetensors_save({"a": torch.arange(6).reshape(2, 3)})
    assert torch.equal(frame.decode(frame.split(data), Message).tensors["a"], torch.arange(6).reshape(2, 3))


def test_encoding_copies_nothing() -> None:
    tensor = torch.zeros(4)
    encoded = frame.encode(Message({"a": tensor}))
    tensor[0] = 7.0
    assert frame.decode(encoded, Message).tensors["a"][0] == 7.0


def test_an_update_carries_its_weight() -> None:
    encoded = frame.encode(Update({}, {"loss": 0.5}, weight=12.0))
    received = frame.decode(encoded, Update)
    assert received.weight == 12.0
    assert received.values == {"loss": 0.5}


def test_an_update_without_a_weight_is_refused() -> None:
    with refused(FrameError, "missing", values=["weight"]):
        frame.decode(frame.encode(Message()), Update)


@pytest.mark.parametrize(
    ("weight", "code"),
    [("1" + "0" * 400, "out_of_range"), ("true", "missing"), ('"12"', "missing"), ("[]", "missing")],
    ids=["too large", "true", "text", "list"],
)
def test_an_update_whose_weight_is_no_number_is_refused(weight: str, code: str) -> None:
    header = json.dumps({"__metadata__": {"values": f'{{"weight":{weight}}}'}}).encode()
    received = frame.split(len(header).to_bytes(8, "little") + header)
    with refused(FrameError, code, values=["weight"]):
        frame.decode(received, Update)


def test_a_value_that_is_not_json_is_refused() -> None:
    with refused(FrameError, "not_json"):
        frame.encode(Message(values={"loss": math.nan}))


def test_a_dtype_that_cannot_travel_is_named() -> None:
    with refused(FrameError, "not_supported", values=["weights", "complex64"]):
        frame.encode(Message({"weights": torch.ones(1, dtype=torch.complex64)}))


def test_a_damaged_file_is_named(tmp_path) -> None:
    path = tmp_path / "state.safetensors"
    frame.encode(Message({"a": torch.ones(100)})).write(path)
    assert torch.equal(frame.decode(frame.read(path), Message).tensors["a"], torch.ones(100))
    path.write_bytes(path.read_bytes()[:-10])
    with refused(FrameError, "cut_short", values=[path]):
        frame.read(path)
    with refused(FrameError, "unreadable", values=["missing.safetensors"]):
        frame.read(tmp_path / "missing.safetensors")


def test_a_bit_that_a_disk_has_changed_is_found(tmp_path: Path) -> None:
    path, message = tmp_path / "state.safetensors", Message({"a": torch.ones(3)}, {"loss": 0.5})
    frame.encode(message).write(path)
    whole = path.read_bytes()
    assert torch.equal(safetensors_load(whole)["a"], torch.ones(3))
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        if whole[place - 7 : place + 8].find(b'"sha256"') >= 0:  # with another key the file is an old one
            continue
        with pytest.raises(FrameError, match=r"state\.safetensors"):
            frame.read(path)


def test_reading_a_file_takes_the_memory_of_one_frame(tmp_path: Path) -> None:
    frame.encode(Message({"w": torch.zeros(2**21)})).write(tmp_path / "frame")
    tracemalloc.start()
    try:
        found = frame.read(tmp_path / "frame")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.1 * found.nbytes


def test_files_of_before_there_were_hashes_are_read(tmp_path: Path) -> None:
    path, encoded = tmp_path / "state.safetensors", frame.encode(Message({"a": torch.ones(3)}, {"loss": 0.5}))
    path.write_bytes(encoded.tobytes())
    assert frame.read(path).tobytes() == encoded.tobytes()


def test_a_header_that_overlaps_tensors_is_refused() -> None:
    data = frame.encode(Message({"a": torch.ones(2), "b": torch.ones(2)})).tobytes()
    with pytest.raises(FrameError):
        frame.split(data.replace(b"[8,16]", b"[0, 8]"))


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0.0,4.0]}}',
        b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,-4]}}',
        b'{"__metadata__":{"values":"[]"}}',
        b"7",
    ],
)
def test_a_hostile_header_is_refused(header: bytes) -> None:
    with pytest.raises(FrameError):
        frame.split(len(header).to_bytes(8, "little") + header + bytes(4))


@pytest.mark.parametrize(
    ("shape", "size"),
    [("{}", 4), ("[true]", 4), ("[0,1180591620717411303424]", 0), ("[0,1099511627776,1099511627776]", 0)],
)
def test_a_shape_that_no_tensor_has_is_refused(shape: str, size: int) -> None:
    header = f'{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{size}]}}}}'.encode()
    with refused(FrameError, "wrong_shape", values=["tensor a"]):
        frame.decode(frame.split(len(header).to_bytes(8, "little") + header + bytes(size)), Message)


def test_names_the_format_keeps_for_itself_are_refused() -> None:
    with refused(FrameError, "reserved", values=["__metadata__"]):
        frame.encode(Message({"__metadata__": torch.ones(1)}))
    with refused(FrameError, "reserved", values=["weight"]):
        frame.encode(Update({}, {"weight": 3}, weight=1.0))


def test_the_meter_counts_frames_by_client_and_direction() -> None:
    meter = Meter()
    down, up = frame.encode(Plan({"a": torch.ones(10)})), frame.encode(Update({"a": torch.ones(5)}))
    assert meter.count_down("one", down) == len(down.tobytes())
    assert meter.count_up("one", up) == len(up.tobytes())
    meter.count_down("two", down)
    assert meter.exchanges() == {
        "one": {"bytes_up": up.nbytes, "bytes_down": down.nbytes},
        "two": {"bytes_up": 0, "bytes_down": down.nbytes},
    }


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_values_that_are_not_finite_are_refused(number: str) -> None:
    """Whoever has received them could neither record them nor send them on."""
    data = frame.encode(Message({}, {"loss": [123456789]})).tobytes()
    with refused(FrameError, "malformed_frame", values=["ValueError"]):
        frame.split(data.replace(b"123456789", number.rjust(9).encode()))

"""The header of messages on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st
from support import refused

import fedstrata.transport.header as header_module
from fedstrata.core.errors import FrameError
from fedstrata.transport.header import Header, Kind, descriptor, pack, unpack


def test_the_definition_for_others_says_the_same(tmp_path: Path) -> None:
    from grpc_tools import protoc

    source, out = Path(header_module.__file__).parent, tmp_path / "descriptor"
    assert protoc.main(["", f"-I{source}", f"--descriptor_set_out={out}", "header.proto"]) == 0
    compiled = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    assert compiled == descriptor()


@given(
    header=st.builds(
        Header,
        st.sampled_from(Kind),
        *[st.integers(0, 2**64 - 1)] * 3,
        st.integers(0, 2**32 - 1),
        st.text(max_size=50),
        st.integers(0, 2**32 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    body=st.binary(max_size=100),
)
def test_what_was_packed_comes_out(header: Header, body: bytes) -> None:
    found, rest = unpack(pack(header, [body[:5], body[5:]]))
    assert found == header
    assert bytes(rest) == body


@given(st.binary(max_size=40))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    try:
        header, _ = unpack(data)
    except FrameError:
        return
    assert header.kind in Kind


def test_a_message_of_no_known_kind_is_refused() -> None:
    with refused(FrameError, "malformed_frame", values=["ValueError"]):
        unpack(b"\x00\x00")


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
def test_a_time_that_is_no_number_is_refused(seconds: float) -> None:
    with refused(FrameError, "malformed_frame", values=["ValueError"]):
        unpack(pack(Header(Kind.UPDATE, seconds=seconds)))

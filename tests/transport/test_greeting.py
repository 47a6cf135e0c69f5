"""What a connection must begin with."""

from __future__ import annotations

import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from fedstrata.core.errors import LineError, RefusedError
from fedstrata.transport.grpc.hub import GrpcHub
from fedstrata.transport.grpc.membership import settings_of
from fedstrata.transport.header import METHOD, SERVICE, Header, Kind, pack
from fedstrata.transport.timing import Timing
from fedstrata.transport.versions import own_versions

HUGE = b'{"a":{"dtype":"F32","shape":[0,9000000000,9000000000],"data_offsets":[0,0]}}'
"""The header of a frame whose one tensor has more numbers than there can be."""


def nobody(client: str, greeting: object) -> None:
    raise RefusedError("it has come as far as this")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "does not begin with a greeting"),
        (b"{", "does not begin with a greeting"),
        (struct.pack("<Q", len(HUGE)) + HUGE, "does not begin with a greeting"),
        (b" " * (2**20 + 1), "a greeting may have 1048576 bytes, and not 1048577"),
    ],
    ids=len,
)
def test_who_does_not_begin_with_a_greeting_is_told_so(body: bytes, told: str) -> None:
    hub = GrpcHub(nobody, largest=2**20, clients=["north"])  # type: ignore[arg-type]
    try:
        channel = grpc.insecure_channel(hub.listen("127.0.0.1:0"), [("grpc.enable_http_proxy", 0)])
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(
            iter([pack(Header(Kind.HELLO), [memoryview(body)])]),
            metadata=[("client-bin", b"north"), *own_versions()],
        )
        with pytest.raises(grpc.RpcError, match=told) as caught:
            next(call)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        channel.close()
    finally:
        hub.stop(1.0)


def test_who_asks_what_is_trained_is_told_at_once_that_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    warned: list[str] = []
    with pytest.raises(LineError, match=r"says nothing of the run for 0\.5 s: nobody listens there$"):
        settings_of(address, "north", None, None, Timing(reconnect=0.5), warned.append)
    (told,) = warned
    assert told.startswith(f"the server at {address} cannot be reached yet, trying again for 0.5 s: ")
    assert told.endswith(" s: nobody listens there")


def test_what_is_no_server_of_ours_is_named() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with pytest.raises(RefusedError, match=f"what listens at {address} is no server of fedstrata"):
            settings_of(address, "north", None, None, Timing(reconnect=5.0))
    finally:
        server.stop(0).wait()

"""What a connection must begin with."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from support import refused

from fedstrata.core.errors import RefusedError
from fedstrata.transport.grpc.ending import code_of
from fedstrata.transport.grpc.hub import GrpcHub
from fedstrata.transport.grpc.membership import settings_of
from fedstrata.transport.header import METHOD, SERVICE, Header, Kind, pack
from fedstrata.transport.timing import Timing
from fedstrata.transport.versions import own_versions

HUGE = b'{"a":{"dtype":"F32","shape":[0,9000000000,9000000000],"data_offsets":[0,0]}}'
"""The header of a frame whose one tensor has more numbers than there can be."""


def nobody(client: str, greeting: object) -> None:
    raise RefusedError("it has come as far as this", code="exists")


@pytest.mark.parametrize(
    ("body", "code", "values"),
    [
        (b"", "malformed_frame", ["'north'"]),
        (b"{", "malformed_frame", ["'north'"]),
        (struct.pack("<Q", len(HUGE)) + HUGE, "malformed_frame", ["'north'"]),
        (b" " * (2**20 + 1), "too_large", ["1048576", "1048577"]),
    ],
    ids=["nothing", "cut short", "huge", "long"],
)
def test_who_does_not_begin_with_a_greeting_is_told_so(body: bytes, code: str, values: list[str]) -> None:
    hub = GrpcHub(nobody, largest=2**20, clients=["north"])  # type: ignore[arg-type]
    try:
        channel = grpc.insecure_channel(hub.listen("127.0.0.1:0"), [("grpc.enable_http_proxy", 0)])
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(
            iter([pack(Header(Kind.HELLO), [memoryview(body)])]),
            metadata=[("client-bin", b"north"), *own_versions()],
        )
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert (caught.value.code(), code_of(caught.value)) == (grpc.StatusCode.FAILED_PRECONDITION, code)
        assert all(value in caught.value.details() for value in values)
        channel.close()
    finally:
        hub.stop(1.0)


class Refusing(grpc.GenericRpcHandler):
    """A server that refuses with a code."""

    def __init__(self, code: str) -> None:
        self._code = code

    def service(self, details: Any) -> Any:
        """Serves any call."""

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            context.set_trailing_metadata((("fedstrata-code", self._code),))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no")
            raise AssertionError

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.mark.parametrize(
    ("handlers", "code"),
    [
        ([], "wrong_server"),
        ([Refusing("wrong_token")], "wrong_token"),
        ([Refusing("of a later version")], "refused"),
    ],
)
def test_what_is_no_server_of_ours_is_told_and_a_code_that_travels_is_one_of_ours(
    handlers: list[Refusing], code: str
) -> None:
    server = grpc.server(ThreadPoolExecutor(1), handlers=handlers)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with refused(RefusedError, code):
            settings_of(address, "north", None, None, Timing(reconnect=5.0))
    finally:
        server.stop(0).wait()

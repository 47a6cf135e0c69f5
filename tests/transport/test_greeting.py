"""What a connection must begin with: a greeting, by the same version on both sides."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from support import refused

from fedstrata.core.errors import RefusedError
from fedstrata.transport.grpc.ending import code_of
from fedstrata.transport.grpc.hub import GrpcHub
from fedstrata.transport.grpc.membership import settings_of
from fedstrata.transport.header import METHOD, PROTOCOL, SERVICE, SETTINGS, Header, Kind, pack
from fedstrata.transport.timing import Timing
from fedstrata.transport.versions import own_versions

OWN, NUMBER = dict(own_versions())["fedstrata-version"], str(PROTOCOL)
HUGE = b'{"a":{"dtype":"F32","shape":[0,9000000000,9000000000],"data_offsets":[0,0]}}'
"""The header of a frame whose one tensor has more numbers than there can be."""


@contextmanager
def channel_to_hub() -> Iterator[grpc.Channel]:
    """Connects to a server that nobody joins."""

    def nobody(client: str, greeting: object) -> Any:
        raise RefusedError("it has come as far as this", code="exists")

    hub = GrpcHub(nobody, largest=2**20, clients=["north"])
    try:
        with grpc.insecure_channel(hub.listen("127.0.0.1:0"), [("grpc.enable_http_proxy", 0)]) as channel:
            yield channel
    finally:
        hub.stop(1.0)


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
    with channel_to_hub() as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(
            iter([pack(Header(Kind.HELLO), [memoryview(body)])]),
            metadata=[("client-bin", b"north"), *own_versions()],
        )
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    assert (caught.value.code(), code_of(caught.value)) == (grpc.StatusCode.FAILED_PRECONDITION, code)
    assert all(value in caught.value.details() for value in values)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ([("fedstrata-version", "9.9.0"), ("fedstrata-protocol", NUMBER)], ["9.9.0", f"protocol {NUMBER}"]),
        ([("fedstrata-version", OWN), ("fedstrata-protocol", "99")], [OWN, "protocol 99"]),
        ([], []),
    ],
)
@pytest.mark.parametrize("call", [METHOD, SETTINGS])
def test_a_client_of_another_version_is_refused_before_it_has_said_a_word(
    call: str, said: list[tuple[str, str]], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    metadata = [("client-bin", b"north"), *said]
    with channel_to_hub() as channel, pytest.raises(grpc.RpcError) as caught:
        if call == SETTINGS:
            channel.unary_unary(f"/{SERVICE}/{call}")(b"what nobody can read", metadata=metadata)
        else:
            next(channel.stream_stream(f"/{SERVICE}/{call}")(iter([b"\0"]), metadata=metadata))
    status, code, message = caught.value.code(), code_of(caught.value), caught.value.details()
    assert (status, code) == (grpc.StatusCode.FAILED_PRECONDITION, "other_version")
    assert all(value in message for value in ("'north'", *told, f"fedstrata {OWN} (protocol {NUMBER})"))
    assert caplog.messages == [message]


class Other(grpc.GenericRpcHandler):
    """A server that refuses with a code; without one it is of a later version."""

    def __init__(self, code: str = "") -> None:
        self._code = code

    def service(self, details: Any) -> Any:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if self._code:
                context.set_trailing_metadata((("fedstrata-code", self._code),))
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no")
            context.send_initial_metadata((("fedstrata-version", "9.9.0"), ("fedstrata-protocol", "99")))
            return b"settings of a form that is not known yet"

        return grpc.unary_unary_rpc_method_handler(answer)


VERSIONS = ["fedstrata 9.9.0 (protocol 99)", f"'north' has fedstrata {OWN} (protocol {NUMBER})"]


@pytest.mark.parametrize(
    ("handlers", "code", "values"),
    [
        ([], "wrong_server", []),
        ([Other("wrong_token")], "wrong_token", []),
        ([Other("of a later version")], "refused", []),  # a code that travels is one of ours
        ([Other()], "other_version", VERSIONS),
    ],
)
def test_a_server_is_ours_and_of_the_same_version_before_its_settings_are_read(
    handlers: list[Other], code: str, values: list[str]
) -> None:
    server = grpc.server(ThreadPoolExecutor(1), handlers=handlers)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with refused(RefusedError, code, values=values):
            settings_of(address, "north", None, None, Timing(reconnect=5.0))
    finally:
        server.stop(0).wait()

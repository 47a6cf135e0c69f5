"""A side of another version is refused by its version, whatever else it says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from support import refused

from fedstrata.core.errors import RefusedError
from fedstrata.transport.grpc.ending import code_of
from fedstrata.transport.grpc.hub import GrpcHub
from fedstrata.transport.grpc.membership import settings_of
from fedstrata.transport.header import METHOD, PROTOCOL, SERVICE, SETTINGS
from fedstrata.transport.timing import Timing
from fedstrata.transport.versions import own_versions

OWN, NUMBER = dict(own_versions())["fedstrata-version"], str(PROTOCOL)


def nobody(client: str, greeting: object) -> Any:
    raise AssertionError("it has come as far as this")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            [("fedstrata-version", "9.9.0"), ("fedstrata-protocol", NUMBER)],
            f"fedstrata 9.9.0 (protocol {NUMBER})",
        ),
        ([("fedstrata-version", OWN), ("fedstrata-protocol", "99")], f"fedstrata {OWN} (protocol 99)"),
        ([], "a fedstrata "),
    ],
)
@pytest.mark.parametrize("call", [METHOD, SETTINGS])
def test_a_client_of_another_version_is_refused_before_it_has_said_a_word(
    call: str, said: list[tuple[str, str]], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    hub = GrpcHub(nobody, largest=2**20, clients=["north"])
    try:
        metadata = [("client-bin", b"north"), *said]
        channel = grpc.insecure_channel(hub.listen("127.0.0.1:0"), [("grpc.enable_http_proxy", 0)])
        with channel, pytest.raises(grpc.RpcError) as caught:
            if call == SETTINGS:
                channel.unary_unary(f"/{SERVICE}/{call}")(b"what nobody can read", metadata=metadata)
            else:
                next(channel.stream_stream(f"/{SERVICE}/{call}")(iter([b"\0"]), metadata=metadata))
    finally:
        hub.stop(1.0)
    status, code, message = caught.value.code(), code_of(caught.value), caught.value.details()
    assert (status, code) == (grpc.StatusCode.FAILED_PRECONDITION, "other_version")
    assert f"client 'north' has {told}" in message
    assert f"the server has fedstrata {OWN} (protocol {NUMBER})" in message
    assert caplog.messages == [message]


class LaterServer(grpc.GenericRpcHandler):
    """A server of a later version, of which nothing but its metadata can be read."""

    def service(self, details: Any) -> Any:
        """Serves any call."""

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            context.send_initial_metadata((("fedstrata-version", "9.9.0"), ("fedstrata-protocol", "99")))
            return b"settings of a form that is not known yet"

        return grpc.unary_unary_rpc_method_handler(answer)


def test_a_server_of_another_version_is_refused_before_its_settings_are_read() -> None:
    server = grpc.server(ThreadPoolExecutor(1), handlers=[LaterServer()])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        there, here = "fedstrata 9.9.0 (protocol 99)", f"fedstrata {OWN} (protocol {NUMBER})"
        both = [f"the server has {there}", f"'north' has {here}"]
        with refused(RefusedError, "other_version", values=both):
            settings_of(address, "north", None, None, Timing(reconnect=5.0))
    finally:
        server.stop(0).wait()

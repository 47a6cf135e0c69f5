"""How long either side waits, and what gRPC is told of it."""

from dataclasses import dataclass

_LARGEST = 2**31 - 1
"""Bytes of a gRPC message at most."""
MOST_MEGABYTES = 2047
"""Times 2**20 bytes that one message may have, whatever carries it."""
_AHEAD = 2**20
"""Bytes of a message that may leave before the other side asks for more; gRPC's 64 KiB cost a round trip."""
LONGEST_WAIT = 2.0
"""Seconds between two looks of a server at its lines, and at who may join."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long either side waits, in seconds.

    Attributes:
        answer: For an answer, from who has been asked: a client that trains too slowly for it is lost.
        reconnect: For the other side to come back when there is no connection.
        keepalive: Between signs of life of a connection on which nothing else happens, and for the answer to
            any of them; who stops answering has no connection any more. A server takes one every half of it,
            and ends the connection of a client that sends them oftener.
        greeting: For the greeting on a new connection.
        delay: For which every message is held back: a slow network, for experiments.
    """

    answer: float = 600.0
    reconnect: float = 60.0
    keepalive: float = 20.0
    greeting: float = 10.0
    delay: float = 0.0

    def options(self, largest: int) -> list[tuple[str, int]]:
        """Returns the options of a gRPC channel or server.

        Args:
            largest: Bytes that a message may have.
        """
        milliseconds = int(self.keepalive * 1000)
        size = min(largest, _LARGEST)
        return [
            ("grpc.max_receive_message_length", size),
            ("grpc.max_send_message_length", size),
            ("grpc.keepalive_time_ms", milliseconds),
            ("grpc.keepalive_timeout_ms", milliseconds),
            ("grpc.keepalive_permit_without_calls", 1),
            # The timeout of the keepalive alone has no effect: gRPC waits 60 s for the answer to a ping.
            ("grpc.http2.ping_timeout_ms", milliseconds),
            # Pings that measure a slow line wait behind what is sent for longer than that, and would end it.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", _AHEAD),
            ("grpc.http2.max_pings_without_data", 0),
            # Counts at a server alone; the key with `recv_` in it has no effect.
            ("grpc.http2.min_ping_interval_without_data_ms", milliseconds // 2),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
            ("grpc.so_reuseport", 0),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]

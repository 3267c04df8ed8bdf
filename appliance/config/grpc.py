"""The ``[grpc]`` section of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from appliance.config.listening import ADDRESSES, ListeningConfig

MEBIBYTE = 1 << 20
KEEPALIVE_TIMEOUT_S: Final = 20.0
"""A connection that leaves a ping unanswered for so long is closed: what gRPC does everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcConfig(ListeningConfig):
    """The ``[grpc]`` section. Sizes are bytes, times seconds."""

    addresses: tuple[str, ...] = field(default=("127.0.0.1:8001",), metadata=ADDRESSES)
    max_message_bytes: int = field(
        default=64 * MEBIBYTE,
        metadata={"min": 1024, "max": (1 << 31) - 1, "unit": "bytes", "help": "largest request message"},
    )
    max_messages_bytes: int = field(
        default=256 * MEBIBYTE,
        metadata={
            "min": 1024,
            "unit": "bytes",
            "help": "all request messages in memory together, and metadata beyond 1 KiB, half of it over one "
            "connection; more are refused; as much again for answers that clients have not taken yet (native "
            "front end)",
        },
    )
    max_metadata_bytes: int = field(
        default=16_384, metadata={"min": 1024, "unit": "bytes", "help": "largest metadata of one RPC"}
    )
    max_concurrent_streams: int = field(
        default=4096, metadata={"min": 1, "help": "RPCs under way on one connection"}
    )
    max_connections: int = field(
        default=8192,
        metadata={"min": 1, "help": "open connections; more are closed at once (native front end)"},
    )
    max_connections_per_peer: int = field(
        default=1024,
        metadata={
            "min": 1,
            "help": "open connections from one IPv4 address or IPv6 network of 64 bits; more are closed at once; raise "
            "it where many clients come from one address, as from behind a proxy (native front end)",
        },
    )
    stream_window: int = field(
        default=256,
        metadata={
            "min": 1,
            "help": "requests under way on one ModelStreamInfer; more are read when answers left",
        },
    )
    stream_window_bytes: int = field(
        default=64 * MEBIBYTE,
        metadata={
            "min": 1,
            "unit": "bytes",
            "help": "request messages under way on one ModelStreamInfer beyond which no more are read until answers "
            "left",
        },
    )
    keepalive_s: float = field(
        default=60.0,
        metadata={"min": 1, "unit": "s", "help": "ping a connection that was silent for this long"},
    )
    client_ping_interval_s: float = field(
        default=10.0,
        metadata={"min": 0.1, "unit": "s", "help": "clients that ping more often are disconnected"},
    )
    max_connection_age_s: float = field(
        default=0.0,
        metadata={"min": 0, "unit": "s", "help": "ask clients to reconnect after this time; 0: never"},
    )
    handshake_timeout_s: float = field(
        default=10.0,
        metadata={"min": 0.1, "unit": "s", "help": "from a new connection to the end of its handshakes"},
    )
    body_stall_s: float = field(
        default=30.0,
        metadata={
            "min": 0.1,
            "unit": "s",
            "help": "time in which a client must send 64 KiB of a message that it has begun, or its rest "
            "(native front end)",
        },
    )
    write_stall_s: float = field(
        default=30.0,
        metadata={
            "min": 0.1,
            "unit": "s",
            "help": "time in which a client must take 64 KiB of its answer, or its rest (native front end)",
        },
    )

    def contradictions(self) -> Iterator[str]:
        """As of every protocol, and of sizes."""
        yield from ListeningConfig.contradictions(self)
        if self.max_messages_bytes < self.max_message_bytes:
            yield (
                f"max_messages_bytes is {self.max_messages_bytes}, less than one message of max_message_bytes, "
                f"{self.max_message_bytes}; raise the one or lower the other"
            )

"""The ``[grpc]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from appliance.config.listening import (
    OWN_USER,
    REUSE_PORT,
    UNIX_GROUP,
    UNIX_MODE,
    client_name_problems,
    listening_problems,
    tls_contradictions,
)

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcConfig:
    """The ``[grpc]`` section. Sizes are bytes, times seconds. An address is ``host:port``, ``[v6 address]:port`` (port
    0 takes a free one), ``unix:/path``, ``systemd`` or ``systemd:NAME``; no address turns gRPC off. Raises
    ValueError where settings contradict one another."""

    addresses: tuple[str, ...] = field(
        default=("127.0.0.1:8001",),
        metadata={
            "help": "where to listen: host:port, [v6]:port or unix:/path; systemd[:NAME] for sockets "
            "that the service manager opened (native front end)",
            "check": listening_problems,
        },
    )
    reuse_port: bool = field(default=False, metadata=REUSE_PORT)
    unix_mode: str = field(default=OWN_USER, metadata=UNIX_MODE)
    unix_group: str = field(default="", metadata=UNIX_GROUP)
    tls_certificate: str = field(
        default="",
        metadata={"help": "PEM file of the server's certificate chain, for TCP; empty: no TLS"},
    )
    tls_key: str = field(default="", metadata={"help": "PEM file of the certificate's private key"})
    tls_client_ca: str = field(
        default="",
        metadata={
            "help": "PEM file of authorities; clients must then show a certificate that one of them signed"
        },
    )
    tls_client_names: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "who may come with such a certificate: the first URI among its alternative names, else the first "
            "DNS name, else, without any alternative names, the common name; with :// in it only such a URI; *. at the "
            "front stands for one label of a DNS name; empty: everybody (native front end)",
            "check": client_name_problems,
        },
    )
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
    max_resets_per_10s: int = field(
        default=20_000,
        metadata={
            "min": 1,
            "help": "unanswered RPCs that one connection may cancel in ten seconds; more close it (native front end)",
        },
    )

    def __post_init__(self) -> None:
        problems = list(tls_contradictions(self))
        if self.max_messages_bytes < self.max_message_bytes:
            problems.append(
                f"max_messages_bytes is {self.max_messages_bytes}, less than one message of max_message_bytes, "
                f"{self.max_message_bytes}; raise the one or lower the other"
            )
        if problems:
            raise ValueError("; ".join(problems))

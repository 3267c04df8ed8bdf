"""The native front end's package: whether it is there, loads, and is the one that this version of the appliance speaks
to; and its limits, by its names, from the server's settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from appliance.config.grpc import KEEPALIVE_TIMEOUT_S, GrpcConfig

PACKAGE: Final = "edge_appliance_native"
VERSION: Final = "0.10"
"""What both sides say to one another changes with it."""
HOW: Final = "'make native' builds it (with Rust's cargo)"
PING_PERIOD_S: Final = 10.0
CONTROL_FRAMES_PER_10S: Final = 10_000
"""HTTP/2 frames that carry nothing, beyond those that a connection's RPCs and their bytes justify: a busy client sends
hundreds, and each costs as much as a small request."""
RESETS_PER_10S: Final = 20_000
"""Unanswered RPCs that one connection may cancel: far beyond what a client does that hedges or is impatient."""
PING_STRIKES: Final = 2
"""Pings in excess that are forgiven, as the gRPC library forgives them."""

SETTINGS: Final[Mapping[str, str]] = {
    "message_bytes": "max_message_bytes",
    "metadata_bytes": "max_metadata_bytes",
    "streams_per_connection": "max_concurrent_streams",
    "connections": "max_connections",
    "connections_per_peer": "max_connections_per_peer",
    "bytes_in_flight_refused": "max_messages_bytes",
    "connection_bytes_refused": "max_messages_bytes_connection",
    "answer_bytes_refused": "max_messages_bytes_answers",
    "connection_age_ms": "max_connection_age_s",
    "handshake_ms": "handshake_timeout_s",
    "idle_body_ms": "body_stall_s",
    "write_stall_ms": "write_stall_s",
    "pings_per_connection": "client_ping_interval_s",
}
"""The settings that clients can run into, by the names under which the server counts that. What it counts under
``keepalive_ms`` are the pings that it sent."""

CONSTANTS: Final[Mapping[str, str]] = {
    "keepalive_timeout_ms": "keepalive_timeout_s",
    "resets_per_connection": "max_resets_per_10s",
    "control_frames_per_connection": "max_control_frames_per_10s",
}
"""The bounds of that kind that no setting sets."""

PROTOCOL: Final[Mapping[str, str]] = {"protocol_errors": "http2_protocol", "window_errors": "http2_window"}
"""The rules of HTTP/2, which no setting sets, by the names under which the server counts breaches of them."""


def limits_of(config: GrpcConfig) -> dict[str, int]:
    """Every limit that the native front end has."""
    return {
        "message_bytes": config.max_message_bytes,
        "metadata_bytes": config.max_metadata_bytes,
        "streams_per_connection": config.max_concurrent_streams,
        "connections": config.max_connections,
        "connections_per_peer": config.max_connections_per_peer,
        "bytes_in_flight": config.max_messages_bytes,
        "keepalive_ms": _ms(config.keepalive_s),
        "keepalive_timeout_ms": _ms(KEEPALIVE_TIMEOUT_S),
        "connection_age_ms": _ms(config.max_connection_age_s),
        "handshake_ms": _ms(config.handshake_timeout_s),
        "idle_body_ms": _ms(config.body_stall_s),
        "write_stall_ms": _ms(config.write_stall_s),
        "resets_per_connection": RESETS_PER_10S,
        "control_frames_per_connection": CONTROL_FRAMES_PER_10S,
        "pings_per_connection": math.ceil(PING_PERIOD_S / config.client_ping_interval_s) + PING_STRIKES,
    }


def _ms(seconds: float) -> int:
    """Whole milliseconds; what is not zero does not become zero."""
    return math.ceil(seconds * 1000)


def native_problem() -> str:
    """Why the native front end cannot be used, and what to do; empty when it can."""
    try:
        import edge_appliance_native as package
    except ModuleNotFoundError as error:
        if error.name == PACKAGE:
            return f"it is not installed; {HOW}"
        return f"it does not load ({error}); {HOW}"
    except ImportError as error:
        return f"it does not load ({error}); {HOW} anew"
    spoken = package.__version__.startswith(f"{VERSION}.")
    if not spoken or set(package.LIMITS) != set(limits_of(GrpcConfig())):
        return (
            f"the installed one, {package.__version__}, is not of this version of the appliance; {HOW} anew"
        )
    return ""

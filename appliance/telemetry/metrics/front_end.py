"""The figures of the front end as Prometheus families. Pure. docs/METRICS.md describes each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from appliance.telemetry.metrics.exposition import Family, label_text, sample
from appliance.telemetry.snapshot import FrontEndFigures

FAMILIES: Final = (
    ("connections_open", "appliance_front_end_open_connections", "gauge", "Open gRPC connections."),
    ("connections_total", "appliance_front_end_connections_total", "counter", "gRPC connections taken in."),
    (
        "connections_refused",
        "appliance_front_end_refused_connections_total",
        "counter",
        "gRPC connections closed at once because there were too many.",
    ),
    (
        "clients_refused",
        "appliance_front_end_refused_clients_total",
        "counter",
        "TLS clients whose certificate names none of grpc.tls_client_names.",
    ),
    (
        "accept_failures",
        "appliance_front_end_accept_failures_total",
        "counter",
        "Times the system had no connection to give, for instance for want of descriptors.",
    ),
    ("calls_open", "appliance_front_end_open_calls", "gauge", "RPCs under way."),
    ("calls_total", "appliance_front_end_calls_total", "counter", "RPCs taken in."),
    ("bytes_in_flight", "appliance_front_end_request_bytes", "gauge", "Bytes held in request messages."),
    ("answer_bytes", "appliance_front_end_answer_bytes", "gauge", "Bytes of answers that clients have yet to take."),
    ("resets", "appliance_front_end_resets_total", "counter", "RPCs that clients cancelled before their answer."),
    ("panics", "appliance_front_end_panics_total", "counter", "Defects of the front end itself, each within one RPC."),
    ("http_connections_open", "appliance_front_end_http_open_connections", "gauge", "Open HTTP connections."),
    (
        "http_connections_refused",
        "appliance_front_end_http_refused_connections_total",
        "counter",
        "HTTP connections turned away because there were too many: answered 503, over TLS closed.",
    ),
    (
        "http_connections_per_peer",
        "appliance_front_end_http_refused_peers_total",
        "counter",
        "HTTP connections turned away because there were too many from their address.",
    ),
    ("http_serving", "appliance_front_end_http_serving", "gauge", "HTTP requests that it is serving by itself."),
    ("http_answered", "appliance_front_end_http_answered_total", "counter", "HTTP requests answered by itself."),
    ("http_json", "appliance_front_end_http_json_total", "counter", "Those of them with a tensor as JSON."),
    (
        "http_uploads",
        "appliance_front_end_http_uploads_total",
        "counter",
        "HTTP requests whose tensors were copied into their slot while they came.",
    ),
    (
        "http_late",
        "appliance_front_end_http_late_total",
        "counter",
        "HTTP requests refused by itself because they would have been late.",
    ),
    (
        "http_over_quota",
        "appliance_front_end_http_over_quota_total",
        "counter",
        "HTTP requests refused by itself for their client's quota.",
    ),
    (
        "http_expired",
        "appliance_front_end_http_expired_total",
        "counter",
        "HTTP requests that it had to answer too late, and said so.",
    ),
    ("http_passed", "appliance_front_end_http_passed_total", "counter", "HTTP requests handed to Python."),
    ("http_tunnels", "appliance_front_end_http_tunnels_total", "counter", "HTTP connections handed to Python whole."),
    (
        "http_stalled",
        "appliance_front_end_http_stalled_total",
        "counter",
        "HTTP clients cut off because they took nothing of an answer.",
    ),
)  # fmt: skip


HANDSHAKES: Final = (
    ("failed", "handshakes_failed"),
    ("late", "handshakes_late"),
    ("name", "clients_refused"),
    ("plain", "handshakes_plain"),
)
"""Why TLS handshakes of gRPC come to nothing, and under which names they are counted."""


def front_end_families(figures: FrontEndFigures) -> Iterator[Family]:
    """All families; those that it knows nothing of have no samples."""
    name = "appliance_front_end_info"
    samples = [sample(name, label_text({"kind": figures.kind}), 1)]
    yield Family(name, "gauge", "Which front end serves; always 1.", samples)
    for key, name, kind, meaning in FAMILIES:
        yield Family(
            name, kind, meaning, [sample(name, "", figures.counts[key])] if key in figures.counts else ()
        )
    name = "appliance_front_end_failed_handshakes_total"
    failed = [
        sample(name, label_text({"reason": why}), figures.counts[key])
        for why, key in HANDSHAKES
        if key in figures.counts
    ]
    yield Family(name, "counter", "TLS handshakes at the gRPC port that failed, by why.", failed)
    name = "appliance_front_end_limits_total"
    enforced = [sample(name, label_text({"limit": key}), count) for key, count in figures.limits.items()]
    yield Family(name, "counter", "Times a bound was enforced, by the setting of [grpc].", enforced)

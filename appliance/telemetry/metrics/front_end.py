"""What came in and was turned away, by protocol, client and trace, as Prometheus families. Pure. docs/METRICS.md
describes each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from appliance.telemetry.metrics.exposition import Family, family, label_text, singles, split
from appliance.telemetry.snapshot import FrontEndFigures, HttpStatistics, QuotaFigures, TraceFigures

FAMILIES: Final = (
    ("connections_open", "appliance_front_end_open_connections", "Open gRPC connections."),
    ("connections_total", "appliance_front_end_connections_total", "gRPC connections taken in."),
    (
        "connections_refused",
        "appliance_front_end_refused_connections_total",
        "gRPC connections closed at once because there were too many.",
    ),
    (
        "clients_refused",
        "appliance_front_end_refused_clients_total",
        "TLS clients whose certificate names none of grpc.tls_client_names.",
    ),
    (
        "accept_failures",
        "appliance_front_end_accept_failures_total",
        "Times the system had no connection to give, for instance for want of descriptors.",
    ),
    ("calls_open", "appliance_front_end_open_calls", "RPCs under way."),
    ("calls_total", "appliance_front_end_calls_total", "RPCs taken in."),
    (
        "calls_refused",
        "appliance_front_end_refused_calls_total",
        "RPCs refused because their client, or all, had too many under way.",
    ),
    ("bytes_in_flight", "appliance_front_end_request_bytes", "Bytes held in request messages."),
    ("answer_bytes", "appliance_front_end_answer_bytes", "Bytes of answers that clients have yet to take."),
    ("templates", "appliance_front_end_templates", "Request templates: heads that it serves by itself."),
    (
        "templates_retired",
        "appliance_front_end_retired_templates_total",
        "Request templates that made room for others.",
    ),
    ("resets", "appliance_front_end_resets_total", "RPCs that clients cancelled before their answer."),
    ("panics", "appliance_front_end_panics_total", "Defects of the front end itself, each within one RPC."),
    ("http_connections_open", "appliance_front_end_http_open_connections", "Open HTTP connections."),
    (
        "http_connections_refused",
        "appliance_front_end_http_refused_connections_total",
        "HTTP connections turned away because there were too many: answered 503, over TLS closed.",
    ),
    (
        "http_connections_per_peer",
        "appliance_front_end_http_refused_peers_total",
        "HTTP connections turned away because there were too many from their address.",
    ),
    ("http_serving", "appliance_front_end_http_serving", "HTTP requests that it is serving by itself."),
    ("http_answered", "appliance_front_end_http_answered_total", "HTTP requests answered by itself."),
    ("http_json", "appliance_front_end_http_json_total", "Those of them with a tensor as JSON."),
    (
        "http_uploads",
        "appliance_front_end_http_uploads_total",
        "HTTP requests whose tensors were copied into their slot while they came.",
    ),
    (
        "http_late",
        "appliance_front_end_http_late_total",
        "HTTP requests refused by itself because they would have been late.",
    ),
    (
        "http_over_quota",
        "appliance_front_end_http_over_quota_total",
        "HTTP requests refused by itself for their client's quota.",
    ),
    (
        "http_expired",
        "appliance_front_end_http_expired_total",
        "HTTP requests that it had to answer too late, and said so.",
    ),
    ("http_passed", "appliance_front_end_http_passed_total", "HTTP requests handed to Python."),
    ("http_tunnels", "appliance_front_end_http_tunnels_total", "HTTP connections handed to Python whole."),
    (
        "http_stalled",
        "appliance_front_end_http_stalled_total",
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
    """All families of either protocol; those that the front end knows nothing of have no samples."""
    counts = figures.counts
    yield split("appliance_front_end_info", "Which front end serves; always 1.", "kind", {figures.kind: 1})
    yield from singles((name, meaning, counts[key]) for key, name, meaning in FAMILIES if key in counts)
    failed = {why: counts[key] for why, key in HANDSHAKES if key in counts}
    meaning = "TLS handshakes at the gRPC port that failed, by why."
    yield split("appliance_front_end_failed_handshakes_total", meaning, "reason", failed)
    meaning = "Times a bound was enforced, by the setting of [grpc]."
    yield split("appliance_front_end_limits_total", meaning, "limit", figures.limits)


def http_families(figures: HttpStatistics) -> Iterator[Family]:
    """What was answered over HTTP, whoever did it."""
    codes = {str(code): count for code, count in figures.answers}
    yield split("appliance_http_responses_total", "HTTP answers, by status code.", "code", codes)
    yield from singles(
        [
            ("appliance_http_connections", "Open HTTP connections.", figures.connections),
            ("appliance_http_in_flight_requests", "HTTP requests being handled.", figures.in_flight),
            ("appliance_http_body_bytes", "Bytes held in HTTP request bodies.", figures.body_bytes),
            (
                "appliance_http_answer_bytes",
                "Bytes of HTTP answers to inferences that clients have yet to take.",
                figures.answer_bytes,
            ),
            (
                "appliance_http_refused_answers_total",
                "Inferences refused because such answers held all the memory there may be for them.",
                figures.refused_answers,
            ),
        ]
    )
    reasons = dict(figures.handshakes)
    yield split(
        "appliance_http_failed_handshakes_total", "TLS handshakes that failed, by why.", "reason", reasons
    )
    meaning = "HTTP connections closed at once because there were too many."
    refused = [("", figures.refused_connections)]
    yield family("appliance_http_refused_connections_total", meaning, refused)


def quota_families(figures: QuotaFigures) -> Iterator[Family]:
    """What clients were refused. Those that are not named have one label together."""
    meaning = "Clients whose quotas are told apart now."
    yield family("appliance_quota_clients", meaning, [("", figures.clients)])
    refused = [
        (label_text({"client": label, "reason": reason}), count)
        for label, rate, in_flight in figures.refusals
        for reason, count in (("rate", rate), ("in_flight", in_flight))
    ]
    yield family("appliance_quota_refused_total", "Requests refused for their client's quota.", refused)


def trace_families(figures: TraceFigures) -> Iterator[Family]:
    """What became of traces."""
    counts = {"written": figures.written, "left_out": figures.left_out, "lost": figures.lost}
    yield split("appliance_traces_total", "Traces of requests, by what became of them.", "outcome", counts)

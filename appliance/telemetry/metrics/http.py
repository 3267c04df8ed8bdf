"""What the HTTP side of the front end did, as Prometheus families. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.telemetry.metrics.exposition import Family, family, gauge, label_text
from appliance.telemetry.snapshot import HttpStatistics


def http_families(own: HttpStatistics) -> Iterator[Family]:
    """This edge's own figures as Prometheus families."""
    codes = [(label_text({"code": str(code)}), count) for code, count in own.answers]
    yield family("appliance_http_responses_total", "counter", "HTTP answers, by status code.", codes)
    yield gauge("appliance_http_connections", "Open HTTP connections.", own.connections)
    yield gauge("appliance_http_in_flight_requests", "HTTP requests being handled.", own.in_flight)
    yield gauge("appliance_http_body_bytes", "Bytes held in HTTP request bodies.", own.body_bytes)
    meaning = "Bytes of HTTP answers to inferences that clients have yet to take."
    yield gauge("appliance_http_answer_bytes", meaning, own.answer_bytes)
    meaning = "Inferences refused because such answers held all the memory there may be for them."
    yield family("appliance_http_refused_answers_total", "counter", meaning, [("", own.refused_answers)])
    meaning = "HTTP connections closed at once because there were too many."
    reasons = [(label_text({"reason": reason}), count) for reason, count in own.handshakes]
    yield family(
        "appliance_http_failed_handshakes_total", "counter", "TLS handshakes that failed, by why.", reasons
    )
    refused = [("", own.refused_connections)]
    yield family("appliance_http_refused_connections_total", "counter", meaning, refused)

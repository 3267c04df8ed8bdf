"""The exposition is what Prometheus' own parser reads, says what the meters say, and is what the document says."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from appliance.config.telemetry import MetricsConfig
from appliance.domain.histogram import BOUNDS_NS
from appliance.telemetry.meter import Result, Stage
from appliance.telemetry.metrics.engine import snapshot_families
from appliance.telemetry.metrics.exposition import Family, exposition, sample
from appliance.telemetry.metrics.front_end import FAMILIES, HANDSHAKES, front_end_families
from appliance.telemetry.metrics.process import ProcessMetrics
from appliance.telemetry.metrics.versions import labelled
from appliance.telemetry.snapshot import (
    FrontEndFigures,
    HttpStatistics,
    QuotaFigures,
    Refusals,
    Snapshot,
    TraceFigures,
)
from tests.frontend.http.documented import code_words, table_rows
from tests.frontend.http.engine_figures import (
    AWKWARD_NAME,
    busy_meter,
    made_up_devices,
    made_up_status,
    made_up_store,
)

SECTIONS = (
    ("## Models", {"model", "version"}),
    ("## The appliance", set[str]()),
    ("## Models in and out of memory", set[str]()),
    ("## Devices", {"device"}),
    ("## The front end", set[str]()),
    ("## Traces", set[str]()),
    ("## The store", set[str]()),
    ("## Names for Triton dashboards", {"model", "version"}),
)
ALL = MetricsConfig(triton_names=True)
OWN = HttpStatistics(
    answers=((200, 7), (429, 1)),
    handshakes=(("late", 2), ("plain", 0)),
    connections=3,
    refused_connections=1,
    in_flight=2,
    body_bytes=10,
    answer_bytes=20,
    refused_answers=4,
)
FRONT_END = FrontEndFigures(
    kind="native",
    counts={name: 3 for _, name in HANDSHAKES}
    | {name: 5 + place for place, (name, *_) in enumerate(FAMILIES)},
    limits={"max_connections": 1, "body_stall_s": 0},
)
QUOTAS = QuotaFigures(clients=3, refusals=(Refusals("*", 4, 5), Refusals("camera", 6, 7)))
TRACES = TraceFigures(written=9, left_out=4, lost=1)
BUSY = {"model": "busy", "version": "3"}


def _text(config: MetricsConfig = ALL) -> str:
    status = made_up_status()
    versions = [labelled(version.statistics) for version in status.versions]
    snapshot = Snapshot(
        engine=status,
        http=OWN,
        front_end=FRONT_END,
        store=made_up_store(),
        quotas=QUOTAS,
        traces=TRACES,
        certificates={"grpc": 1_800_000_000},
        devices=made_up_devices(),
        kwh_price=0.36,
    )
    return "".join(exposition(snapshot_families(snapshot, versions, config)))


def _metrics(text: str) -> dict[str, Metric]:
    return {metric.name: metric for metric in text_string_to_metric_families(text)}


def _value(text: str, name: str, **labels: str) -> float:
    found = [
        line.value
        for metric in text_string_to_metric_families(text)
        for line in metric.samples
        # the parser adds _total to the name of a counter that lacks it
        if line.name in (name, f"{name}_total") and line.labels == labels
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def test_counters_say_what_the_meters_say() -> None:
    text = _text()
    assert _value(text, "appliance_requests_total", outcome="success", **BUSY) == 3
    for result in Result:
        if result is not Result.SUCCESS:
            assert _value(text, "appliance_requests_total", outcome=result.value, **BUSY) == 1
    assert _value(text, "appliance_inferences_total", **BUSY) == 6
    assert _value(text, "appliance_batches_total", rows="2", **BUSY) == 1
    assert _value(text, "appliance_batches_total", rows="4", **BUSY) == 1
    assert _value(text, "appliance_retries_total", **BUSY) == 2
    assert _value(text, "appliance_leased_requests_total", **BUSY) == 2
    assert _value(text, "appliance_worker_requests_total", worker="0", by="engine") == 4
    assert _value(text, "appliance_worker_requests_total", worker="0", by="lease") == 2
    assert _value(text, "appliance_http_responses_total", code="429") == 1


def test_the_front_end_says_what_it_counted() -> None:
    text = _text()
    assert _value(text, "appliance_front_end_info", kind="native") == 1
    assert _value(text, "appliance_front_end_open_connections") == 5
    assert _value(text, "appliance_front_end_failed_handshakes_total", reason="late") == 3
    assert _value(text, "appliance_front_end_failed_handshakes_total", reason="name") == _value(
        text, "appliance_front_end_refused_clients_total"
    )
    assert _value(text, "appliance_front_end_limits_total", limit="max_connections") == 1
    assert _value(text, "appliance_front_end_limits_total", limit="body_stall_s") == 0
    assert _value(text, "appliance_front_end_free_slots", bytes="4096") == 125


def test_of_a_front_end_that_counts_nothing_only_the_name_is_told() -> None:
    text = "".join(exposition(front_end_families(FrontEndFigures(kind="python", counts={}, limits={}))))
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'appliance_front_end_info{kind="python"} 1'
    ]


def test_gauges_say_what_the_status_says() -> None:
    text = _text()
    assert _value(text, "appliance_queue_requests") == 5
    assert _value(text, "appliance_queue_bytes") == 1280
    assert _value(text, "appliance_worker_up", worker="0") == 1
    assert _value(text, "appliance_worker_up", worker="1") == 0
    assert _value(text, "appliance_worker_info", worker="0", **BUSY) == 1
    assert _value(text, "appliance_worker_leased", worker="0") == 1
    assert _value(text, "appliance_worker_leased", worker="1") == 0
    assert _value(text, "appliance_version_restarts_total", cause="died", **BUSY) == 2
    assert _value(text, "appliance_version_memory_bytes", **BUSY) == 30 << 20
    assert _value(text, "appliance_version_weights_bytes", **BUSY) == 20 << 20
    assert _value(text, "appliance_certificate_expiry_timestamp_seconds", port="grpc") == 1_800_000_000
    assert _value(text, "appliance_store_free_bytes") == 5 << 30
    form = {"artifact": "packed form", **BUSY}
    assert _value(text, "appliance_store_artifact_timestamp_seconds", **form) == 1_700_000_900
    assert _value(text, "appliance_version_state", state="READY", **BUSY) == 1
    assert _value(text, "appliance_version_state", state="LOADING", **BUSY) == 0
    assert _value(text, "appliance_version_state", state="UNAVAILABLE", model=AWKWARD_NAME, version="1") == 1
    assert _value(text, "appliance_version_queued_requests", **BUSY) == 5


def test_histograms_are_cumulative_and_in_seconds() -> None:
    text = _text()
    name = "appliance_request_duration_seconds"
    buckets = {
        line.labels["le"]: line.value
        for line in _metrics(text)[name].samples
        if line.name == f"{name}_bucket" and line.labels["model"] == "busy"
    }
    assert len(buckets) == len(BOUNDS_NS) + 1
    assert [buckets[bound] for bound in ("0.0003", "0.0004", "0.00075", "0.001", "10.0", "+Inf")] == [
        0,
        1,
        1,
        2,
        2,
        3,
    ]
    assert list(buckets.values()) == sorted(buckets.values())
    assert _value(text, f"{name}_count", **BUSY) == 3
    assert _value(text, f"{name}_sum", **BUSY) == pytest.approx(20.0013)
    assert _value(text, "appliance_stage_duration_seconds_sum", stage="queue", **BUSY) == pytest.approx(
        150e-6
    )


def test_idle_versions_have_counters_and_no_histograms() -> None:
    text = _text()
    assert _value(text, "appliance_requests_total", outcome="success", model="idle", version="1") == 0
    assert {
        line.labels["model"] for line in _metrics(text)["appliance_request_duration_seconds"].samples
    } == {"busy"}


def test_triton_names_are_the_same_figures_and_an_option() -> None:
    text = _text()
    assert _value(text, "nv_inference_request_success", **BUSY) == 3
    reasons = {"REJECTED": 2, "CANCELED": 1, "BACKEND": 1, "OTHER": 2}
    for reason, count in reasons.items():
        assert _value(text, "nv_inference_request_failure", reason=reason, **BUSY) == count
    assert _value(text, "nv_inference_count", **BUSY) == 6
    assert _value(text, "nv_inference_exec_count", **BUSY) == 2
    total_ns = busy_meter().stages[Stage.TOTAL].sum_ns
    assert _value(text, "nv_inference_request_duration_us", **BUSY) == total_ns // 1000
    assert _value(text, "nv_inference_pending_request_count", **BUSY) == 5
    assert "nv_" not in _text(MetricsConfig())


def test_stage_histograms_are_an_option() -> None:
    text = _text(MetricsConfig(stage_histograms=False))
    assert "appliance_stage_duration_seconds" not in text
    assert "appliance_request_duration_seconds_bucket" in text


class _Parsed(Collector):
    """What the parser read, as the client library's own collector."""

    def __init__(self, text: str) -> None:
        self._text = text

    def collect(self) -> Iterable[Metric]:
        return text_string_to_metric_families(self._text)


def test_the_client_library_writes_the_same_samples() -> None:
    """The library's parser takes no offence at anything odd; its writer shows what it understood."""
    text = _text()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Parsed(text))
    theirs = generate_latest(registry).decode()

    def samples(exposed: str) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
        return {
            (line.name.removesuffix("_total"), frozenset(line.labels.items()), line.value)
            for metric in text_string_to_metric_families(exposed)
            for line in metric.samples
        }

    assert samples(text) == samples(theirs)
    assert len(samples(text)) == len([line for line in text.splitlines() if not line.startswith("#")])


def test_each_family_is_announced_once_with_its_type() -> None:
    text = _text()
    announced = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(announced) == len(set(announced))
    assert all(metric.type != "unknown" and metric.documentation for metric in _metrics(text).values())


def test_a_family_without_samples_is_left_out_and_help_is_escaped() -> None:
    families = [
        Family("empty", "gauge", "x", []),
        Family("a", "gauge", "two\nlines \\", [sample("a", "", 1)]),
    ]
    text = "".join(exposition(families))
    assert text == "# HELP a two\\nlines \\\\\n# TYPE a gauge\na 1\n"


def test_the_document_names_every_metric_with_its_type_and_labels() -> None:
    written: dict[str, tuple[str, set[str]]] = {}
    for heading, common in SECTIONS:
        for name, kind, labels, _ in table_rows("METRICS.md", heading):
            written[name.strip("`")] = (kind, code_words(labels) | common)
    exposed: dict[str, tuple[str, set[str]]] = {}
    process = "".join(
        line for line in ProcessMetrics().text().splitlines(keepends=True) if "appliance_build_info" in line
    )
    for name, metric in _metrics(_text() + process).items():
        used = {key for line in metric.samples for key in line.labels} - {"le"}
        full = f"{name}_total" if f"{name}_total" in written else name
        exposed[full] = (metric.type, used)
    assert exposed == written


def test_the_process_tells_about_itself() -> None:
    text = ProcessMetrics().text()
    assert _value(text, "process_resident_memory_bytes") > 1 << 20
    assert _metrics(text)["appliance_build_info"].samples[0].value == 1

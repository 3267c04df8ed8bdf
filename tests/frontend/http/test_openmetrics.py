"""OpenMetrics for who asks for it: what the reference parser takes, with traced requests in latency buckets."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser
from prometheus_client.parser import text_string_to_metric_families

from appliance.config.telemetry import MetricsConfig
from appliance.frontend.http.figures import prefers_openmetrics
from appliance.telemetry.exemplars import VERSIONS_MAX, Exemplar, Exemplars
from appliance.telemetry.metrics.engine import snapshot_families
from appliance.telemetry.metrics.exposition import OPENMETRICS_END, exposition
from appliance.telemetry.metrics.process import ProcessMetrics
from appliance.telemetry.metrics.versions import labelled
from appliance.telemetry.snapshot import Snapshot, TraceFigures
from models.generate import write_model
from tests.conftest import Serve
from tests.frontend.http.engine_figures import made_up_status, made_up_store
from tests.frontend.http.raw_client import RawClient, binary_request
from tests.frontend.http.test_metrics import FRONT_END, OWN, QUOTAS

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def strict_families(text: str) -> list[Metric]:
    return list(parser.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


def _snapshot() -> Snapshot:
    exemplars = Exemplars()
    exemplars.add("busy", 3, Exemplar(TRACE_ID, 450_000, 1_700_000_000_123_456_789))
    exemplars.add("busy", 3, Exemplar("f" * 32, 60_000_000_000, 1_700_000_001_000_000_000))
    traces = TraceFigures(written=2, left_out=0, lost=0, exemplars=exemplars.frozen())
    return Snapshot(
        engine=made_up_status(),
        http=OWN,
        front_end=FRONT_END,
        store=made_up_store(),
        quotas=QUOTAS,
        traces=traces,
        certificates={"http": 1_800_000_000},
    )


def _text(*, openmetrics: bool) -> str:
    snapshot = _snapshot()
    versions = [labelled(version.statistics) for version in snapshot.engine.versions]
    families = snapshot_families(snapshot, versions, MetricsConfig(triton_names=True), exemplars=openmetrics)
    text = "".join(exposition(families, openmetrics=openmetrics))
    process = ProcessMetrics().text(openmetrics=openmetrics)
    return process + text + (OPENMETRICS_END if openmetrics else "")


def _samples(families: Sequence[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.startswith(("process_", "python_"))
    }


def test_the_reference_parser_takes_all_and_names_and_values_are_those_of_the_text_format() -> None:
    strict = strict_families(_text(openmetrics=True))
    # The parser of the text format adds _total to the names of counters that lack it.
    plain = {
        (name.removesuffix("_total") if name.startswith("nv_") else name, labels): value
        for (name, labels), value in _samples(
            list(text_string_to_metric_families(_text(openmetrics=False)))
        ).items()
    }
    assert _samples(strict) == plain
    kinds = {family.name: family.type for family in strict}
    assert kinds["appliance_requests"] == "counter"
    assert kinds["nv_inference_request_success"] == "unknown"
    assert kinds["appliance_request_duration_seconds"] == "histogram"


def test_buckets_show_the_last_traced_request_that_took_so_long() -> None:
    (family,) = (
        each
        for each in strict_families(_text(openmetrics=True))
        if each.name == "appliance_request_duration_seconds"
    )
    shown = {sample.labels["le"]: sample.exemplar for sample in family.samples if sample.exemplar}
    assert set(shown) == {"0.0005", "+Inf"}
    found = shown["0.0005"]
    assert (found.labels, found.value) == ({"trace_id": TRACE_ID}, 0.00045)
    assert str(found.timestamp) == "1700000000.123000000"
    assert TRACE_ID not in _text(openmetrics=False)


def test_exemplars_are_bounded_and_the_last_one_stands_for_its_bucket() -> None:
    exemplars = Exemplars()
    for number in range(VERSIONS_MAX + 1):
        exemplars.add("m", number, Exemplar("a" * 32, 1, 1))
    exemplars.add("m", 7, Exemplar("b" * 32, 2, 2))
    assert len(exemplars.frozen()) == VERSIONS_MAX
    assert ("m", 0) not in exemplars.frozen()
    assert exemplars.frozen()["m", 7] == {0: Exemplar("b" * 32, 2, 2)}


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=1.0.0", True),
        (PROMETHEUS, True),
        ("text/plain, application/openmetrics-text;q=0.5", False),
        ("text/plain;q=0.5, application/openmetrics-text; q=0.5", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=nan", False),
        ("application/openmetrics-text;q=" + "9" * 400, False),
        ("application/openmetrics-textual", False),
    ],
)
def test_who_names_it_and_does_not_like_text_better_gets_it(accept: str, wanted: bool) -> None:
    assert prefers_openmetrics(accept) is wanted


def test_a_daemon_shows_the_trace_that_a_client_named(serve: Serve, tmp_path: Path) -> None:
    write_model("mlp", tmp_path / "models")
    trace = {"one_in": 1_000_000, "file": str(tmp_path / "traces")}
    daemon = serve(tmp_path / "models", {"trace": trace, "metrics": {"triton_names": True}})
    headers = {"traceparent": f"00-{TRACE_ID}-{'1' * 16}-01"}
    with RawClient(daemon) as client:
        for _ in range(3):
            assert client.ask(binary_request("mlp", {"x": (1, 64)}, headers=headers)).status == 200

    asked = urllib.request.Request(f"http://{daemon.http}/metrics", headers={"Accept": PROMETHEUS})
    with urllib.request.urlopen(asked, timeout=20) as reply:
        assert reply.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        families = {family.name: family for family in strict_families(reply.read().decode())}
    samples = families["appliance_request_duration_seconds"].samples
    assert {each.exemplar.labels["trace_id"] for each in samples if each.exemplar} == {TRACE_ID}
    with urllib.request.urlopen(f"http://{daemon.http}/metrics", timeout=20) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert TRACE_ID not in reply.read().decode()

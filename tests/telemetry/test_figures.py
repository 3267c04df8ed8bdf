"""Traces and metrics of real daemons, behind every front end: whoever looks sees the same whichever of them serves."""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.cli.main import main
from appliance.telemetry.otlp import STAGES
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.streaming import Sending, ask
from tests.conformance.grpc.stub import Stub
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.fake_models import write_fake
from tests.fronts import FRONT_ENDS, NATIVE, needs_native

MANY = 40
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN_ID = "00f067aa0ba902b7"
WAIT_S = 20.0


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Two models, one of which fails."""
    write_fake(tmp_path / "models", "m")
    write_fake(tmp_path / "models", "failing", mode="fail")
    return tmp_path / "models"


def traced(file: Path, wanted: int) -> dict[str, list[dict[str, Any]]]:
    """The spans of each traced request by its id, once there are as many as are wanted: they are written by a thread of
    their own, and what the front end served by itself is told later."""
    end = time.monotonic() + WAIT_S
    while True:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) >= wanted or time.monotonic() > end:
            break
        time.sleep(0.01)
    spans = [json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"] for line in lines]
    return {facts(each[0])["appliance.request.id"]: each for each in spans}


def facts(span: dict[str, Any]) -> dict[str, str]:
    return {pair["key"]: next(iter(pair["value"].values())) for pair in span["attributes"]}


def infer_many(daemon: ApplianceProcess, count: int) -> None:
    with Stub(daemon.grpc) as stub:
        for number in range(count):
            stub.infer(ask("m", f"r{number}"))


@pytest.mark.every_front_end
def test_every_traced_request_tells_all_its_stages(
    serve: Serve, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "traces.jsonl"
    daemon = serve(models, {**FAKE_SECTIONS, "trace": {"one_in": 1, "file": str(file), "traces_per_s": 1000}})
    before_ns = time.time_ns()
    infer_many(daemon, MANY)
    told = traced(file, MANY)
    assert set(told) == {f"r{number}" for number in range(MANY)}
    for root, *below in told.values():
        assert [span["name"] for span in below] == list(STAGES)
        stamps = [int(span["startTimeUnixNano"]) for span in below] + [int(root["endTimeUnixNano"])]
        assert stamps == sorted(stamps)
        assert before_ns <= stamps[0] <= stamps[-1] <= time.time_ns()
        assert all(a["endTimeUnixNano"] == b["startTimeUnixNano"] for a, b in pairwise(below))
        assert (facts(root)["appliance.model"], facts(root)["appliance.outcome"]) == ("m", "success")
    (model,) = [model for model in daemon.status()["models"] if model["name"] == "m"]
    paths = Counter(facts(root)["appliance.path"] for root, *_ in told.values())
    assert (paths["leased"], paths["asked"]) == (model["leased"], MANY - model["leased"])
    settings = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}
    assert json.loads(daemon.get("/v2/trace/setting")) == settings
    assert 'appliance_traces_total{outcome="left_out"} 0' in daemon.get("/metrics").decode()
    assert main(["trace", "r7", "--file", str(file)]) == 0
    assert "request 'r7'" in capsys.readouterr().out


@pytest.mark.every_front_end
def test_what_clients_say_of_their_traces_is_kept(serve: Serve, models: Path, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    daemon = serve(models, {**FAKE_SECTIONS, "trace": {"one_in": 10_000, "file": str(file)}})
    wanted = (("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01"),)
    with Stub(daemon.grpc) as stub:
        sending = Sending(ask("m", "s0"), ask("failing", "s1"))
        sending.end()
        list(stub.stream(sending, metadata=wanted))
        stub.infer(ask("m", "plain"))
    told = traced(file, 2)
    assert set(told) == {"s0", "s1"}
    for root, *_ in told.values():
        assert (root["traceId"], root["parentSpanId"]) == (TRACE_ID, SPAN_ID)
    assert "told to fail" in told["s1"][0]["status"]["message"]


@needs_native
def test_one_in_so_many_of_those_that_the_front_end_serves_is_traced(
    serve: Serve, models: Path, tmp_path: Path
) -> None:
    file = tmp_path / "traces.jsonl"
    sections = {**FAKE_SECTIONS, **NATIVE, "trace": {"one_in": 10, "file": str(file)}}
    daemon = serve(models, sections)
    infer_many(daemon, 10)
    with Stub(daemon.grpc) as stub:
        wanted = (("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01"),)
        for number in range(100):
            stub.call("ModelInfer", ask("m", f"g{number}"), metadata=wanted)
    told = traced(file, 10)
    leased = [root for root, *_ in told.values() if facts(root)["appliance.path"] == "leased"]
    assert len(leased) == 10
    assert {root["traceId"] for root in leased} >= {TRACE_ID}
    assert sum(root["traceId"] == TRACE_ID for root in leased) >= 9


def test_without_tracing_there_is_no_file(serve: Serve, models: Path, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    daemon = serve(models, {**FAKE_SECTIONS, "trace": {"file": str(file)}})
    infer_many(daemon, 5)
    assert daemon.stop() == 0
    assert not file.exists()


def model_samples(daemon: ApplianceProcess) -> dict[tuple[str, str], float]:
    """Samples about models, by name and labels, but for those that tell of times, of leases or of memory."""
    text = daemon.get("/metrics").decode()
    return {
        (sample.name, json.dumps(sample.labels, sort_keys=True)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "model" in sample.labels
        and not sample.name.endswith(("_sum", "_bucket"))
        and sample.name not in ("appliance_leased_requests_total", "appliance_version_memory_bytes")
    }


@needs_native
def test_metrics_of_models_are_the_same_on_both_front_ends(models: Path) -> None:
    figures = []
    for front_end in FRONT_ENDS.values():
        with ApplianceProcess(models, {**FAKE_SECTIONS, **front_end}) as daemon:
            daemon.wait_ready()
            infer_many(daemon, MANY)
            with Stub(daemon.grpc) as stub:
                for request in (ask("failing", "f"), ask("m", "x", timeout=True), ask("nobody", "n")):
                    assert stub.refusal(request).code in ("INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND")
            figures.append(model_samples(daemon))
    grpcio, native = figures
    assert native == grpcio
    success = ("appliance_requests_total", '{"model": "m", "outcome": "success", "version": "1"}')
    assert grpcio[success] == MANY


@needs_native
def test_the_native_front_end_tells_what_it_counted(serve: Serve, models: Path) -> None:
    daemon = serve(models, {**FAKE_SECTIONS, **NATIVE, "grpc": {"max_message_bytes": 4096}})
    infer_many(daemon, MANY)
    with Stub(daemon.grpc) as stub:
        refused = stub.refusal(ask("m", "x" * 5_000))
        assert refused.code == "RESOURCE_EXHAUSTED"
        assert "the largest that is accepted has 4096 bytes (grpc.max_message_bytes)" in refused.text
    told = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(daemon.get("/metrics").decode())
        for sample in family.samples
        if "_front_end_" in sample.name or "_front_end_" in sample.name
    }
    assert told["appliance_front_end_info", "native"] == 1
    assert told["appliance_front_end_connections_total",] == 2
    assert told["appliance_front_end_calls_total",] == MANY + 1
    assert told["appliance_front_end_limits_total", "max_message_bytes"] == 1
    assert told["appliance_front_end_limits_total", "max_connections"] == 0
    slots = [value for (name, *_), value in told.items() if name == "appliance_front_end_slots"]
    free = [value for (name, *_), value in told.items() if name == "appliance_front_end_free_slots"]
    assert sum(free) == sum(slots) > 0

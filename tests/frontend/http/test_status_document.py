"""The status document says what the engine says, and docs/STATUS.md says what it is."""

from __future__ import annotations

from typing import Any

from appliance.core.memory.footprint import Residency
from appliance.core.rollout.phase import Phase, stage_of
from appliance.domain.histogram import BOUNDS_US
from appliance.domain.model import VersionState
from appliance.engine.port import IndexEntry
from appliance.engine.versions.version_status import with_index
from appliance.telemetry.meter import Result, Stage, VersionMeter
from appliance.telemetry.snapshot import LoadStatus
from appliance.telemetry.status_document import batch_mean
from appliance.workers.port import LoadStage
from tests.frontend.http.documented import code_words, table_rows
from tests.frontend.http.engine_figures import busy_meter, made_up_snapshot, made_up_status, status_document


def _document() -> Any:
    return status_document(made_up_snapshot())


def test_it_says_what_the_engine_says() -> None:
    document = _document()
    assert (document["uptime_ms"], document["queued_requests"], document["accepting"]) == (90_000, 5, True)
    busy = document["models"][0]
    assert (busy["name"], busy["version"], busy["state"]) == ("busy", 3, "READY")
    assert busy["requests"]["success"] == 3
    assert (busy["batch_mean"], busy["executed_rows"]) == (3.0, 6)
    assert document["models"][2]["reason"] == "no <script> here"
    assert document["workers"][0]["memory_bytes"] == 30 << 20


def test_histograms_lose_nothing_but_zeros() -> None:
    total = _document()["models"][0]["stages"]["total"]
    whole = busy_meter().stages[Stage.TOTAL]
    padding = [0] * (len(BOUNDS_US) + 1 - len(total["counts"]))
    assert total["counts"] + padding == whole.counts
    assert (total["count"], total["sum_ns"]) == (3, whole.sum_ns)
    assert total["p50_us"] == whole.frozen().quantile_ns(0.5) / 1000


def test_batches_whose_requests_failed_count_with_their_rows() -> None:
    meter = VersionMeter("failing", 1)
    for _ in range(3):
        meter.batch_finished(2, 10, 10, 10)
        meter.ended(Result.FAILED, 1_000)
    assert (batch_mean(meter.frozen()), meter.frozen().executed_rows) == (2.0, 6)


def test_an_idle_version_has_no_quantiles_and_no_mean() -> None:
    idle = _document()["models"][1]
    assert idle["batch_mean"] is None
    assert idle["stages"]["total"] == {"count": 0, "sum_ns": 0, "p50_us": None, "p99_us": None, "counts": []}


def test_the_document_describes_every_field_and_no_other() -> None:
    document = _document()
    objects = {
        "## The document": document,
        "### `workers[]`": document["workers"][0],
        "### `residency`": document["residency"],
        "### `store`": document["store"],
        "### `models[]`": document["models"][0],
        "### A latency histogram": document["models"][0]["stages"]["run"],
    }
    for heading, value in objects.items():
        fields = set().union(*(code_words(row[0]) for row in table_rows("STATUS.md", heading)))
        assert fields == set(value), heading
    rows = {row[0]: row[2] for row in table_rows("STATUS.md", "### `models[]`")}
    model = document["models"][0]
    assert code_words(rows["`requests`"]) == set(model["requests"])
    assert code_words(rows["`stages`"]) == set(model["stages"])
    assert model["trial"] is not None
    for field, words, fields in (
        ("trial", {*map(stage_of, Phase), "NAME: VALUE"}, set(model["trial"])),
        ("loading", {stage.value for stage in LoadStage}, set(LoadStatus._fields)),
    ):
        told = code_words(rows[f"`{field}`"])
        assert fields <= told <= fields | words
    assert code_words(rows["`residency`"]) == {form.value for form in Residency}
    assert code_words(rows["`state`"]) == {state.value for state in VersionState}


def test_broken_models_are_listed_with_the_versions() -> None:
    status = made_up_status()
    index = [
        IndexEntry(name="busy", version="3", state=VersionState.READY, reason=""),
        IndexEntry(name="broken", version="7", state=VersionState.UNAVAILABLE, reason="not ONNX"),
        IndexEntry(
            name="nameless", version="", state=VersionState.UNAVAILABLE, reason="no version directory"
        ),
    ]
    versions = with_index(status.versions, index)
    assert [(version.name, version.version) for version in versions][:3] == [
        ("broken", 7),
        ("busy", 3),
        ("idle", 1),
    ]
    broken = next(version for version in versions if version.name == "broken")
    assert (broken.state, broken.reason) == (VersionState.UNAVAILABLE, "not ONNX")
    assert broken.residency == "cold"
    assert next(version for version in versions if version.name == "nameless").version == 0
    assert len(with_index(status.versions, index[:1])) == len(status.versions)

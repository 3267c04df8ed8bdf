"""Rates and quantiles between two snapshots."""

from __future__ import annotations

import json
from typing import Any

import pytest

from appliance.cli.activity import between, busiest_first, quantile_us, since_start
from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.snapshot import Snapshot, parse

SECOND = 1_000_000_000
URL = "127.0.0.1:8000"


def document(now_s: int, models: list[dict[str, Any]], started_s: int = 0) -> Snapshot:
    worker = {"worker": 4, "pid": 77, "state": "ready", "models": [], "memory_bytes": 1 << 20, "restarts": 0}
    return parse(
        json.dumps(
            {
                "format": 1, "server": {"name": "appliance", "version": "9"}, "accepting": True,
                "now_ns": now_s * SECOND, "started_ns": started_s * SECOND, "uptime_ms": 0, "queued_requests": 0,
                "queued_bytes": 0, "running_requests": 0, "arena_used_bytes": 0, "arena_limit_bytes": 1,
                "bounds_us": [10, 20, 40], "workers": [worker], "models": models, "a_field_of_tomorrow": 1,
            }
        ).encode(),
        URL,
    )  # fmt: skip


def model(
    name: str, counts: list[int], refused: int = 0, rows: int = 0, batches: int = 0, failed_rows: int = 0
) -> dict[str, Any]:
    histogram = {"count": sum(counts), "sum_ns": 0, "p50_us": 1.0, "p99_us": 1.0, "counts": counts}
    return {
        "name": name, "version": 1, "state": "READY", "reason": "", "queued": 0, "running": 0, "workers": [4],
        "requests": {"success": sum(counts), "refused": refused}, "inferences": rows, "executions": batches,
        "executed_rows": rows + failed_rows, "retries": 0, "batch_mean": None, "last_inference_ms": 0,
        "stages": {"total": histogram},
    }  # fmt: skip


def test_only_the_interval_counts() -> None:
    before = document(10, [model("a", [100, 0, 7], refused=1, rows=50, batches=50)])
    now = document(12, [model("a", [100, 20, 7], refused=5, rows=90, batches=60)])
    (activity,) = between(before, now)
    assert (activity.rate_per_s, activity.refused_per_s, activity.batch_mean) == (10.0, 2.0, 4.0)
    assert activity.p50_us == 15.0
    assert activity.p99_us == pytest.approx(19.9)
    assert activity.memory_bytes == 1 << 20


def test_batches_whose_requests_failed_count_with_their_rows() -> None:
    before = document(10, [model("a", [1], rows=4, batches=1)])
    now = document(12, [model("a", [1], rows=4, batches=6, failed_rows=10)])
    assert [activity.batch_mean for activity in between(before, now)] == [2.0]


def test_a_quiet_interval_has_no_latency() -> None:
    snapshot = document(10, [model("a", [3])])
    (activity,) = between(snapshot, document(11, [model("a", [3])]))
    assert (activity.rate_per_s, activity.p50_us, activity.batch_mean) == (0.0, None, None)


def test_a_restart_between_begins_again() -> None:
    before = document(100, [model("a", [1_000])])
    (activity,) = between(before, document(112, [model("a", [5])], started_s=102))
    assert activity.rate_per_s == 0.5


def test_a_model_that_is_new_counts_from_nothing() -> None:
    now = document(11, [model("a", [0]), model("b", [6])])
    assert [activity.rate_per_s for activity in between(document(10, [model("a", [0])]), now)] == [0.0, 6.0]


def test_busiest_first_and_else_as_given() -> None:
    now = document(1, [model("a", [1]), model("b", [9]), model("c", [1])])
    assert [activity.model.name for activity in busiest_first(since_start(now))] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("counts", "fraction", "expected"),
    [([], 0.5, None), ([0, 0], 0.5, None), ([4], 0.5, 5.0), ([0, 0, 0, 3], 0.99, 40), ([1, 1], 1.0, 20.0)],
)
def test_quantiles(counts: list[int], fraction: float, expected: float | None) -> None:
    assert quantile_us(counts, (10, 20, 40), fraction) == expected


@pytest.mark.parametrize("text", [b"", b"[]", b'{"format": 2}', b'{"format": 1}', b"\xff"])
def test_other_documents_are_refused(text: bytes) -> None:
    with pytest.raises(CommandFailed):
        parse(text, URL)


@pytest.mark.parametrize("text", [b"Not found", b"[]", b"[" * 100_000, b'{"hello": 1}', b'{"format": 1}'])
def test_what_is_no_status_document_is_no_appliances_http_port(text: bytes) -> None:
    with pytest.raises(CommandFailed, match=f"{URL}, but it is not the HTTP port") as caught:
        parse(text, URL)
    assert caught.value.status == Exit.UNREACHABLE

"""Rates and quantiles between two snapshots."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from appliance.cli.activity import Interval, between, quantile_us
from appliance.cli.activity_view import as_json, view
from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.snapshot import Snapshot, parse

SECOND = 1_000_000_000
URL = "127.0.0.1:8000"


def document(now_s: int, models: list[dict[str, Any]], started_s: int = 0, **more: object) -> Snapshot:
    worker = {"worker": 4, "pid": 77, "state": "ready", "models": [], "memory_bytes": 1 << 20, "restarts": 0}
    return parse(
        json.dumps(
            {
                "format": 1, "server": {"name": "appliance", "version": "9"}, "accepting": True,
                "now_ns": now_s * SECOND, "started_ns": started_s * SECOND, "uptime_ms": 0, "queued_requests": 0,
                "queued_bytes": 0, "running_requests": 0, "arena_used_bytes": 0, "arena_limit_bytes": 1,
                "bounds_us": [10, 20, 40], "workers": [worker], "models": models, "a_field_of_tomorrow": 1,
                **more,
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
    (activity,) = between(before, now).versions
    assert (activity.rate_per_s, activity.refused_per_s, activity.batch_mean) == (10.0, 2.0, 4.0)
    assert activity.p50_us == 15.0
    assert activity.p99_us == pytest.approx(19.9)
    assert activity.memory_bytes == 1 << 20


def test_batches_whose_requests_failed_count_with_their_rows() -> None:
    before = document(10, [model("a", [1], rows=4, batches=1)])
    now = document(12, [model("a", [1], rows=4, batches=6, failed_rows=10)])
    assert [activity.batch_mean for activity in between(before, now).versions] == [2.0]


def with_grants(now_s: int, answered: int, leased: int, asked: int, given: int) -> Snapshot:
    """One model and one worker, from a server that tells of grants."""
    fields = {
        **model("a", [answered]), "leased": leased,
    }  # fmt: skip
    snapshot = document(now_s, [fields])
    worker = replace(snapshot.workers[0], asked=asked, leased=given, leased_now=True)
    return replace(snapshot, workers=(worker,), slots=8, slots_used=3)


def test_the_share_that_was_leased_is_that_of_the_interval() -> None:
    before, now = with_grants(10, 100, 10, 90, 10), with_grants(12, 300, 190, 110, 190)
    (activity,) = between(before, now).versions
    assert activity.leased == 0.9
    (worker,) = between(before, now).workers
    assert (worker.leased, worker.rate_per_s) == (0.9, 100.0)
    (worker,) = between(None, now).workers
    assert worker.leased == 190 / 300


def test_a_server_that_tells_of_no_grants_has_none() -> None:
    before, now = document(10, [model("a", [1])]), document(12, [model("a", [3])])
    assert [activity.leased for activity in between(before, now).versions] == [0.0]
    assert [worker.leased for worker in between(before, now).workers] == [None]
    assert (now.slots, now.workers[0].leased_now) == (0, False)


def test_tables_and_json_say_what_was_leased() -> None:
    before, now = with_grants(10, 100, 10, 90, 10), with_grants(12, 300, 190, 110, 190)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(view(between(before, now), workers=True))
    text = console.export_text()
    assert "3 slots" in text
    assert re.search(r"a/1 +READY +100 +0 +90.0%", text)
    assert re.search(r"4 +77 +ready +100 +90.0% +leased +0", text)
    shown = as_json(between(before, now))
    assert shown["models"][0]["leased"] == 0.9
    assert (shown["workers"][0]["leased"], shown["workers"][0]["leased_now"]) == (0.9, True)


def test_the_memory_of_models_is_told_and_what_cannot_be_as_it_is_configured() -> None:
    now = document(10, [model("a", [3])])
    assert "models" not in heading(now)
    told = replace(now, models_used_bytes=812 << 20, models_budget_bytes=3 << 30)
    assert "models 812 of 3072 MiB" in heading(told)
    assert heading(replace(told, models_budget_bytes=1 << 62)).endswith("models 812 MiB")
    said = heading(replace(told, problems=tuple(f"pin {number} names no model" for number in range(5))))
    assert said.splitlines()[1:] == [
        *(f"Memory for models: pin {number} names no model" for number in range(3)),
        "... 2 more in residency.problems of /status.json",
    ]
    assert as_json(Interval(now=told))["models_used_bytes"] == 812 << 20


def test_the_store_and_what_is_near_are_told() -> None:
    now = document(10, [])
    assert "store" not in heading(now)
    told = replace(
        now, store_taken_bytes=3 << 20, store_free_bytes=5 << 30, notices=("The certificate ends.",)
    )
    assert heading(told).endswith(", store 3.0 MiB, 5.0 GiB free on its disk\nThe certificate ends.")
    assert "store 3.0 MiB of 1.0 GiB" in heading(replace(told, store_quota_bytes=1 << 30))


def test_which_site_it_is_stands_before_all_else() -> None:
    now = document(10, [])
    assert heading(now).startswith("appliance 9, up ")
    told = document(10, [], fleet={"device": "north", "group": "sites"})
    assert heading(told).startswith(f"north, group sites: {heading(now)}")
    assert as_json(Interval(now=told))["site"] == "north, group sites"
    assert heading(document(10, [], fleet={"device": "north", "group": ""})).startswith("north: ")
    assert heading(document(10, [], fleet=None)) == heading(now)


def heading(snapshot: Snapshot) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(view(Interval(now=snapshot)))
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()[:-1])


def refusing(now_s: int, **refused: int) -> Snapshot:
    return replace(document(now_s, []), over_quota=refused)


def test_who_is_refused_for_its_quota_is_told_the_worst_first() -> None:
    before, now = refusing(10, a=5, b=7), refusing(12, a=15, b=7, c=100, d=8, e=6)
    over_quota = between(before, now).over_quota
    assert list(over_quota.items()) == [("c", 50.0), ("a", 5.0), ("d", 4.0), ("e", 3.0)]
    assert between(None, before).over_quota == {"a": 0.5, "b": 0.7}
    shown = io.StringIO()
    Console(file=shown, width=200).print(view(Interval(now=now, over_quota={**over_quota, "*": 1.0})))
    assert "Refused for their quota: c 50/s, a 5/s, d 4/s, 2 more clients" in shown.getvalue()
    assert as_json(Interval(now=now, over_quota=over_quota))["over_quota_per_s"]["c"] == 50.0
    shown.seek(0)
    Console(file=shown, width=200).print(view(Interval(now=now, over_quota={"*": 1.0})))
    assert "Refused for their quota: clients without a name 1/s" in shown.getvalue()


def test_clients_that_are_held_are_told() -> None:
    now = between(None, document(1, [{**model("a", [1]), "held_clients": 2}, model("b", [1])]))
    shown = io.StringIO()
    Console(file=shown, width=200).print(view(now))
    assert "a/1: 2 clients held, whose requests ended its workers" in shown.getvalue()
    assert "b/1:" not in shown.getvalue()
    assert [each["held_clients"] for each in as_json(now)["models"]] == [2, 0]


def shown(*models: dict[str, Any]) -> str:
    """What ``status`` prints, each run of spaces as one."""
    text = io.StringIO()
    Console(file=text, width=200).print(view(between(None, document(1, [*models]))))
    return " ".join(text.getvalue().split())


def test_notes_are_told_as_the_page_tells_them_whoever_noted_it() -> None:
    said = shown({**model("a", [1]), "notes": ["2 of 3 nodes run on the processor: NonZero"]})
    assert "a/1: Noted: 2 of 3 nodes run on the processor: NonZero" in said
    assert "config.pbtxt" not in said


def on_trial(stage: str, *, before: int) -> dict[str, Any]:
    return {
        "stage": stage, "before": before, "percent": 10.0 if stage in ("canary", "shadow") else 0.0, "header": "",
        "answered": 3, "failed": 1, "compared": 0, "differing": 0,
    }  # fmt: skip


def test_what_is_on_trial_is_told_from_what_loads() -> None:
    canary = {**model("a", [1]), "phase": "canary", "trial": on_trial("canary", before=7)}
    shadow = {**model("b", [1]), "phase": "shadow", "state": "LOADING", "trial": on_trial("shadow", before=7)}
    said = shown(canary, shadow)
    assert "a/1 READY" in said
    assert "a/1: canary, after version 7, 10 % of the requests, 3 answered, 1 failed" in said
    assert "b/1 SHADOW" in said
    assert "LOADING" not in said
    documents = as_json(between(None, document(1, [canary, shadow])))["models"]
    assert [(each["state"], each["phase"]) for each in documents] == [
        ("READY", "canary"),
        ("LOADING", "shadow"),
    ]


def with_rates(width: int, encoding: str = "utf-8") -> list[str]:
    """The rows of three models that ``top`` shows on a screen of this width."""
    canary = {**on_trial("canary", before=7), "wanted": 100}
    models = [
        {**model("image-classifier", [4, 3]), "rates_per_s": [0, 1, 5.5, 9, 12, 3, 0, 0, 7, 8, 9, 10]},
        {**model("digits", [1]), "phase": "canary", "trial": canary, "rates_per_s": [0.0, 0.0]},
        model("of-an-earlier-release", []),
    ]
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width).print(view(between(None, document(1, models)), rates=True))
    file.seek(0)
    return file.read().splitlines()


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize(
    ("encoding", "busy", "quiet"), [("utf-8", "▁▂▅▇█▃▁▁▆▆▇▇", "▁▁"), ("ascii", "_.=*#:__++**", "__")]
)
def test_top_shows_the_rates_of_the_last_minutes_as_bars(
    width: int, encoding: str, busy: str, quiet: str
) -> None:
    lines = with_rates(width, encoding)
    assert max(map(len, lines)) <= width
    rows = {line.split("/1 ")[0]: line.split() for line in lines if "/1 " in line}
    assert (busy in rows["image-classifier"], quiet in rows["digits"]) == (True, True)
    assert not {busy, quiet} & set(rows["of-an-earlier-release"])
    said = " ".join(" ".join(lines).split())
    assert "digits/1: canary, after version 7, 10 % of the requests, 3 of 100 answered, 1 failed" in said
    assert not any(bar in shown(model("a", [1])) for bar in (busy, quiet)), "status shows none"


def test_a_watch_is_told_where_there_is_a_version_to_go_back_to() -> None:
    assert "watch" not in shown({**model("a", [1]), "phase": "watched", "trial": on_trial("watch", before=0)})
    for before, kept in ((7, "version 7"), (1, "what it was before")):
        said = shown({**model("a", [1]), "phase": "watched", "trial": on_trial("watch", before=before)})
        assert f"a/1: watched since it went live; {kept} is kept to go back to, 3 answered, 1 failed" in said
    said = shown({**model("a", [1]), "phase": "canary", "trial": on_trial("canary", before=1)})
    assert "a/1: canary, after what it was before, 10 %" in said


def test_a_quiet_interval_has_no_latency() -> None:
    snapshot = document(10, [model("a", [3])])
    (activity,) = between(snapshot, document(11, [model("a", [3])])).versions
    assert (activity.rate_per_s, activity.p50_us, activity.batch_mean) == (0.0, None, None)


def test_a_restart_between_begins_again() -> None:
    before = document(100, [model("a", [1_000])])
    (activity,) = between(before, document(112, [model("a", [5])], started_s=102)).versions
    assert activity.rate_per_s == 0.5


def test_a_model_that_is_new_counts_from_nothing() -> None:
    now = document(11, [model("a", [0]), model("b", [6])])
    assert [activity.rate_per_s for activity in between(document(10, [model("a", [0])]), now).versions] == [
        0.0,
        6.0,
    ]


def test_busiest_first_and_else_as_given() -> None:
    now = document(1, [model("a", [1]), model("b", [9]), model("c", [1])])
    assert [activity.model.name for activity in between(None, now).busiest_first().versions] == [
        "b",
        "a",
        "c",
    ]


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

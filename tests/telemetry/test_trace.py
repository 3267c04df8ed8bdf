"""Which requests are traced, and what their lines say."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from appliance.config.telemetry import TraceConfig
from appliance.domain.errors import OperatorError, QueueFull
from appliance.telemetry.meter import Result
from appliance.telemetry.otlp import STAGES, parent_of, stages
from appliance.telemetry.sink import FileTarget, Sink
from appliance.telemetry.trace import Tracer, open_tracer
from tests.domain.sample import make_version
from tests.telemetry.test_log import ended

SECOND_NS = 1_000_000_000
WALL_NS = 1_700_000_000_000_000_000
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN_ID = "00f067aa0ba902b7"


def traceparent(flags: str = "01") -> str:
    return f"00-{TRACE_ID}-{SPAN_ID}-{flags}"


class Traces:
    """A tracer whose clock stands where it is put, and what it has written."""

    def __init__(self, path: Path, config: TraceConfig, wall_ns: int = WALL_NS) -> None:
        self._path = path
        self.now_ns = 0
        self.told: list[int] = []
        self.tracer = Tracer(
            config,
            Sink(FileTarget(path, 1 << 20), 1_000),
            lambda _, traces, reason: self.told.append(traces),
            lambda: self.now_ns,
            lambda: wall_ns + self.now_ns,
            random.Random(1).getrandbits,
        )

    def served(self, now_ns: int) -> None:
        """A request that its client wants traced is answered then."""
        trace = self.tracer.begin("x", now_ns, traceparent())
        assert trace is not None
        trace.ended(ended(), Result.SUCCESS, None, now_ns)
        self.now_ns = now_ns
        self.tracer.end(trace)

    def spans(self) -> list[list[dict[str, Any]]]:
        """The spans of each request."""
        self.tracer.close()
        documents = [json.loads(line) for line in self._path.read_text().splitlines()]
        assert all(len(document["resourceSpans"]) == 1 for document in documents)
        return [document["resourceSpans"][0]["scopeSpans"][0]["spans"] for document in documents]


@pytest.fixture
def traces(tmp_path: Path) -> Iterator[Traces]:
    opened = Traces(tmp_path / "traces.jsonl", TraceConfig(one_in=3, traces_per_s=5))
    yield opened
    opened.tracer.close()


def attributes(span: dict[str, Any]) -> dict[str, str]:
    return {pair["key"]: next(iter(pair["value"].values())) for pair in span["attributes"]}


@pytest.mark.parametrize(
    "text",
    [
        "", "00", traceparent("0"), traceparent("0g"), traceparent() + "-more", traceparent().upper(),
        f"ff-{TRACE_ID}-{SPAN_ID}-01", f"00-{'0' * 32}-{SPAN_ID}-01", f"00-{TRACE_ID}-{'0' * 16}-01",
        f" {traceparent()}", f"{traceparent()}\n", f"00-{TRACE_ID}-{SPAN_ID}-٠١",
    ],
)  # fmt: skip
def test_what_is_no_traceparent_is_none(text: str) -> None:
    assert parent_of(text) is None


def test_a_traceparent_names_trace_and_span_and_whether_it_is_wanted() -> None:
    wanted, unwanted = parent_of(traceparent("03")), parent_of(traceparent("02"))
    assert wanted is not None
    assert unwanted is not None
    assert (wanted.trace_id, wanted.span_id, wanted.sampled) == (TRACE_ID, SPAN_ID, True)
    assert not unwanted.sampled
    assert parent_of(f"01-{TRACE_ID}-{SPAN_ID}-01-of-tomorrow") == wanted


def test_one_in_so_many_is_traced(traces: Traces) -> None:
    begun = [traces.tracer.begin("x", 1, "") is not None for _ in range(9)]
    assert begun == [False, False, True] * 3


def test_so_many_are_written_in_a_second_and_the_others_counted(traces: Traces) -> None:
    for _ in range(30):
        traces.served(1)
    assert (traces.tracer.figures().left_out, traces.told) == (25, [])
    for _ in range(6):
        traces.served(SECOND_NS)
    assert traces.told == [25], "with the next one that is written"
    for _ in range(7):
        traces.served(2 * SECOND_NS)
    assert traces.told == [25], "not every second"
    traces.served(11 * SECOND_NS)
    assert traces.told == [25, 3]
    for _ in range(5):
        traces.served(11 * SECOND_NS)
    assert len(traces.spans()) == 5 * 4
    assert traces.told == [25, 3, 1], "the last ones at the end"
    figures = traces.tracer.figures()
    assert (figures.written, figures.left_out, figures.lost) == (20, 29, 0)


def test_what_is_never_written_takes_no_room(traces: Traces) -> None:
    for _ in range(30):
        turned_down = traces.tracer.begin("x", 1, traceparent())
        assert turned_down is not None
        traces.tracer.end(turned_down)
    for _ in range(5):
        traces.served(1)
    for _ in range(2):
        traces.tracer.leased(make_version(), (7, 3, 2, b"r", b"", (1,) * 8))
    assert len(traces.spans()) == 5
    assert traces.tracer.figures().left_out == 2, "what the front end served by itself counts, too"


def test_a_clients_word_counts_more_than_the_count(traces: Traces) -> None:
    assert traces.tracer.begin("x", 1, traceparent("01")) is not None
    assert not any(traces.tracer.begin("x", 1, traceparent("00")) for _ in range(9))
    assert any(traces.tracer.begin("x", 1, "rubbish") for _ in range(3))


def test_an_answered_request_has_a_span_for_each_stage(traces: Traces) -> None:
    trace = traces.tracer.begin("edge", 1_000, traceparent())
    assert trace is not None
    trace.admitted_ns = 2_000
    request = ended(
        request_id="r1", dispatched_ns=3_000, stages_ns=(100, 5_000, 200), batch_rows=8, attempts=1
    )
    trace.ended(request, Result.SUCCESS, None, 10_000)
    traces.now_ns = 11_000
    traces.tracer.end(trace, "camera")
    ((root, *below),) = traces.spans()
    assert (root["traceId"], root["parentSpanId"], root["kind"]) == (TRACE_ID, SPAN_ID, 2)
    assert "status" not in root
    facts = attributes(root)
    assert (facts["appliance.request.id"], facts["appliance.path"]) == ("r1", "asked")
    assert (facts["appliance.client"], facts["appliance.edge"]) == ("camera", "edge")
    assert (facts["appliance.batch.rows"], facts["appliance.rows"]) == ("8", "2")
    assert [span["name"] for span in below] == list(STAGES)
    begins = [int(span["startTimeUnixNano"]) - WALL_NS for span in below]
    assert begins == [1_000, 2_000, 3_000, 4_700, 4_800, 9_800, 10_000]
    assert int(root["endTimeUnixNano"]) == int(below[-1]["endTimeUnixNano"]) == WALL_NS + 11_000
    assert all(before["endTimeUnixNano"] == after["startTimeUnixNano"] for before, after in pairwise(below))
    assert {span["parentSpanId"] for span in below} == {root["spanId"]}
    ids = [span["spanId"] for span in (root, *below)]
    assert len(set(ids)) == len(ids)
    assert all(len(each) == 16 and int(each, 16) for each in ids)


def test_a_worker_cannot_have_begun_before_it_was_asked(traces: Traces) -> None:
    trace = traces.tracer.begin("x", 1_000, traceparent())
    assert trace is not None
    trace.ended(
        ended(dispatched_ns=3_000, stages_ns=(0, 10**12, 0), batch_rows=1), Result.SUCCESS, None, 9_000
    )
    assert trace.stamps_ns == (1_000, 0, 3_000, 3_000, 3_000, 9_000, 9_000, 0)


def test_what_was_refused_says_why_and_got_no_further(traces: Traces) -> None:
    trace = traces.tracer.begin("x", 1_000, traceparent())
    assert trace is not None
    trace.ended(ended(worker=-1), Result.REFUSED, QueueFull("Exceeds maximum queue size"), 1_500)
    traces.now_ns = 2_000
    traces.tracer.end(trace)
    ((root, *below),) = traces.spans()
    assert root["status"] == {"code": 2, "message": "Exceeds maximum queue size"}
    assert attributes(root)["appliance.outcome"] == "refused"
    assert [span["name"] for span in below] == ["admission"]


def test_what_never_reached_the_engine_is_not_written(traces: Traces) -> None:
    trace = traces.tracer.begin("x", 1_000, traceparent())
    assert trace is not None
    traces.tracer.end(trace)
    assert traces.spans() == []


def test_what_the_front_end_served_by_itself_has_the_same_stages(traces: Traces) -> None:
    stamps = (10, 20, 30, 40, 50, 60, 70, 80)
    for parent in ("", traceparent("01"), traceparent("00"), "\xff"):
        traces.tracer.leased(make_version(), (7, 3, 2, b"r\xff", parent.encode("latin-1"), stamps))
    told = traces.spans()
    assert len(told) == 3, "the client of one did not want it"
    for root, *below in told:
        assert [span["name"] for span in below] == list(STAGES)
        facts = attributes(root)
        assert (facts["appliance.path"], facts["appliance.worker"]) == ("leased", "3")
        assert facts["appliance.request.id"] == "r�"
    assert [root.get("parentSpanId") for root, *_ in told] == [None, SPAN_ID, None]


def test_stages_without_stamps_are_part_of_the_one_before() -> None:
    assert list(stages((10, 20, 0, 0, 0, 0, 0, 90))) == [("admission", 10, 20), ("queue", 20, 90)]
    assert list(stages((10, 0, 0, 0, 0, 0, 0, 5))) == [("admission", 10, 10)]
    assert list(stages((10, 0, 0, 0, 0, 0, 0, 0))) == []


def test_ids_that_clients_made_long_are_cut(traces: Traces) -> None:
    trace = traces.tracer.begin("x", 1_000, traceparent())
    assert trace is not None
    trace.ended(ended(request_id="x" * 100_000), Result.FAILED, QueueFull("y" * 100_000), 1_500)
    traces.tracer.end(trace)
    ((root, *_),) = traces.spans()
    assert len(json.dumps(root)) < 2_000


def unsaid(what: str, **fields: object) -> None:
    raise AssertionError(what)


def test_no_tracer_where_nothing_is_traced_and_an_error_where_it_cannot_be(tmp_path: Path) -> None:
    config = TraceConfig(file=str(tmp_path / "missing" / "traces.jsonl"))
    assert open_tracer(config, unsaid) is None
    with pytest.raises(OperatorError, match=r"trace\.file"):
        open_tracer(replace(config, one_in=1), unsaid)


def test_no_moment_is_before_that_at_which_a_clock_begins(tmp_path: Path) -> None:
    """The wall clock was set to 1970 while the request ran."""
    traces = Traces(tmp_path / "traces.jsonl", TraceConfig(one_in=1), -7_000_000_000)
    traces.served(5_000_000_000)
    (spans,) = traces.spans()
    assert all(int(span[key]) >= 0 for span in spans for key in ("startTimeUnixNano", "endTimeUnixNano"))

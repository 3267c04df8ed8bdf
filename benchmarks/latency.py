"""From recorded calls to the figures of a load run. Pure: no clock, no I/O.

Every latency is counted from the moment a call was due, not from when it was sent, so a generator or a server
that stalls cannot hide the wait it caused.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

OK = 0
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}


class Call(NamedTuple):
    """One finished call. Times in ns on the monotonic clock; `code` is the gRPC status number."""

    due: int
    sent: int
    done: int
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of the run that counts, by due time, and the bound within which an answer is useful."""

    begin_ns: int
    end_ns: int
    bound_ns: int

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return (self.end_ns - self.begin_ns) / 1e9


def percentile(ordered: Sequence[int], share: float) -> float:
    """The value below which `share` of the ordered values lie; 0.0 of nothing."""
    if not ordered:
        return 0.0
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])


def spread_us(latencies_ns: Sequence[int]) -> dict[str, float]:
    """Count and percentiles in microseconds."""
    ordered = sorted(latencies_ns)
    figures = {name: round(percentile(ordered, share) / 1e3, 1) for name, share in PERCENTILES.items()}
    return {"count": float(len(ordered)), **figures}


def summarise(calls: Sequence[Call], window: Window) -> dict[str, object]:
    """All figures of one run, ready for JSON.

    `throughput` counts good answers by when they came, `offered` and `goodput` calls by when they were due.
    """
    counted = [call for call in calls if window.begin_ns <= call.due < window.end_ns]
    answers = sum(1 for call in calls if call.code == OK and window.begin_ns <= call.done < window.end_ns)
    good = sum(1 for call in counted if _in_time(call, window))
    by_code: dict[int, list[int]] = defaultdict(list)
    for call in counted:
        by_code[call.code].append(call.done - call.due)
    return {
        "seconds": window.seconds,
        "offered": round(len(counted) / window.seconds, 1),
        "throughput": round(answers / window.seconds, 1),
        "goodput": round(good / window.seconds, 1),
        "in_time_share": round(good / len(counted), 5) if counted else 0.0,
        "ok": spread_us(by_code.pop(OK, [])),
        "failed": {str(code): spread_us(latencies) for code, latencies in sorted(by_code.items())},
        "lag": spread_us([call.sent - call.due for call in counted]),
        "series": series(counted, window),
    }


def series(calls: Sequence[Call], window: Window) -> list[Mapping[str, float]]:
    """One row per second of the window: offered, answered in time, failed, p99 of good answers in us."""
    seconds: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        seconds[(call.due - window.begin_ns) // 1_000_000_000].append(call)
    return [_second(second, seconds[second], window) for second in sorted(seconds)]


def _second(second: int, calls: Sequence[Call], window: Window) -> dict[str, float]:
    latencies = sorted(call.done - call.due for call in calls if call.code == OK)
    return {
        "second": float(second),
        "offered": float(len(calls)),
        "in_time": float(sum(1 for call in calls if _in_time(call, window))),
        "failed": float(len(calls) - len(latencies)),
        "p99_us": round(percentile(latencies, 0.99) / 1e3, 1),
    }


def _in_time(call: Call, window: Window) -> bool:
    return call.code == OK and call.done - call.due <= window.bound_ns

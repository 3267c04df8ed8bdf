"""Search a boundary for what breaks a rule: ``python -m tests.fuzz.search worker_messages --minutes 10``.

An input that does is shrunk and kept, and ends the search with status 1; every test run replays what was kept. More
than MEMORY_BYTES or HANG_S for one input breaks a rule, too.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
import traceback

from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.boundaries import BOUNDARIES
from tests.fuzz.boundary import Boundary, Judge, RuleBroken

MEMORY_BYTES = 8 << 30
HANG_S = 20
BATCH = 300


class _Watched:
    """A judge whose cases are counted, and which remembers what it judged last."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.count = 0
        self.failed = b""

    def judge(self, case: bytes) -> None:
        self.count += 1
        signal.alarm(HANG_S)
        try:
            self._judge(case)
        except BaseException:
            self.failed = case
            raise
        finally:
            signal.alarm(0)


def _hung(*_: object) -> None:
    raise RuleBroken(f"took longer than {HANG_S} s")


def search(boundary: Boundary, minutes: float) -> tuple[int, bytes]:
    """How many inputs were judged in that time, and the one that broke a rule; b"" for none."""
    end = time.monotonic() + minutes * 60
    with boundary.opened() as judge:
        watched = _Watched(judge)
        once = settings(
            max_examples=BATCH,
            deadline=None,
            database=None,
            derandomize=False,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )(given(boundary.cases)(watched.judge))
        while time.monotonic() < end:
            try:
                once()
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                error.__notes__ = []  # the whole strategy, in words
                traceback.print_exception(error)
                return watched.count, watched.failed
        return watched.count, b""


def main() -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("boundary", choices=[*BOUNDARIES])
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    boundary = BOUNDARIES[options.boundary]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _hung)
    count, found = search(boundary, options.minutes)
    print(f"{options.boundary}: {count} inputs judged", flush=True)
    if found:
        print(f"kept as {boundary.keep(found)}:\n{found[:2000]!r}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

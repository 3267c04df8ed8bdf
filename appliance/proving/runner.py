"""Runs one loaded version on requests laid out as a worker has them: in place, on the calling thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from appliance.model import ModelVersion
from appliance.proving.requests import Request, rows_of
from appliance.proving.trials import Speed
from appliance.runtimes.alignment import aligned
from appliance.runtimes.runtime import Feed, Place, Region, Runtime, RuntimeSettings, Session
from appliance.workers.region import Scratch
from appliance.workers.signature import check_signature

WARM_RUNS: Final = 3
RUNS_MIN: Final = 5
RUNS_MAX: Final = 10_000


class Answer(NamedTuple):
    """An output: full shape and raw wire bytes."""

    shape: tuple[int, ...]
    raw: bytes


class Runner:
    """One session; ``load_ns`` is how long it took to make. Owner: the trial's process."""

    def __init__(self, runtime: Runtime, version: ModelVersion, threads: int = 1) -> None:
        begin = time.monotonic_ns()
        self._session: Session = runtime.load(version, RuntimeSettings(threads=threads))
        self.load_ns = time.monotonic_ns() - begin
        self.version = version
        check_signature(version, self._session)

    def answer(self, request: Request) -> tuple[Answer, ...]:
        """All outputs, in the order of the version. Raises InvalidRequest and RunFailed."""
        region, feeds, place = self._lay_out(request, 0)
        produced = self._session.run(region, feeds, self._wanted(), place)
        assert produced.parts is not None
        return tuple(
            Answer(shape, bytes(part)) for shape, part in zip(produced.shapes, produced.parts, strict=True)
        )

    def measure(self, request: Request, budget_ns: int) -> Speed:
        """Runs until the budget is spent."""
        taken = self.rounds(request, budget_ns)
        return speed(rows_of(self.version, request), taken)

    def rounds(self, request: Request, budget_ns: int, runs_max: int = RUNS_MAX) -> list[int]:
        """Nanoseconds of each run, after a few that warm up; a handful at least."""
        room = sum(aligned(len(each.raw)) for each in self.answer(request))
        region, feeds, place = self._lay_out(request, room)
        wanted = self._wanted()
        taken: list[int] = []
        started = time.monotonic_ns()
        for number in range(WARM_RUNS + runs_max):
            begin = time.monotonic_ns()
            self._session.run(region, feeds, wanted, place)
            end = time.monotonic_ns()
            taken.append(end - begin)
            if number >= WARM_RUNS + RUNS_MIN - 1 and end - started > budget_ns:
                break
        return taken[WARM_RUNS:]

    def close(self) -> None:
        """Give the session back."""
        self._session.close()

    def _wanted(self) -> tuple[int, ...]:
        return tuple(range(len(self.version.outputs)))

    def _lay_out(self, request: Request, room: int) -> tuple[Region, tuple[Feed | None, ...], Place]:
        """The request in memory of its own, with ``room`` bytes for outputs behind it."""
        tensors = [request.get(spec.name) for spec in self.version.inputs]
        inside = sum(aligned(len(each.raw)) for each in tensors if each is not None)
        region = Scratch().at_least(inside + room)
        feeds: list[Feed | None] = []
        position = 0
        for each in tensors:
            if each is None:
                feeds.append(None)
                continue
            region.view[position : position + len(each.raw)] = each.raw
            feeds.append(Feed(each.shape, position, len(each.raw)))
            position += aligned(len(each.raw))
        return region, tuple(feeds), Place(region, position, room)


def speed(rows: int, taken: Sequence[int]) -> Speed:
    """What runs of one batch size come to; a quantile is a run that happened, the upper one of two."""
    ordered = sorted(taken)
    return Speed(
        rows=rows,
        runs=len(ordered),
        best_ns=ordered[0],
        p50_ns=ordered[len(ordered) // 2],
        p99_ns=ordered[-(-len(ordered) * 99 // 100) - 1],
    )

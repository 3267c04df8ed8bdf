"""Run one loaded version on requests laid out as a worker has them: in place, on the calling thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from appliance.domain.errors import ArtefactError
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import aligned
from appliance.runtimes import reshape
from appliance.runtimes.runtime import Feed, Place, Region, Runtime, RuntimeSettings, Session, check_signature
from appliance.runtimes.runtime import batch_sizes as filled_sizes
from appliance.tools.evaluation.gpu import take_device
from appliance.tools.evaluation.inputs import Inputs, rows_of
from appliance.tools.evaluation.jobs import Speed
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.rows import mixes_rows
from appliance.workers.child.tensors import Scratch

WARM_RUNS: Final = 2
RUNS_MIN: Final = 5
RUNS_MAX: Final = 10_000
ROWS_MAX: Final = 32


Round = Callable[[int, int], list[int]]
"""Nanoseconds of runs until a budget is spent, and of so many at least."""


class Answer(NamedTuple):
    """An output: full shape and raw wire bytes."""

    shape: tuple[int, ...]
    raw: bytes


class Runner:
    """One session; ``load_ns`` is how long it took to make. Owner: the process of the job."""

    def __init__(self, runtime: Runtime, version: ModelVersion, threads: int = 1) -> None:
        self.version = version
        self._settings = RuntimeSettings(threads=threads, device=take_device(version.device))
        self._session, self.load_ns = self._open(runtime)
        if version.rows_assumed and filled_sizes(self._session) and mixes_rows(self.loaded):
            self.close()  # batches are not filled up on a box either
            self.version = replace(version, batching=None)
            self._session, self.load_ns = self._open(runtime)

    def _open(self, runtime: Runtime) -> tuple[Session, int]:
        begin = time.monotonic_ns()
        session = reshape.load(runtime, self.version, self._settings)
        took_ns = time.monotonic_ns() - begin
        check_signature(self.version, session)
        return session, took_ns

    def answer(self, inputs: Inputs) -> tuple[Answer, ...]:
        """All outputs, in the order of the version. Raises InvalidRequest and RunFailed."""
        region, feeds, place = self._lay_out(inputs, 0)
        produced = self._session.run(region, feeds, self._wanted(), place)
        assert produced.parts is not None
        return tuple(
            Answer(shape, bytes(part)) for shape, part in zip(produced.shapes, produced.parts, strict=True)
        )

    def measure(self, inputs: Inputs, budget_ns: int) -> Speed:
        """Run until the budget is spent."""
        return speed(rows_of(self.version, inputs), self.prepared(inputs)(budget_ns, RUNS_MIN))

    def prepared(self, inputs: Inputs) -> Round:
        """Lay the inputs out and run them a few times, so that later runs take what runs take."""
        room = sum(aligned(len(each.raw)) for each in self.answer(inputs))
        region, feeds, place = self._lay_out(inputs, room)
        wanted = self._wanted()

        def once() -> int:
            begin = time.monotonic_ns()
            self._session.run(region, feeds, wanted, place)
            return time.monotonic_ns() - begin

        def measured(budget_ns: int, runs_min: int) -> list[int]:
            taken: list[int] = []
            spent = 0
            while len(taken) < runs_min or (spent < budget_ns and len(taken) < RUNS_MAX):
                taken.append(once())
                spent += taken[-1]
            return taken

        for _ in range(WARM_RUNS):
            once()
        return measured

    @property
    def loaded(self) -> LoadedModel:
        """As what a worker has, for what it proves."""
        return LoadedModel(version=self.version, session=self._session)

    def close(self) -> None:
        """Give the session back."""
        self._session.close()

    def _wanted(self) -> tuple[int, ...]:
        return tuple(range(len(self.version.outputs)))

    def _lay_out(self, inputs: Inputs, room: int) -> tuple[Region, tuple[Feed | None, ...], Place]:
        """Lay the inputs out in memory of its own, with ``room`` bytes for outputs behind it."""
        tensors = [inputs.get(spec.name) for spec in self.version.inputs]
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


def batch_sizes(version: ModelVersion, asked: Sequence[int]) -> tuple[int, ...]:
    """What is ``asked``; else 1, 2, 4 ... and the largest, which is at most ROWS_MAX. Raises ArtefactError for a size
    that the version does not take."""
    largest = max(version.max_batch_size, 1)
    if any(not 1 <= rows <= largest for rows in asked):
        if largest == 1:
            raise ArtefactError(f"{version.key} takes no batches; leave --rows out")
        raise ArtefactError(f"{version.key} takes batches of 1 to {largest} rows")
    limit = min(largest, ROWS_MAX)
    return tuple(asked) or tuple(sorted({1 << power for power in range(limit.bit_length())} | {limit}))
